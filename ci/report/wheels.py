"""Wheels of a run: what they are, what sources they come from, what is in them, how they grew."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ci.report.model import CellName, Folder, Source, Wheel
from core.wheel import CONTENTS
from pytorch_build.lock.source_lock import LockedProject
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from rocm_packaging.packages.layouts import device_host

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ci.report.facts import GroupFacts, RunFacts
    from core.run.records import FileRecord, Record
    from pytorch_build.lock.source_lock import SourceLock


_PROJECTS = {name: project for project, name in DISTRIBUTIONS.items()}
_WHEEL_PARTS = 5
ROCM = "rocm"
_HOSTED = re.compile(r"https://github\.com/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def wheels_of(facts: RunFacts, before: RunFacts | None = None) -> tuple[tuple[Wheel, ...], tuple[str, ...]]:
    """List a run's wheels and sdists, and the names of those of the run before that have gone."""
    earlier = _files(before) if before else ()
    old = {_identity(group, one): (one, record) for group, one, record in earlier}
    ours = {(group.name, one.name): (group, one, record) for group, one, record in _files(facts)}
    made = [_wheel(facts, *found, old.get(_identity(found[0], found[1]))) for found in ours.values()]
    known = {_identity(group, one) for group, one, _ in ours.values()}
    groups = {group.name for group in facts.groups}
    gone = sorted({one.name for key, (one, _) in old.items() if key not in known and key[0] in groups})
    made.sort(key=lambda one: (one.cell.group, one.part_of or one.distribution, one.part_of != "", one.name))
    split = {(one.cell, one.part_of) for one in made if one.part_of}
    extras = ("device-all" if (one.cell, one.distribution) in split else "" for one in made)
    return tuple(replace(one, extra=extra) for one, extra in zip(made, extras, strict=True)), tuple(gone)


def _files(facts: RunFacts) -> Iterator[tuple[GroupFacts, FileRecord, Record]]:
    """Yield what stages made; a cell's stage comes last, after an upload that names the same file."""
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
    origin, commit = _source(record, one, facts.locks)
    old = contents_of(before[1], before[0].name) if before else {}
    return Wheel(
        name=one.name,
        path=f"../python/{quote(group.name, safe='')}/{quote(one.name, safe='')}",
        cell=CellName.of(group.name, record.cell),
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
    """Find the commit: the one that the build's record names, else the source lock's."""
    match record.details.get("source"):
        case {"commit": str(commit), **more}:
            return str(more.get("origin") or ""), commit
    lock = locks.get(record.cell.torch_ref)
    project = _PROJECTS.get(device_host(one.distribution) or one.distribution, "")
    locked = lock.projects.get(project) if lock else None
    return (locked.origin, locked.commit) if locked else ("", "")


def contents_of(record: Record, name: str) -> Mapping[str, tuple[int, int, int]]:
    """Read the folders of a wheel from its record: path -> files, bytes, bytes in the wheel."""
    contents: Any = record.details.get(CONTENTS)
    folders = contents.get(name) if isinstance(contents, dict) else None
    found = {}
    for path, numbers in folders.items() if isinstance(folders, dict) else ():
        match numbers:
            case [int(files), int(size), int(packed)]:
                found[str(path)] = (files, size, packed)
    return found


def _folders(
    now: Mapping[str, tuple[int, int, int]], old: Mapping[str, tuple[int, int, int]]
) -> tuple[Folder, ...]:
    found = []
    for name in {*now, *old} if now and old else now:
        files, size, packed = now.get(name, (0, 0, 0))
        grown = packed - old.get(name, (0, 0, 0))[2] if old else None
        found.append(Folder(path=name, files=files, size=size, packed=packed, grown=grown))
    return tuple(sorted(found, key=lambda folder: (-folder.packed, folder.path)))


def sources_of(facts: RunFacts, before: RunFacts | None = None) -> tuple[Source, ...]:
    """List every project of every ref, with the commit of the run before."""
    found = []
    for ref, lock in sorted(facts.locks.items()):
        old = before.locks.get(ref) if before else None
        rocm_before = old.rocm_version if old else ""
        if lock.rocm_version or rocm_before:
            rocm = Source(torch_ref=ref, project=ROCM, version=lock.rocm_version, version_before=rocm_before)
            found.append(rocm)
        earlier = old.projects if old else {}
        for name in dict.fromkeys((*lock.projects, *earlier)):
            absent = LockedProject.model_construct(project=name)  # which no lock would have
            found.append(_project(ref, lock.projects.get(name, absent), earlier.get(name, absent)))
    return tuple(found)


def _project(ref: str, now: LockedProject, old: LockedProject) -> Source:
    return Source(
        torch_ref=ref,
        project=now.project,
        origin=now.origin or old.origin,
        ref=now.ref,
        commit=now.commit,
        version=now.prebuilt or now.base_version,
        commit_before=old.commit,
        version_before=old.prebuilt or old.base_version,
        compare=_compare(now, old),
    )


def commit_url(origin: str, commit: str) -> str:
    """Return the address that shows a commit, where the repository's host is known; else ""."""
    base = _base(origin)
    return f"{base}/commit/{commit}" if _HOSTED.fullmatch(base) and _COMMIT.fullmatch(commit) else ""


def _base(origin: str) -> str:
    return origin.removesuffix("/").removesuffix(".git")


def _compare(now: LockedProject, old: LockedProject) -> str:
    """Return the address of the changes between two commits of one repository."""
    if now.origin != old.origin or now.commit == old.commit:
        return ""
    known = commit_url(now.origin, now.commit) and commit_url(old.origin, old.commit)
    return f"{_base(now.origin)}/compare/{old.commit}...{now.commit}" if known else ""
