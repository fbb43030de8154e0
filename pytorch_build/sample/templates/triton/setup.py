# Keeps the contract of triton's setup.py (at the root since 3.4): TRITON_WHEEL_VERSION_SUFFIX, TRITON_WHEEL_NAME,
# TRITON_APPEND_CMAKE_ARGS, MAX_JOBS; the commit's id in the version, except on a branch named release….
import os
import shlex
import subprocess
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def git(*arguments):
    try:
        return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def get_git_commit_hash(length=8):
    commit = git("rev-parse", f"--short={length}", "HEAD")
    return f"+git{commit}" if commit else ""


def version_suffix():
    released = git("rev-parse", "--abbrev-ref", "HEAD").startswith("release")
    commit = get_git_commit_hash() if (ROOT / ".git").exists() and not released else ""
    named = os.environ.get("TRITON_WHEEL_VERSION_SUFFIX", "")
    # A version holds one plus.
    return commit + (named.replace("+", "-") if commit else named)


class CMakeBuild(build_ext):
    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext):
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        build_dir = Path(self.build_temp).resolve()
        extra = shlex.split(os.environ.get("TRITON_APPEND_CMAKE_ARGS", ""))
        options = ["-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target}", *extra]
        subprocess.check_call(["cmake", "-GNinja", "-S", str(ROOT), "-B", str(build_dir), *options])
        jobs = ["-j", os.environ["MAX_JOBS"]] if os.environ.get("MAX_JOBS") else []
        subprocess.check_call(["cmake", "--build", str(build_dir), *jobs])


setup(
    name=os.environ.get("TRITON_WHEEL_NAME", "triton"),
    version="3.6.0" + version_suffix(),
    description="A miniature of Triton that keeps its build contract",
    license="MIT",
    python_requires=">=3.10",
    packages=find_packages(where="python"),
    package_dir={"": "python"},
    ext_modules=[Extension("triton._C.libtriton", [])],
    cmdclass={"build_ext": CMakeBuild},
    zip_safe=False,
)
