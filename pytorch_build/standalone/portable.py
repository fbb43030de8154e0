"""Portable wheels: what a wheel needs of its machine, and the platform tag that it keeps."""

from __future__ import annotations

import logging
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core import files, process
from core.archive import Member, zip_reader
from core.archive.zip_reader import MemberStream
from core.binaries import elf, rpath
from core.errors import BuildError, CheckError, MissingInputError, WheelError
from core.wheel import parse_wheel_name
from core.wheel.editor import Additions, edit_wheel
from core.wheel.record import require_listing
from pytorch_build.check import dlls
from pytorch_build.check.policy import load_policy
from pytorch_build.standalone.libraries import Binary, read_binary, read_members
from pytorch_build.standalone.needs import matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from core.wheel.writer import WrittenFile
    from pytorch_build.check.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Portability:
    """What a wheel is worth on other machines."""

    satisfied: tuple[str, ...]
    reachable: tuple[str, ...]
    external: Mapping[str, Path | None]
    needs: Mapping[str, Binary]

    @property
    def portable(self) -> bool:
        """Whether it needs nothing that manylinux does not promise."""
        return self.satisfied[0].startswith("manylinux")


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
            "auditwheel, which knows manylinux' policies, is not installed.",
            hint="It is part of the tool on Linux: pip install -r requirements.txt.",
        ) from problem
    with zip_reader.opened(wheel) as archive:
        infos = [info for info, _ in require_listing(wheel, archive).files]
    needs = read_members(wheel, infos)
    skip = excluded(needs, load_policy())
    logging.getLogger("auditwheel").setLevel(logging.ERROR)
    try:
        found = [
            analyze_wheel_abi(
                None, None, wheel.resolve(), skip, disable_isa_ext_check=False, allow_graft=graft
            )
            for graft in (False, True)
        ]
    except AuditwheelError as problem:
        raise WheelError(f"auditwheel cannot judge {wheel.name}: {problem}.") from problem
    as_it_is, grafted = found
    best = grafted.overall_policy
    return Portability(
        satisfied=_tags(as_it_is.overall_policy.name, as_it_is.overall_policy.aliases),
        reachable=_tags(best.name, best.aliases),
        external=dict(sorted(grafted.external_refs[best.name].libs.items())),
        needs=needs,
    )


def _tags(name: str, aliases: Iterable[str]) -> tuple[str, ...]:
    return (name, *aliases)


def platform_text(tags: Sequence[str]) -> str:
    """Join platform tags as a wheel's file name does: sorted, with dots (PEP 425)."""
    return ".".join(sorted(tags))


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """What became of a wheel."""

    file: WrittenFile | None
    platform: str
    grafted: tuple[str, ...] = ()


def repair(
    wheel: Path, found: Portability, output: Path, *, graft: bool, epoch: int | None = None
) -> Repaired:
    """Write a wheel again with the tag that it satisfies."""
    external = {} if found.portable and not graft else found.external
    if external or not found.portable:
        _require_graftable(wheel, found, graft=graft)
    platform = platform_text(found.reachable if external else found.satisfied)
    if not external and {tag.platform for tag in parse_wheel_name(wheel.name).tags} == set(
        platform.split(".")
    ):
        return Repaired(file=None, platform=platform)
    places = {name: path for name, path in external.items() if path is not None}
    distribution = wheel.name.partition("-")[0]
    with tempfile.TemporaryDirectory(prefix="repair-wheel-") as scratch:
        patches = plan(distribution, places, digests_of(places), found.needs, _needs_of(places))
        edited = edit_wheel(
            wheel,
            output,
            version=str(parse_wheel_name(wheel.name).version),
            additions=Additions(members=patched(wheel, patches, Path(scratch)), platform=platform),
            epoch=epoch,
        )
    return Repaired(file=edited.file, platform=platform, grafted=tuple(places))


def _require_graftable(wheel: Path, found: Portability, *, graft: bool) -> None:
    if not found.reachable[0].startswith("manylinux"):
        raise CheckError(
            f"{wheel.name} satisfies no manylinux policy: its symbols or instructions are too new.",
            hint="Build it in the manylinux image: --container.",
        )
    absent = [name for name, path in found.external.items() if path is None]
    if graft and not absent:
        return
    listed = ", ".join(
        f"{name} (for {', '.join(_users(found, name)) or 'another of them'})"
        for name in (absent if graft else found.external)
    )
    if graft:
        raise CheckError(
            f"{wheel.name} needs libraries that this machine does not have: {listed}.",
            hint="Repair it where it was built.",
        )
    raise CheckError(
        f"{wheel.name} needs libraries that manylinux does not promise: {listed}.",
        hint="Put them in (--graft), or build without them: nox -s repair_wheel -- WHEEL --graft.",
    )


def _users(found: Portability, name: str) -> list[str]:
    return sorted(member for member, binary in found.needs.items() if name in binary.needed)[:3]


def _needs_of(places: Mapping[str, Path]) -> dict[str, Binary]:
    needs = {}
    for name, path in places.items():
        with path.open("rb") as stream:
            needs[name] = read_binary(stream, str(path)) or Binary(name=name, needed=())
    return needs


_HASH = 8
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Patch:
    """What becomes of one file."""

    member: str
    source: Path | None
    soname: str
    renamed: Mapping[str, str]
    search: tuple[str, ...]


def plan(
    distribution: str,
    external: Mapping[str, Path],
    digests: Mapping[str, str],
    needs: Mapping[str, Binary],
    more: Mapping[str, Binary],
) -> Sequence[Patch]:
    """Decide what becomes of each file."""
    folder = f"{distribution}.libs"
    names = {name: _unique(name, digests[name]) for name in external}
    patches = [
        Patch(
            member=f"{folder}/{names[name]}",
            source=path,
            soname=names[name],
            renamed=_renamed(more[name], names),
            search=("$ORIGIN",) if _renamed(more[name], names) else (),
        )
        for name, path in sorted(external.items())
    ]
    for member, binary in sorted(needs.items()):
        renamed = _renamed(binary, names)
        if renamed:
            search = tuple(dict.fromkeys((*rpath.relative(binary.search), *rpath.ways(member, [folder]))))
            patches.append(Patch(member=member, source=None, soname="", renamed=renamed, search=search))
    return patches


def _unique(name: str, digest: str) -> str:
    stem, dot, rest = name.partition(".")
    return f"{stem}-{digest[:_HASH]}{dot}{rest}"


def _renamed(binary: Binary, names: Mapping[str, str]) -> dict[str, str]:
    return {name: names[name] for name in binary.needed if name in names}


def digests_of(external: Mapping[str, Path]) -> dict[str, str]:
    """Hash the machine's libraries."""
    return {name: files.sha256(path) for name, path in external.items()}


def patched(wheel: Path, patches: Sequence[Patch], scratch: Path) -> tuple[Member, ...]:
    """Make the changed files."""
    members = []
    with zip_reader.opened(wheel) as archive:
        for number, patch in enumerate(patches):
            target = scratch / f"{number}.so"
            executable = True
            if patch.source is not None:
                shutil.copyfile(patch.source, target)
            else:
                info = archive.getinfo(patch.member)
                executable = bool(info.external_attr >> 16 & 0o111)
                with MemberStream(wheel, info) as stream, target.open("wb") as copy:
                    shutil.copyfileobj(stream, copy, _CHUNK)
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
    lacking = after is None or not set(patch.renamed.values()) <= set(after.needed)
    if (
        after is None
        or lacking
        or after.search != patch.search
        or (patch.soname and after.soname != patch.soname)
    ):
        raise BuildError(f"patchelf did not leave {patch.member} as it is to be.")


_PROMISED = {"system", "redistributable", "python"}


@dataclass(frozen=True, kw_only=True)
class DllNeeds:
    """Where a wheel's DLLs come from: name, in small letters -> who in the wheel needs it."""

    inside: Mapping[str, tuple[str, ...]]
    promised: Mapping[str, tuple[str, ...]]
    others: Mapping[str, tuple[str, ...]]
    missing: Mapping[str, tuple[str, ...]]


def analyse_dlls(wheel: Path) -> DllNeeds:
    """Analyse a wheel for Windows."""
    with zip_reader.opened(wheel) as archive:
        infos = [info for info, _ in require_listing(wheel, archive).files]
    return sort_needs(read_members(wheel, infos))


def sort_needs(binaries: Mapping[str, Binary]) -> DllNeeds:
    """Sort the needs of a wheel's files by where they are met."""
    policy = load_policy()
    own = {PurePosixPath(path).name.lower() for path in binaries}
    others = tuple(pattern for provider in policy.providers.values() for pattern in provider.patterns)
    sorted_: dict[str, dict[str, list[str]]] = {"inside": {}, "promised": {}, "others": {}, "missing": {}}
    for path, binary in sorted(binaries.items()):
        for name in binary.needed:
            where = (
                "inside"
                if name.lower() in own
                else "promised"
                if dlls.origin(name, policy.windows) in _PROMISED
                else "others"
                if matches(name, others)
                else "missing"
            )
            sorted_[where].setdefault(name.lower(), []).append(path)
    return DllNeeds(
        **{where: {name: tuple(by) for name, by in sorted(found.items())} for where, found in sorted_.items()}
    )


def require_brought(wheel: Path, needs: DllNeeds) -> None:
    """Refuse a wheel that needs DLLs which nothing brings."""
    if needs.missing:
        listed = ", ".join(f"{name} (for {', '.join(by[:3])})" for name, by in needs.missing.items())
        raise CheckError(
            f"{wheel.name} needs DLLs that nothing brings: {listed}.",
            hint="Copy them beside the DLLs that need them before the wheel is made.",
        )
