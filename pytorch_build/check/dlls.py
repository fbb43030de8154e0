"""DLLs and extension modules of Windows: what they need, and whether anything brings it. Pure.

Search rules: Microsoft's page on the search order of DLLs, and `os.add_dll_directory`: the folder of
the file that needs one, Windows' own, and folders that a package adds; never PATH.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from core.binaries import pe
from core.errors import MissingInputError
from pytorch_build.check.policy import matches, provided, some, unasked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from packaging.tags import Tag

    from core.binaries.pe import PeFacts
    from pytorch_build.check import Binary, Finding, Severity, WheelMember, WheelView
    from pytorch_build.check.policy import Policy, Windows


CHECK = "dll"
_MACHINES = {"win_amd64": ("amd64", pe.AMD64), "win_arm64": ("arm64", pe.ARM64)}


@dataclass(frozen=True, kw_only=True)
class _Libraries:
    """Where a wheel's files may find DLLs; names in small letters."""

    machine: str
    inside: Mapping[str, tuple[str, ...]]
    python: frozenset[str]
    provided: tuple[str, ...]
    unasked: Mapping[str, tuple[str, ...]]


def is_dll(name: str) -> bool:
    """Whether a member is a DLL or an extension module, by its name."""
    return name.lower().endswith((".dll", ".pyd"))


def check(view: WheelView, policy: Policy) -> Iterator[Finding]:
    """Judge the DLLs, extension modules and programs of a wheel for Windows."""
    platform = next((one for one in sorted(view.platforms) if one in _MACHINES), "")
    if not platform:
        return
    machine, number = _MACHINES[platform]
    libraries = _libraries(view, policy, machine)
    read = {binary.member.name: binary for binary in view.binaries}
    for member in view.members:
        binary = read.get(member.name)
        facts = binary.pe if binary else None
        if facts is None or binary is None:
            if member.size and is_dll(member.name) and not (binary and binary.problems):
                yield view.finding("error", CHECK, "It is no 64-bit DLL, whatever its name.", member.name)
            continue
        if facts.machine != number:
            message = f"It is for another processor (machine {facts.machine:#x}) than {platform}."
            yield view.finding("error", CHECK, message, member.name)
        yield from _check_needed(view, policy, libraries, binary, facts)


def _check_needed(
    view: WheelView, policy: Policy, libraries: _Libraries, binary: Binary, facts: PeFacts
) -> Iterator[Finding]:
    """Find each needed DLL; those missing for one reason make one finding."""
    where = binary.member.name
    for names, late in ((facts.needed, False), (facts.delayed, True)):
        by: dict[str, list[str]] = defaultdict(list)
        for name in names:
            by[_where_from(policy, libraries, binary.member, name)].append(name)
        by.pop("", None)
        for reason, found in sorted(by.items()):
            severity, message = _said(reason, found, view)
            if late and severity == "error":
                severity, message = "warning", f"{message} It is loaded when it is first called."
            yield view.finding(severity, CHECK, message, where)


def _where_from(policy: Policy, libraries: _Libraries, member: WheelMember, name: str) -> str:
    """Say what is wrong with a need: "" for nothing, else a key of `_said`."""
    lower = name.lower()
    folders = libraries.inside.get(lower, ())
    if folders:
        reached = {_folder(member)}.intersection(folders)
        return "" if reached or any(matches(one, policy.windows.folders) for one in folders) else "elsewhere"
    found = origin(name, policy.windows, libraries.machine)
    if found == "system" or (found == "python" and lower in libraries.python):
        return ""
    if found:
        return found
    if _among(lower, libraries.provided):
        return ""
    provider = next((one for one, patterns in libraries.unasked.items() if _among(lower, patterns)), "")
    return f"unasked {provider}" if provider else "nowhere"


def _said(reason: str, names: list[str], view: WheelView) -> tuple[Severity, str]:
    """Put a reason into words."""
    kind, _, provider = reason.partition(" ")
    listed = some(names)
    if kind == "unasked":
        return "error", f"It needs {listed} of {provider}, but METADATA does not require {provider}."
    if kind == "python":
        tags = ", ".join(sorted({f"{tag.interpreter}-{tag.abi}" for tag in view.name.tags}))
        return "error", f"It needs {listed}, which is not of the Python that the wheel is for ({tags})."
    if kind == "debug":
        return "error", f"It needs {listed} of the debug run-time, which only Visual Studio has."
    if kind == "redistributable":
        return "note", f"It needs {listed} of Visual C++'s redistributable: the machine must have it."
    if kind == "elsewhere":
        return (
            "warning",
            f"It needs {listed}, which the wheel has in a folder that nothing adds to the search.",
        )
    return "error", f"It needs {listed}, which nothing brings."


def _libraries(view: WheelView, policy: Policy, machine: str) -> _Libraries:
    inside: dict[str, tuple[str, ...]] = {}
    for member in view.members:
        base = PurePosixPath(member.name).name.lower()
        inside[base] = (*inside.get(base, ()), _folder(member))
    return _Libraries(
        machine=machine,
        inside=inside,
        python=python_dlls(view.name.tags),
        provided=provided(view, policy),
        unasked=unasked(view, policy),
    )


def _folder(member: WheelMember) -> str:
    return str(PurePosixPath(member.installed or member.name).parent)


def _among(name: str, patterns: Iterable[str]) -> bool:
    return matches(name, (pattern.lower() for pattern in patterns))


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
