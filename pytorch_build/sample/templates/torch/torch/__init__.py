# Keeps the contract of pytorch's torch/__init__.py: ROCm's libraries are loaded (torch/_rocm_init.py, where the
# build wrote one) before torch's own, which Windows finds in torch/lib.
import importlib.util
import os
import sys

if importlib.util.find_spec("torch._rocm_init") is not None:
    from torch import _rocm_init

    _rocm_init.initialize()
    del _rocm_init

if sys.platform == "win32":

    def _load_dll_libraries():
        th_dll_path = os.path.join(os.path.dirname(__file__), "lib")
        dll_paths = [th_dll_path]
        for dll_path in dll_paths:
            os.add_dll_directory(dll_path)

    _load_dll_libraries()
    del _load_dll_libraries
del importlib, os, sys

from torch import __config__, _C, _ops, autograd, cuda, nn, version  # noqa: E402
from torch._tensor import Tensor, _empty, tensor  # noqa: E402
from torch.version import __version__  # noqa: E402

ops = _ops.ops


def _shape(sizes):
    return tuple(sizes[0]) if sizes and isinstance(sizes[0], (list, tuple)) else sizes


def zeros(*sizes):
    return _empty(_shape(sizes))


def ones(*sizes):
    return zeros(*sizes) + 1


def arange(*bounds):
    return tensor(list(range(*bounds)))


def mm(a, b):
    return a @ b


def matmul(a, b):
    return a @ b


def add(a, b):
    return a + b


def sum(a):  # noqa: A001 - upstream's name
    return a.sum()


def abs(a):  # noqa: A001 - upstream's name
    return a._unary(b"a")


def exp(a):
    return a._unary(b"e")


def neg(a):
    return -a


def relu(a):
    return a._unary(b"r")


def sqrt(a):
    return a._unary(b"s")


def equal(a, b):
    return a.shape == b.shape and a.tolist() == b.tolist()


def allclose(a, b, rtol=1e-05, atol=1e-08):
    pairs = zip(_values(a), _values(b), strict=True)
    return a.shape == b.shape and all(-atol - rtol * max(y, -y) <= x - y <= atol + rtol * max(y, -y) for x, y in pairs)


def _values(a):
    return _C.c10.c10_tensor_data(a._handle)[: a.numel()]
