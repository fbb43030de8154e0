"""Wheels of a run: what they are, what sources they come from, what is in them, how they grew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ci.report.cell_name import CellName
from ci.report.model import Folder, Wheel
from core.wheel import CONTENTS
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from rocm_packaging.packages.layouts import device_host

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ci.report.reading import GroupFacts, RunFacts
    from core.run.records import FileRecord, Record
    from pytorch_build.lock.source_lock import SourceLock

_PROJECTS = {name: project for project, name in DISTRIBUTIONS.items()}
_WHEEL_PARTS = 5


def wheels_of(facts: RunFacts, before: RunFacts | None = None) -> tuple[tuple[Wheel, ...], tuple[str, ...]]:
    """List a run's wheels and sdists."""
    old = (
        {}
        if before is None
        else {_identity(group, one): (one, record) for group, one, record in _files(before)}
    )
    ours = {(group.name, one.name): (group, one, record) for group, one, record in _files(facts)}
    made = [_wheel(facts, *found, old.get(_identity(found[0], found[1]))) for found in ours.values()]
    known = {_identity(group, one) for group, one, _ in ours.values()}
    groups = {group.name for group in facts.groups}
    gone = sorted({one.name for key, (one, _) in old.items() if key not in known and key[0] in groups})
    made.sort(key=lambda one: (one.cell.group, one.part_of or one.distribution, one.part_of != "", one.name))
    split = {(one.cell, one.part_of) for one in made if one.part_of}
    told = (
        replace(one, extra="device-all") if (one.cell, one.distribution) in split else one for one in made
    )
    return tuple(told), tuple(gone)


def _files(facts: RunFacts) -> Iterator[tuple[GroupFacts, FileRecord, Record]]:
    """Give what stages made; a stage of a cell speaks last, before an upload that names the same file."""
    for group in facts.groups:
        for _, record in sorted(group.records, key=lambda found: (found[1].cell.torch_ref != "", found[0])):
            for one in record.files if record.status == "ok" else ():
                yield group, one, record


def _identity(group: GroupFacts, one: FileRecord) -> tuple[str, ...]:
    """Name what a file is a version of: its group, its distribution, its tags and the ref's series."""
    parts = one.name.removesuffix(".whl").split("-")
    tags = tuple(parts[-3:]) if one.name.endswith(".whl") and len(parts) >= _WHEEL_PARTS else ("sdist",)
    series = ".".join(one.version.split("+")[0].split(".")[:2])
    return (group.name, one.distribution or parts[0], *tags, series)


def _wheel(
    facts: RunFacts,
    group: GroupFacts,
    one: FileRecord,
    record: Record,
    before: tuple[FileRecord, Record] | None,
) -> Wheel:
    cell = CellName(group=group.name, torch_ref=record.cell.torch_ref, python=record.cell.python)
    origin, commit = _source(record, one, facts.locks)
    old = contents_of(before[1], before[0].name) if before else {}
    return Wheel(
        name=one.name,
        path=f"../python/{quote(group.name, safe='')}/{quote(one.name, safe='')}",
        cell=cell,
        stage=record.stage,
        distribution=one.distribution or one.name.partition("-")[0],
        version=one.version,
        requires_python=one.requires_python,
        size=one.size,
        sha256=one.sha256,
        origin=origin,
        commit=commit,
        folders=_folders(contents_of(record, one.name), old),
        before=before[0].size if before else None,
        part_of=device_host(one.distribution),
    )


def _source(record: Record, one: FileRecord, locks: Mapping[str, SourceLock]) -> tuple[str, str]:
    """Find the commit: what the build says it was made from, else what the source lock says."""
    said = record.details.get("source")
    if isinstance(said, dict) and isinstance(said.get("commit"), str):
        return str(said.get("origin") or ""), said["commit"]
    lock = locks.get(record.cell.torch_ref)
    project = _PROJECTS.get(device_host(one.distribution) or one.distribution, "")
    locked = lock.projects.get(project) if lock else None
    return (locked.origin, locked.commit) if locked else ("", "")


def contents_of(record: Record, name: str) -> Mapping[str, tuple[int, int, int]]:
    """Read what a record says of a wheel's folders: path -> files, bytes, bytes in the wheel."""
    said: Any = record.details.get(CONTENTS)
    folders = said.get(name) if isinstance(said, dict) else None
    found = {}
    for path, numbers in folders.items() if isinstance(folders, dict) else ():
        match numbers:
            case [int(files), int(size), int(packed)]:
                found[str(path)] = (files, size, packed)
    return found


def _folders(
    now: Mapping[str, tuple[int, int, int]], old: Mapping[str, tuple[int, int, int]]
) -> tuple[Folder, ...]:
    empty = (0, 0, 0)
    names = {*now, *old} if now and old else set(now)
    found = [
        Folder(
            path=name,
            files=now.get(name, empty)[0],
            size=now.get(name, empty)[1],
            packed=now.get(name, empty)[2],
            grown=now.get(name, empty)[2] - old.get(name, empty)[2] if old else None,
        )
        for name in names
    ]
    return tuple(sorted(found, key=lambda folder: (-folder.packed, folder.path)))
