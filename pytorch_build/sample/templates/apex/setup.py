# Keeps the contract of ROCm/apex's setup.py: version.txt or BUILD_VERSION; --cpp_ext and --cuda_ext among the
# arguments (`-C--build-option=--cpp_ext`); extensions beside the package, built with the installed torch.
import os
import sys
from pathlib import Path

import torch
from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

ROOT = Path(__file__).resolve().parent


def asked(option):
    found = option in sys.argv
    while option in sys.argv:
        sys.argv.remove(option)
    return found


version = os.environ.get("BUILD_VERSION") or (ROOT / "version.txt").read_text().strip()
(ROOT / "apex" / "version.py").write_text(f"__version__ = {version!r}\n")

ext_modules = []
if asked("--cpp_ext"):
    ext_modules.append(CppExtension("apex_C", ["csrc/fused.cpp"]))
if asked("--cuda_ext"):
    if torch.version.hip:
        ext_modules.append(CUDAExtension("amp_C", ["csrc/cuda/multi_tensor_scale_kernel.cu"]))
    else:
        print("--cuda_ext: the installed torch is not a ROCm one; its extensions are left out.")

setup(
    name="apex",
    version=version,
    description="A miniature of apex that keeps its build contract",
    license="MIT",
    packages=find_packages(include=["apex", "apex.*"]),
    ext_modules=ext_modules,
    cmdclass={"build_ext": BuildExtension},
    zip_safe=False,
)
