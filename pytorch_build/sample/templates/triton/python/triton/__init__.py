# Keeps the contract of triton/__init__.py: a version, and functions that the compiled part computes.
import ctypes
from importlib.metadata import version
from pathlib import Path

__version__ = version(__name__)

_lib = ctypes.CDLL(str(Path(__file__).parent / "_C" / "libtriton.so"))


def _function(name, count):
    function = getattr(_lib, name)
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64] * count
    return function


cdiv = _function("triton_cdiv", 2)
next_power_of_2 = _function("triton_next_power_of_2", 1)
