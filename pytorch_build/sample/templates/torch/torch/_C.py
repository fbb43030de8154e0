# Keeps the contract of pytorch's torch._C: the compiled part. Here plain libraries, loaded through ctypes.
import ctypes
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from torch import version

LIB = Path(__file__).parent / "lib"
LIBRARY_NAME = "{}.dll" if sys.platform == "win32" else "lib{}.so"

_LONG = ctypes.c_int64
_HANDLE = ctypes.c_void_p


def _load(name, mode=ctypes.DEFAULT_MODE):
    return ctypes.CDLL(str(LIB / LIBRARY_NAME.format(name)), mode=mode)


stub = ctypes.CDLL(str(Path(__file__).with_name(f"_stub{EXTENSION_SUFFIXES[-1]}")))
c10 = _load("c10", ctypes.RTLD_GLOBAL)
lib = _load("torch", ctypes.RTLD_GLOBAL)
hip = _load("torch_hip") if version.hip else None


def _declare(library, name, result, *arguments):
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments


_declare(c10, "c10_tensor_new", _HANDLE, ctypes.POINTER(_LONG), _LONG)
_declare(c10, "c10_tensor_free", None, _HANDLE)
_declare(c10, "c10_tensor_dim", _LONG, _HANDLE)
_declare(c10, "c10_tensor_shape", ctypes.POINTER(_LONG), _HANDLE)
_declare(c10, "c10_tensor_numel", _LONG, _HANDLE)
_declare(c10, "c10_tensor_data", ctypes.POINTER(ctypes.c_float), _HANDLE)
_declare(c10, "c10_last_error", ctypes.c_char_p)
_declare(lib, "at_mm", _HANDLE, _HANDLE, _HANDLE)
_declare(lib, "at_binary", _HANDLE, ctypes.c_char, _HANDLE, _HANDLE)
_declare(lib, "at_unary", _HANDLE, ctypes.c_char, _HANDLE)
_declare(lib, "at_t", _HANDLE, _HANDLE)
_declare(lib, "at_sum", _HANDLE, _HANDLE)
_declare(lib, "at_config_show", ctypes.c_char_p)
if hip:
    _declare(hip, "at_cuda_arch_flags", ctypes.c_char_p)
    _declare(hip, "at_cuda_device_count", ctypes.c_int)


def _show_config():
    return lib.at_config_show().decode()


def _cuda_getArchFlags():
    return hip.at_cuda_arch_flags().decode() if hip else ""


def _cuda_getDeviceCount():
    return hip.at_cuda_device_count() if hip else 0
