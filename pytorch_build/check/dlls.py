"""DLLs, extension modules and programs of Windows: what they need, and what a machine gets it from.

Search rules: Microsoft's page on the search order of DLLs, and `os.add_dll_directory`: the folder of the file
that needs one, Windows' own, and folders that a package adds; never PATH. DLLs of a machine: delvewheel's
lists (names that all of Windows 7 to 11 have, by machine), and the policy.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from core.binaries import pe
from pytorch_build.check import Finding, error, name_first_few, note, path_in_site_packages, warning
from pytorch_build.check.policy import ExpectedLibraries, WindowsDlls, expected_libraries, matches

if TYPE_CHECKING:
    from packaging.tags import Tag

    from pytorch_build.check import WheelView

DllOrigin = Literal["system", "redistributable", "debug", "python"]
_PLATFORM = "win_amd64"
_PYTHON = re.compile(r"python3\d*t?(_d)?\.dll")
_DEBUG_PYTHON = re.compile(r"python3\d*t?_d\.dll")
_CPYTHON_ABI = re.compile(r"cp(?P<version>3\d+)(?P<free_threaded>t?)")


@dataclass(frozen=True, kw_only=True)
class DllSources:
    """Where the files of a wheel may find DLLs: Windows, Python, other distributions, the wheel.

    Attributes:
        windows: Those that machines have.
        expected: Those of distributions that the wheel requires.
        python: Those of the Pythons that the wheel is for.
        tags: These Pythons' tags, in words.
        folders: The folders of the wheel's own, by name in small letters.
    """

    windows: WindowsDlls
    expected: ExpectedLibraries
    python: frozenset[str]
    tags: str
    folders: Mapping[str, Sequence[str]]


def is_windows_binary(name: str) -> bool:
    """Return whether a member is named like a DLL, an extension module or a program of Windows."""
    return name.lower().endswith((".dll", ".pyd", ".exe"))


def check(view: WheelView) -> Iterator[Finding]:
    """Yield findings on the DLLs, extension modules and programs of a wheel for Windows."""
    if _PLATFORM not in view.platforms:
        return

    folders: defaultdict[str, list[str]] = defaultdict(list)
    for member in view.members:
        folders[PurePosixPath(member).name.lower()].append(_installed_folder(member))
    pythons = {f"{tag.interpreter}-{tag.abi}" for tag in view.name.tags}
    sources = DllSources(
        windows=view.options.policy.windows,
        expected=expected_libraries(view),
        python=python_dlls(view.name.tags),
        tags=", ".join(sorted(pythons)),
        folders=folders,
    )
    binaries = {binary.name: binary for binary in view.binaries}
    for member, size in view.members.items():
        binary = binaries.get(member)
        if binary is not None and binary.pe is not None:
            yield from _compare_kind(member, binary.pe)
            yield from _find_missing_dlls(sources, member, binary.pe)
        elif size and is_windows_binary(member) and not (binary and binary.problems):
            yield error("It is not 64-bit code, whatever its name says.", member)


def _compare_kind(member: str, facts: pe.PeFacts) -> Iterator[Finding]:
    """Yield errors for a program that is a DLL, or the reverse, and for code for another processor."""
    if facts.dll is member.lower().endswith(".exe"):
        yield error("It is a program and no DLL, or the reverse.", member)
    if facts.machine != pe.AMD64:
        yield error(f"It is for another processor (machine {facts.machine:#x}) than {_PLATFORM}.", member)


def _find_missing_dlls(sources: DllSources, member: str, facts: pe.PeFacts) -> Iterator[Finding]:
    """Yield findings on DLLs that a file needs and may not find, one for each reason."""
    for fault, names in _dlls_by_fault(sources, member, facts.needed).items():
        yield replace(
            fault,
            message=f"It needs {name_first_few(names)}{fault.message}",
            where=member,
        )

    for fault, names in _dlls_by_fault(sources, member, facts.delayed).items():
        message = f"It needs {name_first_few(names)}{fault.message}"
        # What is loaded late does not stop an import.
        if fault.severity == "error":
            yield warning(f"{message} It is loaded when it is first called.", member)
        else:
            yield replace(
                fault,
                message=message,
                where=member,
            )


def _dlls_by_fault(sources: DllSources, member: str, names: Sequence[str]) -> Mapping[Finding, Sequence[str]]:
    """Return the needed DLLs that may be missing, by the finding that says what is wrong."""
    names_by_fault: defaultdict[Finding, list[str]] = defaultdict(list)
    for name in names:
        fault = _fault_of_dll(sources, member, name)
        if fault is not None:
            names_by_fault[fault].append(name)
    return names_by_fault


def _fault_of_dll(sources: DllSources, member: str, name: str) -> Finding | None:
    """Return why a needed DLL may be missing, as a finding that continues its name; None if it is found."""
    lower_name = name.lower()
    windows = sources.windows
    folders = sources.folders.get(lower_name)
    if folders:
        is_found = _installed_folder(member) in folders or any(
            matches(folder, windows.folders) for folder in folders
        )
        fault = warning(", which the wheel has in a folder that nothing adds to the search.")
        return None if is_found else fault

    kind = dll_origin(name, windows)
    if kind == "python":
        fault = error(f", which is not of the Python that the wheel is for ({sources.tags}).")
        return None if lower_name in sources.python else fault
    if kind == "debug":
        return error(" of the debug run-time, which only Visual Studio has.")
    if kind == "redistributable":
        return note(" of Visual C++'s redistributable: the machine must have it.")
    if kind == "system" or matches(lower_name, sources.expected.patterns):
        return None

    provider = sources.expected.find_undeclared_provider(lower_name)
    sentence = ", which nothing provides."
    if provider is not None:
        sentence = f" of {provider}, but METADATA does not require {provider}."
    return error(sentence)


def _installed_folder(member: str) -> str:
    """Return the folder below site-packages that a member is installed into."""
    return str(PurePosixPath(path_in_site_packages(member) or member).parent)


@cache
def system_dlls() -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Return the DLLs that Windows has: names in small letters, and patterns."""
    from delvewheel import _dll_list as data

    names = frozenset(data.ignore_names[data.MachineType.AMD64])
    # Its patterns cover Python's own DLLs, which are judged by the wheel's tags.
    patterns = [pattern for pattern in data.ignore_regexes if not pattern.fullmatch("python312.dll")]
    return names, tuple(patterns)


def dll_origin(name: str, windows: WindowsDlls) -> DllOrigin | None:
    """Return whether a DLL comes with Windows, Python or Visual C++; None where that is unknown."""
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
