"""The wheels and sdists of a run, and the sources that they were built from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from ci.report.model import SourceRow, WheelFolder, WheelRow
from ci.report.names import cell_of_record, comparison_url
from core.run.records import BORROWED
from core.wheel import CONTENTS
from pytorch_build.components import component_of
from rocm_packaging.packages.layouts import host_distribution

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ci.report.facts import RunFacts
    from core.cell import GroupCell
    from core.run.records import FileRecord, Record
    from pytorch_build.lock.source_lock import LockedProject, SourceLock

    CellDistribution: TypeAlias = tuple[GroupCell, str]


@dataclass(frozen=True, kw_only=True)
class _BuiltFile:
    """A file of a record, with the cell that it is of."""

    cell: GroupCell
    file: FileRecord
    record: Record

    @property
    def distribution(self) -> str:
        project, _, _ = self.file.name.partition("-")
        return self.file.distribution or project

    @property
    def identity(self) -> CellDistribution:
        """What stays the same from run to run, unlike the version in its name."""
        return self.cell, self.distribution


def list_wheels(
    facts: RunFacts, previous_facts: RunFacts | None = None
) -> tuple[tuple[WheelRow, ...], tuple[str, ...]]:
    """Return a run's wheels and sdists, and the names of those that only the run before has."""
    previous_files: dict[CellDistribution, _BuiltFile] = {}
    if previous_facts is not None:
        for built_file in _built_files(previous_facts):
            previous_files[built_file.identity] = built_file

    # An upload names the same files as the builds, which come last.
    files: dict[tuple[str | None, str], _BuiltFile] = {}
    for built_file in _built_files(facts):
        files[built_file.cell.artifact_group, built_file.file.name] = built_file

    rows: list[WheelRow] = []
    for built_file in files.values():
        previous_file = previous_files.get(built_file.identity)
        rows.append(_wheel_row(facts, built_file, previous_file))
    rows.sort(key=_order_of_wheel)
    gone_files = _gone_files(list(files.values()), previous_files)
    return tuple(_add_extras(rows)), tuple(gone_files)


def _built_files(facts: RunFacts) -> Iterator[_BuiltFile]:
    """Yield what stages built; those of cells come last, after an upload that names the same file."""
    for group in facts.groups:
        for record in sorted(group.records, key=lambda record: record.cell.torch_ref is not None):
            if record.status != "ok":
                continue
            cell = cell_of_record(group.name, record)
            for file in record.files:
                yield _BuiltFile(
                    cell=cell,
                    file=file,
                    record=record,
                )


def _gone_files(
    files: Sequence[_BuiltFile], previous_files: Mapping[CellDistribution, _BuiltFile]
) -> Sequence[str]:
    """Return the names of the files that a cell of both runs had before, and has no more."""
    identities = {built_file.identity for built_file in files}
    cells = {built_file.cell for built_file in files}
    names: set[str] = set()
    for identity, previous_file in previous_files.items():
        if identity not in identities and previous_file.cell in cells:
            names.add(previous_file.file.name)
    return sorted(names)


def _order_of_wheel(wheel: WheelRow) -> tuple[str, str, bool, str]:
    """Return what wheels are sorted by: device wheels follow the wheel that they are parts of."""
    host = wheel.part_of or wheel.distribution
    is_part = wheel.part_of != ""
    artifact_group = wheel.cell.artifact_group or ""
    return artifact_group, host, is_part, wheel.name


def _add_extras(wheels: Sequence[WheelRow]) -> Iterator[WheelRow]:
    """Yield wheels, with the extra that installs the device code of those whose code lies in other wheels."""
    split_wheels = {(wheel.cell, wheel.part_of) for wheel in wheels if wheel.part_of}
    for wheel in wheels:
        if (wheel.cell, wheel.distribution) in split_wheels:
            yield replace(wheel, extra="device-all")
        else:
            yield wheel


def _wheel_row(facts: RunFacts, built_file: _BuiltFile, previous_file: _BuiltFile | None) -> WheelRow:
    cell = built_file.cell
    file = built_file.file
    record = built_file.record
    folder = quote(cell.artifact_group or "", safe="")
    file_name = quote(file.name, safe="")
    origin, commit = _origin_and_commit(record, file, facts.locks)
    previous_folders: Mapping[str, WheelFolder] = {}
    if previous_file is not None:
        previous_folders = _read_contents(previous_file.record, previous_file.file.name)
    return WheelRow(
        name=file.name,
        version=file.version,
        requires_python=file.requires_python,
        size=file.size,
        sha256=file.sha256,
        path=f"../python/{folder}/{file_name}",
        cell=cell,
        stage=record.stage,
        seconds=record.seconds,
        distribution=built_file.distribution,
        origin=origin,
        commit=commit,
        edited=record.edited,
        borrowed=str(record.details.get(BORROWED) or ""),
        folders=_folder_rows(_read_contents(record, file.name), previous_folders),
        before=None if previous_file is None else previous_file.file.size,
        part_of=host_distribution(file.distribution),
    )


def _origin_and_commit(record: Record, file: FileRecord, locks: Mapping[str, SourceLock]) -> tuple[str, str]:
    """Return a file's repository and commit: those that the build's record names, else the source lock's."""
    match record.details.get("source"):
        case {"commit": str(commit), **details}:
            return str(details.get("origin") or ""), commit

    lock = locks.get(record.cell.torch_ref or "")
    component = component_of(host_distribution(file.distribution) or file.distribution)
    if lock is None or component is None:
        return "", ""
    project = lock.projects.get(component.name)
    if project is None:
        return "", ""
    return project.origin, project.commit


# --- The folders of a wheel


def _read_contents(record: Record, name: str) -> Mapping[str, WheelFolder]:
    """Return the folders of a wheel, by path, as far as its record makes sense."""
    contents = record.details.get(CONTENTS)
    if not isinstance(contents, dict):
        return {}
    folders = contents.get(name)
    if not isinstance(folders, dict):
        return {}

    read_folders: dict[str, WheelFolder] = {}
    for path, numbers in folders.items():
        match numbers:
            case [int(files), int(size), int(packed)]:
                read_folders[path] = WheelFolder(path=path, files=files, size=size, packed=packed)
    return read_folders


def _folder_rows(
    folders: Mapping[str, WheelFolder], previous_folders: Mapping[str, WheelFolder]
) -> tuple[WheelFolder, ...]:
    """Return the folders of a wheel and of the one before it, the largest first."""
    if not folders:
        return ()

    rows: list[WheelFolder] = []
    for path in {*folders, *previous_folders}:
        empty_folder = WheelFolder(path=path, files=0, size=0, packed=0)
        folder = folders.get(path, empty_folder)
        if previous_folders:
            previous_folder = previous_folders.get(path, empty_folder)
            folder = replace(folder, grown=folder.packed - previous_folder.packed)
        rows.append(folder)
    return tuple(sorted(rows, key=lambda folder: (-folder.packed, folder.path)))


# --- Sources


def list_sources(facts: RunFacts, previous_facts: RunFacts | None = None) -> tuple[SourceRow, ...]:
    """Return every project of every ref, with the commit of the run before."""
    rows: list[SourceRow] = []
    for torch_ref, lock in sorted(facts.locks.items()):
        previous_lock: SourceLock | None = None
        if previous_facts is not None:
            previous_lock = previous_facts.locks.get(torch_ref)
        rows += _sources_of_ref(torch_ref, lock, previous_lock)
    return tuple(rows)


def _sources_of_ref(
    torch_ref: str, lock: SourceLock, previous_lock: SourceLock | None
) -> Iterator[SourceRow]:
    """Yield the projects of a lock and of the one before it, ROCm first."""
    previous_projects: Mapping[str, LockedProject] = {}
    previous_rocm_version = ""
    if previous_lock is not None:
        previous_projects = previous_lock.projects
        previous_rocm_version = previous_lock.rocm_version

    if lock.rocm_version or previous_rocm_version:
        yield SourceRow(
            torch_ref=torch_ref,
            project="rocm",
            version=lock.rocm_version,
            version_before=previous_rocm_version,
        )
    for name in dict.fromkeys((*lock.projects, *previous_projects)):
        project = lock.projects.get(name)
        previous_project = previous_projects.get(name)
        yield _source_row(torch_ref, name, project, previous_project)


def _source_row(
    torch_ref: str,
    name: str,
    project: LockedProject | None,
    previous_project: LockedProject | None,
) -> SourceRow:
    row = SourceRow(torch_ref=torch_ref, project=name)
    if previous_project is not None:
        row = replace(
            row,
            origin=previous_project.origin,
            commit_before=previous_project.commit,
            version_before=previous_project.prebuilt or previous_project.base_version,
        )
    if project is not None:
        row = replace(
            row,
            origin=project.origin or row.origin,
            ref=project.ref,
            commit=project.commit,
            version=project.prebuilt or project.base_version,
        )
    if project is None or previous_project is None:
        return row
    if project.origin == previous_project.origin:
        address = comparison_url(project.origin, previous_project.commit, project.commit)
        row = replace(row, compare=address or "")
    return row
