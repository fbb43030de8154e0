"""What a run's records say of how files were made: each file with its build, and what went into it."""

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath
from typing import Any, Literal
from urllib.parse import quote

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import Field

from ci.promote.documents import Document, document
from ci.promote.runs import Recorded, recorded
from core import data, parallel
from core.errors import DataError, MissingInputError
from core.http import without_secret
from core.run import RunOutputs, is_record
from core.run.records import FileRecord, Record
from core.run.stage import BUILDER
from core.stores import Store
from pytorch_build.lock.source_lock import SourceLock
from rocm_packaging.packages.layouts import Layout

PROVENANCE, STATEMENT, SBOM = "provenance", ".intoto.json", "sbom.cdx.json"
BUILD_ROCM, FETCH_ARTIFACTS = "build_rocm", "fetch_artifacts"
SOURCE, ROCM_SOURCE = "source", "rocm"
_BUILD, _LOCK = "build_", "source-lock-"


class Names(data.Model):
    """The contents of `provenance.toml`: what provenance calls builds, builders and sources."""

    build_types: Mapping[str, str]
    builders: Mapping[Literal["local"], str]
    sources: Mapping[Literal["rocm"], str]


names = data.data_file(Path(__file__).with_name("provenance.toml"), Names)


def statement_path(group: str, filename: str) -> str:
    """Return the path of a file's statement below its run's prefix."""
    return f"{PROVENANCE}/{group}/{filename}{STATEMENT}"


def package_url(distribution: str, version: str, filename: str = "") -> str:
    """Name a Python distribution as a package URL (purl-spec, type ``pypi``)."""
    qualifier = f"?file_name={quote(filename, safe='')}" if filename else ""
    at = f"@{quote(version, safe='')}" if version else ""
    return f"pkg:pypi/{quote(distribution, safe='')}{at}{qualifier}"


def commit_uri(origin: str, commit: str) -> str:
    """Name a commit of a repository: ``git+https://…@{commit}`` (SPDX's form of a download location).

    A path becomes a ``file`` address; the sample's own scheme stays as it is. User names and passwords in an
    address are left out.
    """
    if "://" in origin:
        return f"git+{without_secret(origin)}@{commit}"
    if origin.startswith("/"):
        return f"git+{Path(origin).as_uri()}@{commit}"
    return f"{quote(origin, safe=':/@')}@{commit}"


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """The contents of a run's manifests."""

    prefix: str
    groups: Mapping[str, Sequence[Recorded]]
    locks: Mapping[str, tuple[SourceLock, Document]] = field(default_factory=dict)  # by torch ref
    unreadable: Sequence[DataError] = ()

    def path(self, key: str) -> str:
        """Return a key below the run's prefix, which holds wherever the run is copied to."""
        return key.removeprefix(f"{self.prefix}/")


class Descriptor(data.Model, extra="ignore"):
    """A ResourceDescriptor of in-toto v1."""

    name: str = ""
    uri: str = ""
    digest: Mapping[str, str] = Field(default_factory=dict)
    annotations: Mapping[str, Any] = Field(default_factory=dict)


class Material(Descriptor):
    """One thing that a build used; `of_run` is its path in the run that made it."""

    of_run: str = ""


@dataclass(frozen=True, kw_only=True)
class MadeFile:
    """A wheel or sdist of a run, with the stage that made it."""

    group: str
    file: FileRecord
    by: Recorded
    build_type: str = ""
    materials: tuple[Material, ...] = ()


class Source(data.Model, extra="ignore"):
    """``inputs.source`` of a build: a locked commit, or a developer's tree."""

    origin: str = ""
    tree: str = ""
    commit: str = ""
    diff: str = ""


class Inputs(data.Model, extra="ignore"):
    """What a record's inputs say of materials; whatever else they say stays as it is."""

    source: Source = Source()
    python: str = ""
    rocm: tuple[str, Layout, dict[str, str] | str] | None = None
    dependencies: dict[str, dict[str, str]] = Field(default_factory=dict)
    lock: str = ""
    artifacts: dict[str, str] = Field(default_factory=dict)


def read_run(
    store: Store,
    outputs: RunOutputs,
    known: MutableMapping[tuple[str, str], Recorded] | None = None,
    group: str = "",
) -> RunRecords:
    """Read a run's records and source locks; versions of keys that are known already are not read again."""
    prefix = f"{outputs.prefix}/manifests"
    known = {} if known is None else known
    groups: dict[str, list[tuple[str, str]]] = {}
    locks = []
    for stored in store.list(prefix):
        match stored.key.removeprefix(f"{prefix}/").split("/"):
            case [name, _] if is_record(stored.key):
                groups.setdefault(name, []).append((stored.key, stored.etag))
            case [name] if name.startswith(_LOCK) and name.endswith(".json"):
                locks.append(stored.key)
    if not groups:
        raise MissingInputError(
            f"Run {outputs.run_id} has no records in {store.url}/{prefix}.",
            hint="Build something first (nox -s build_torch), or name another run with --run-id.",
        )

    def read(version: tuple[str, str]) -> Recorded | DataError | None:
        key, _etag = version
        try:
            return recorded(key, store.read(key))
        except MissingInputError:  # a failure's record goes when its stage succeeds
            return None
        except DataError as problem:
            if group in {"", key.removeprefix(f"{prefix}/").partition("/")[0]}:
                raise
            return problem

    new = [version for versions in groups.values() for version in versions if version not in known]
    found = dict(zip(new, parallel.map_in_threads(read, new), strict=True))
    known.update({version: one for version, one in found.items() if isinstance(one, Recorded)})
    return RunRecords(
        prefix=outputs.prefix,
        groups={name: tuple(known[one] for one in of if one in known) for name, of in groups.items()},
        locks=dict(_lock(store, key) for key in locks),
        unreadable=tuple(one for one in found.values() if isinstance(one, DataError)),
    )


def _lock(store: Store, key: str) -> tuple[str, tuple[SourceLock, Document]]:
    content = store.read(key)
    lock = data.parse_json(content.decode(errors="replace"), SourceLock, where=key)
    return lock.torch_ref, (lock, document(key, content))


def made_files(run: RunRecords, group: str = "") -> tuple[MadeFile, ...]:
    """List what successful stages made, each file once, by group and name."""
    return tuple(made for name in sorted(run.groups) if group in {"", name} for made in _of_group(run, name))


def _of_group(run: RunRecords, group: str) -> Iterator[MadeFile]:
    chosen: dict[str, tuple[FileRecord, Recorded]] = {}
    for one in run.groups[group]:
        for file in one.files:
            if file.name not in chosen or _counts_more(file, one, *chosen[file.name]):
                chosen[file.name] = (file, one)
    for _, (file, by) in sorted(chosen.items()):
        build_type = names().build_types.get(by.record.stage, "")
        used = tuple(_materials(run, group, by)) if build_type else ()
        yield MadeFile(group=group, file=file, by=by, build_type=build_type, materials=used)


def _counts_more(file: FileRecord, by: Recorded, known: FileRecord, known_by: Recorded) -> bool:
    """Of the same bytes a build says more than an upload; of other bytes the later stage is right."""
    if file.sha256 == known.sha256:
        return by.record.stage.startswith(_BUILD) and not known_by.record.stage.startswith(_BUILD)
    return (by.record.started, by.record.name) > (known_by.record.started, known_by.record.name)


def _materials(run: RunRecords, group: str, by: Recorded) -> Iterator[Material]:
    """List what a build used: sources at commits, locks, ROCm, wheels; sources first."""
    inputs, known = inputs_of(by), {file.sha256: file for one in run.groups[group] for file in one.files}
    yield from _sources(run, by, inputs)
    if by.record.stage == BUILD_ROCM:
        yield from _artifacts(run.groups[group], by)
    if inputs.lock:
        name = f"locked build requirements ({by.record.platform}, Python {inputs.python})"
        yield Material(name=name, digest={"sha256": inputs.lock})
    if inputs.rocm is not None:
        version, _layout, content = inputs.rocm
        if isinstance(content, str):
            # packages of an index: installed by version, and the record has no digest of them
            yield Material(name="rocm", uri=package_url("rocm", version), annotations={"from": content})
        else:
            yield from (_file(run, name, sha256, known) for name, sha256 in sorted(content.items()))
    for project, identity in inputs.dependencies.items():
        if sha256 := identity.get("digest", ""):
            yield _file(run, project, sha256, known)
        else:
            yield _prebuilt(identity.get("requirement", project))


def inputs_of(by: Recorded) -> Inputs:
    """Read a record's inputs."""
    return data.validated(by.record.inputs, Inputs, where=f"{by.document.key}, inputs")


def _sources(run: RunRecords, by: Recorded, inputs: Inputs) -> Iterator[Material]:
    record, source = by.record, inputs.source
    if source.commit:
        project = record.stage.removeprefix(_BUILD)
        lock, read = run.locks.get(record.cell.torch_ref or "", (None, None))
        locked = lock.projects.get(project) if lock else None
        ref = locked.ref if locked and locked.commit == source.commit else None
        notes = {"role": SOURCE, "ref": ref or "", "uncommitted_changes_sha256": source.diff}
        yield _commit(project, source.origin or source.tree, source.commit, **notes)
        if read and ref is not None:
            yield Material(name=run.path(read.key), digest={"sha256": read.sha256})
    commit = record.details.get("commit")
    if record.stage == BUILD_ROCM and isinstance(commit, str) and commit:
        yield _commit(ROCM_SOURCE, names().sources["rocm"], commit, role=SOURCE)
    builder = builder_of(record)
    if builder.get("commit"):
        yield _commit("build system", builder["source"], builder["commit"])


def _commit(name: str, origin: str, commit: str, **notes: str) -> Material:
    said = {key: note for key, note in notes.items() if note}
    return Material(name=name, uri=commit_uri(origin, commit), digest={"gitCommit": commit}, annotations=said)


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


def _file(run: RunRecords, name: str, sha256: str, known: Mapping[str, FileRecord]) -> Material:
    """Describe a file by its digest, and as one of the run's where it is that."""
    if (file := known.get(sha256)) is None:
        return Material(name=name, digest={"sha256": sha256})
    uri = package_url(file.distribution, file.version, file.name)
    return Material(name=file.name, uri=uri, digest={"sha256": sha256}, of_run=run.path(file.key))


def _prebuilt(requirement: str) -> Material:
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement:
        return Material(name=requirement)
    pins = [one.version for one in parsed.specifier if one.operator == "=="]
    uri = package_url(parsed.name, pins[0] if len(pins) == 1 else "")
    return Material(name=requirement, uri=uri, annotations={"prebuilt": "yes"})


def builder_of(record: Record) -> Mapping[str, str]:
    """Return what a record says of the workflow that made it; nothing for a developer's machine."""
    said: Any = record.details.get(BUILDER, {})
    return {str(name): str(value) for name, value in said.items()} if isinstance(said, dict) else {}


def times(by: Recorded) -> tuple[str, str]:
    """Return when a stage began and ended: RFC 3339 in UTC, to the second."""
    try:
        began = datetime.fromisoformat(by.record.started).astimezone(UTC)
    except ValueError as problem:
        raise DataError(f"{by.document.key}: started: {by.record.started!r} is not a time.") from problem
    ended = began + timedelta(seconds=math.ceil(by.record.seconds))
    return f"{began:%Y-%m-%dT%H:%M:%SZ}", f"{ended:%Y-%m-%dT%H:%M:%SZ}"
