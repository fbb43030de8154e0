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

from ci.promote.runs import Recorded, python_of, recorded
from ci.provenance.facts import SOURCE, Descriptor, inputs_of, statement_path
from ci.provenance.statements import PREDICATE_TYPE
from ci.report.text import spelt
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

    Promised = tuple[Recorded, FileRecord]

_MANIFESTS = "manifests"
_RECORD = re.compile(rf"{_MANIFESTS}/[^/]+/[^/]+")
_NAME_THE_RUN = "Name the run with --run-id and --store, or verify the file where the run has it."
_AGAIN = "Write the run's statements again: nox -s provenance, with its --run-id and --store."
_REPLACED = "It is not the file that the run made: fetch it again, and find out who replaced it."
_SAID = ("distribution", "version", "requires_python", "metadata_sha256")
_DEFINITION, _DETAILS = ("predicate", "buildDefinition"), ("predicate", "runDetails")
_WEB, _BUCKET, _FILE = ("https://", "http://"), "s3://", "file://"
_IN_RUN = re.compile(r"(?P<run>.+)/python/(?P<group>[^/]+)/[^/]+")
# what a server answers for an object that does not exist; a bucket that may not be listed forbids
_ABSENT = frozenset({403, 404, 410})
_MOST = 64 << 20


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
        return self.store.read(key) if self.store.find(key) else None

    def paths(self, folder: str) -> Sequence[str]:
        """List files at every depth of a folder."""
        return [one.key.removeprefix(f"{self.prefix}/") for one in self.store.list(f"{self.prefix}/{folder}")]


@dataclass(frozen=True, kw_only=True)
class ServedRun:
    """A run behind an address, which serves files and no listings."""

    url: str
    cert: str = ""

    def read(self, path: str) -> bytes | None:
        """Read a small file; None where there is none."""
        with _answer(f"{self.url}/{quote(path)}", cert=self.cert) as answer:
            content = answer.read(_MOST + 1) if answer else None
        if content is not None and len(content) > _MOST:
            raise ServiceError(f"{self.url}/{path} is larger than any such file can be.")
        return content

    def paths(self, folder: str) -> None:
        """Return None: a server lists nothing."""


RunPlace = StoredRun | ServedRun


@dataclass(frozen=True, kw_only=True)
class Located:
    """A file, and the run that it is compared with."""

    path: Path
    run: RunPlace
    group: str


def locate(file: str, common: Common, folder: Path, *, named: bool, cert: str = "") -> Located:
    """Find a file and its run; one from elsewhere is fetched.

    A file that lies in a run's outputs is of that run. For any other, and where the run is named, it is the
    run of the options.
    """
    if file.startswith(_WEB):
        found = _served(file, folder, cert)
    else:
        found = _stored(file, folder, common) if file.startswith(_BUCKET) else _here(file)
    if not named and isinstance(found, Located):
        return found
    run = StoredRun(store=common.open_for_reading(), prefix=common.outputs.prefix)
    path = found.path if isinstance(found, Located) else found
    return Located(path=path, run=run, group=common.artifact_group)


def _served(url: str, folder: Path, cert: str) -> Located | Path:
    parts = urlsplit(url)
    name = PurePosixPath(unquote(parts.path)).name
    if not name:
        raise UsageError(f"{url} is not the address of a file.", hint="Give the wheel's own address.")
    path = folder / name
    with _answer(url, cert=cert) as answer:
        if answer is None:
            raise MissingInputError(f"There is no {url}.", hint="Check that + is written %2B in it.")
        size = int(answer.headers.get("Content-Length") or 0)
        with parallel.transfer("fetch", size=size) as shown, files.atomic(path) as out:
            for chunk in answer.stream(files.CHUNK):
                out.write(chunk)
                shown.advance(len(chunk))
    if not (found := _IN_RUN.fullmatch(unquote(parts.path))):
        return path
    base = urlunsplit(parts._replace(path=quote(found["run"]), query="", fragment=""))
    return Located(path=path, run=ServedRun(url=base, cert=cert), group=found["group"])


def _stored(uri: str, folder: Path, common: Common) -> Located | Path:
    bucket, _, key = uri.removeprefix(_BUCKET).partition("/")
    if not key:
        raise UsageError(f"{uri} is not the address of a file.", hint="Write it as s3://BUCKET/KEY.")
    store = open_store(f"{_BUCKET}{bucket}", root=common.root)
    path = store.fetch(key, folder)
    if not (found := _IN_RUN.fullmatch(key)):
        return path
    return Located(path=path, run=StoredRun(store=store, prefix=found["run"]), group=found["group"])


def _here(file: str) -> Located | Path:
    named = urllib.request.url2pathname(urlsplit(file).path) if file.startswith(_FILE) else file
    path = Path(named).absolute()
    if not path.is_file():
        raise MissingInputError(f"There is no file {path}.", hint="Give a wheel, or its address.")
    found = _IN_RUN.fullmatch(path.as_posix())
    if not found or not (run := Path(found["run"])).joinpath("manifests").is_dir():
        return path
    stored = StoredRun(store=DirectoryStore(run.parent), prefix=run.name)
    return Located(path=path, run=stored, group=found["group"])


@contextmanager
def _answer(url: str, *, cert: str) -> Iterator[BaseHTTPResponse | None]:
    """Request an address; None where it has nothing."""
    with request(url, cert=cert) as response:
        if response.status in _ABSENT:
            yield None
        else:
            require_success(url, response)
            yield response


class Statement(data.Model, extra="ignore"):
    """An in-toto statement with SLSA's provenance v1, as far as it is read here; the rest is ignored."""

    subject: tuple[Descriptor, ...]
    predicate_type: str = Field(alias="predicateType")
    build_type: str = Field(validation_alias=AliasPath(*_DEFINITION, "buildType"))
    dependencies: tuple[Descriptor, ...] = Field(
        (), validation_alias=AliasPath(*_DEFINITION, "resolvedDependencies")
    )
    builder: str = Field(validation_alias=AliasPath(*_DETAILS, "builder", "id"))
    invocation: str = Field("", validation_alias=AliasPath(*_DETAILS, "metadata", "invocationId"))
    started: str = Field("", validation_alias=AliasPath(*_DETAILS, "metadata", "startedOn"))
    finished: str = Field("", validation_alias=AliasPath(*_DETAILS, "metadata", "finishedOn"))
    byproducts: tuple[Descriptor, ...] = Field((), validation_alias=AliasPath(*_DETAILS, "byproducts"))

    @property
    def record(self) -> Descriptor | None:
        """The record that it follows from, by its path below the run's prefix."""
        return next((one for one in self.byproducts if one.name.startswith(f"{_MANIFESTS}/")), None)

    @property
    def sources(self) -> tuple[Descriptor, ...]:
        """The commits that the file was built from."""
        return tuple(one for one in self.dependencies if one.annotations.get("role") == SOURCE)


def gather(run: RunPlace, file: FileRecord, group: str) -> Sequence[Promised]:
    """Find the records that name a file, builds first."""
    listed = run.paths(_MANIFESTS)
    if listed is None:
        return (_by_statement(run, file.name, group),)
    paths = [path for path in listed if is_record(path) and _RECORD.fullmatch(path)]
    of_group = [path for path in paths if group in {"", _group_of(path)}]
    read = parallel.map_in_threads(lambda path: _read(run, path), of_group)
    found = [one for one in read if isinstance(one, Recorded)]
    promised = [(by, said) for by in found for said in by.files if said.name == file.name]
    if not promised:
        problems = (one for one in read if isinstance(one, FatalError))
        raise next(problems, None) or _absent(run, file, [by.record for by in found])
    return sorted(promised, key=lambda pair: not pair[0].record.stage.startswith("build_"))


def statement_of(run: RunPlace, by: Recorded, name: str) -> tuple[Statement, str]:
    """Read the statement that lies by a record's group; return also its path."""
    path = statement_path(_group_of(by.document.key), name)
    if statement := _statement(run, path):
        return statement, path
    said = f"{name} is as its record {by.document.key} says"
    if by.record.stage.startswith("build_"):
        raise MissingInputError(f"{said}, and has no statement.", hint=_AGAIN)
    raise MissingInputError(
        f"{said}, which is of an upload: nothing says how it was built.",
        hint="Take a file that a run's own stages built.",
    )


def _group_of(key: str) -> str:
    return key.rpartition("/")[0].rpartition("/")[2]


def _statement(run: RunPlace, path: str) -> Statement | None:
    content = run.read(path)
    if content is None:
        return None
    return data.parse_json(content.decode(errors="replace"), Statement, where=f"{run.url}/{path}")


def _read(run: RunPlace, path: str) -> Recorded | DataError:
    content = run.read(path)
    try:
        # one that is gone since it was listed says nothing
        return recorded(path, content or b"")
    except DataError as problem:
        return problem


def _by_statement(run: RunPlace, name: str, group: str) -> Promised:
    """Find a file's record by its statement, where nothing can be listed."""
    path = statement_path(group, name)
    statement = _statement(run, path)
    if statement is None:
        raise MissingInputError(
            f"{name} has no statement {run.url}/{path}.", hint=f"{_AGAIN} {_NAME_THE_RUN}"
        )
    where = statement.record.name if statement.record else ""
    content = run.read(where) if where else None
    if content is None:
        raise MissingInputError(
            f"The record that {name} and its statement follow from is missing: {run.url}/{where}.",
            hint="Without it the file cannot be verified: find out who removed it.",
        )
    by = recorded(where, content)
    said = next((one for one in by.record.files if one.name == name), None)
    if said is None:
        raise MissingInputError(f"The record {run.url}/{where} does not name {name}.", hint=_AGAIN)
    return by, said


def _absent(run: RunPlace, file: FileRecord, found: Sequence[Record]) -> FatalError:
    """Return why no record names a file: its build ended early, or there never was one."""
    failed = next((one for one in found if one.status == "failed" and _would_make(one, file)), None)
    if failed is None:
        return MissingInputError(f"No record of {run.url} names {file.name}.", hint=_NAME_THE_RUN)
    interrupted = failed.exit_code == errors.InterruptedStageError.exit_code
    how = "was interrupted" if interrupted else f"failed ({failed.error.splitlines()[0]})"
    return MissingInputError(
        f"No record of {run.url} names {file.name}: {failed.stage}, begun {failed.started}, {how}.",
        hint=f"Run it again: nox -s {failed.stage}. A file that it left is not one of the run.",
    )


def _would_make(record: Record, file: FileRecord) -> bool:
    """Return whether a stage's success would have made a file like this one."""
    if record.stage == "build_rocm":
        return is_rocm(file.distribution)
    component = COMPONENTS.get(record.stage.removeprefix("build_"))
    if component is None or component.distribution not in {
        file.distribution,
        host_distribution(file.distribution),
    }:
        return False
    return record.cell.python_tag in {None, python_of(file.name)}


def check_file(file: FileRecord, promised: Sequence[Promised]) -> Promised:
    """Compare what a file says of itself with records; return the one that it is of."""
    for by, said in promised:
        if said.sha256 == file.sha256 and said.size == file.size:
            for name in _SAID:
                here, there = getattr(file, name), getattr(said, name)
                # records of earlier versions leave out what they did not know
                if there and here != there:
                    raise ProvenanceError(
                        f"{file.name}: its {name} is {here!r}, and its record {by.document.key} "
                        f"says {there!r}.",
                        hint="The record was changed: build the file again with --force.",
                    )
            return by, said
    by, said = promised[0]
    what = "sha256" if said.sha256 != file.sha256 else "size"
    raise ProvenanceError(
        f"{file.name} has another {what.replace('sha', 'SHA-')} than its record {by.document.key} says.\n"
        f"the file    {getattr(file, what)}\nthe record  {getattr(said, what)}",
        hint=_REPLACED,
    )


def check_statement(statement: Statement, path: str, file: FileRecord, by: Recorded) -> None:
    """Compare a statement with the file, and with the record that the file is of."""
    subjects = {one.name: one.digest.get("sha256", "") for one in statement.subject}
    stated = [one.digest.get("gitCommit", "") for one in statement.sources]
    record, built_from = by.document.key, inputs_of(by).source.commit
    if statement.predicate_type != PREDICATE_TYPE:
        wrong = f"is not provenance but {statement.predicate_type!r}."
    elif file.name not in subjects:
        wrong = f"is about another file: {spelt(', '.join(sorted(subjects))) or 'nothing'}."
    elif (digest := subjects[file.name]) != file.sha256:
        wrong = f"is about another {file.name}.\nthe file       {file.sha256}\nthe statement  {digest}"
    elif statement.record is None or statement.record.digest.get("sha256") != by.document.sha256:
        wrong = f"does not follow from the record {record} as it is now."
    elif built_from and built_from not in stated:
        named = spelt(", ".join(stated)) or "nothing"
        wrong = f"names the source commit {named}, and the record {record} {built_from}."
    else:
        return
    raise ProvenanceError(f"{path} {wrong}", hint=_AGAIN)
