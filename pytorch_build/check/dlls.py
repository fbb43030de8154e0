"""DLLs and extension modules of Windows: what they need, and what provides it.

Search rules: Microsoft's page on the search order of DLLs, and `os.add_dll_directory`: the folder of the
file that needs one, Windows' own, and folders that a package adds; never PATH. DLLs of a machine:
delvewheel's lists (names that all of Windows 7 to 11 have, by machine), and `policy.toml`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from core.binaries import pe
from core.errors import MissingInputError
from pytorch_build.check.policy import Providers, matches, some

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.tags import Tag

    from core.binaries.pe import PeFacts
    from pytorch_build.check import Finding, Severity, WheelMember, WheelView
    from pytorch_build.check.policy import Policy, Windows

CHECK = "dll"
Origin = Literal["system", "redistributable", "debug", "python", ""]
_MACHINES = {"win_amd64": ("amd64", pe.AMD64), "win_arm64": ("arm64", pe.ARM64)}
_PYTHON = re.compile(r"python3\d*t?(_d)?\.dll")


class _Libraries:
    """Where a wheel's files may find DLLs; names in small letters."""

    def __init__(self, view: WheelView, policy: Policy, machine: str) -> None:
        self.machine, self.python = machine, python_dlls(view.name.tags)
        self.providers = Providers(view, policy, lower=True)
        self.inside: dict[str, list[str]] = defaultdict(list)
        for member in view.members:
            self.inside[PurePosixPath(member.name).name.lower()].append(_folder(member))


def is_dll(name: str) -> bool:
    """Return whether a member is a DLL, an extension module or a program, by its name."""
    return name.lower().endswith((".dll", ".pyd", ".exe"))


def check(view: WheelView, policy: Policy) -> Iterator[Finding]:
    """Judge the DLLs, extension modules and programs of a wheel for Windows."""
    platform = next((one for one in sorted(view.platforms) if one in _MACHINES), "")
    if not platform:
        return
    machine, number = _MACHINES[platform]
    libraries = _Libraries(view, policy, machine)
    read = {binary.member.name: binary for binary in view.binaries}
    for member in view.members:
        binary = read.get(member.name)
        if binary is None or binary.pe is None:
            if member.size and is_dll(member.name) and not (binary and binary.problems):
                yield view.finding("error", CHECK, "It is not 64-bit code, whatever its name.", member.name)
            continue
        if binary.pe.dll is member.name.lower().endswith(".exe"):
            yield view.finding("error", CHECK, "It is a program and no DLL, or the reverse.", member.name)
        if binary.pe.machine != number:
            message = f"It is for another processor (machine {binary.pe.machine:#x}) than {platform}."
            yield view.finding("error", CHECK, message, member.name)
        yield from _needed(view, policy, libraries, binary.member, binary.pe)


def _needed(
    view: WheelView, policy: Policy, libraries: _Libraries, member: WheelMember, facts: PeFacts
) -> Iterator[Finding]:
    """Find each needed DLL; those missing for one reason make one finding."""
    for names, late in ((facts.needed, False), (facts.delayed, True)):
        reasons: dict[str, list[str]] = defaultdict(list)
        for name in names:
            reasons[_problem(policy, libraries, member, name)].append(name)
        reasons.pop("", None)
        for reason, found in sorted(reasons.items()):
            severity, message = _message(policy, reason, some(found), view)
            if late and severity == "error":
                severity, message = "warning", f"{message} It is loaded when it is first called."
            yield view.finding(severity, CHECK, message, member.name)


def _problem(policy: Policy, libraries: _Libraries, member: WheelMember, name: str) -> str:
    """Return what is wrong with a needed DLL: "" for nothing, else a kind that `_message` knows."""
    lower = name.lower()
    if folders := libraries.inside.get(lower):
        near = _folder(member) in folders
        return "" if near or any(matches(one, policy.windows.folders) for one in folders) else "elsewhere"
    found = origin(name, policy.windows, libraries.machine)
    if found == "system" or (found == "python" and lower in libraries.python):
        return ""
    if not found and matches(lower, libraries.providers.libraries):
        return ""
    provider = "" if found else libraries.providers.undeclared(lower)
    return found or (f"undeclared {provider}" if provider else "nowhere")


def _message(policy: Policy, reason: str, names: str, view: WheelView) -> tuple[Severity, str]:
    kind, _, provider = reason.partition(" ")
    tags = ", ".join(sorted({f"{tag.interpreter}-{tag.abi}" for tag in view.name.tags}))
    message = policy.messages[kind]
    return message.severity, message.words.format(names=names, provider=provider, tags=tags)


def _folder(member: WheelMember) -> str:
    return str(PurePosixPath(member.installed or member.name).parent)


@cache
def system_dlls(machine: str) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Return the DLLs that Windows has: names in small letters, and patterns."""
    try:
        from delvewheel import _dll_list as data
    except ImportError as problem:
        raise MissingInputError(
            "delvewheel, which knows the DLLs of Windows, is not installed.",
            hint="It is part of the tool: pip install -r requirements.txt.",
        ) from problem
    names = data.ignore_names[data.MachineType[machine.upper()]]
    return frozenset(names), tuple(one for one in data.ignore_regexes if not one.fullmatch("python312.dll"))


def origin(name: str, windows: Windows, machine: str = "amd64") -> Origin:
    """Return what a machine gets a DLL from; "" where it is unknown."""
    lower = name.lower()
    if matches(lower, windows.debug) or re.fullmatch(r"python3\d*t?_d\.dll", lower):
        return "debug"
    if _PYTHON.fullmatch(lower):
        return "python"
    names, patterns = system_dlls(machine)
    known = lower in names or any(one.fullmatch(lower) for one in patterns)
    if known or matches(lower, windows.libraries):
        return "system"
    return "redistributable" if matches(lower, windows.redistributable) else ""


def python_dlls(tags: frozenset[Tag]) -> frozenset[str]:
    """Return the DLLs of Python that a wheel with these tags may be linked to."""
    found = [one for tag in tags if (one := re.fullmatch(r"cp(3\d+)(t?)", tag.abi))]
    stable = {"python3.dll" for tag in tags if tag.abi == "abi3"}
    return frozenset(
        stable.union(*({f"python{one[1]}{one[2]}.dll", f"python3{one[2]}.dll"} for one in found))
    )
