# Keeps the contract of pytorch's torch.Tensor, as far as the sample computes: dense float32 values on the processor.
import ctypes
import math

from torch import _C


class Tensor:
    """Wraps a handle from libc10; every operation happens in libtorch."""

    def __init__(self, handle):
        if not handle:
            raise RuntimeError(_C.c10.c10_last_error().decode())
        self._handle = handle

    def __del__(self):
        if getattr(self, "_handle", None) and _C is not None:
            _C.c10.c10_tensor_free(self._handle)

    @property
    def shape(self):
        return tuple(_C.c10.c10_tensor_shape(self._handle)[: self.dim()])

    def dim(self):
        return _C.c10.c10_tensor_dim(self._handle)

    def numel(self):
        return _C.c10.c10_tensor_numel(self._handle)

    def tolist(self):
        values = _C.c10.c10_tensor_data(self._handle)[: self.numel()]
        return _nested(values, self.shape)

    def item(self):
        if self.numel() != 1:
            raise RuntimeError(f"a tensor with {self.numel()} elements is not one value")
        return _C.c10.c10_tensor_data(self._handle)[0]

    def sum(self):
        return Tensor(_C.lib.at_sum(self._handle))

    def t(self):
        return Tensor(_C.lib.at_t(self._handle))

    def __matmul__(self, other):
        return Tensor(_C.lib.at_mm(self._handle, other._handle))

    def _binary(self, op, other):
        other = other if isinstance(other, Tensor) else tensor(other)
        return Tensor(_C.lib.at_binary(op, self._handle, other._handle))

    def __add__(self, other):
        return self._binary(b"+", other)

    def __sub__(self, other):
        return self._binary(b"-", other)

    def __mul__(self, other):
        return self._binary(b"*", other)

    def __truediv__(self, other):
        return self._binary(b"/", other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self):
        return self._unary(b"n")

    def _unary(self, op):
        return Tensor(_C.lib.at_unary(op, self._handle))

    def __repr__(self):
        return f"tensor({self.tolist()})"


def _nested(values, shape):
    if not shape:
        return values[0]
    step = math.prod(shape[1:])
    return [_nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def _flattened(data):
    """A nested list's values, row by row, and its shape."""
    if not isinstance(data, (list, tuple)):
        return [float(data)], ()
    parts = [_flattened(part) for part in data]
    if len({shape for _, shape in parts}) > 1:
        raise ValueError("rows of different lengths")
    return [value for values, _ in parts for value in values], (len(parts), *(parts[0][1] if parts else ()))


def tensor(data):
    values, shape = _flattened(data)
    made = _empty(shape)
    ctypes.memmove(
        _C.c10.c10_tensor_data(made._handle), (ctypes.c_float * len(values))(*values), 4 * len(values)
    )
    return made


def _empty(shape):
    return Tensor(_C.c10.c10_tensor_new((ctypes.c_int64 * len(shape))(*shape), len(shape)))
