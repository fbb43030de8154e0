"""DLLs, extension modules and programs of Windows: what they need, and what a machine gets it from.

Search rules: Microsoft's page on the search order of DLLs, and `os.add_dll_directory`: the folder of the file
that needs one, Windows' own, and folders that a package adds; never PATH. DLLs of a machine: delvewheel's
lists (names that all of Windows 7 to 11 have, by machine), and the policy.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from core.binaries import pe
from pytorch_build.check import Finding, Severity, WheelMember, WheelView, some
from pytorch_build.check.policy import ExpectedLibraries, Policy, Windows, expected_libraries, matches

if TYPE_CHECKING:
    from packaging.tags import Tag

CHECK = "dll"
Origin = Literal["system", "redistributable", "debug", "python"]
_PLATFORM = "win_amd64"
_PYTHON = re.compile(r"python3\d*t?(_d)?\.dll")
_DEBUG_PYTHON = re.compile(r"python3\d*t?_d\.dll")
_CPYTHON_ABI = re.compile(r"cp(?P<version>3\d+)(?P<free_threaded>t?)")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where a wheel's files may find DLLs: `folders` of the wheel's own by name, in small letters."""

    policy: Policy
    expected: ExpectedLibraries
    python: frozenset[str]
    tags: str
    folders: Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with a DLL that is needed; `sentence` continues what names it."""

    severity: Severity
    sentence: str


def is_dll(name: str) -> bool:
    """Return whether a member is a DLL, an extension module or a program, by its name."""
    return name.lower().endswith((".dll", ".pyd", ".exe"))


def check(view: WheelView, policy: Policy) -> Iterator[Finding]:
    """Judge the DLLs, extension modules and programs of a wheel for Windows."""
    if _PLATFORM not in view.platforms:
        return

    folders: defaultdict[str, list[str]] = defaultdict(list)
    for member in view.members:
        folders[PurePosixPath(member.name).name.lower()].append(_folder(member))
    pythons = {f"{tag.interpreter}-{tag.abi}" for tag in view.name.tags}
    surroundings = Surroundings(
        policy=policy,
        expected=expected_libraries(view, policy),
        python=python_dlls(view.name.tags),
        tags=", ".join(sorted(pythons)),
        folders=folders,
    )
    binaries = {binary.member.name: binary for binary in view.binaries}
    for member in view.members:
        binary = binaries.get(member.name)
        if binary is not None and binary.pe is not None:
            yield from _compare_kind(view, member, binary.pe)
            yield from _find_missing_dlls(
                view,
                surroundings,
                member,
                binary.pe,
            )
        elif member.size and is_dll(member.name) and not (binary and binary.problems):
            yield view.finding(
                "error",
                CHECK,
                "It is not 64-bit code, whatever its name says.",
                member.name,
            )


def _compare_kind(
    view: WheelView,
    member: WheelMember,
    facts: pe.PeFacts,
) -> Iterator[Finding]:
    if facts.dll is member.name.lower().endswith(".exe"):
        yield view.finding(
            "error",
            CHECK,
            "It is a program and no DLL, or the reverse.",
            member.name,
        )
    if facts.machine != pe.AMD64:
        yield view.finding(
            "error",
            CHECK,
            f"It is for another processor (machine {facts.machine:#x}) than {_PLATFORM}.",
            member.name,
        )


def _find_missing_dlls(
    view: WheelView,
    surroundings: Surroundings,
    member: WheelMember,
    facts: pe.PeFacts,
) -> Iterator[Finding]:
    """Look for each needed DLL; those that are missing for one reason make one finding."""
    for fault, names in _faults(surroundings, member, facts.needed).items():
        yield view.finding(
            fault.severity,
            CHECK,
            f"It needs {some(names)}{fault.sentence}",
            member.name,
        )

    for fault, names in _faults(surroundings, member, facts.delayed).items():
        # What is loaded late does not stop an import.
        severity = "warning" if fault.severity == "error" else fault.severity
        message = f"It needs {some(names)}{fault.sentence}"
        if fault.severity == "error":
            message += " It is loaded when it is first called."
        yield view.finding(
            severity,
            CHECK,
            message,
            member.name,
        )


def _faults(
    surroundings: Surroundings,
    member: WheelMember,
    names: Sequence[str],
) -> Mapping[Fault, Sequence[str]]:
    names_by_fault: defaultdict[Fault, list[str]] = defaultdict(list)
    for name in names:
        fault = _fault_of_dll(surroundings, member, name)
        if fault is not None:
            names_by_fault[fault].append(name)
    return names_by_fault


def _fault_of_dll(
    surroundings: Surroundings,
    member: WheelMember,
    name: str,
) -> Fault | None:
    """Return why a needed DLL may be missing; None where it is found."""
    lower_name = name.lower()
    windows = surroundings.policy.windows
    folders = surroundings.folders.get(lower_name)
    if folders:
        is_found = any(matches(folder, windows.folders) for folder in folders) or _folder(member) in folders
        sentence = ", which the wheel has in a folder that nothing adds to the search."
        return None if is_found else Fault(severity="warning", sentence=sentence)

    kind = origin(name, windows)
    if kind == "python":
        sentence = f", which is not of the Python that the wheel is for ({surroundings.tags})."
        is_found = lower_name in surroundings.python
        return None if is_found else Fault(severity="error", sentence=sentence)
    if kind == "debug":
        return Fault(severity="error", sentence=" of the debug run-time, which only Visual Studio has.")
    if kind == "redistributable":
        sentence = " of Visual C++'s redistributable: the machine must have it."
        return Fault(severity="note", sentence=sentence)
    if kind == "system" or matches(lower_name, surroundings.expected.patterns):
        return None

    provider = surroundings.expected.find_undeclared_provider(lower_name)
    sentence = ", which nothing provides."
    if provider is not None:
        sentence = f" of {provider}, but METADATA does not require {provider}."
    return Fault(severity="error", sentence=sentence)


def _folder(member: WheelMember) -> str:
    return str(PurePosixPath(member.path_in_site_packages or member.name).parent)


@cache
def system_dlls() -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Return the DLLs that Windows has: names in small letters, and patterns."""
    from delvewheel import _dll_list as data

    names = frozenset(data.ignore_names[data.MachineType.AMD64])
    # Its patterns cover Python's own DLLs, which are judged by the wheel's tags.
    patterns = [pattern for pattern in data.ignore_regexes if not pattern.fullmatch("python312.dll")]
    return names, tuple(patterns)


def origin(name: str, windows: Windows) -> Origin | None:
    """Return what a machine gets a DLL from; None where it is unknown."""
    lower_name = name.lower()
    if matches(lower_name, windows.debug) or _DEBUG_PYTHON.fullmatch(lower_name):
        return "debug"
    if _PYTHON.fullmatch(lower_name):
        return "python"

    names, patterns = system_dlls()
    if lower_name in names or matches(lower_name, windows.libraries):
        return "system"
    if any(pattern.fullmatch(lower_name) for pattern in patterns):
        return "system"
    if matches(lower_name, windows.redistributable):
        return "redistributable"
    return None


def python_dlls(tags: frozenset[Tag]) -> frozenset[str]:
    """Return the DLLs of Python that a wheel with these tags may be linked to."""
    names: set[str] = set()
    for tag in tags:
        match = _CPYTHON_ABI.fullmatch(tag.abi)
        if match is not None:
            version = match["version"]
            free_threaded = match["free_threaded"]
            names |= {f"python{version}{free_threaded}.dll", f"python3{free_threaded}.dll"}
        elif tag.abi == "abi3":
            names.add("python3.dll")
    return frozenset(names)
