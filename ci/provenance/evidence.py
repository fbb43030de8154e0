"""Whether a file, its record and its statement agree, and where they are: in a store, or behind an address.

The first contradiction is the error.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pydantic import AliasPath, Field

from ci.promote import documents
from ci.promote.documents import (
    Decision,
    ReleaseRecord,
    StagingRecord,
    StoredRecord,
    list_keys,
    parse_stored_record,
)
from ci.promote.staged_files import python_tag_of_file
from ci.provenance.facts import (
    SOURCE,
    ResourceDescriptor,
    RunFile,
    group_of_record,
    read_build_inputs,
    statement_path,
)
from ci.provenance.statements import PREDICATE_TYPE
from ci.tables import spelt
from core import data, errors, files, parallel
from core.errors import DataError, FatalError, MissingInputError, ProvenanceError, ServiceError, UsageError
from core.http import request, require_success
from core.run import is_record
from core.stores import Store
from core.stores.directory import DirectoryStore
from core.stores.location import open_store
from pytorch_build.components import COMPONENTS
from rocm_packaging.packages.layouts import host_distribution, is_rocm

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

    from core.cli.options import Common
    from core.run.records import FileRecord, Record

_MANIFESTS = "manifests"
_RECORD = re.compile(rf"{_MANIFESTS}/[^/]+/[^/]+")
_IN_RUN = re.compile(r"(?P<run>.+)/python/(?P<group>[^/]+)/[^/]+")

# v2/gfx94X-dcgpu/torch-2.10.0+rocm7.10.0-cp312-cp312-linux_x86_64.whl
_HANDED_OUT = re.compile(
    rf"(?P<area>{documents.RELEASE}|{documents.STAGING})/(?P<group>[^/]+)/(?P<name>[^/]+)"
)

_WEB = ("https://", "http://")
_BUCKET = "s3://"

# What a file says of itself besides its bytes, and its record, too.
_RECORDED_FACTS = ("distribution", "version", "requires_python", "metadata_sha256")

# What a server answers for an object that does not exist; a bucket that may not be listed forbids.
_ABSENT = frozenset({403, 404, 410})
_LARGEST_DOCUMENT = 64 << 20

_NAME_THE_RUN = "Name the run with --run-id and --store, or verify the file where the run has it."
_WRITE_AGAIN = "Write the run's statements again: nox -s provenance, with its --run-id and --store."
_REPLACED = "It is not the file that the run made: fetch it again, and find out who replaced it."


# Where the run is


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run in a store: its outputs, by path below its prefix."""

    store: Store
    prefix: str

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        return f"{self.store.url}/{self.prefix}"

    def read(self, path: str) -> bytes | None:
        """Read a small file; None where there is none."""
        key = f"{self.prefix}/{path}"
        if self.store.find(key) is None:
            return None
        return self.store.read(key)

    def list_paths(self, folder: str) -> Sequence[str]:
        """List files at every depth of a folder."""
        keys = list_keys(self.store, f"{self.prefix}/{folder}")
        return [key.removeprefix(f"{self.prefix}/") for key in keys]


@dataclass(frozen=True, kw_only=True)
class ServedRun:
    """A run behind an address, which serves files and no listings."""

    url: str
    cert: str = ""

    def read(self, path: str) -> bytes | None:
        """Read a small file; None where there is none."""
        with _open_response(f"{self.url}/{quote(path)}", cert=self.cert) as response:
            if response is None:
                return None
            content = response.read(_LARGEST_DOCUMENT + 1)
        if len(content) > _LARGEST_DOCUMENT:
            raise ServiceError(f"{self.url}/{path} is larger than any such file can be.")
        return content

    def list_paths(self, folder: str) -> None:
        """Return None: a server lists nothing."""


RunPlace = StoredRun | ServedRun


@dataclass(frozen=True, kw_only=True)
class FileOrigin:
    """The run that a file is of, or one artifact group of it, and the decision that released the file."""

    run: RunPlace
    group: str
    decision: Decision | None = None


def locate(
    address: str,
    common: Common,
    folder: Path,
    *,
    is_run_named: bool,
    cert: str = "",
) -> tuple[Path, FileOrigin]:
    """Return a file's path and its run; one from elsewhere is fetched into the folder.

    A file that lies in a run's outputs is of that run, and one that is staged or released of the run that was
    staged. For any other, and where the run is named, it is the run of the options.
    """
    path = _find_file(address, common, folder, cert)
    file_origin = None if is_run_named else _find_origin(address, common, cert)
    if file_origin is None:
        run = StoredRun(store=common.open_for_reading(), prefix=common.outputs.prefix)
        file_origin = FileOrigin(run=run, group=common.artifact_group)
    return path, file_origin


def _find_file(
    address: str,
    common: Common,
    folder: Path,
    cert: str,
) -> Path:
    """Return the path of a file; one from elsewhere is fetched into the folder."""
    if address.startswith(_WEB):
        return _fetch_served(address, folder, cert)
    if address.startswith(_BUCKET):
        bucket, key = _bucket_and_key(address)
        return open_store(bucket, root=common.root).fetch(key, folder)

    path = _local_path(address)
    if not path.is_file():
        raise MissingInputError(f"There is no file {path}.", hint="Give a wheel, or its address.")
    return path


def _find_origin(
    address: str,
    common: Common,
    cert: str,
) -> FileOrigin | None:
    """Return the run that a file is of, by where it lies; None where that does not say it."""
    if address.startswith(_WEB):
        parts = urlsplit(address)
        match = _IN_RUN.fullmatch(unquote(parts.path))
        if match is None:
            return None
        run_address = parts._replace(path=quote(match["run"]), query="", fragment="")
        return FileOrigin(run=ServedRun(url=urlunsplit(run_address), cert=cert), group=match["group"])

    if address.startswith(_BUCKET):
        bucket, key = _bucket_and_key(address)
        return _find_origin_in_store(open_store(bucket, root=common.root), key, common)

    path = _local_path(address)
    match = _IN_RUN.fullmatch(path.as_posix())
    if match is not None and Path(match["run"], _MANIFESTS).is_dir():
        run_folder = Path(match["run"])
        run = StoredRun(store=DirectoryStore(run_folder.parent), prefix=run_folder.name)
        return FileOrigin(run=run, group=match["group"])

    # DIR/v2/FAMILY/FILE, or a path that is too short for that.
    store_folder = path.parents[min(2, len(path.parents) - 1)]
    key = path.relative_to(store_folder).as_posix()
    return _find_origin_in_store(DirectoryStore(store_folder), key, common)


def _find_origin_in_store(
    store: Store,
    key: str,
    common: Common,
) -> FileOrigin | None:
    match = _IN_RUN.fullmatch(key)
    if match is not None:
        return FileOrigin(run=StoredRun(store=store, prefix=match["run"]), group=match["group"])

    staging_and_decision = _find_staging(store, key)
    if staging_and_decision is None:
        return None
    staging, decision = staging_and_decision
    run = StoredRun(store=open_store(staging.store, root=common.root), prefix=staging.prefix)
    return FileOrigin(run=run, group=staging.artifact_group, decision=decision)


def _find_staging(store: Store, key: str) -> tuple[StagingRecord, Decision | None] | None:
    """Return the record by which a file was staged, and of a released one the decision on it.

    Returns:
        None where the key is of neither, or the store keeps no such documents.

    Raises:
        MissingInputError: Nothing there names the file, or it is a candidate's that was rewritten.
    """
    match = _HANDED_OUT.fullmatch(key)
    if match is None or not list_keys(store, documents.MANIFESTS):
        return None

    decision: Decision | None = None
    staged_key = key
    if match["area"] == documents.RELEASE:
        decision = _find_decision(store, match["group"], key)
        staged_keys = {file.key: file.staged_key for file in decision.files}
        staged_key = staged_keys[key]
        if decision.from_version:
            raise MissingInputError(
                f"{key} was rewritten from ROCm {decision.from_version}, so that no run made it.",
                hint=f"Verify what was tested: {staged_key}, where the candidate is staged.",
            )

    for record, _digest in documents.staging_records(store, [match["group"]]):
        if staged_key in documents.keys_of(record.files):
            return record, decision
    raise MissingInputError(
        f"No staging record of {store.url} names {staged_key}.",
        hint="Name the run with --run-id and --store.",
    )


def _find_decision(
    store: Store,
    artifact_group: str,
    key: str,
) -> Decision:
    for record_key in list_keys(store, documents.manifests(documents.RELEASE, artifact_group)):
        record = documents.read(store, record_key, ReleaseRecord)
        if key in documents.keys_of(record.files):
            return documents.read(store, record.decision, Decision)
    raise MissingInputError(
        f"No decision in {store.url} released {key}.",
        hint="Find out who put it there, and do not install it.",
    )


def _bucket_and_key(address: str) -> tuple[str, str]:
    bucket, _, key = address.removeprefix(_BUCKET).partition("/")
    if not key:
        raise UsageError(f"{address} is not the address of a file.", hint="Write it as s3://BUCKET/KEY.")
    return f"{_BUCKET}{bucket}", key


def _local_path(address: str) -> Path:
    if address.startswith("file://"):
        return Path(urllib.request.url2pathname(urlsplit(address).path)).absolute()
    return Path(address).absolute()


def _fetch_served(
    url: str,
    folder: Path,
    cert: str,
) -> Path:
    name = PurePosixPath(unquote(urlsplit(url).path)).name
    if not name:
        raise UsageError(f"{url} is not the address of a file.", hint="Give the wheel's own address.")

    path = folder / name
    with _open_response(url, cert=cert) as response:
        if response is None:
            raise MissingInputError(f"There is no {url}.", hint="Check that + is written %2B in it.")
        size = int(response.headers.get("Content-Length") or 0)
        with parallel.transfer("fetch", size=size) as progress, files.atomic_file(path) as target:
            for chunk in response.stream(files.CHUNK):
                target.write(chunk)
                progress.advance(len(chunk))
    return path


@contextmanager
def _open_response(
    url: str,
    *,
    cert: str,
) -> Iterator[BaseHTTPResponse | None]:
    """Request an address; None where it has nothing."""
    with request(url, cert=cert) as response:
        if response.status in _ABSENT:
            yield None
        else:
            require_success(url, response)
            yield response


# Records


def find_records(
    run: RunPlace,
    file: FileRecord,
    group: str,
) -> Sequence[RunFile]:
    """Find the records that name a file, builds first."""
    paths = run.list_paths(_MANIFESTS)
    if paths is None:
        return (_find_by_statement(run, file.name, group),)

    record_paths = [path for path in paths if is_record(path) and _RECORD.fullmatch(path)]
    paths_of_group = [path for path in record_paths if group in {"", group_of_record(path)}]

    def read_record(path: str) -> StoredRecord | DataError:
        # A record that is gone since it was listed says nothing.
        content = run.read(path) or b""
        try:
            return parse_stored_record(path, content)
        except DataError as problem:
            return problem

    run_files: list[RunFile] = []
    problems: list[DataError] = []
    records: list[Record] = []
    for result in parallel.map_in_threads(read_record, paths_of_group):
        if isinstance(result, DataError):
            problems.append(result)
        else:
            records.append(result.record)
            run_files += _files_named(result, file.name)

    if run_files:
        return sorted(run_files, key=lambda run_file: not run_file.stored_record.is_build)
    if problems:
        raise problems[0]
    raise _explain_absence(run, file, records)


def _files_named(
    stored_record: StoredRecord,
    name: str,
) -> Iterator[RunFile]:
    group = group_of_record(stored_record.document.key)
    for file in stored_record.files:
        if file.name == name:
            yield RunFile(
                group=group,
                file=file,
                stored_record=stored_record,
            )


def _find_by_statement(
    run: RunPlace,
    name: str,
    group: str,
) -> RunFile:
    """Find a file's record by its statement, where nothing can be listed."""
    path = statement_path(group, name)
    statement = _read_statement(run, path)
    if statement is None:
        raise MissingInputError(
            f"{name} has no statement {run.url}/{path}.",
            hint=f"{_WRITE_AGAIN} {_NAME_THE_RUN}",
        )

    record_path = "" if statement.record is None else statement.record.name
    content = run.read(record_path) if record_path else None
    if content is None:
        raise MissingInputError(
            f"The record that {name} and its statement follow from is missing: {run.url}/{record_path}.",
            hint="Without it the file cannot be verified: find out who removed it.",
        )
    for run_file in _files_named(parse_stored_record(record_path, content), name):
        return run_file
    raise MissingInputError(f"The record {run.url}/{record_path} does not name {name}.", hint=_WRITE_AGAIN)


def _explain_absence(
    run: RunPlace,
    file: FileRecord,
    records: Sequence[Record],
) -> FatalError:
    """Return why no record names a file: its build ended early, or there never was one."""
    for record in records:
        if record.status != "failed" or not _would_make(record, file):
            continue
        if record.exit_code == errors.InterruptedStageError.exit_code:
            outcome = "was interrupted"
        else:
            outcome = f"failed ({record.error.splitlines()[0]})"
        return MissingInputError(
            f"No record of {run.url} names {file.name}: {record.stage}, begun {record.started}, {outcome}.",
            hint=f"Run it again: nox -s {record.stage}. A file that it left is not one of the run.",
        )
    return MissingInputError(f"No record of {run.url} names {file.name}.", hint=_NAME_THE_RUN)


def _would_make(record: Record, file: FileRecord) -> bool:
    """Return whether a step's success would have made a file like this one."""
    if record.stage == "build_rocm":
        return is_rocm(file.distribution)
    component = COMPONENTS.get(record.stage.removeprefix("build_"))
    if component is None:
        return False
    if component.distribution not in {file.distribution, host_distribution(file.distribution)}:
        return False
    return record.cell.python_tag in {None, python_tag_of_file(file.name)}


def check_file(
    file: FileRecord,
    run_files: Sequence[RunFile],
) -> RunFile:
    """Compare what a file says of itself with records; return the one that it is of."""
    for run_file in run_files:
        recorded = run_file.file
        if recorded.sha256 == file.sha256 and recorded.size == file.size:
            _require_same_facts(file, run_file)
            return run_file

    run_file = run_files[0]
    key = run_file.stored_record.document.key
    field_name = "size"
    property_name = "size"
    if run_file.file.sha256 != file.sha256:
        field_name = "sha256"
        property_name = "SHA-256"
    raise ProvenanceError(
        f"{file.name} has another {property_name} than its record {key} says.\n"
        f"the file    {getattr(file, field_name)}\n"
        f"the record  {getattr(run_file.file, field_name)}",
        hint=_REPLACED,
    )


def _require_same_facts(
    file: FileRecord,
    run_file: RunFile,
) -> None:
    """Refuse a record of the same bytes that says something else of them."""
    for name in _RECORDED_FACTS:
        actual = getattr(file, name)
        recorded = getattr(run_file.file, name)
        # Records of earlier versions leave out what they did not know.
        if recorded and actual != recorded:
            key = run_file.stored_record.document.key
            raise ProvenanceError(
                f"{file.name}: its {name} is {actual!r}, and its record {key} says {recorded!r}.",
                hint="The record was changed: build the file again with --force.",
            )


# Statements


class Statement(data.Model, extra="ignore"):
    """An in-toto statement with SLSA's provenance v1, as far as it is read here; the rest is ignored."""

    subject: tuple[ResourceDescriptor, ...]
    predicate_type: str = Field(alias="predicateType")
    build_type: str = Field(validation_alias=AliasPath("predicate", "buildDefinition", "buildType"))
    dependencies: tuple[ResourceDescriptor, ...] = Field(
        (), validation_alias=AliasPath("predicate", "buildDefinition", "resolvedDependencies")
    )
    builder: str = Field(validation_alias=AliasPath("predicate", "runDetails", "builder", "id"))
    invocation: str = Field(
        "", validation_alias=AliasPath("predicate", "runDetails", "metadata", "invocationId")
    )
    started: str = Field("", validation_alias=AliasPath("predicate", "runDetails", "metadata", "startedOn"))
    finished: str = Field("", validation_alias=AliasPath("predicate", "runDetails", "metadata", "finishedOn"))
    byproducts: tuple[ResourceDescriptor, ...] = Field(
        (), validation_alias=AliasPath("predicate", "runDetails", "byproducts")
    )

    @property
    def record(self) -> ResourceDescriptor | None:
        """The record that it follows from, by its path below the run's prefix."""
        for byproduct in self.byproducts:
            if byproduct.name.startswith(f"{_MANIFESTS}/"):
                return byproduct
        return None

    @property
    def sources(self) -> tuple[ResourceDescriptor, ...]:
        """The commits that the file was built from."""
        return tuple(material for material in self.dependencies if material.annotations.get("role") == SOURCE)


def read_statement(
    run: RunPlace,
    run_file: RunFile,
) -> tuple[Statement, str]:
    """Read the statement that lies by a record's group; return also its path."""
    name = run_file.file.name
    path = statement_path(run_file.group, name)
    statement = _read_statement(run, path)
    if statement is not None:
        return statement, path

    record_words = f"{name} is as its record {run_file.stored_record.document.key} says"
    if run_file.stored_record.is_build:
        raise MissingInputError(f"{record_words}, and has no statement.", hint=_WRITE_AGAIN)
    raise MissingInputError(
        f"{record_words}, which is of an upload: nothing says how it was built.",
        hint="Take a file that a run's own stages built.",
    )


def _read_statement(run: RunPlace, path: str) -> Statement | None:
    content = run.read(path)
    if content is None:
        return None
    return data.parse_json(content.decode(errors="replace"), Statement, where=f"{run.url}/{path}")


def check_statement(
    statement: Statement,
    path: str,
    file: FileRecord,
    run_file: RunFile,
) -> None:
    """Compare a statement with the file, and with the record that the file is of."""
    contradiction = _find_contradiction(statement, file, run_file.stored_record)
    if contradiction is not None:
        raise ProvenanceError(f"{path} {contradiction}", hint=_WRITE_AGAIN)


def _find_contradiction(
    statement: Statement,
    file: FileRecord,
    stored_record: StoredRecord,
) -> str | None:
    """Return what a statement says that file and record do not, as the end of a sentence about it."""
    if statement.predicate_type != PREDICATE_TYPE:
        return f"is not provenance but {statement.predicate_type!r}."

    subjects = {subject.name: subject.digest.get("sha256", "") for subject in statement.subject}
    if file.name not in subjects:
        return f"is about another file: {spelt(', '.join(sorted(subjects))) or 'nothing'}."
    digest = subjects[file.name]
    if digest != file.sha256:
        return f"is about another {file.name}.\nthe file       {file.sha256}\nthe statement  {digest}"

    document = stored_record.document
    if statement.record is None or statement.record.digest.get("sha256") != document.sha256:
        return f"does not follow from the record {document.key} as it is now."

    commit = read_build_inputs(stored_record).source.commit
    stated_commits = [source.digest.get("gitCommit", "") for source in statement.sources]
    if commit and commit not in stated_commits:
        commits = spelt(", ".join(stated_commits)) or "nothing"
        return f"names the source commit {commits}, and the record {document.key} {commit}."
    return None
