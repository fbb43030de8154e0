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
    note,
    path_in_site_packages,
    some,
    warning,
)
from pytorch_build.check.contents import find_promised_code
from pytorch_build.check.policy import CheckOptions, ExpectedLibraries, expected_libraries, matches

if TYPE_CHECKING:
    from core.binaries.elf import ElfFacts

_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_LARGEST_PAGE_OF_AARCH64 = 0x10000
_LEGACY_GLIBC = {"manylinux1_": (2, 5), "manylinux2010_": (2, 12), "manylinux2014_": (2, 17)}
_ORIGIN = re.compile(r"^\$(ORIGIN|\{ORIGIN\})(/|$)")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where a wheel's files may find libraries.

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
        """Return whether the system or another wheel has a library that a file needs."""
        if library in self.options.policy.system_libraries:
            return True
        if self.options.members_of_rocm is None:
            return matches(library, self.expected.patterns)
        # What ROCm's wheels around this one have where the loader looks counts, not what they are known for.
        return _is_on_rpath(binary, self.options.members_of_rocm.get(library, ()))

    def is_of_machine(self, library: str) -> bool:
        """Return whether the machine may have a library, whether or not every machine does."""
        options = self.options
        return library in options.loader or matches(library, options.policy.machine_libraries)


def look_around(view: WheelView) -> Surroundings:
    """Return where a wheel's files may find libraries."""
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for path in filter(None, map(path_in_site_packages, view.members)):
        paths[PurePosixPath(path).name].append(path)

    paths_by_soname: defaultdict[str, list[str]] = defaultdict(list)
    for binary in view.binaries:
        soname = binary.elf.soname if binary.elf else ""
        if soname and binary.path and PurePosixPath(binary.path).name != soname:
            paths_by_soname[soname].append(binary.path)

    return Surroundings(
        options=view.options,
        expected=expected_libraries(view),
        paths=paths,
        paths_by_soname=paths_by_soname,
    )


def loader_names(listing: str, machine: str) -> frozenset[str]:
    """Return the libraries that a machine's loader finds, as its ``ldconfig -p`` lists them (ldconfig(8))."""
    kind = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(machine, machine)
    return frozenset(re.findall(rf"^\s*(\S+) \(libc6,{kind}[,)]", listing, re.MULTILINE))


def check(view: WheelView) -> Iterator[Finding]:
    """Judge a wheel's ELF files for its host; code objects for GPUs are judged by `device_code`."""
    surroundings = look_around(view)
    members_by_soname: defaultdict[str, list[str]] = defaultdict(list)
    for binary in view.binaries:
        yield from _find_unloadable(binary)
        elf = binary.elf
        if elf is None or elf.machine == "EM_AMDGPU" or elf.kind not in {"ET_DYN", "ET_EXEC"}:
            continue

        yield from _compare_platform(view, binary.name, elf)
        yield from _judge_search_path(binary, elf)
        yield from _judge_headers(binary.name, elf)
        yield from _find_missing_libraries(view, surroundings, binary, elf)
        yield from _find_unreached_folders(surroundings, binary, elf)
        if elf.soname:
            members_by_soname[elf.soname].append(binary.name)

    for soname, names in sorted(members_by_soname.items()):
        if len(names) > 1:
            message = f"{len(names)} files have the SONAME {soname}: {some(names)}."
            yield warning(f"{message} Only one of them is loaded.", names[0])


def _find_unloadable(binary: Binary) -> Iterator[Finding]:
    """Find compiled code that is not what its name promises, whatever wheel it is in."""
    promised_code = find_promised_code(binary.name)
    if promised_code is None or binary.problems:
        return
    if binary.elf is None:
        yield error(f"It is no {promised_code.kind} for Linux.", binary.name)
        return

    elf = binary.elf
    is_library = promised_code.kind == "library"
    kinds = {"ET_DYN"} if is_library else {"ET_DYN", "ET_EXEC"}
    is_unlinked = is_library and elf.machine in _MACHINES.values() and not elf.dynamic
    if elf.kind not in kinds or elf.machine == "EM_AMDGPU" or is_unlinked:
        message = f"It is no {promised_code.kind} that a loader takes: {elf.kind} for {elf.machine}"
        if is_unlinked:
            message += ", without a dynamic section"
        yield error(f"{message}.", binary.name)


def _compare_platform(view: WheelView, name: str, elf: ElfFacts) -> Iterator[Finding]:
    for platform in sorted(view.platforms):
        for suffix, machine in _MACHINES.items():
            if platform.endswith(suffix) and elf.machine != machine:
                yield error(f"It is for {elf.machine}; the tag is {platform}.", name)
        promised_glibc = _promised_glibc(platform)
        if promised_glibc is not None and elf.glibc > promised_glibc:
            needed_version = ".".join(map(str, elf.glibc))
            promised_version = ".".join(map(str, promised_glibc))
            yield error(f"It needs glibc {needed_version}; {platform} promises {promised_version}.", name)


def _promised_glibc(platform: str) -> tuple[int, int] | None:
    match = re.match(r"manylinux_(\d+)_(\d+)_", platform)
    if match is not None:
        return int(match[1]), int(match[2])
    for prefix, version in _LEGACY_GLIBC.items():
        if platform.startswith(prefix):
            return version
    return None


def _judge_search_path(binary: Binary, elf: ElfFacts) -> Iterator[Finding]:
    name = binary.name
    absolute = [folder for folder in elf.search if not _ORIGIN.match(folder)]
    if absolute:
        message = f"Its RPATH names folders of one machine: {some(absolute)}."
        yield error(f"{message} Only $ORIGIN/… is allowed.", name)
    if "" in elf.rpath:
        yield error("Its RPATH has an empty entry, which is the folder that a program runs in.", name)

    relative = [folder for folder in elf.search if _ORIGIN.match(folder)]
    outside = [folder for folder in relative if _expand(binary, folder) is None]
    if outside and binary.path:
        yield warning(f"Its RPATH leaves site-packages: {some(outside)}.", name)


def _judge_headers(name: str, elf: ElfFacts) -> Iterator[Finding]:
    """Find what no loader takes, such as files that patchelf and strip spoilt, or not on every machine."""
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
    surroundings: Surroundings,
    binary: Binary,
    elf: ElfFacts,
) -> Iterator[Finding]:
    """Look for each needed library; those that are missing for one reason make one finding."""
    name = binary.name
    of_providers: defaultdict[str, list[str]] = defaultdict(list)
    of_machine: list[str] = []
    unresolved: list[str] = []
    for library in elf.needed:
        if surroundings.is_provided(library, binary):
            continue
        provider = surroundings.expected.find_undeclared_provider(library)
        if library in surroundings.paths or library in surroundings.paths_by_soname:
            message = _fault_of_place(surroundings, binary, library)
            if message is not None:
                yield warning(message, name)
        elif provider is not None:
            of_providers[provider].append(library)
        elif surroundings.is_of_machine(library):
            of_machine.append(library)
        else:
            unresolved.append(library)

    for provider, libraries in of_providers.items():
        message = f"It needs {some(libraries)} of {provider}, but METADATA does not require {provider}."
        yield error(message, name)
    if of_machine:
        is_portable = any(platform.startswith("manylinux") for platform in view.platforms)
        *first_names, last_name = of_machine
        names = f"{', '.join(first_names)} and {last_name}" if first_names else last_name
        pronoun = "them" if first_names else "it"
        message = f"It needs {names}, which no wheel provides: the machine must have {pronoun}."
        yield error(message, name) if is_portable else warning(message, name)
    if unresolved:
        yield error(f"It needs {some(unresolved)}, which nothing provides.", name)


def _fault_of_place(surroundings: Surroundings, binary: Binary, library: str) -> str | None:
    """Return why a library that is in the wheel may not be found; None where it is."""
    paths = surroundings.paths.get(library, ())
    # The loader looks for files; a SONAME helps only once the library is loaded.
    if _is_on_rpath(binary, paths):
        return None
    every_path = [*paths, *surroundings.paths_by_soname.get(library, ())]
    if any(matches(path, surroundings.options.policy.preloaded) for path in every_path):
        return None
    return (
        f"{library} is in the wheel as {some(every_path)}, but not on this file's RPATH: "
        "it is found only if something loads it before."
    )


def _find_unreached_folders(surroundings: Surroundings, binary: Binary, elf: ElfFacts) -> Iterator[Finding]:
    """Verify that libraries of other distributions are found where those have them."""
    search_folders = _search_folders(binary)
    for folder, patterns in surroundings.expected.folders.items():
        libraries = [library for library in elf.needed if matches(library, patterns)]
        is_reached = any(matches(search_folder, [folder]) for search_folder in search_folders)
        if libraries and not is_reached:
            message = f"It needs {some(libraries)} in {folder} of another wheel"
            yield error(f"{message}, where its RPATH does not lead.", binary.name)


def _is_on_rpath(binary: Binary, paths: Iterable[str]) -> bool:
    search_folders = _search_folders(binary)
    return any(str(PurePosixPath(path).parent) in search_folders for path in paths)


def _search_folders(binary: Binary) -> set[str]:
    """Return the folders below site-packages that a file's RPATH leads to."""
    folders: set[str] = set()
    for entry in binary.elf.rpath if binary.elf else ():
        folder = _expand(binary, entry)
        if folder is not None:
            folders.add(folder)
    return folders


def _expand(binary: Binary, rpath_entry: str) -> str | None:
    """Return the folder below site-packages that an RPATH entry means; None if it is not below."""
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
