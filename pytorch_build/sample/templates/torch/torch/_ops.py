# Keeps the contract of pytorch's torch.ops.load_library: extensions are shared libraries beside Python code.
import ctypes

from torch._tensor import Tensor


class _Library:
    """An extension's operations: tensors, floats and ints in, a tensor out."""

    def __init__(self, path):
        self._library = ctypes.CDLL(str(path))

    def __getattr__(self, name):
        function = getattr(self._library, name)
        function.restype = ctypes.c_void_p
        return lambda *arguments: Tensor(function(*(_argument(value) for value in arguments)))


def _argument(value):
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value._handle)
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)


class ops:  # noqa: N801 - upstream's name
    load_library = staticmethod(_Library)
