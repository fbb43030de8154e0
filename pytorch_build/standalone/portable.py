"""Portable wheels: what a wheel needs of its machine, and the manylinux tag that it can have.

Policies are those of PEP 600, in auditwheel's data: a policy is the higher, the older the machines on
which its wheels run. ROCm's libraries and torch's come from other wheels or are loaded first, and do
not count. auditwheel judges by its Python function, as its command `show` cannot leave libraries out.

Libraries of the machine go into a wheel as auditwheel does it: ``libfoo.so.1`` becomes
``NAME.libs/libfoo-HASH.so.1``, its SONAME with it, and whoever needs it is changed to need that one.
Its command `repair` is not used: it compresses every file of the wheel again, which is minutes for torch,
leads files of ``.data/platlib`` to a wrong folder (auditwheel #425), and takes one of two libraries of the
same name without a word.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core import files, process, temporary
from core.archive import Member
from core.archive.zips import MemberStream, read_archive
from core.binaries import elf, rpath
from core.errors import BuildError, CheckError, MissingInputError, WheelError
from core.wheel import parse_wheel_name
from core.wheel.editor import Additions, edit_wheel
from core.wheel.record import require_listing
from pytorch_build.check import path_in_site_packages
from pytorch_build.check.policy import Policy, load_policy
from pytorch_build.standalone.libraries import BinaryNeeds, copy_stream, read_binary, read_members

if TYPE_CHECKING:
    from auditwheel.wheel_abi import WheelAbIInfo

    from core.wheel.writer import WrittenFile

_SHOWN_USERS = 3
_DIGEST_IN_NAME = 8


@dataclass(frozen=True, kw_only=True)
class Portability:
    """The manylinux tags that a wheel satisfies, and those that it can have with libraries put in."""

    satisfied_tags: tuple[str, ...]
    reachable_tags: tuple[str, ...]
    external_libraries: Mapping[str, tuple[Path, ...]]
    """Libraries outside of the wheel, as files name them: where this machine has them, () for nowhere."""
    binaries: Mapping[str, BinaryNeeds]
    """The wheel's own, by member name."""


@dataclass(frozen=True, kw_only=True)
class RepairedWheel:
    """A repaired wheel with its platform tag; `file` is None where it had the tag already."""

    file: WrittenFile | None
    platform: str
    grafted_libraries: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BinaryPatch:
    """The changes to one binary of a wheel; one with a source is a copy of the machine's library."""

    member: str
    source: Path | None = None
    soname: str = ""
    renamed: Mapping[str, str]
    """Libraries that it needs, and what these are called in the wheel."""
    search: tuple[str, ...]


# What a wheel is worth


def find_portability(wheel: Path) -> Portability:
    """Return the manylinux tags of a Linux wheel, by its symbols, instruction sets and libraries."""
    binaries = read_members(wheel, require_listing(wheel).members)
    excluded_libraries = find_excluded_libraries(binaries, load_policy())
    as_it_is = _run_auditwheel(wheel, excluded_libraries, allow_graft=False)
    with_grafts = _run_auditwheel(wheel, excluded_libraries, allow_graft=True)

    satisfied_policy = as_it_is.overall_policy
    reachable_policy = with_grafts.overall_policy
    return Portability(
        satisfied_tags=(satisfied_policy.name, *satisfied_policy.aliases),
        reachable_tags=(reachable_policy.name, *reachable_policy.aliases),
        external_libraries=_external_libraries(with_grafts, reachable_policy.name),
        binaries=binaries,
    )


def find_excluded_libraries(
    binaries: Mapping[str, BinaryNeeds],
    policy: Policy,
) -> frozenset[str]:
    """Return patterns of libraries that manylinux need not promise, as wheels have them."""
    patterns = {"libpython3*.so*"}
    for member, binary in binaries.items():
        patterns.add(PurePosixPath(member).name)
        if binary.name:
            patterns.add(binary.name)
    for provider in policy.providers.values():
        patterns.update(provider.patterns)
    return frozenset(patterns)


def _run_auditwheel(
    wheel: Path,
    excluded_libraries: frozenset[str],
    *,
    allow_graft: bool,
) -> WheelAbIInfo:
    """Return auditwheel's analysis of a wheel, as it is or with external libraries put in."""
    try:
        from auditwheel.error import AuditwheelError
        from auditwheel.wheel_abi import analyze_wheel_abi
    except ImportError as problem:
        raise MissingInputError(
            "auditwheel, which has manylinux' policies, is not installed.",
            hint="It is part of the tool on Linux: pip install -r requirements.txt.",
        ) from problem

    logging.getLogger("auditwheel").setLevel(logging.ERROR)
    try:
        return analyze_wheel_abi(
            None,
            None,
            wheel.resolve(),
            excluded_libraries,
            disable_isa_ext_check=False,
            allow_graft=allow_graft,
        )
    # a compiled file in purelib is a RuntimeError
    except (AuditwheelError, RuntimeError) as problem:
        first_line = str(problem).partition("\n")[0]
        first_line = first_line.rstrip(".:")
        raise WheelError(f"auditwheel cannot judge {wheel.name}: {first_line}.") from problem


def _external_libraries(
    judgement: WheelAbIInfo,
    policy: str,
) -> dict[str, tuple[Path, ...]]:
    """Return the libraries that a manylinux policy does not promise, with the paths they are found at."""
    paths_by_name: dict[str, set[Path]] = {}
    for references in judgement.full_external_refs.values():
        for name, path in references[policy].libs.items():
            paths = paths_by_name.setdefault(name, set())
            if path is not None:
                paths.add(path.resolve())

    external: dict[str, tuple[Path, ...]] = {}
    for name, paths in sorted(paths_by_name.items()):
        external[name] = tuple(sorted(paths))
    return external


# Repair


def repair_wheel(
    wheel: Path,
    portability: Portability,
    output: Path,
    *,
    graft: bool,
    epoch: int | None = None,
) -> RepairedWheel:
    """Write a wheel with the manylinux tag that it satisfies, external libraries put in if asked.

    Raises CheckError where it satisfies none, or would satisfy one that it does not work under.
    """
    is_portable = portability.satisfied_tags[0].startswith("manylinux")
    external: Mapping[str, Path] = {}
    if not is_portable or graft:
        external = _require_graftable(wheel, portability, graft=graft)
    platforms = portability.reachable_tags if external else portability.satisfied_tags

    patches = plan_patches(wheel.name.partition("-")[0], external, portability.binaries)
    _require_no_foreign_folders(wheel, portability, patches)
    # sorted, with dots (PEP 425)
    platform = ".".join(sorted(platforms))
    wheel_name = parse_wheel_name(wheel.name)
    old_platforms = {tag.platform for tag in wheel_name.tags}
    if not external and old_platforms == set(platforms):
        return RepairedWheel(
            file=None,
            platform=platform,
        )

    with temporary.folder("repair-wheel") as scratch:
        members = _patched_members(wheel, patches, scratch)
        written_file = edit_wheel(
            wheel,
            output,
            version=str(wheel_name.version),
            additions=Additions(members=members, platform=platform),
            epoch=epoch,
        )
    return RepairedWheel(
        file=written_file,
        platform=platform,
        grafted_libraries=tuple(external),
    )


def _require_graftable(
    wheel: Path,
    portability: Portability,
    *,
    graft: bool,
) -> dict[str, Path]:
    """Return the paths of external libraries that go into the wheel; fail where one cannot."""
    if not portability.reachable_tags[0].startswith("manylinux"):
        raise CheckError(
            f"{wheel.name} satisfies no manylinux policy: its symbols or instructions are too new.",
            hint="Build it in the manylinux image: --container.",
        )
    if portability.external_libraries and not graft:
        raise CheckError(
            f"{wheel.name} needs libraries that manylinux does not promise: "
            f"{_libraries_with_users(portability, portability.external_libraries)}.",
            hint="Put them in (--graft), or build without them: nox -s repair_wheel -- WHEEL --graft.",
        )

    missing_libraries = [name for name, paths in portability.external_libraries.items() if not paths]
    if missing_libraries:
        raise CheckError(
            f"{wheel.name} needs libraries that this machine does not have: "
            f"{_libraries_with_users(portability, missing_libraries)}.",
            hint="Repair it where it was built.",
        )
    _require_one_file_a_name(wheel, portability.external_libraries)
    return {name: paths[0] for name, paths in portability.external_libraries.items()}


def _libraries_with_users(portability: Portability, libraries: Iterable[str]) -> str:
    """Return a text of libraries, each with the files of the wheel that need it."""
    descriptions: list[str] = []
    for library in libraries:
        users = sorted(member for member, binary in portability.binaries.items() if library in binary.needed)
        shown_users = ", ".join(users[:_SHOWN_USERS]) or "another of them"
        descriptions.append(f"{library} (for {shown_users})")
    return ", ".join(descriptions)


def _require_one_file_a_name(
    wheel: Path,
    external: Mapping[str, tuple[Path, ...]],
) -> None:
    """Fail where files of a wheel find different libraries under one name, of which it can hold one."""
    paths_by_file_name: dict[str, set[Path]] = {}
    for name, paths in external.items():
        file_name = posixpath.basename(name)
        paths_by_file_name.setdefault(file_name, set()).update(paths)

    for file_name, different_paths in sorted(paths_by_file_name.items()):
        if len(different_paths) > 1:
            places = " and ".join(map(str, sorted(different_paths)))
            raise CheckError(
                f"Files of {wheel.name} find {file_name} in different places: {places}.",
                hint="Build the wheel so that all of them find the same file.",
            )


def _require_no_foreign_folders(
    wheel: Path,
    portability: Portability,
    patches: Iterable[BinaryPatch],
) -> None:
    """Fail where a file's search path would still lead to folders of the build machine."""
    patched_members = {patch.member for patch in patches}
    for member, binary in sorted(portability.binaries.items()):
        relative_entries = rpath.relative_entries(binary.search)
        foreign_folders = [entry for entry in binary.search if entry.rstrip("/") not in relative_entries]
        if foreign_folders and member not in patched_members:
            folders = ", ".join(foreign_folders)
            raise CheckError(
                f"{wheel.name}: {member} looks for libraries in {folders}, which another machine does not "
                "have.",
                hint="Build it without that RPATH: patchelf --set-rpath, or the build's own option.",
            )


# Libraries of the machine in the wheel


def plan_patches(
    distribution: str,
    external: Mapping[str, Path],
    binaries: Mapping[str, BinaryNeeds],
) -> Sequence[BinaryPatch]:
    """Return the changes to binaries that put external libraries into a wheel and lead to them.

    `distribution` is the wheel's name as its file name has it. Raises CheckError for a file that needs an
    external library and is installed where no fixed path leads to it.
    """
    folder = f"{distribution}.libs"
    # ``libfoo.so.1`` becomes ``libfoo-01234567.so.1``; a file may also be named by the path of one machine.
    grafted_names: dict[str, str] = {}
    for name, path in external.items():
        stem, dot, suffixes = posixpath.basename(name).partition(".")
        digest = files.sha256(path)[:_DIGEST_IN_NAME]
        grafted_names[name] = f"{stem}-{digest}{dot}{suffixes}"

    patches: dict[str, BinaryPatch] = {}
    for name, path in sorted(external.items()):
        with path.open("rb") as stream:
            binary = read_binary(stream, str(path)) or BinaryNeeds(name="", needed=())
        renamed = _renamed_needs(binary, grafted_names)
        member = f"{folder}/{grafted_names[name]}"
        patches[member] = BinaryPatch(
            member=member,
            source=path,
            soname=grafted_names[name],
            renamed=renamed,
            search=("$ORIGIN",) if renamed else (),
        )

    for member, binary in sorted(binaries.items()):
        renamed = _renamed_needs(binary, grafted_names)
        if renamed:
            installed_path = _require_path_in_site_packages(member, renamed)
            search = [
                *rpath.relative_entries(binary.search),
                *rpath.entries_to_folders(installed_path, [folder]),
            ]
            patches[member] = BinaryPatch(
                member=member,
                renamed=renamed,
                search=tuple(dict.fromkeys(search)),
            )
    return tuple(patches.values())


def _renamed_needs(
    binary: BinaryNeeds,
    grafted_names: Mapping[str, str],
) -> dict[str, str]:
    """Return those libraries that a file needs and that go into the wheel, with their new names."""
    return {name: grafted_names[name] for name in binary.needed if name in grafted_names}


def _require_path_in_site_packages(member: str, libraries: Iterable[str]) -> str:
    """Return a member's path below site-packages; fail where it is installed elsewhere.

    Programs and data go to folders of the environment, which lie elsewhere in every kind of environment.
    """
    path = path_in_site_packages(member)
    if not path:
        raise CheckError(
            f"{member} needs {', '.join(libraries)}, and is installed where no fixed path leads to "
            "libraries of the wheel.",
            hint="Put it into a package, with a console script that starts it, or link it statically.",
        )
    return path


def _patched_members(
    wheel: Path,
    patches: Sequence[BinaryPatch],
    scratch: Path,
) -> tuple[Member, ...]:
    """Return the members of the new wheel that are patched, written to a scratch folder."""
    archive = read_archive(wheel)
    members: list[Member] = []
    for number, patch in enumerate(patches):
        target = scratch / f"{number}.so"
        is_executable = True
        if patch.source is not None:
            copy_stream(patch.source.open("rb"), target)
        else:
            member = archive.by_name[patch.member]
            is_executable = member.is_executable
            copy_stream(MemberStream(wheel, member), target)
        _apply_patch(patch, target)
        members.append(
            Member(
                name=patch.member,
                source=target,
                executable=is_executable,
            )
        )
    return tuple(members)


def _apply_patch(patch: BinaryPatch, target: Path) -> None:
    """Change a file by patchelf, and fail unless it is then as planned."""
    old_facts = elf.read(target)
    command: list[str | Path] = [rpath.patchelf()]
    # A DT_RPATH also leads the libraries that this one loads; it stays one.
    if old_facts is not None and old_facts.is_rpath:
        command.append("--force-rpath")
    if patch.soname:
        command += ["--set-soname", patch.soname]
    if patch.search:
        command += ["--set-rpath", ":".join(patch.search)]
    else:
        command.append("--remove-rpath")
    for old_name, new_name in patch.renamed.items():
        command += ["--replace-needed", old_name, new_name]
    process.capture([*command, target])

    with target.open("rb") as stream:
        facts = elf.read_needs(stream, patch.member)
    is_as_planned = (
        facts is not None
        and set(patch.renamed.values()) <= set(facts.needed)
        and patch.soname in {"", facts.soname}
        and facts.search == patch.search
    )
    if not is_as_planned:
        raise BuildError(f"patchelf did not leave {patch.member} as it is to be.")
