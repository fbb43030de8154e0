"""The Python files of torch that load ROCm: what they ask for, and what they become."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.errors import WheelError

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = "lib/rocm"
"""Where ROCm lies in torch's package, on both platforms."""
_DLL_LOOP = re.compile(r"^(?P<indent>[ \t]*)for dll_path in dll_paths:", re.MULTILINE)
_DLL_INSERT = 'dll_paths.insert(0, os.path.join(th_dll_path, "rocm", "bin"))'


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a wheel's ``_rocm_init.py`` asks of `rocm_sdk`."""

    names: tuple[str, ...]
    version: str


def read_rocm_init(text: str, where: str) -> Asked:
    """Read ``_rocm_init.py``: the arguments of its one call of ``initialize_process``."""
    try:
        given = _arguments(text)
    except (SyntaxError, ValueError) as problem:
        raise WheelError(
            f"{where} cannot be made stand-alone: it has {problem}.",
            hint="Build the wheel with nox -s build_torch, or take one that loads ROCm so.",
        ) from problem
    names, version = given.get("preload_shortnames", ()), given.get("check_version", "")
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise WheelError(f"{where} cannot be made stand-alone: preload_shortnames is no list of names.")
    return Asked(names=tuple(names), version=version if isinstance(version, str) else "")


def _arguments(text: str) -> dict[str, object]:
    """Read the keyword arguments of the one call of ``initialize_process``, which are literals."""
    calls = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "initialize_process"
    ]
    if len(calls) != 1:
        raise ValueError(f"{len(calls)} calls of rocm_sdk.initialize_process")
    return {one.arg: ast.literal_eval(one.value) for one in calls[0].keywords if one.arg}


def standalone_init(paths: Sequence[str], *, windows: bool) -> str:
    """Write a ``_rocm_init.py`` that loads ROCm out of the wheel itself.

    Libraries are loaded with global symbols, as `rocm_sdk` does, so that torch's own find them by
    their SONAMEs; these need no search path into ROCm's folders, and stay as they are.
    """
    listed = "".join(f'    "{path}",\n' for path in paths)
    more = (
        '    global _added\n    _added = os.add_dll_directory(os.path.join(_ROOT, "bin"))\n'
        if windows
        else ""
    )
    return (
        '"""Loads the ROCm that this wheel holds, before torch\'s own libraries."""\n'
        "\n"
        "import ctypes\n"
        "import os\n"
        "\n"
        '_ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "rocm")\n'
        "_LIBRARIES = (\n"
        f"{listed}"
        ")\n"
        "_loaded = []\n"
        f"{'_added = None' + chr(10) if windows else ''}"
        "\n"
        "\n"
        "def initialize():\n"
        f"{more}"
        "    for path in _LIBRARIES:\n"
        '        file = os.path.join(_ROOT, *path.split("/"))\n'
        "        try:\n"
        "            _loaded.append(ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL))\n"
        "        except OSError as problem:\n"
        "            raise ImportError(\n"
        '                f"ROCm\'s {path}, which is part of this wheel, could not be loaded: {problem}"\n'
        "            ) from problem\n"
    )


def patched_torch_init(text: str, where: str) -> str:
    """Let torch's ``__init__.py`` look for DLLs in the wheel's ROCm first."""
    if _DLL_INSERT in text:
        raise WheelError(f"{where} looks into the wheel's own ROCm already: it is stand-alone.")
    patched, count = _DLL_LOOP.subn(rf"\g<indent>{_DLL_INSERT}\n\g<0>", text)
    if not count:
        raise WheelError(
            f"{where} has no line 'for dll_path in dll_paths:', so nothing would look for ROCm's DLLs.",
            hint="This torch loads its DLLs in another way than the versions that this stage knows.",
        )
    return patched
