"""ELF files: what they need, where they look for it, what provides it, what a loader would refuse.

Search rules: ld.so(8). Libraries that every system has: PEP 600.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytorch_build.check import Binary, Finding, Severity, WheelView, some
from pytorch_build.check.contents import find_promise
from pytorch_build.check.policy import ExpectedLibraries, Policy, expected_libraries, matches

if TYPE_CHECKING:
    from core.binaries.elf import ElfFacts

CHECK = "elf"
_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_LARGEST_PAGE_OF_AARCH64 = 0x10000
_LEGACY_GLIBC = {"manylinux1_": (2, 5), "manylinux2010_": (2, 12), "manylinux2014_": (2, 17)}
_ORIGIN = re.compile(r"^\$(ORIGIN|\{ORIGIN\})(/|$)")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where a wheel's files may find libraries.

    Attributes:
        policy: Which libraries each system, and which a machine may have.
        expected: Those of distributions that the wheel requires.
        members_of_rocm: Those of the ROCm wheels around this one, by file name; None where these are unknown.
        loader: Those that the loader of the machine that built the wheel finds.
        paths: Those of the wheel, by file name.
        paths_by_soname: Those of the wheel whose SONAME is not their file name.
        is_portable: Whether the wheel is to work on every machine.
    """

    policy: Policy
    expected: ExpectedLibraries
    members_of_rocm: Mapping[str, Sequence[str]] | None
    loader: Container[str]
    paths: Mapping[str, Sequence[str]]
    paths_by_soname: Mapping[str, Sequence[str]]
    is_portable: bool

    def is_provided(self, library: str, binary: Binary) -> bool:
        """Return whether the system or another wheel has a library that a file needs."""
        if library in self.policy.system_libraries:
            return True
        if self.members_of_rocm is None:
            return matches(library, self.expected.patterns)
        # What ROCm's wheels around this one have where the loader looks counts, not what they are known for.
        return _is_on_rpath(binary, self.members_of_rocm.get(library, ()))


def look_around(
    view: WheelView,
    policy: Policy,
    loader: Container[str],
) -> Surroundings:
    """Return where a wheel's files may find libraries."""
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for member in view.members:
        if member.path_in_site_packages:
            paths[PurePosixPath(member.path_in_site_packages).name].append(member.path_in_site_packages)

    paths_by_soname: defaultdict[str, list[str]] = defaultdict(list)
    for binary in view.binaries:
        path = binary.member.path_in_site_packages
        if binary.elf and binary.elf.soname and path and PurePosixPath(path).name != binary.elf.soname:
            paths_by_soname[binary.elf.soname].append(path)

    return Surroundings(
        policy=policy,
        expected=expected_libraries(view, policy),
        members_of_rocm=view.members_of_rocm,
        loader=loader,
        paths=paths,
        paths_by_soname=paths_by_soname,
        is_portable=any(platform.startswith("manylinux") for platform in view.platforms),
    )


def loader_names(listing: str, machine: str) -> frozenset[str]:
    """Return the libraries that a machine's loader finds, as its ``ldconfig -p`` lists them (ldconfig(8))."""
    kind = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(machine, machine)
    return frozenset(re.findall(rf"^\s*(\S+) \(libc6,{kind}[,)]", listing, re.MULTILINE))


def check(
    view: WheelView,
    policy: Policy,
    loader: Container[str] = (),
) -> Iterator[Finding]:
    """Judge a wheel's ELF files for its host; code objects for GPUs are judged by `device_code`."""
    surroundings = look_around(view, policy, loader)
    members_by_soname: defaultdict[str, list[str]] = defaultdict(list)
    for binary in view.binaries:
        yield from _find_unloadable(view, binary)
        elf = binary.elf
        if elf is None or elf.machine == "EM_AMDGPU" or elf.kind not in {"ET_DYN", "ET_EXEC"}:
            continue
        yield from _compare_platform(view, binary, elf)
        yield from _judge_search_path(view, binary, elf)
        if "E" in elf.stack:
            message = "It asks for an executable stack."
            yield view.finding("error", CHECK, message, binary.member.name)
        elif not elf.stack:
            message = "It has no PT_GNU_STACK header, and so it asks for an executable stack."
            yield view.finding("warning", CHECK, message, binary.member.name)
        yield from _judge_mapping(view, binary, elf)
        yield from _find_missing_libraries(
            view,
            surroundings,
            binary,
            elf,
        )
        yield from _find_unreached_folders(
            view,
            surroundings,
            binary,
            elf,
        )
        if elf.debug_bytes:
            message = f"It has {elf.debug_bytes} bytes of debug sections."
            yield view.finding(
                "note",
                CHECK,
                message,
                binary.member.name,
            )
        if elf.soname:
            members_by_soname[elf.soname].append(binary.member.name)

    for soname, names in sorted(members_by_soname.items()):
        if len(names) > 1:
            message = (
                f"{len(names)} files have the SONAME {soname}: {some(names)}. Only one of them is loaded."
            )
            yield view.finding(
                "warning",
                CHECK,
                message,
                names[0],
            )


def _find_unloadable(view: WheelView, binary: Binary) -> Iterator[Finding]:
    """Find compiled code that is not what its name promises, whatever wheel it is in."""
    promise = find_promise(binary.member.name)
    if promise is None or binary.problems:
        return
    if binary.elf is None:
        yield view.finding(
            "error",
            CHECK,
            f"It is no {promise.kind} for Linux.",
            binary.member.name,
        )
        return

    elf = binary.elf
    is_library = promise.kind == "library"
    kinds = {"ET_DYN"} if is_library else {"ET_DYN", "ET_EXEC"}
    is_unlinked = is_library and elf.machine in _MACHINES.values() and not elf.dynamic
    if elf.kind not in kinds or elf.machine == "EM_AMDGPU" or is_unlinked:
        message = f"It is no {promise.kind} that a loader takes: {elf.kind} for {elf.machine}"
        if is_unlinked:
            message += ", without a dynamic section"
        yield view.finding(
            "error",
            CHECK,
            f"{message}.",
            binary.member.name,
        )


def _compare_platform(
    view: WheelView,
    binary: Binary,
    elf: ElfFacts,
) -> Iterator[Finding]:
    for platform in sorted(view.platforms):
        for suffix, machine in _MACHINES.items():
            if platform.endswith(suffix) and elf.machine != machine:
                message = f"It is for {elf.machine}; the tag is {platform}."
                yield view.finding(
                    "error",
                    CHECK,
                    message,
                    binary.member.name,
                )
        promised_glibc = _promised_glibc(platform)
        if promised_glibc is not None and elf.glibc > promised_glibc:
            needed_version = ".".join(map(str, elf.glibc))
            promised_version = ".".join(map(str, promised_glibc))
            message = f"It needs glibc {needed_version}; {platform} promises {promised_version}."
            yield view.finding(
                "error",
                CHECK,
                message,
                binary.member.name,
            )


def _promised_glibc(platform: str) -> tuple[int, int] | None:
    match = re.match(r"manylinux_(\d+)_(\d+)_", platform)
    if match is not None:
        return int(match[1]), int(match[2])
    for prefix, version in _LEGACY_GLIBC.items():
        if platform.startswith(prefix):
            return version
    return None


def _judge_search_path(
    view: WheelView,
    binary: Binary,
    elf: ElfFacts,
) -> Iterator[Finding]:
    name = binary.member.name
    absolute = [folder for folder in elf.search if not _ORIGIN.match(folder)]
    if absolute:
        message = f"Its RPATH names folders of one machine: {some(absolute)}. Only $ORIGIN/… is allowed."
        yield view.finding(
            "error",
            CHECK,
            message,
            name,
        )
    if "" in elf.rpath:
        message = "Its RPATH has an empty entry, which is the folder that a program runs in."
        yield view.finding(
            "error",
            CHECK,
            message,
            name,
        )

    relative = [folder for folder in elf.search if _ORIGIN.match(folder)]
    outside = [folder for folder in relative if _expand(binary, folder) is None]
    if outside and binary.member.path_in_site_packages:
        yield view.finding(
            "warning",
            CHECK,
            f"Its RPATH leaves site-packages: {some(outside)}.",
            name,
        )


def _judge_mapping(
    view: WheelView,
    binary: Binary,
    elf: ElfFacts,
) -> Iterator[Finding]:
    """Find files that patchelf and strip left so that no loader takes them, or not on every machine."""
    if elf.mapping_fault is not None:
        yield view.finding(
            "error",
            CHECK,
            f"No loader maps it: {elf.mapping_fault}.",
            binary.member.name,
        )
    elif elf.machine == "EM_AARCH64" and 0 < elf.page_size < _LARGEST_PAGE_OF_AARCH64:
        message = f"It cannot be loaded on machines with pages of more than {elf.page_size} bytes."
        yield view.finding(
            "warning",
            CHECK,
            message,
            binary.member.name,
        )


def _find_missing_libraries(
    view: WheelView,
    surroundings: Surroundings,
    binary: Binary,
    elf: ElfFacts,
) -> Iterator[Finding]:
    """Look for each needed library; those that are missing for one reason make one finding."""
    name = binary.member.name
    of_providers: defaultdict[str, list[str]] = defaultdict(list)
    of_machine: list[str] = []
    unresolved: list[str] = []
    for library in elf.needed:
        if surroundings.is_provided(library, binary):
            continue
        paths = surroundings.paths.get(library, ())
        paths_by_soname = surroundings.paths_by_soname.get(library, ())
        provider = surroundings.expected.find_undeclared_provider(library)
        if paths or paths_by_soname:
            message = _fault_of_place(surroundings, binary, library)
            if message is not None:
                yield view.finding(
                    "warning",
                    CHECK,
                    message,
                    name,
                )
        elif provider is not None:
            of_providers[provider].append(library)
        elif library in surroundings.loader or matches(library, surroundings.policy.machine_libraries):
            of_machine.append(library)
        else:
            unresolved.append(library)

    for provider, libraries in of_providers.items():
        message = f"It needs {some(libraries)} of {provider}, but METADATA does not require {provider}."
        yield view.finding(
            "error",
            CHECK,
            message,
            name,
        )
    if of_machine:
        severity: Severity = "error" if surroundings.is_portable else "warning"
        *first_names, last_name = of_machine
        names = f"{', '.join(first_names)} and {last_name}" if first_names else last_name
        pronoun = "them" if first_names else "it"
        message = f"It needs {names}, which no wheel provides: the machine must have {pronoun}."
        yield view.finding(severity, CHECK, message, name)
    if unresolved:
        message = f"It needs {some(unresolved)}, which nothing provides."
        yield view.finding(
            "error",
            CHECK,
            message,
            name,
        )


def _fault_of_place(
    surroundings: Surroundings,
    binary: Binary,
    library: str,
) -> str | None:
    """Return why a library that is in the wheel may not be found; None where it is."""
    paths = surroundings.paths.get(library, ())
    # The loader looks for files; a SONAME helps only once the library is loaded.
    if _is_on_rpath(binary, paths):
        return None
    every_path = [*paths, *surroundings.paths_by_soname.get(library, ())]
    if any(matches(path, surroundings.policy.preloaded) for path in every_path):
        return None
    return (
        f"{library} is in the wheel as {some(every_path)}, but not on this file's RPATH: "
        "it is found only if something loads it before."
    )


def _find_unreached_folders(
    view: WheelView,
    surroundings: Surroundings,
    binary: Binary,
    elf: ElfFacts,
) -> Iterator[Finding]:
    """Verify that libraries of other distributions are found where those have them."""
    search_folders = _search_folders(binary)
    for folder, patterns in surroundings.expected.folders.items():
        libraries = [library for library in elf.needed if matches(library, patterns)]
        is_reached = any(matches(search_folder, [folder]) for search_folder in search_folders)
        if libraries and not is_reached:
            message = (
                f"It needs {some(libraries)} in {folder} of another wheel, where its RPATH does not lead."
            )
            yield view.finding(
                "error",
                CHECK,
                message,
                binary.member.name,
            )


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
    folder = list(PurePosixPath(binary.member.path_in_site_packages).parent.parts)
    for step in rpath_entry[match.end() :].split("/"):
        if step == "..":
            if not folder:
                return None
            folder.pop()
        elif step not in {"", "."}:
            folder.append(step)
    return "/".join(folder) or "."
