# Keeps the contract of pytorch's setup.py: the variables below, CMake and ninja in build/, libraries in torch/lib.
#
#   PYTORCH_BUILD_VERSION, PYTORCH_BUILD_NUMBER   the wheel's version (tools/generate_torch_version.py)
#   PYTORCH_EXTRA_INSTALL_REQUIREMENTS            further requirements, separated by |
#   BUILD_*, USE_*, CMAKE_*                       passed to CMake as they are
#   PYTORCH_ROCM_ARCH, ROCM_HOME, BLAS            gfx targets separated by ; the ROCm tree, the BLAS library
#   MAX_JOBS                                      how many compilers run side by side
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
VERSIONS = runpy.run_path(str(ROOT / "tools/generate_torch_version.py"))

PASSED_PREFIXES = ("BUILD_", "USE_", "CMAKE_")
LIBRARIES = ("*.pyd", "lib/*.dll", "lib/*.lib") if sys.platform == "win32" else ("*.so", "lib/*.so")
PASSED_NAMES = ("PYTORCH_ROCM_ARCH", "ROCM_HOME", "BLAS", "OpenBLAS_HOME", "OpenBLAS_LIB_NAME")


CMAKE_ONLY = "--cmake-only" in sys.argv
sys.argv = [word for word in sys.argv if word != "--cmake-only"]


def check_submodules():
    for folder in ("third_party/miniblas", "third_party/miniblas/third_party/minivec"):
        if not (ROOT / folder / "include").is_dir():
            sys.exit(f"Could not find {folder}. Did you run 'git submodule update --init --recursive'?")


def cmake_options(environ):
    options = {name: value for name, value in sorted(environ.items()) if name.startswith(PASSED_PREFIXES)}
    options |= {name: environ[name] for name in PASSED_NAMES if name in environ}
    options.setdefault("CMAKE_BUILD_TYPE", "Debug" if environ.get("DEBUG") == "1" else "Release")
    options |= {"CMAKE_INSTALL_PREFIX": str(ROOT / "torch"), "Python_EXECUTABLE": sys.executable}
    # A backslash, as in Windows' paths, begins an escape in CMake's texts.
    return [f"-D{name}={value}".replace("\\", "/") for name, value in options.items()]


def build_deps():
    check_submodules()
    cmake = shutil.which("cmake") or sys.exit("cmake is not on the PATH: install requirements-build.txt.")
    build_dir = str(ROOT / "build")
    if not (ROOT / "build" / "build.ninja").is_file():  # as upstream, which never configures again
        subprocess.check_call([cmake, "-GNinja", "-S", str(ROOT), "-B", build_dir, *cmake_options(os.environ)])
    if CMAKE_ONLY:
        sys.exit()
    jobs = ["-j", os.environ["MAX_JOBS"]] if os.environ.get("MAX_JOBS") else []
    subprocess.check_call([cmake, "--build", build_dir, "--target", "install", *jobs])


class BuildWithDeps(build):
    def run(self):
        build_deps()
        super().run()


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


def install_requires():
    extra = os.environ.get("PYTORCH_EXTRA_INSTALL_REQUIREMENTS", "")
    return ["typing-extensions>=4.10.0", *(word.strip() for word in extra.split("|") if word.strip())]


setup(
    version=VERSIONS["get_torch_version"](),
    packages=find_packages(include=["torch", "torch.*"]),
    package_data={"torch": [*LIBRARIES, "bin/*", "lib/aotriton.images/**/*", "include/**/*.h"]},
    install_requires=install_requires(),
    distclass=BinaryDistribution,
    cmdclass={"build": BuildWithDeps},
    zip_safe=False,
)
