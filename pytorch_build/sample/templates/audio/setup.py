# Keeps the contract of pytorch/audio's setup.py: BUILD_VERSION, PYTORCH_VERSION, USE_ROCM, USE_CUDA, USE_FFMPEG,
# BUILD_SOX, USE_OPENMP; `python setup.py bdist_wheel` with the installed torch.
import os
import subprocess
from pathlib import Path

from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent


def flag(name):
    return os.environ.get(name, "0").upper() in {"ON", "1", "YES", "TRUE", "Y"}


def get_sha():
    try:
        return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def get_version(sha):
    version = (ROOT / "version.txt").read_text().strip()
    return os.environ.get("BUILD_VERSION") or (f"{version}+{sha[:7]}" if sha else version)


sha = get_sha()
version = get_version(sha)
features = {name: flag(name) for name in ("USE_ROCM", "USE_CUDA", "USE_FFMPEG", "BUILD_SOX", "USE_OPENMP")}
(ROOT / "torchaudio" / "version.py").write_text(
    f"__version__ = {version!r}\ngit_version = {sha or 'Unknown'!r}\nfeatures = {features!r}\n"
)
pytorch = os.environ.get("PYTORCH_VERSION")

setup(
    name="torchaudio",
    version=version,
    description="Audio for the sample's torch: a miniature that keeps torchaudio's build contract",
    license="MIT",
    packages=find_packages(include=["torchaudio", "torchaudio.*"]),
    ext_modules=[CppExtension("torchaudio.lib._torchaudio", ["torchaudio/csrc/functional.cpp"])],
    cmdclass={"build_ext": BuildExtension},
    install_requires=[f"torch=={pytorch}" if pytorch else "torch"],
    zip_safe=False,
)
