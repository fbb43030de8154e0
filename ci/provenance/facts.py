"""What a run's records say of how files were made: each file with its record, and what went into it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import Field

from ci.promote.documents import DocumentDigest, StoredRecord, list_keys, parse_stored_record
from ci.promote.staged_files import read_locks
from core import data, parallel
from core.errors import DataError, MissingInputError
from core.http import without_secret
from core.run import RunOutputs, is_record
from core.run.records import FileRecord, Record
from core.run.stage import BUILDER
from core.stores import Store
from pytorch_build.components import COMPONENTS
from pytorch_build.lock.source_lock import SourceLock
from rocm_packaging.packages.layouts import Layout

PROVENANCE = "provenance"
STATEMENT = ".intoto.json"
SBOM = "sbom.cdx.json"

BUILD_ROCM = "build_rocm"
FETCH_ARTIFACTS = "fetch_artifacts"

# The role of a material that is what was built.
SOURCE = "source"
ROCM_SOURCE = "rocm"


# The names that statements go by. Whoever reads a statement looks them up: what a name means never changes,
# and a build that says something else of itself gets another name. They are names, not addresses (RFC 2606):
# the texts are the sections of docs/provenance.md.
_DOCS = "https://rocm-pytorch-wheels.invalid/docs/provenance.md"
ROCM_BUILD_TYPE = f"{_DOCS}#rocm-packages-v1"
PYTORCH_BUILD_TYPE = f"{_DOCS}#pytorch-wheel-v1"
# Who builds where no workflow does: nobody vouches for such a machine.
LOCAL_BUILDER = f"{_DOCS}#a-machine-of-ones-own"
_PYTORCH_BUILDS = frozenset(f"build_{name}" for name in COMPONENTS)
_ROCM_REPOSITORY = "https://github.com/ROCm/TheRock"


def statement_path(group: str, filename: str) -> str:
    """Return the path of a file's statement below its run's prefix."""
    return f"{PROVENANCE}/{group}/{filename}{STATEMENT}"


def package_url(
    distribution: str,
    version: str,
    filename: str = "",
) -> str:
    """Name a Python distribution as a package URL (purl-spec, type ``pypi``)."""
    url = f"pkg:pypi/{quote(distribution, safe='')}"
    if version:
        url += f"@{quote(version, safe='')}"
    if filename:
        url += f"?file_name={quote(filename, safe='')}"
    return url


def commit_uri(origin: str, commit: str) -> str:
    """Name a commit of a repository: ``git+https://…@{commit}`` (SPDX's form of a download location).

    A path becomes a ``file`` address; the sample's own scheme stays as it is. User names and passwords in an
    address are left out.
    """
    if "://" in origin:
        return f"git+{without_secret(origin)}@{commit}"
    # The origin may be a folder of another machine, which locked it.
    for path in (PurePosixPath(origin), PureWindowsPath(origin)):
        if path.is_absolute():
            return f"git+{path.as_uri()}@{commit}"
    return f"{quote(origin, safe=':/@')}@{commit}"


# What a record says of its inputs


class BuildSource(data.Model, extra="ignore"):
    """``inputs.source`` of a build: a locked commit, or a developer's tree."""

    origin: str = ""
    tree: str = ""
    commit: str = ""
    diff: str = ""


class BuildInputs(data.Model, extra="ignore"):
    """What a record's inputs say of materials; whatever else they say stays as it is."""

    source: BuildSource = BuildSource()
    python: str = ""
    rocm: tuple[str, Layout, dict[str, str] | str] | None = None
    dependencies: dict[str, dict[str, str]] = Field(default_factory=dict)
    lock: str = ""
    artifacts: dict[str, str] = Field(default_factory=dict)


def read_build_inputs(stored_record: StoredRecord) -> BuildInputs:
    """Read a record's inputs."""
    where = f"{stored_record.document.key}, inputs"
    return data.validated(stored_record.record.inputs, BuildInputs, where=where)


def builder_of(record: Record) -> Mapping[str, str]:
    """Return what a record says of the workflow that made it; nothing for a developer's machine."""
    builder: Any = record.details.get(BUILDER, {})
    if not isinstance(builder, dict):
        return {}
    return {str(name): str(value) for name, value in builder.items()}


def times(stored_record: StoredRecord) -> tuple[str, str]:
    """Return when a step began and ended: RFC 3339 in UTC, to the second."""
    record = stored_record.record
    try:
        start = datetime.fromisoformat(record.started).astimezone(UTC)
    except ValueError as problem:
        key = stored_record.document.key
        raise DataError(f"{key}: started: {record.started!r} is not a time.") from problem
    end = start + timedelta(seconds=math.ceil(record.seconds))
    return f"{start:%Y-%m-%dT%H:%M:%SZ}", f"{end:%Y-%m-%dT%H:%M:%SZ}"


# The records of a run


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """A file of a run, with the record that names it."""

    group: str
    file: FileRecord
    stored_record: StoredRecord

    @property
    def record(self) -> Record:
        """The record itself."""
        return self.stored_record.record

    @property
    def build_type(self) -> str | None:
        """What its statement calls the build; None where no build of ours made it."""
        if self.record.stage == BUILD_ROCM:
            return ROCM_BUILD_TYPE
        return PYTORCH_BUILD_TYPE if self.record.stage in _PYTORCH_BUILDS else None


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """The contents of a run's manifests.

    Attributes:
        groups: The records of each artifact group.
        locks: Source locks, by torch ref, each with its document.
        unreadable: What is wrong with records that cannot be read.
    """

    prefix: str
    groups: Mapping[str, Sequence[StoredRecord]]
    locks: Mapping[str, tuple[SourceLock, DocumentDigest]] = field(default_factory=dict)
    unreadable: Sequence[DataError] = ()

    def path(self, key: str) -> str:
        """Return a key below the run's prefix, which holds wherever the run is copied to."""
        return key.removeprefix(f"{self.prefix}/")

    @cached_property
    def files_by_digest(self) -> Mapping[tuple[str, str], FileRecord]:
        """The files of each artifact group by their SHA-256, as they were recorded last."""
        files: dict[tuple[str, str], FileRecord] = {}
        for group, stored_records in self.groups.items():
            for stored_record in stored_records:
                for file in stored_record.files:
                    files[group, file.sha256] = file
        return files


def read_run(
    store: Store,
    outputs: RunOutputs,
    group: str = "",
) -> RunRecords:
    """Read a run's records and source locks. With a group, records of others may be unreadable."""
    prefix = f"{outputs.prefix}/manifests"
    keys = list_keys(store, prefix)
    # Records lie in the folders of artifact groups, and no deeper.
    record_keys = [key for key in keys if is_record(key) and key.removeprefix(f"{prefix}/").count("/") == 1]
    if not record_keys:
        raise MissingInputError(
            f"Run {outputs.run_id} has no records in {store.url}/{prefix}.",
            hint="Build something first (nox -s build_torch), or name another run with --run-id.",
        )

    def read_record(key: str) -> StoredRecord | DataError | None:
        try:
            return parse_stored_record(key, store.read(key))
        except MissingInputError:
            # A failure's record goes when its step succeeds.
            return None
        except DataError as problem:
            if group in {"", group_of_record(key)}:
                raise
            return problem

    groups: dict[str, list[StoredRecord]] = {}
    unreadable: list[DataError] = []
    results = parallel.map_in_threads(read_record, record_keys)
    for key, result in zip(record_keys, results, strict=True):
        group_records = groups.setdefault(group_of_record(key), [])
        if isinstance(result, StoredRecord):
            group_records.append(result)
        elif result is not None:
            unreadable.append(result)
    return RunRecords(
        prefix=outputs.prefix,
        groups=groups,
        locks={lock.torch_ref: (lock, document) for lock, document in read_locks(store, outputs, keys)},
        unreadable=unreadable,
    )


def group_of_record(key: str) -> str:
    """Return the artifact group of a record, by its key or its path."""
    return key.rpartition("/")[0].rpartition("/")[2]


def run_files(
    run: RunRecords,
    group: str = "",
) -> tuple[RunFile, ...]:
    """List what successful steps made, each file once, by group and name."""
    files: list[RunFile] = []
    for name in sorted(run.groups):
        if group in {"", name}:
            files += _files_of_group(run, name)
    return tuple(files)


def _files_of_group(
    run: RunRecords,
    group: str,
) -> Sequence[RunFile]:
    files: dict[str, RunFile] = {}
    for stored_record in run.groups[group]:
        for file in stored_record.files:
            run_file = RunFile(
                group=group,
                file=file,
                stored_record=stored_record,
            )
            if file.name not in files or _counts_more(run_file, files[file.name]):
                files[file.name] = run_file
    return [files[name] for name in sorted(files)]


def _counts_more(
    run_file: RunFile,
    previous: RunFile,
) -> bool:
    """Of the same bytes a build says more than an upload; of other bytes the later step is right."""
    if run_file.file.sha256 == previous.file.sha256:
        return run_file.stored_record.is_build and not previous.stored_record.is_build
    record = run_file.record
    previous_record = previous.record
    return (record.started, record.name) > (previous_record.started, previous_record.name)


# What a build used


class ResourceDescriptor(data.Model, extra="ignore"):
    """A ResourceDescriptor of in-toto v1; `path_in_run` is where the run has it that made it."""

    name: str = ""
    uri: str = ""
    digest: Mapping[str, str] = Field(default_factory=dict)
    annotations: Mapping[str, Any] = Field(default_factory=dict)
    path_in_run: str = Field("", exclude=True)


def materials_of(
    run: RunRecords,
    run_file: RunFile,
) -> Sequence[ResourceDescriptor]:
    """List what a build used: sources at commits, locks, ROCm, wheels; sources first."""
    if run_file.build_type is None:
        return ()

    group = run_file.group
    inputs = read_build_inputs(run_file.stored_record)
    materials = list(_sources(run, run_file, inputs))
    if run_file.record.stage == BUILD_ROCM:
        materials += _artifacts(run.groups[group], run_file)
    if inputs.lock:
        name = f"locked build requirements ({run_file.record.platform}, Python {inputs.python})"
        materials.append(
            ResourceDescriptor(
                name=name,
                digest={"sha256": inputs.lock},
            )
        )
    if inputs.rocm is not None:
        version, _layout, content = inputs.rocm
        materials += _rocm_packages(run, group, version, content)
    for project, identity in inputs.dependencies.items():
        sha256 = identity.get("digest")
        if sha256:
            materials.append(_file(run, group, project, sha256))
        else:
            materials.append(_prebuilt(identity.get("requirement", project)))
    return materials


def _sources(
    run: RunRecords,
    run_file: RunFile,
    inputs: BuildInputs,
) -> Iterator[ResourceDescriptor]:
    record = run_file.record
    source = inputs.source
    if source.commit:
        project = record.stage.removeprefix("build_")
        lock, document = run.locks.get(record.cell.torch_ref or "", (None, None))
        locked_project = lock.projects.get(project) if lock is not None else None
        ref: str | None = None
        if locked_project is not None and locked_project.commit == source.commit:
            ref = locked_project.ref

        annotations = {"role": SOURCE}
        if ref:
            annotations["ref"] = ref
        if source.diff:
            annotations["uncommitted_changes_sha256"] = source.diff
        yield _commit(project, source.origin or source.tree, source.commit, annotations=annotations)
        if document is not None and ref is not None:
            yield ResourceDescriptor(
                name=run.path(document.key),
                digest={"sha256": document.sha256},
            )

    rocm_commit = record.details.get("commit")
    if record.stage == BUILD_ROCM and isinstance(rocm_commit, str) and rocm_commit:
        yield _commit(ROCM_SOURCE, _ROCM_REPOSITORY, rocm_commit, annotations={"role": SOURCE})

    builder = builder_of(record)
    if builder.get("commit"):
        yield _commit("build system", builder["source"], builder["commit"], annotations={})


def _commit(
    name: str,
    origin: str,
    commit: str,
    *,
    annotations: Mapping[str, str],
) -> ResourceDescriptor:
    return ResourceDescriptor(
        name=name,
        uri=commit_uri(origin, commit),
        digest={"gitCommit": commit},
        annotations=annotations,
    )


def _artifacts(
    group: Sequence[StoredRecord],
    run_file: RunFile,
) -> Iterator[ResourceDescriptor]:
    """List the artifacts that packages were made from, where they are those that were fetched."""
    folder = run_file.record.details.get("artifact_dir")
    for stored_record in group:
        record = stored_record.record
        fetched_folder = record.details.get("folder")
        if record.stage != FETCH_ARTIFACTS or record.status != "ok":
            continue
        if not isinstance(folder, str) or not isinstance(fetched_folder, str):
            continue
        if PurePath(folder).match(fetched_folder):
            artifacts = read_build_inputs(stored_record).artifacts
            for name, sha256 in sorted(artifacts.items()):
                yield ResourceDescriptor(
                    name=name,
                    digest={"sha256": sha256},
                )


def _rocm_packages(
    run: RunRecords,
    group: str,
    version: str,
    content: Mapping[str, str] | str,
) -> Iterator[ResourceDescriptor]:
    """List ROCm's packages: files by digest, or the one that was installed from an index."""
    if isinstance(content, str):
        # Installed by version: the record has no digests of an index's packages.
        yield ResourceDescriptor(
            name="rocm",
            uri=package_url("rocm", version),
            annotations={"from": content},
        )
        return
    for name, sha256 in sorted(content.items()):
        yield _file(run, group, name, sha256)


def _file(
    run: RunRecords,
    group: str,
    name: str,
    sha256: str,
) -> ResourceDescriptor:
    """Describe a file by its digest, and as one of the run's where it is that."""
    file = run.files_by_digest.get((group, sha256))
    if file is None:
        return ResourceDescriptor(
            name=name,
            digest={"sha256": sha256},
        )
    return ResourceDescriptor(
        name=file.name,
        uri=package_url(file.distribution, file.version, file.name),
        digest={"sha256": sha256},
        path_in_run=run.path(file.key),
    )


def _prebuilt(requirement_text: str) -> ResourceDescriptor:
    """Describe a package that was installed from an index, by its requirement."""
    try:
        requirement = Requirement(requirement_text)
    except InvalidRequirement:
        return ResourceDescriptor(name=requirement_text)

    pins = [specifier.version for specifier in requirement.specifier if specifier.operator == "=="]
    version = pins[0] if len(pins) == 1 else ""
    return ResourceDescriptor(
        name=requirement_text,
        uri=package_url(requirement.name, version),
        annotations={"prebuilt": "yes"},
    )
