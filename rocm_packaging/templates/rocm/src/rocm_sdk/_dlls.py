"""Lets Windows find what the DLLs of ROCm's packages need: they name other DLLs, and not where those lie."""

import os

# ROCm's libraries open these by name alone, which finds what the process has, and else a driver's DLL in
# System32. Upstream's checks load them first, too (TheRock #996). Each may need those before it.
OPENED_BY_NAME = ("amd_comgr", "rocm_kpack", "amdhip64", "hiprtc")

_searched_folders = {}


def search_folder(folder):
    """Let DLLs that this process loads from now on find what they need in a folder, before System32."""
    name = str(folder)
    if name not in _searched_folders and os.path.isdir(name):
        _searched_folders[name] = os.add_dll_directory(name)


def loaded_files():
    """Return the paths of the programs and DLLs in this process."""
    import ctypes
    from ctypes import wintypes

    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel.GetCurrentProcess.restype = wintypes.HANDLE
    kernel.K32EnumProcessModules.argtypes = (
        wintypes.HANDLE,
        ctypes.POINTER(wintypes.HMODULE),
        wintypes.DWORD,
        ctypes.POINTER(wintypes.DWORD),
    )
    kernel.GetModuleFileNameW.argtypes = (
        wintypes.HMODULE,
        wintypes.LPWSTR,
        wintypes.DWORD,
    )

    modules = (wintypes.HMODULE * 4096)()
    size = wintypes.DWORD()
    if not kernel.K32EnumProcessModules(
        kernel.GetCurrentProcess(),
        modules,
        ctypes.sizeof(modules),
        ctypes.byref(size),
    ):
        raise ctypes.WinError(ctypes.get_last_error())

    paths = []
    path = ctypes.create_unicode_buffer(32768)
    count = size.value // ctypes.sizeof(wintypes.HMODULE)
    for module in modules[:count]:
        kernel.GetModuleFileNameW(module, path, len(path))
        paths.append(path.value)
    return paths
