"""Libraries of the machine that go into a wheel, under names that nothing else has.

As auditwheel does: ``libfoo.so.1`` becomes ``NAME.libs/libfoo-HASH.so.1``, its SONAME with it, and
whoever needs it is changed to need that one. Only the changed files are compressed again.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core import files, process
from core.archive import zip_members
from core.archive.zip_sources import Member
from core.archive.zip_streams import MemberStream
from core.binaries import elf, rpath
from core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytorch_build.standalone.fat.binaries import Binary

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
    with zip_members.opened(wheel) as archive:
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
