"""Finds and loads the ROCm libraries that are installed in this Python environment."""

import importlib.util
import os
import re
import sys
import warnings
from pathlib import Path

from . import _dist_info, _dlls, _gpus
from ._dist_info import __version__

__all__ = [
    "__version__",
    "find_libraries",
    "initialize_process",
    "preload_libraries",
]

_loaded_libraries = {}
_problems_warned_of = set()


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
    paths = []
    for shortname in shortnames:
        path = _find_library(shortname)
        if path is not None:
            paths.append(path)
    return paths


def _find_library(shortname):
    """Return the path of a library; None where it may be missing and is."""
    library = _dist_info.ALL_LIBRARIES.get(shortname)
    if library is None:
        raise ModuleNotFoundError(f"Unknown rocm library '{shortname}'")
    folder, pattern = library.pattern
    if not pattern:
        return None

    package = _dist_info.ALL_PACKAGES[library.package]
    root = _package_root(package)
    if root is None:
        if library.optional:
            return None
        raise ModuleNotFoundError(
            f"The rocm library '{shortname}' is in the package "
            f"{package.get_dist_package_name()}, which is not installed. "
            f"Please install it: {package.install_hint}"
        )

    paths = sorted((root / folder).glob(pattern))
    if paths:
        return paths[0]
    if library.optional:
        return None
    raise FileNotFoundError(
        f"The rocm library '{shortname}' ({pattern}) is not in {root / folder}; "
        f"the installation is damaged or of another version than {__version__}"
    )


def _package_root(package):
    """Return the folder of a package's files, or None where it is not installed."""
    spec = importlib.util.find_spec(package.get_py_package_name())
    if spec is None or not spec.origin:
        return None
    return Path(spec.origin).absolute().parent


def preload_libraries(*shortnames, rtld_global=True):
    """Load shared libraries into this process, each once, in the order given.

    On Windows those come first that ROCm's libraries open by their names.

    Args:
        shortnames: Names that `find_libraries` knows.
        rtld_global: Whether their symbols serve libraries that are loaded later.
    """
    for shortname in shortnames:
        if sys.platform == "win32":
            for opened_name in _names_opened_by(shortname):
                _load_library(opened_name, rtld_global)
        _load_library(shortname, rtld_global)


def _names_opened_by(shortname):
    """Return the libraries that a library opens by name, where this distribution has them."""
    library = _dist_info.ALL_LIBRARIES.get(shortname)
    opened_names = ()
    if shortname in _dlls.OPENED_BY_NAME:
        position = _dlls.OPENED_BY_NAME.index(shortname)
        opened_names = _dlls.OPENED_BY_NAME[:position]
    elif library is not None and library.package == "libraries":
        opened_names = _dlls.OPENED_BY_NAME
    return [
        name
        for name in opened_names
        if name in _dist_info.DISTRIBUTED_LIBRARIES
    ]


def _load_library(shortname, rtld_global):
    """Load a library, unless this process has loaded it or this platform lacks it."""
    import ctypes  # takes as long as all else that `rocm-sdk` imports

    if shortname in _loaded_libraries:
        return
    mode = ctypes.RTLD_GLOBAL if rtld_global else ctypes.RTLD_LOCAL
    for path in find_libraries(shortname):
        if os.environ.get("ROCM_SDK_VERBOSE") == "1":
            print(f"rocm_sdk: loading {path}", file=sys.stderr)
        if sys.platform == "win32":
            _search_packages(path)
        _loaded_libraries[shortname] = ctypes.CDLL(str(path), mode=mode)


def _search_packages(path):
    """Let a DLL find what it needs in its own package and in core."""
    _dlls.search_folder(path.parent)
    core = _package_root(_dist_info.ALL_PACKAGES["core"])
    if core is not None:
        _dlls.search_folder(core / "bin")


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
        if problem not in _problems_warned_of:
            _problems_warned_of.add(problem)
            warnings.warn(problem, stacklevel=2)


def _preload_from_environment(rtld_global):
    for part in re.split(
        r"[,;]", os.environ.get("ROCM_SDK_PRELOAD_LIBRARIES", "")
    ):
        shortname = part.strip()
        if not shortname:
            continue
        try:
            preload_libraries(shortname, rtld_global=rtld_global)
        except (ImportError, OSError) as problem:
            raise RuntimeError(
                f"ROCM_SDK_PRELOAD_LIBRARIES names '{shortname}', which could not be loaded: {problem}"
            ) from problem


def _check_version(wanted, fail):
    """Warn of another version than the wanted one, or fail."""
    if isinstance(wanted, str):
        pattern = re.compile(
            ".*".join(re.escape(part) for part in wanted.split("*"))
        )
        wanted_text = wanted
    else:
        pattern = wanted
        wanted_text = wanted.pattern
    if pattern.fullmatch(__version__):
        return

    message = (
        f"This program was built for rocm {wanted_text}, and rocm {__version__} is installed. "
        f"Please install the matching version"
    )
    if fail:
        raise RuntimeError(message)
    warnings.warn(message, stacklevel=3)
