"""Finds and loads the ROCm libraries that are installed in this Python environment."""

import importlib.util
import os
import re
import sys
import warnings
from pathlib import Path

from . import _dist_info, _gpus
from ._dist_info import __version__

__all__ = [
    "__version__",
    "find_libraries",
    "initialize_process",
    "preload_libraries",
]

_loaded = {}
_told = set()


def find_libraries(*shortnames):
    """Find shared libraries by short name.

    Libraries that do not exist on this platform, and optional ones that are not installed,
    are left out, so the result can be shorter than the arguments.

    Returns:
        Absolute paths, in the order of the names.

    Raises:
        ModuleNotFoundError: An unknown name, or the package that holds the library is not installed.
        FileNotFoundError: The package is installed and lacks the library.
    """
    found = []
    for shortname in shortnames:
        path = _find(shortname)
        if path is not None:
            found.append(path)
    return found


def _find(shortname):
    entry = _dist_info.ALL_LIBRARIES.get(shortname)
    if entry is None:
        raise ModuleNotFoundError(f"Unknown rocm library '{shortname}'")
    folder, pattern = entry.pattern
    if not pattern:
        return None
    root = _package_root(entry)
    if root is None:
        if entry.optional:
            return None
        package = _dist_info.ALL_PACKAGES[entry.package]
        raise ModuleNotFoundError(
            f"The rocm library '{shortname}' is in the package "
            f"{package.get_dist_package_name()}, which is not installed. "
            f"Please install it: {package.install_hint}"
        )
    matches = sorted((root / folder).glob(pattern))
    if matches:
        return matches[0]
    if entry.optional:
        return None
    raise FileNotFoundError(
        f"The rocm library '{shortname}' ({pattern}) is not in {root / folder}; "
        f"the installation is damaged or of another version than {__version__}"
    )


def _package_root(entry):
    spec = importlib.util.find_spec(_dist_info.ALL_PACKAGES[entry.package].get_py_package_name())
    if spec is None or not spec.origin:
        return None
    return Path(spec.origin).absolute().parent


def preload_libraries(*shortnames, rtld_global=True):
    """Load shared libraries into this process, each once, in the order given.

    Args:
        shortnames: Names that `find_libraries` knows.
        rtld_global: Whether their symbols serve libraries that are loaded later.
    """
    import ctypes  # takes as long as all else that `rocm-sdk` imports

    mode = ctypes.RTLD_GLOBAL if rtld_global else ctypes.RTLD_LOCAL
    for shortname in shortnames:
        if shortname in _loaded:
            continue
        for path in find_libraries(shortname):
            if os.environ.get("ROCM_SDK_VERBOSE") == "1":
                print(f"rocm_sdk: loading {path}", file=sys.stderr)
            _loaded[shortname] = ctypes.CDLL(str(path), mode=mode)


def initialize_process(
    *,
    preload_shortnames=(),
    rtld_global=True,
    env_override=True,
    check_version=None,
    fail_on_version_mismatch=False,
    **_unknown,
):
    """Prepare this process for a program that was built against a ROCm of a certain version.

    A GPU of this machine whose device code is not installed is warned of, once.

    Args:
        preload_shortnames: Libraries to load.
        rtld_global: Whether their symbols serve libraries that are loaded later.
        env_override: Whether ROCM_SDK_PRELOAD_LIBRARIES (names, separated by , or ;) adds to them.
        check_version: The version that the program wants: a text in which * stands for
            anything, or a compiled pattern.
        fail_on_version_mismatch: Raise instead of warning about another version.
        _unknown: Arguments of later versions, which are ignored.

    Raises:
        RuntimeError: A library of the variable cannot be loaded, or the version differs and
            `fail_on_version_mismatch` is set.
    """
    preload_libraries(*preload_shortnames, rtld_global=rtld_global)
    if env_override:
        _preload_from_environment(rtld_global)
    if check_version is not None:
        _check_version(check_version, fail_on_version_mismatch)
    for problem in _gpus.device_problems():
        if problem not in _told:
            _told.add(problem)
            warnings.warn(problem, stacklevel=2)


def _preload_from_environment(rtld_global):
    names = re.split(r"[,;]", os.environ.get("ROCM_SDK_PRELOAD_LIBRARIES", ""))
    for name in (name.strip() for name in names):
        if not name:
            continue
        try:
            preload_libraries(name, rtld_global=rtld_global)
        except (ImportError, OSError) as problem:
            raise RuntimeError(
                f"ROCM_SDK_PRELOAD_LIBRARIES names '{name}', which could not be loaded: {problem}"
            ) from problem


def _check_version(wanted, fail):
    if isinstance(wanted, str):
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("*")))
        shown = wanted
    else:
        pattern, shown = wanted, wanted.pattern
    if pattern.fullmatch(__version__):
        return
    message = (
        f"This program was built for rocm {shown}, and rocm {__version__} is installed. "
        f"Please install the matching version"
    )
    if fail:
        raise RuntimeError(message)
    warnings.warn(message, stacklevel=3)
