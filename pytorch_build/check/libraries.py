"""ELF files: what they need, where they look for it, what provides it, what a loader would refuse.

Search rules: ld.so(8). Libraries that every system has: PEP 600.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytorch_build.check import (
    Binary,
    Finding,
    WheelView,
    error,
    name_first_few,
    note,
    path_in_site_packages,
    warning,
)
from pytorch_build.check.contents import find_compiled_name_rule
from pytorch_build.check.policy import CheckOptions, ExpectedLibraries, expected_libraries, matches

if TYPE_CHECKING:
    from core.binaries.elf import ElfFacts

_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_LARGEST_PAGE_OF_AARCH64 = 0x10000
_LEGACY_GLIBC = {"manylinux1_": (2, 5), "manylinux2010_": (2, 12), "manylinux2014_": (2, 17)}
_ORIGIN = re.compile(r"^\$(ORIGIN|\{ORIGIN\})(/|$)")


@dataclass(frozen=True, kw_only=True)
class LibrarySources:
    """Where a wheel's files may find libraries: systems, machines, other distributions, the wheel.

    Attributes:
        options: Which libraries systems, machines and the ROCm wheels around this one have.
        expected: Those of distributions that the wheel requires.
        paths: Those of the wheel, by file name.
        paths_by_soname: Those of the wheel whose SONAME is not their file name.
    """

    options: CheckOptions
    expected: ExpectedLibraries
    paths: Mapping[str, Sequence[str]]
    paths_by_soname: Mapping[str, Sequence[str]]

    def is_provided(self, library: str, binary: Binary) -> bool:
        """Return whether every system, or another wheel, has a library that a file needs."""
        if library in self.options.policy.system_libraries:
            return True
        if self.options.members_of_rocm is None:
            return matches(library, self.expected.patterns)
        # What ROCm's wheels around this one have where the loader looks counts, not what they are known for.
        return _is_on_rpath(binary, self.options.members_of_rocm.get(library, ()))

    def may_be_on_machine(self, library: str) -> bool:
        """Return whether some machines have a library, the one that built the wheel included."""
        options = self.options
        return library in options.loader_libraries or matches(library, options.policy.machine_libraries)


def find_library_sources(view: WheelView) -> LibrarySources:
    """Return where a wheel's files may find libraries."""
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for path in filter(None, map(path_in_site_packages, view.members)):
        paths[PurePosixPath(path).name].append(path)

    paths_by_soname: defaultdict[str, list[str]] = defaultdict(list)
    for binary in view.binaries:
        soname = binary.elf.soname if binary.elf else ""
        if soname and binary.path and PurePosixPath(binary.path).name != soname:
            paths_by_soname[soname].append(binary.path)

    return LibrarySources(
        options=view.options,
        expected=expected_libraries(view),
        paths=paths,
        paths_by_soname=paths_by_soname,
    )


def parse_ldconfig(listing: str, machine: str) -> frozenset[str]:
    """Return the names of a processor's libraries in the output of ``ldconfig -p``."""
    kind = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(machine, machine)
    return frozenset(re.findall(rf"^\s*(\S+) \(libc6,{kind}[,)]", listing, re.MULTILINE))


def check(view: WheelView) -> Iterator[Finding]:
    """Yield findings on a wheel's ELF files for the host; those for GPUs are left to `device_code`."""
    sources = find_library_sources(view)
    members_by_soname: defaultdict[str, list[str]] = defaultdict(list)
    for binary in view.binaries:
        yield from _find_unloadable(binary)
        elf = binary.elf
        if elf is None or elf.machine == "EM_AMDGPU" or elf.kind not in {"ET_DYN", "ET_EXEC"}:
            continue

        yield from _compare_platform(view, binary.name, elf)
        yield from _judge_search_path(binary, elf)
        yield from _judge_headers(binary.name, elf)
        yield from _find_missing_libraries(view, sources, binary, elf)
        yield from _find_unreached_folders(sources, binary, elf)
        if elf.soname:
            members_by_soname[elf.soname].append(binary.name)

    for soname, names in sorted(members_by_soname.items()):
        if len(names) > 1:
            message = f"{len(names)} files have the SONAME {soname}: {name_first_few(names)}."
            yield warning(f"{message} Only one of them is loaded.", names[0])


def _find_unloadable(binary: Binary) -> Iterator[Finding]:
    """Yield an error for a file that is named like a library or program and cannot be loaded as one."""
    name_rule = find_compiled_name_rule(binary.name)
    if name_rule is None or binary.problems:
        return
    if binary.elf is None:
        yield error(f"It is no {name_rule.kind} for Linux.", binary.name)
        return

    elf = binary.elf
    is_library = name_rule.kind == "library"
    kinds = {"ET_DYN"} if is_library else {"ET_DYN", "ET_EXEC"}
    is_unlinked = is_library and elf.machine in _MACHINES.values() and not elf.dynamic
    if elf.kind not in kinds or elf.machine == "EM_AMDGPU" or is_unlinked:
        message = f"It is no {name_rule.kind} that a loader takes: {elf.kind} for {elf.machine}"
        if is_unlinked:
            message += ", without a dynamic section"
        yield error(f"{message}.", binary.name)


def _compare_platform(view: WheelView, name: str, elf: ElfFacts) -> Iterator[Finding]:
    """Yield errors for an ELF file of another processor or a newer glibc than the platform tags allow."""
    for platform in sorted(view.platforms):
        for suffix, machine in _MACHINES.items():
            if platform.endswith(suffix) and elf.machine != machine:
                yield error(f"It is for {elf.machine}; the tag is {platform}.", name)
        promised_glibc = _glibc_of_platform_tag(platform)
        if promised_glibc is not None and elf.glibc > promised_glibc:
            needed_version = ".".join(map(str, elf.glibc))
            promised_version = ".".join(map(str, promised_glibc))
            yield error(f"It needs glibc {needed_version}; {platform} promises {promised_version}.", name)


def _glibc_of_platform_tag(platform: str) -> tuple[int, int] | None:
    """Return the newest glibc that a manylinux tag lets a wheel need; None for other tags."""
    match = re.match(r"manylinux_(\d+)_(\d+)_", platform)
    if match is not None:
        return int(match[1]), int(match[2])
    for prefix, version in _LEGACY_GLIBC.items():
        if platform.startswith(prefix):
            return version
    return None


def _judge_search_path(binary: Binary, elf: ElfFacts) -> Iterator[Finding]:
    """Yield findings on RPATH entries that are absolute, empty or outside of site-packages."""
    name = binary.name
    absolute = [folder for folder in elf.search if not _ORIGIN.match(folder)]
    if absolute:
        message = f"Its RPATH names folders of one machine: {name_first_few(absolute)}."
        yield error(f"{message} Only $ORIGIN/… is allowed.", name)
    if "" in elf.rpath:
        yield error("Its RPATH has an empty entry, which is the folder that a program runs in.", name)

    relative = [folder for folder in elf.search if _ORIGIN.match(folder)]
    outside = [folder for folder in relative if _expand_rpath_entry(binary, folder) is None]
    if outside and binary.path:
        yield warning(f"Its RPATH leaves site-packages: {name_first_few(outside)}.", name)


def _judge_headers(name: str, elf: ElfFacts) -> Iterator[Finding]:
    """Yield findings on ELF headers that loaders refuse, on every machine or some, as of damaged files."""
    if "E" in elf.stack:
        yield error("It asks for an executable stack.", name)
    elif not elf.stack:
        yield warning("It has no PT_GNU_STACK header, and so it asks for an executable stack.", name)
    if elf.mapping_fault is not None:
        yield error(f"No loader maps it: {elf.mapping_fault}.", name)
    elif elf.machine == "EM_AARCH64" and 0 < elf.page_size < _LARGEST_PAGE_OF_AARCH64:
        yield warning(f"It cannot be loaded on machines with pages of more than {elf.page_size} bytes.", name)
    if elf.debug_bytes:
        yield note(f"It has {elf.debug_bytes} bytes of debug sections.", name)


def _find_missing_libraries(
    view: WheelView,
    sources: LibrarySources,
    binary: Binary,
    elf: ElfFacts,
) -> Iterator[Finding]:
    """Yield findings on libraries that a file needs and may not find, one for each reason."""
    name = binary.name
    of_providers: defaultdict[str, list[str]] = defaultdict(list)
    of_machine: list[str] = []
    unresolved: list[str] = []
    for library in elf.needed:
        if sources.is_provided(library, binary):
            continue
        provider = sources.expected.find_undeclared_provider(library)
        if library in sources.paths or library in sources.paths_by_soname:
            message = _fault_of_library_path(sources, binary, library)
            if message is not None:
                yield warning(message, name)
        elif provider is not None:
            of_providers[provider].append(library)
        elif sources.may_be_on_machine(library):
            of_machine.append(library)
        else:
            unresolved.append(library)

    for provider, libraries in of_providers.items():
        message = (
            f"It needs {name_first_few(libraries)} of {provider}, but METADATA does not require {provider}."
        )
        yield error(message, name)
    if of_machine:
        is_portable = any(platform.startswith("manylinux") for platform in view.platforms)
        *first_names, last_name = of_machine
        names = f"{', '.join(first_names)} and {last_name}" if first_names else last_name
        pronoun = "them" if first_names else "it"
        message = f"It needs {names}, which no wheel provides: the machine must have {pronoun}."
        yield error(message, name) if is_portable else warning(message, name)
    if unresolved:
        yield error(f"It needs {name_first_few(unresolved)}, which nothing provides.", name)


def _fault_of_library_path(sources: LibrarySources, binary: Binary, library: str) -> str | None:
    """Return why a file may not find a library that is in its wheel; None where it finds it."""
    paths = sources.paths.get(library, ())
    # The loader looks for files; a SONAME helps only once the library is loaded.
    if _is_on_rpath(binary, paths):
        return None
    every_path = [*paths, *sources.paths_by_soname.get(library, ())]
    if any(matches(path, sources.options.policy.preloaded) for path in every_path):
        return None
    return (
        f"{library} is in the wheel as {name_first_few(every_path)}, but not on this file's RPATH: "
        "it is found only if something loads it before."
    )


def _find_unreached_folders(sources: LibrarySources, binary: Binary, elf: ElfFacts) -> Iterator[Finding]:
    """Yield errors for folders of other wheels with needed libraries that no RPATH entry leads to."""
    search_folders = _search_folders(binary)
    for folder, patterns in sources.expected.folders.items():
        libraries = [library for library in elf.needed if matches(library, patterns)]
        is_reached = any(matches(search_folder, [folder]) for search_folder in search_folders)
        if libraries and not is_reached:
            message = f"It needs {name_first_few(libraries)} in {folder} of another wheel"
            yield error(f"{message}, where its RPATH does not lead.", binary.name)


def _is_on_rpath(binary: Binary, paths: Iterable[str]) -> bool:
    """Return whether a file's RPATH leads to the folder of one of some paths."""
    search_folders = _search_folders(binary)
    return any(str(PurePosixPath(path).parent) in search_folders for path in paths)


def _search_folders(binary: Binary) -> set[str]:
    """Return the folders below site-packages that a file's RPATH leads to."""
    folders: set[str] = set()
    for entry in binary.elf.rpath if binary.elf else ():
        folder = _expand_rpath_entry(binary, entry)
        if folder is not None:
            folders.add(folder)
    return folders


def _expand_rpath_entry(binary: Binary, rpath_entry: str) -> str | None:
    """Return the folder below site-packages that an RPATH entry leads to; None if it is not below."""
    match = _ORIGIN.match(rpath_entry)
    if match is None:
        return None
    folder = list(PurePosixPath(binary.path).parent.parts)
    for step in rpath_entry[match.end() :].split("/"):
        if step == "..":
            if not folder:
                return None
            folder.pop()
        elif step not in {"", "."}:
            folder.append(step)
    return "/".join(folder) or "."
