"""ELF files: what they need, where they look for it, and what a loader would refuse.

Search rules: ld.so(8). Libraries that every system has: PEP 600.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytorch_build.check.policy import matches, places, provided, some, unasked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from core.binaries.elf import ElfFacts
    from pytorch_build.check import Binary, Finding, Severity, WheelView
    from pytorch_build.check.policy import Policy

CHECK = "elf"
_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")
_LEGACY = {"manylinux1_": (2, 5), "manylinux2010_": (2, 12), "manylinux2014_": (2, 17)}
_ORIGIN = re.compile(r"^\$(ORIGIN|\{ORIGIN\})(/|$)")


@dataclass(frozen=True, kw_only=True)
class _Libraries:
    """Where a wheel's files may find libraries."""

    inside: Mapping[str, tuple[str, ...]]
    sonames: Mapping[str, tuple[str, ...]]
    provided: tuple[str, ...]
    folders: Mapping[str, tuple[str, ...]]
    unasked: Mapping[str, tuple[str, ...]]
    strict: bool


def check(view: WheelView, policy: Policy) -> Iterator[Finding]:
    """Judge a wheel's host ELF files; code objects for GPUs and relocatables are not among them."""
    host = [
        (binary, binary.elf)
        for binary in view.binaries
        if binary.elf and binary.elf.machine != "EM_AMDGPU" and binary.elf.kind in {"ET_DYN", "ET_EXEC"}
    ]
    libraries = _libraries(view, policy)
    for binary, elf in host:
        where = binary.member.name
        yield from _check_machine(view, where, elf)
        yield from _check_rpath(view, binary, elf)
        yield from _check_stack(view, where, elf)
        yield from _check_needed(view, policy, libraries, binary, elf.needed)
        yield from _check_reach(view, libraries, binary, elf.needed)
        if elf.debug_bytes:
            yield view.finding("note", CHECK, f"{elf.debug_bytes} bytes of debug sections.", where)
    yield from _check_sonames(view, host)


def _check_machine(view: WheelView, where: str, elf: ElfFacts) -> Iterator[Finding]:
    for platform in sorted(view.platforms):
        for suffix, machine in _MACHINES.items():
            if platform.endswith(suffix) and elf.machine != machine:
                yield view.finding("error", CHECK, f"It is for {elf.machine}; the tag is {platform}.", where)
        promised = _promised_glibc(platform)
        if promised and elf.glibc > promised:
            needs, has = (".".join(map(str, version)) for version in (elf.glibc, promised))
            yield view.finding("error", CHECK, f"It needs glibc {needs}; {platform} promises {has}.", where)


def _promised_glibc(platform: str) -> tuple[int, int] | None:
    found = _MANYLINUX.match(platform)
    if found:
        return int(found.group(1)), int(found.group(2))
    return next((version for prefix, version in _LEGACY.items() if platform.startswith(prefix)), None)


def _check_rpath(view: WheelView, binary: Binary, elf: ElfFacts) -> Iterator[Finding]:
    where = binary.member.name
    absolute = [entry for entry in elf.rpath if entry and not _ORIGIN.match(entry)]
    if absolute:
        message = f"Its RPATH names folders of one machine: {some(absolute)}. Only $ORIGIN/… is allowed."
        yield view.finding("error", CHECK, message, where)
    if "" in elf.rpath:
        yield view.finding(
            "error", CHECK, "Its RPATH has an empty entry, which is the folder a program runs in.", where
        )
    outside = [
        entry
        for entry in elf.rpath
        if binary.member.installed and _ORIGIN.match(entry) and _expand(binary, entry) is None
    ]
    if outside:
        yield view.finding("warning", CHECK, f"Its RPATH leaves site-packages: {some(outside)}.", where)


def _check_stack(view: WheelView, where: str, elf: ElfFacts) -> Iterator[Finding]:
    if "E" in elf.stack:
        yield view.finding("error", CHECK, "It asks for an executable stack.", where)
    elif not elf.stack:
        yield view.finding(
            "warning", CHECK, "It has no PT_GNU_STACK header, which asks for an executable stack.", where
        )


def _check_needed(
    view: WheelView, policy: Policy, libraries: _Libraries, binary: Binary, needed: Iterable[str]
) -> Iterator[Finding]:
    """Find each needed library; those missing for one reason make one finding."""
    where = binary.member.name
    of_others: dict[str, list[str]] = {}
    machine: list[str] = []
    nowhere: list[str] = []
    for library in needed:
        if library in policy.system_libraries or matches(library, libraries.provided):
            continue
        inside = libraries.inside.get(library, ()) + libraries.sonames.get(library, ())
        provider = next((name for name, some in libraries.unasked.items() if matches(library, some)), "")
        if inside:
            if not any(matches(place, policy.preloaded) for place in inside):
                yield from _check_inside(view, libraries, binary, library, inside)
        elif provider:
            of_others.setdefault(provider, []).append(library)
        elif matches(library, policy.machine_libraries):
            machine.append(library)
        else:
            nowhere.append(library)
    for provider, names in of_others.items():
        message = f"It needs {some(names)} of {provider}, but METADATA does not require {provider}."
        yield view.finding("error", CHECK, message, where)
    if machine:
        severity: Severity = "error" if libraries.strict else "warning"
        message = f"It needs {some(machine)}, which no wheel brings: the machine must have it."
        yield view.finding(severity, CHECK, message, where)
    if nowhere:
        yield view.finding("error", CHECK, f"It needs {some(nowhere)}, which nothing brings.", where)


def _check_inside(
    view: WheelView, libraries: _Libraries, binary: Binary, library: str, places: Iterable[str]
) -> Iterator[Finding]:
    # The loader looks for files; a SONAME helps only once the library is loaded.
    if not _on_rpath(binary, libraries.inside.get(library, ())):
        message = (
            f"{library} is in the wheel as {some(places)}, but not on this file's RPATH: "
            "it is found only if something loads it before."
        )
        yield view.finding("warning", CHECK, message, binary.member.name)


def _check_reach(
    view: WheelView, libraries: _Libraries, binary: Binary, needed: Iterable[str]
) -> Iterator[Finding]:
    """See that libraries of other distributions are found where those have them."""
    search = [found for entry in binary.elf.rpath if (found := _expand(binary, entry))] if binary.elf else []
    for folder, patterns in libraries.folders.items():
        away = [library for library in needed if matches(library, patterns)]
        if away and not any(matches(place, [folder]) for place in search):
            message = f"It needs {some(away)} in {folder} of another wheel, where its RPATH does not lead."
            yield view.finding("error", CHECK, message, binary.member.name)


def _check_sonames(view: WheelView, host: Iterable[tuple[Binary, ElfFacts]]) -> Iterator[Finding]:
    seen: dict[str, list[str]] = {}
    for binary, elf in host:
        if elf.soname:
            seen.setdefault(elf.soname, []).append(binary.member.name)
    for soname, members in sorted(seen.items()):
        if len(members) > 1:
            message = (
                f"{len(members)} files have the SONAME {soname}: {some(members)}. One of them is loaded."
            )
            yield view.finding("warning", CHECK, message, members[0])


def _libraries(view: WheelView, policy: Policy) -> _Libraries:
    inside: dict[str, tuple[str, ...]] = {}
    sonames: dict[str, tuple[str, ...]] = {}
    for member in view.members:
        if member.installed:
            base = PurePosixPath(member.installed).name
            inside[base] = (*inside.get(base, ()), member.installed)
    for binary in view.binaries:
        if binary.elf and binary.elf.soname and binary.member.installed:
            soname = binary.elf.soname
            if PurePosixPath(binary.member.installed).name != soname:
                sonames[soname] = (*sonames.get(soname, ()), binary.member.installed)
    return _Libraries(
        inside=inside,
        sonames=sonames,
        provided=provided(view, policy),
        folders=places(view, policy),
        unasked=unasked(view, policy),
        strict=any(platform.startswith("manylinux") for platform in view.platforms),
    )


def _on_rpath(binary: Binary, places: Iterable[str]) -> bool:
    folders = {_expand(binary, entry) for entry in (binary.elf.rpath if binary.elf else ())}
    return any(str(PurePosixPath(place).parent) in folders for place in places)


def _expand(binary: Binary, entry: str) -> str | None:
    """Give the folder below site-packages that an RPATH entry means; none if it is not below."""
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
