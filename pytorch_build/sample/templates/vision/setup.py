# Keeps the contract of pytorch/vision's setup.py: BUILD_VERSION, PYTORCH_VERSION, FORCE_CUDA,
# TORCHVISION_USE_NVJPEG, TORCHVISION_USE_VIDEO_CODEC; `python setup.py bdist_wheel` with the installed torch.
import os
import subprocess
from pathlib import Path

import torch
from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

ROOT = Path(__file__).resolve().parent


def flag(name, default="0"):
    return os.environ.get(name, default) == "1"


def get_sha():
    try:
        return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def get_version(sha):
    version = (ROOT / "version.txt").read_text().strip()
    return os.environ.get("BUILD_VERSION") or (f"{version}+{sha[:7]}" if sha else version)


def get_extension():
    sources = ["torchvision/csrc/boxes.cpp"]
    if torch.version.hip and (torch.cuda.is_available() or flag("FORCE_CUDA")):
        return CUDAExtension("torchvision._C", [*sources, "torchvision/csrc/cuda/boxes_kernel.cu"])
    return CppExtension("torchvision._C", sources)


sha = get_sha()
version = get_version(sha)
features = {name: flag(name, "1") for name in ("TORCHVISION_USE_NVJPEG", "TORCHVISION_USE_VIDEO_CODEC")}
(ROOT / "torchvision" / "version.py").write_text(
    f"__version__ = {version!r}\ngit_version = {sha or 'Unknown'!r}\nfeatures = {features!r}\n"
)
pytorch = os.environ.get("PYTORCH_VERSION")

setup(
    name="torchvision",
    version=version,
    description="Vision for the sample's torch: a miniature that keeps torchvision's build contract",
    license="MIT",
    packages=find_packages(include=["torchvision", "torchvision.*"]),
    ext_modules=[get_extension()],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
    install_requires=[f"torch=={pytorch}" if pytorch else "torch"],
    zip_safe=False,
)
