# Keeps the contract of pytorch's torch/utils/hipify: CUDA spellings to HIP ones; standard library only,
# because tools/amd_build loads it before torch is built.
import re
from pathlib import Path

SUFFIXES = (".cu", ".cuh", ".h", ".cpp")

_HEADER = "cuda_runtime.h"
_PREFIX = re.compile(r"\bcuda(?=[A-Z])")
_LAUNCH = re.compile(r"(\w+)<<<([^,<>]+),([^,<>]+),([^,<>]+),([^,<>]+)>>>\(")
_GGL = r"hipLaunchKernelGGL(\1, dim3(\2), dim3(\3),\4,\5, "


def translate(text):
    """cudaMalloc -> hipMalloc, <cuda_runtime.h> -> <hip/hip_runtime.h>, f<<<g, b, s, t>>>(x) -> hipLaunchKernelGGL(f, …).

    HIP text stays as it is.
    """
    return _LAUNCH.sub(_GGL, _PREFIX.sub("hip", text.replace(_HEADER, "hip/hip_runtime.h")))


def hip_path(source):
    """.../cuda/add.cu -> .../hip/add.hip"""
    folder = source.parent.with_name("hip") if source.parent.name == "cuda" else source.parent
    return folder / f"{source.stem}.hip"


def rewrite(source, target):
    """Write `source` translated to `target`; tell whether anything changed there."""
    text = translate(source.read_text())
    if target.exists() and target.read_text() == text:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return True


def copy(source):
    """Write `source` translated beside its CUDA twin and give the new file's path."""
    target = hip_path(source)
    rewrite(source, target)
    return target
