"""What records say of how files were made: each file with its build, and what went into it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import ConfigDict, Field

from ci.provenance.names import commit_uri, names, package_url
from core.data import Model, validated
from core.env.builders import BUILDER
from core.errors import DataError
from rocm_packaging.packages.layouts import Layout  # noqa: TC001 - pydantic reads it

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ci.promote.documents import Document
    from ci.promote.run_records import Recorded
    from core.run.records import FileRecord, Record
    from pytorch_build.lock.source_lock import SourceLock

BUILD_ROCM, FETCH_ARTIFACTS = "build_rocm", "fetch_artifacts"
SOURCE, ROCM_SOURCE = "source", "rocm"
_BUILD = "build_"


@dataclass(frozen=True, kw_only=True)
class LockFile:
    """A source lock, and where it was read."""

    lock: SourceLock
    document: Document


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """What a run's manifests say."""

    prefix: str
    groups: Mapping[str, Sequence[Recorded]]
    locks: Sequence[LockFile] = ()
    unreadable: Sequence[DataError] = ()

    def path(self, key: str) -> str:
        """Give a key below the run's prefix, which holds wherever the run is copied to."""
        return key.removeprefix(f"{self.prefix}/")


@dataclass(frozen=True, kw_only=True)
class Material:
    """One thing that a build used (a ResourceDescriptor of in-toto v1)."""

    name: str
    uri: str = ""
    digest: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    of_run: str = ""


@dataclass(frozen=True, kw_only=True)
class MadeFile:
    """A wheel or sdist of a run, with the stage that made it."""

    group: str
    file: FileRecord
    by: Recorded
    build_type: str = ""
    materials: tuple[Material, ...] = ()


class Source(Model):
    """``inputs.source`` of a build: a locked commit, or a developer's tree."""

    model_config = ConfigDict(extra="ignore")

    origin: str = ""
    tree: str = ""
    commit: str = ""
    diff: str = ""


class Inputs(Model):
    """What a record's inputs say of materials; whatever else they say stays as it is."""

    model_config = ConfigDict(extra="ignore")

    source: Source = Source()
    python: str = ""
    rocm: tuple[str, Layout, dict[str, str] | str] | None = None
    dependencies: dict[str, dict[str, str]] = Field(default_factory=dict)
    lock: str = ""
    artifacts: dict[str, str] = Field(default_factory=dict)


def made_files(run: RunRecords, group: str = "") -> tuple[MadeFile, ...]:
    """List what successful stages made, each file once, by group and name."""
    return tuple(made for name in sorted(run.groups) if group in {"", name} for made in _of_group(run, name))


def _of_group(run: RunRecords, group: str) -> Iterator[MadeFile]:
    chosen: dict[str, tuple[FileRecord, Recorded]] = {}
    for one in run.groups[group]:
        for file in one.record.files if one.record.status == "ok" else ():
            known = chosen.get(file.name)
            if known is None or _counts_more(file, one, *known):
                chosen[file.name] = (file, one)
    for name in sorted(chosen):
        file, by = chosen[name]
        build_type = names().build_types.get(by.record.stage, "")
        used = materials(run, group, by) if build_type else ()
        yield MadeFile(group=group, file=file, by=by, build_type=build_type, materials=used)


def _counts_more(file: FileRecord, by: Recorded, known: FileRecord, known_by: Recorded) -> bool:
    """Of the same bytes a build says more than an upload; of other bytes the later stage is right."""
    if file.sha256 == known.sha256:
        return by.record.stage.startswith(_BUILD) and not known_by.record.stage.startswith(_BUILD)
    return (by.record.started, by.record.name) > (known_by.record.started, known_by.record.name)


def materials(run: RunRecords, group: str, by: Recorded) -> tuple[Material, ...]:
    """List what a build used: sources at commits, locks, ROCm, wheels; sources first."""
    inputs = inputs_of(by)
    found = [*_sources(run, by, inputs)]
    if by.record.stage == BUILD_ROCM:
        found += _artifacts(run.groups[group], by)
    if inputs.lock:
        name = f"locked build requirements ({by.record.platform}, Python {inputs.python})"
        found.append(Material(name=name, digest={"sha256": inputs.lock}))
    known = {
        file.sha256: file
        for one in run.groups[group]
        for file in (one.record.files if one.record.status == "ok" else ())
    }
    found += _rocm(run, inputs, known)
    for project, identity in inputs.dependencies.items():
        found.append(_dependency(run, project, identity, known))
    return tuple(found)


def source_commits(made: MadeFile) -> tuple[str, ...]:
    """Give the commits of the sources that a file was built from; not the build system's own."""
    return tuple(one.digest["gitCommit"] for one in made.materials if one.notes.get("role") == SOURCE)


def inputs_of(by: Recorded) -> Inputs:
    """Read a record's inputs."""
    return validated(by.record.inputs, Inputs, where=f"{by.document.key}, inputs")


def _sources(run: RunRecords, by: Recorded, inputs: Inputs) -> Iterator[Material]:
    record, source = by.record, inputs.source
    if source.commit:
        project = record.stage.removeprefix(_BUILD)
        notes = {"role": SOURCE}
        held = next((one for one in run.locks if one.lock.torch_ref == record.cell.torch_ref), None)
        locked = held.lock.projects.get(project) if held else None
        is_locked = locked is not None and locked.commit == source.commit
        if locked is not None and is_locked and locked.ref:
            notes["ref"] = locked.ref
        if source.diff:
            notes["uncommitted_changes_sha256"] = source.diff
        uri = commit_uri(source.origin or source.tree, source.commit)
        yield Material(name=project, uri=uri, digest={"gitCommit": source.commit}, notes=notes)
        if held is not None and is_locked:
            yield Material(name=run.path(held.document.key), digest={"sha256": held.document.sha256})
    commit = record.details.get("commit")
    if record.stage == BUILD_ROCM and isinstance(commit, str) and commit:
        uri = commit_uri(names().sources.rocm, commit)
        yield Material(name=ROCM_SOURCE, uri=uri, digest={"gitCommit": commit}, notes={"role": SOURCE})
    builder = builder_of(record)
    if builder.get("commit"):
        yield Material(
            name="build system",
            uri=commit_uri(builder["source"], builder["commit"]),
            digest={"gitCommit": builder["commit"]},
        )


def _artifacts(group: Sequence[Recorded], by: Recorded) -> Iterator[Material]:
    """List the artifacts that packages were made from, where they are those that were fetched."""
    folder = by.record.details.get("artifact_dir")
    for one in group:
        fetched = one.record.details.get("folder")
        if one.record.stage != FETCH_ARTIFACTS or one.record.status != "ok":
            continue
        if isinstance(folder, str) and isinstance(fetched, str) and PurePath(folder).match(fetched):
            for name, sha256 in sorted(inputs_of(one).artifacts.items()):
                yield Material(name=name, digest={"sha256": sha256})


def _rocm(run: RunRecords, inputs: Inputs, known: Mapping[str, FileRecord]) -> Iterator[Material]:
    if inputs.rocm is None:
        return
    version, _layout, content = inputs.rocm
    if isinstance(content, str):
        # packages of an index: installed by version, and the record has no digest of them
        yield Material(name="rocm", uri=package_url("rocm", version), notes={"from": content})
        return
    for name, sha256 in sorted(content.items()):
        file = known.get(sha256)
        yield _file(run, file) if file else Material(name=name, digest={"sha256": sha256})


def _dependency(
    run: RunRecords, project: str, identity: Mapping[str, str], known: Mapping[str, FileRecord]
) -> Material:
    sha256 = identity.get("digest", "")
    if sha256:
        file = known.get(sha256)
        return _file(run, file) if file else Material(name=project, digest={"sha256": sha256})
    requirement = identity.get("requirement", project)
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement:
        return Material(name=requirement)
    pins = [one.version for one in parsed.specifier if one.operator == "=="]
    return Material(
        name=requirement,
        uri=package_url(parsed.name, pins[0] if len(pins) == 1 else ""),
        notes={"prebuilt": "yes"},
    )


def _file(run: RunRecords, file: FileRecord) -> Material:
    return Material(
        name=file.name,
        uri=package_url(file.distribution, file.version, file.name),
        digest={"sha256": file.sha256},
        of_run=run.path(file.key),
    )


def builder_of(record: Record) -> Mapping[str, str]:
    """Give what a record says of the workflow that made it; nothing for a machine of one's own."""
    said: Any = record.details.get(BUILDER, {})
    return {str(name): str(value) for name, value in said.items()} if isinstance(said, dict) else {}


def times(by: Recorded) -> tuple[str, str]:
    """Say when a stage began and ended: RFC 3339 in UTC, to the second."""
    try:
        began = datetime.fromisoformat(by.record.started).astimezone(UTC)
    except ValueError as problem:
        raise DataError(f"{by.document.key}: started: {by.record.started!r} is no time.") from problem
    ended = began + timedelta(seconds=math.ceil(by.record.seconds))
    return f"{began:%Y-%m-%dT%H:%M:%SZ}", f"{ended:%Y-%m-%dT%H:%M:%SZ}"
