"""ELF and PE files: what they need, where they look for it, what provides it, what a loader would refuse.

Search rules of ELF: ld.so(8). Libraries that every system has: PEP 600. Of PE: Microsoft's page on the
search order of DLLs, and `os.add_dll_directory`: the folder of the file that needs one, Windows' own, and
folders that a package adds; never PATH. DLLs of a machine: delvewheel's lists (names that all of Windows 7
to 11 have, by machine), and `policy.toml`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from packaging.utils import canonicalize_name

from core.archive.zips import read_archive
from core.binaries import pe
from core.errors import MissingInputError, WheelError
from pytorch_build.check import (
    Binary,
    Finding,
    Policy,
    Providers,
    Severity,
    WheelMember,
    WheelView,
    Windows,
    matches,
    some,
)
from rocm_packaging.packages.layouts import is_rocm

if TYPE_CHECKING:
    from packaging.tags import Tag

    from core.binaries.elf import ElfFacts

CHECK = "elf"
_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_LEGACY = {"manylinux1_": (2, 5), "manylinux2010_": (2, 12), "manylinux2014_": (2, 17)}
_ORIGIN = re.compile(r"^\$(ORIGIN|\{ORIGIN\})(/|$)")


def places(wheels: Iterable[Path]) -> Mapping[str, Sequence[str]] | None:
    """Return where ROCm's wheels have their files, by name; None where the core package is not among them."""
    found: dict[str, list[str]] = defaultdict(list)
    rocm = {path: name for path in wheels if is_rocm(name := canonicalize_name(path.name.partition("-")[0]))}
    for path in rocm:
        with suppress(WheelError, MissingInputError):  # its own checks report it
            for member in read_archive(path).by_name:
                found[PurePosixPath(member).name].append(member)
    return found if "rocm-sdk-core" in rocm.values() else None


class _Libraries:
    """Where a wheel's files may find libraries: by file name, by SONAME, in other wheels."""

    def __init__(self, view: WheelView, policy: Policy) -> None:
        self.providers = Providers(view, policy)
        # what ROCm's wheels have counts, not what they are known for
        self.known = self.providers.libraries if view.others is None else ()
        self.others = view.others or {}
        self.strict = any(platform.startswith("manylinux") for platform in view.platforms)
        self.inside: dict[str, list[str]] = defaultdict(list)
        self.sonames: dict[str, list[str]] = defaultdict(list)
        for path in filter(None, (member.installed for member in view.members)):
            self.inside[PurePosixPath(path).name].append(path)
        for binary in view.binaries:
            path, soname = binary.member.installed, binary.elf.soname if binary.elf else ""
            if soname and path and PurePosixPath(path).name != soname:
                self.sonames[soname].append(path)


def loader_names(listing: str, machine: str) -> frozenset[str]:
    """Return the libraries that a machine's loader finds, as its ``ldconfig -p`` lists them (ldconfig(8))."""
    kind = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(machine, machine)
    return frozenset(re.findall(rf"^\s*(\S+) \(libc6,{kind}[,)]", listing, re.MULTILINE))


def check(view: WheelView, policy: Policy, loader: Container[str] = ()) -> Iterator[Finding]:
    """Judge a wheel's host ELF files, code objects for GPUs and relocatables apart, by a machine's loader."""
    host = [
        (binary, binary.elf)
        for binary in view.binaries
        if binary.elf and binary.elf.machine != "EM_AMDGPU" and binary.elf.kind in {"ET_DYN", "ET_EXEC"}
    ]
    for binary in view.binaries:
        if why := _unloadable(binary, policy):
            yield view.finding("error", CHECK, why, binary.member.name)
    libraries = _Libraries(view, policy)
    for binary, elf in host:
        where = binary.member.name
        for severity, message in (
            *_machine(view, elf),
            *_rpath(binary, elf),
            *_stack(elf),
            *_needed(policy, libraries, binary, elf, loader),
            *_reach(libraries, binary, elf),
        ):
            yield view.finding(severity, CHECK, message, where)
        if elf.debug_bytes:
            yield view.finding("note", CHECK, f"{elf.debug_bytes} bytes of debug sections.", where)
    seen = defaultdict(list)
    for binary, elf in host:
        seen[elf.soname].append(binary.member.name)
    for soname, members in sorted(seen.items()):
        if soname and len(members) > 1:
            message = (
                f"{len(members)} files have the SONAME {soname}: {some(members)}. One of them is loaded."
            )
            yield view.finding("warning", CHECK, message, members[0])


def _unloadable(binary: Binary, policy: Policy) -> str:
    """Return why compiled code is not what its name promises, whatever wheel it is in; "" if it is."""
    promise, elf = policy.promise(binary.member.name), binary.elf
    if promise is None or binary.problems:
        return ""
    if elf is None:
        return f"It is no {promise.what} for Linux."
    library = promise.what == "library"
    kinds = {"ET_DYN"} if library else {"ET_DYN", "ET_EXEC"}
    unlinked = library and elf.machine in _MACHINES.values() and not elf.dynamic
    if elf.kind in kinds and elf.machine != "EM_AMDGPU" and not unlinked:
        return ""
    without = ", without a dynamic section" if unlinked else ""
    return f"It is no {promise.what} that a loader takes: {elf.kind} for {elf.machine}{without}."


def _machine(view: WheelView, elf: ElfFacts) -> Iterator[tuple[Severity, str]]:
    for platform in sorted(view.platforms):
        for suffix, machine in _MACHINES.items():
            if platform.endswith(suffix) and elf.machine != machine:
                yield "error", f"It is for {elf.machine}; the tag is {platform}."
        promised = _promised_glibc(platform)
        if promised and elf.glibc > promised:
            needs, has = (".".join(map(str, version)) for version in (elf.glibc, promised))
            yield "error", f"It needs glibc {needs}; {platform} promises {has}."


def _promised_glibc(platform: str) -> tuple[int, int] | None:
    if found := re.match(r"manylinux_(\d+)_(\d+)_", platform):
        return int(found[1]), int(found[2])
    return next((version for prefix, version in _LEGACY.items() if platform.startswith(prefix)), None)


def _rpath(binary: Binary, elf: ElfFacts) -> Iterator[tuple[Severity, str]]:
    if absolute := [entry for entry in elf.search if not _ORIGIN.match(entry)]:
        yield (
            "error",
            f"Its RPATH names folders of one machine: {some(absolute)}. Only $ORIGIN/… is allowed.",
        )
    if "" in elf.rpath:
        yield "error", "Its RPATH has an empty entry, which is the folder a program runs in."
    relative = [entry for entry in elf.search if binary.member.installed and _ORIGIN.match(entry)]
    if outside := [entry for entry in relative if _expand(binary, entry) is None]:
        yield "warning", f"Its RPATH leaves site-packages: {some(outside)}."


def _stack(elf: ElfFacts) -> Iterator[tuple[Severity, str]]:
    if "E" in elf.stack:
        yield "error", "It asks for an executable stack."
    elif not elf.stack:
        yield "warning", "It has no PT_GNU_STACK header, which asks for an executable stack."


def _needed(
    policy: Policy, libraries: _Libraries, binary: Binary, elf: ElfFacts, loader: Container[str]
) -> Iterator[tuple[Severity, str]]:
    """Find each needed library; those missing for one reason make one finding."""
    of_others: dict[str, list[str]] = defaultdict(list)
    machine: list[str] = []
    nowhere: list[str] = []
    for library in elf.needed:
        if library in policy.system_libraries or matches(library, libraries.known):
            continue
        if _on_rpath(binary, libraries.others.get(library, ())):
            continue
        inside = [*libraries.inside.get(library, ()), *libraries.sonames.get(library, ())]
        if inside:
            # The loader looks for files; a SONAME helps only once the library is loaded.
            found = _on_rpath(binary, libraries.inside.get(library, ()))
            if not found and not any(matches(place, policy.preloaded) for place in inside):
                where = f"{library} is in the wheel as {some(inside)}, but not on this file's RPATH"
                yield "warning", f"{where}: it is found only if something loads it before."
        elif provider := libraries.providers.undeclared(library):
            of_others[provider].append(library)
        else:
            known = library in loader or matches(library, policy.machine_libraries)
            (machine if known else nowhere).append(library)
    for provider, names in of_others.items():
        yield "error", f"It needs {some(names)} of {provider}, but METADATA does not require {provider}."
    if machine:
        severity: Severity = "error" if libraries.strict else "warning"
        *first, last = machine
        every, them = (f"{', '.join(first)} and {last}", "them") if first else (last, "it")
        yield severity, f"It needs {every}, which no wheel provides: the machine must have {them}."
    if nowhere:
        yield "error", f"It needs {some(nowhere)}: unresolved dependency."


def _reach(libraries: _Libraries, binary: Binary, elf: ElfFacts) -> Iterator[tuple[Severity, str]]:
    """Verify that libraries of other distributions are found where those have them."""
    search = [found for entry in elf.rpath if (found := _expand(binary, entry))]
    for folder, patterns in libraries.providers.folders.items():
        away = [library for library in elf.needed if matches(library, patterns)]
        if away and not any(matches(place, [folder]) for place in search):
            yield (
                "error",
                f"It needs {some(away)} in {folder} of another wheel, where its RPATH does not lead.",
            )


def _on_rpath(binary: Binary, places: Iterable[str]) -> bool:
    folders = {_expand(binary, entry) for entry in (binary.elf.rpath if binary.elf else ())}
    return any(str(PurePosixPath(place).parent) in folders for place in places)


def _expand(binary: Binary, entry: str) -> str | None:
    """Return the folder below site-packages that an RPATH entry means; None if it is not below."""
    found = _ORIGIN.match(entry)
    if not found:
        return None
    folder = list(PurePosixPath(binary.member.installed).parent.parts)
    for step in entry[found.end() :].split("/"):
        if step == "..":
            if not folder:
                return None
            folder.pop()
        elif step not in {"", "."}:
            folder.append(step)
    return "/".join(folder) or "."


DLL_CHECK = "dll"
Origin = Literal["system", "redistributable", "debug", "python", ""]
_PLATFORM = "win_amd64"
_PYTHON = re.compile(r"python3\d*t?(_d)?\.dll")


class _Dlls:
    """Where a wheel's files may find DLLs; names in small letters."""

    def __init__(self, view: WheelView, policy: Policy) -> None:
        self.python = python_dlls(view.name.tags)
        self.providers = Providers(view, policy)
        self.inside: dict[str, list[str]] = defaultdict(list)
        for member in view.members:
            self.inside[PurePosixPath(member.name).name.lower()].append(_folder(member))


def is_dll(name: str) -> bool:
    """Return whether a member is a DLL, an extension module or a program, by its name."""
    return name.lower().endswith((".dll", ".pyd", ".exe"))


def check_dlls(view: WheelView, policy: Policy) -> Iterator[Finding]:
    """Judge the DLLs, extension modules and programs of a wheel for Windows."""
    if _PLATFORM not in view.platforms:
        return
    libraries = _Dlls(view, policy)
    read = {binary.member.name: binary for binary in view.binaries}
    for member in view.members:
        binary = read.get(member.name)
        if binary is None or binary.pe is None:
            if member.size and is_dll(member.name) and not (binary and binary.problems):
                yield view.finding(
                    "error", DLL_CHECK, "It is not 64-bit code, whatever its name.", member.name
                )
            continue
        if binary.pe.dll is member.name.lower().endswith(".exe"):
            yield view.finding("error", DLL_CHECK, "It is a program and no DLL, or the reverse.", member.name)
        if binary.pe.machine != pe.AMD64:
            message = f"It is for another processor (machine {binary.pe.machine:#x}) than {_PLATFORM}."
            yield view.finding("error", DLL_CHECK, message, member.name)
        yield from _needed_dlls(view, policy, libraries, binary.member, binary.pe)


def _needed_dlls(
    view: WheelView, policy: Policy, libraries: _Dlls, member: WheelMember, facts: pe.PeFacts
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
            yield view.finding(severity, DLL_CHECK, message, member.name)


def _problem(policy: Policy, libraries: _Dlls, member: WheelMember, name: str) -> str:
    """Return what is wrong with a needed DLL: "" for nothing, else a kind that `_message` knows."""
    lower = name.lower()
    if folders := libraries.inside.get(lower):
        near = _folder(member) in folders
        return "" if near or any(matches(one, policy.windows.folders) for one in folders) else "elsewhere"
    found = origin(name, policy.windows)
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
def system_dlls() -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Return the DLLs that Windows has: names in small letters, and patterns."""
    from delvewheel import _dll_list as data

    names = data.ignore_names[data.MachineType.AMD64]
    return frozenset(names), tuple(one for one in data.ignore_regexes if not one.fullmatch("python312.dll"))


def origin(name: str, windows: Windows) -> Origin:
    """Return what a machine gets a DLL from; "" where it is unknown."""
    lower = name.lower()
    if matches(lower, windows.debug) or re.fullmatch(r"python3\d*t?_d\.dll", lower):
        return "debug"
    if _PYTHON.fullmatch(lower):
        return "python"
    names, patterns = system_dlls()
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
