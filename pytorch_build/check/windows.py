"""Which DLLs a machine with Windows has, and which ones Python brings.

Data: delvewheel's lists (names that all of Windows 7 to 11 have, by machine), and `policy.toml`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Literal

from core.errors import MissingInputError
from pytorch_build.check.providers import matches

if TYPE_CHECKING:
    from packaging.tags import Tag

    from pytorch_build.check.policy import Windows

Origin = Literal["system", "redistributable", "debug", "python", ""]
_DELVEWHEEL = {"amd64": "AMD64", "arm64": "ARM64"}
_PYTHON = re.compile(r"python3\d*t?(_d)?\.dll")
_DEBUG_PYTHON = re.compile(r"python3\d*t?_d\.dll")
_ABI = re.compile(r"cp(3\d+)(t?)")


@cache
def system_dlls(machine: str) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Give the DLLs that Windows has: names in small letters, and patterns."""
    try:
        from delvewheel import _dll_list as data
    except ImportError as problem:
        raise MissingInputError(
            "delvewheel, which knows the DLLs of Windows, is not installed.",
            hint="It is part of the tool: pip install -r requirements.txt.",
        ) from problem
    names = data.ignore_names[data.MachineType[_DELVEWHEEL[machine]]]
    patterns = tuple(one for one in data.ignore_regexes if not one.fullmatch("python312.dll"))
    return frozenset(names), patterns


def origin(name: str, windows: Windows, machine: str = "amd64") -> Origin:
    """Say what a machine gets a DLL from; "" where it is nothing that this knows."""
    lower = name.lower()
    if matches(lower, windows.debug) or _DEBUG_PYTHON.fullmatch(lower):
        return "debug"
    if _PYTHON.fullmatch(lower):
        return "python"
    names, patterns = system_dlls(machine)
    known = lower in names or any(one.fullmatch(lower) for one in patterns)
    if known or matches(lower, windows.libraries):
        return "system"
    return "redistributable" if matches(lower, windows.redistributable) else ""


def python_dlls(tags: frozenset[Tag]) -> frozenset[str]:
    """Name the DLLs of Python that a wheel with these tags may be linked to."""
    names: set[str] = set()
    for tag in tags:
        found = _ABI.fullmatch(tag.abi)
        if tag.abi == "abi3":
            names.add("python3.dll")
        elif found:
            names |= {f"python{found.group(1)}{found.group(2)}.dll", f"python3{found.group(2)}.dll"}
    return frozenset(names)
