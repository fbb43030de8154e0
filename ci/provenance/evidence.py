"""What a run knows of one file: records that name it, and its statement."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - pydantic reads it
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field

from ci.promote.documents import document
from ci.promote.runs import Recorded
from ci.promote.staging_area import python_of
from ci.provenance.facts import inputs_of, statement_path
from ci.provenance.statements import PREDICATE_TYPE
from ci.report.words import spelt
from core import data, parallel
from core.data import Model
from core.errors import DataError, FatalError, InterruptedStageError, MissingInputError, ProvenanceError
from core.run import records
from core.run.outputs import is_record
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from rocm_packaging.packages.layouts import is_rocm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci.provenance.places import RunPlace
    from core.run.records import FileRecord, Record


_MANIFESTS = "manifests"
_RECORD = re.compile(rf"{_MANIFESTS}/[^/]+/[^/]+")
_NAME_THE_RUN = "Name the run with --run-id and --store, or verify the file where the run has it."


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a run knows of a file."""

    promised: tuple[tuple[Recorded, FileRecord], ...]
    run: RunPlace

    def statement(self, by: Recorded, name: str) -> tuple[Statement | None, str]:
        """Read the statement that lies by a record's group; None where there is none; and its path."""
        path = statement_path(_group_of(by.document.key), name)
        return read_statement(self.run, path), path


def _group_of(key: str) -> str:
    return key.rpartition("/")[0].rpartition("/")[2]


def read_statement(run: RunPlace, path: str) -> Statement | None:
    """Read a statement; None where there is none."""
    content = run.read(path)
    if content is None:
        return None
    return data.parse_json(content.decode(errors="replace"), Statement, where=f"{run.url}/{path}")


def gather(run: RunPlace, file: FileRecord, group: str) -> Evidence:
    """Find the records that name a file."""
    listed = run.paths(_MANIFESTS)
    if listed is None:
        return Evidence(promised=(_by_statement(run, file.name, group),), run=run)
    paths = [path for path in listed if is_record(path) and _RECORD.fullmatch(path)]
    if group:
        paths = [path for path in paths if _group_of(path) == group]
    found, problems = [], []
    for one in parallel.each(lambda path: _read(run, path), paths):
        if isinstance(one, FatalError):
            problems.append(one)
        else:
            found.append(one)
    promised = [
        (by, said)
        for by in found
        for said in (by.record.files if by.record.status == "ok" else ())
        if said.name == file.name
    ]
    if not promised:
        raise _absent(run, file, [by.record for by in found], problems)
    promised.sort(key=lambda pair: not pair[0].record.stage.startswith("build_"))
    return Evidence(promised=tuple(promised), run=run)


def _read(run: RunPlace, path: str) -> Recorded | DataError:
    content = run.read(path)
    try:
        # one that is gone since it was listed says nothing
        return _recorded(path, content or b"")
    except DataError as problem:
        return problem


def _recorded(path: str, content: bytes) -> Recorded:
    return Recorded(record=records.parse(content, where=path), document=document(path, content))


def _by_statement(run: RunPlace, name: str, group: str) -> tuple[Recorded, FileRecord]:
    """Find a file's record by its statement, where nothing can be listed."""
    path = statement_path(group, name)
    statement = read_statement(run, path)
    if statement is None:
        raise MissingInputError(f"{name} has no statement {run.url}/{path}.", hint=f"{AGAIN} {_NAME_THE_RUN}")
    where = statement.record_path
    content = run.read(where) if where else None
    if content is None:
        raise MissingInputError(
            f"The record that {name} and its statement follow from is missing: {run.url}/{where}.",
            hint="Whoever took it away took away what the file can be held against.",
        )
    by = _recorded(where, content)
    said = next((one for one in by.record.files if one.name == name), None)
    if said is None:
        raise MissingInputError(f"The record {run.url}/{where} does not name {name}.", hint=AGAIN)
    return by, said


def _absent(
    run: RunPlace, file: FileRecord, found: Sequence[Record], problems: Sequence[FatalError]
) -> FatalError:
    """Say why no record names a file: one is unreadable, its build ended early, or there never was one."""
    if problems:
        return problems[0]
    failed = next((one for one in found if one.status == "failed" and _would_make(one, file)), None)
    if failed is not None:
        interrupted = failed.exit_code == InterruptedStageError.exit_code
        how = "was interrupted" if interrupted else f"failed ({failed.error.splitlines()[0]})"
        return MissingInputError(
            f"No record of {run.url} names {file.name}: {failed.stage}, begun {failed.started}, {how}.",
            hint=f"Run it again: nox -s {failed.stage}. A file that it left is not one of the run.",
        )
    return MissingInputError(f"No record of {run.url} names {file.name}.", hint=_NAME_THE_RUN)


def _would_make(record: Record, file: FileRecord) -> bool:
    """Say whether a stage's success would have made a file like this one."""
    if record.stage == "build_rocm":
        return is_rocm(file.distribution)
    made = DISTRIBUTIONS.get(record.stage.removeprefix("build_"), "")
    of_project = file.distribution == made or file.distribution.startswith(f"amd-{made}-device-")
    return bool(made) and of_project and record.cell.python in {"", python_of(file.name)}


AGAIN = "Write the run's statements again: nox -s provenance, with its --run-id and --store."
_REPLACED = "It is not the file that the run made: fetch it again, and find out who replaced it."
_SAID = ("distribution", "version", "requires_python", "metadata_sha256")


class _Read(Model):
    # what others add to a statement is theirs
    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class Descriptor(_Read):
    """A ResourceDescriptor of in-toto."""

    name: str = ""
    uri: str = ""
    digest: Mapping[str, str] = Field(default_factory=dict)
    annotations: Mapping[str, Any] = Field(default_factory=dict)


class Builder(_Read):
    """Who built."""

    id: str


class Metadata(_Read):
    """When, and in which run."""

    invocation_id: str = Field("", alias="invocationId")
    started: str = Field("", alias="startedOn")
    finished: str = Field("", alias="finishedOn")


class RunDetails(_Read):
    """How one build ran."""

    builder: Builder
    metadata: Metadata = Field(default_factory=Metadata)
    byproducts: tuple[Descriptor, ...] = ()


class BuildDefinition(_Read):
    """What was built from what."""

    build_type: str = Field(alias="buildType")
    dependencies: tuple[Descriptor, ...] = Field((), alias="resolvedDependencies")


class Predicate(_Read):
    """SLSA's provenance v1, as far as it is read here."""

    definition: BuildDefinition = Field(alias="buildDefinition")
    details: RunDetails = Field(alias="runDetails")


class Statement(_Read):
    """An in-toto statement, as far as it is read here."""

    subject: tuple[Descriptor, ...]
    predicate_type: str = Field(alias="predicateType")
    predicate: Predicate

    @property
    def record_path(self) -> str:
        """Path of the record that it follows from, below the run's prefix; "" where it names none."""
        named = self.predicate.details.byproducts
        return next((one.name for one in named if one.name.startswith("manifests/")), "")

    @property
    def sources(self) -> tuple[Descriptor, ...]:
        """The commits that the file was built from."""
        used = self.predicate.definition.dependencies
        return tuple(one for one in used if one.annotations.get("role") == "source")


def check_file(
    file: FileRecord, promised: Sequence[tuple[Recorded, FileRecord]]
) -> tuple[Recorded, FileRecord]:
    """Hold what a file says of itself against records."""
    for by, said in promised:
        if said.sha256 == file.sha256 and said.size == file.size:
            _require_said(file, by, said)
            return by, said
    by, said = promised[0]
    what = "SHA-256" if said.sha256 != file.sha256 else "size"
    here, there = (file.sha256, said.sha256) if what == "SHA-256" else (str(file.size), str(said.size))
    raise ProvenanceError(
        f"{file.name} has another {what} than its record {by.document.key} says.\n"
        f"the file    {here}\nthe record  {there}",
        hint=_REPLACED,
    )


def _require_said(file: FileRecord, by: Recorded, said: FileRecord) -> None:
    for name in _SAID:
        here, there = getattr(file, name), getattr(said, name)
        # records of earlier versions leave out what they did not know
        if there and here != there:
            raise ProvenanceError(
                f"{file.name}: its {name} is {here!r}, and its record {by.document.key} says {there!r}.",
                hint="The record was changed: build the file again with --force.",
            )


def check_statement(statement: Statement, path: str, file: FileRecord, by: Recorded) -> None:
    """Hold a statement against the file, and against the record that the file is of."""
    if statement.predicate_type != PREDICATE_TYPE:
        raise ProvenanceError(f"{path} is no provenance but {statement.predicate_type!r}.", hint=AGAIN)
    subjects = {one.name: one.digest.get("sha256", "") for one in statement.subject}
    if file.name not in subjects:
        about = spelt(", ".join(sorted(subjects))) or "nothing"
        raise ProvenanceError(f"{path} is about another file: {about}.", hint=AGAIN)
    if subjects[file.name] != file.sha256:
        raise ProvenanceError(
            f"{path} is about another {file.name}.\n"
            f"the file       {file.sha256}\nthe statement  {subjects[file.name]}",
            hint=AGAIN,
        )
    said = next(
        (one for one in statement.predicate.details.byproducts if one.name == statement.record_path), None
    )
    if said is None or said.digest.get("sha256") != by.document.sha256:
        raise ProvenanceError(
            f"{path} does not follow from the record {by.document.key} as it is now.", hint=AGAIN
        )
    built_from = inputs_of(by).source.commit
    stated = [one.digest.get("gitCommit", "") for one in statement.sources]
    if built_from and built_from not in stated:
        raise ProvenanceError(
            f"{path} names the source commit {spelt(', '.join(stated)) or 'nothing'}, and the record "
            f"{by.document.key} {built_from}.",
            hint=AGAIN,
        )


def require_statement(name: str, by: Recorded) -> MissingInputError:
    """Write the error of a file that has a record and no statement."""
    if by.record.stage.startswith("build_"):
        return MissingInputError(
            f"{name} is as its record {by.document.key} says, and has no statement.", hint=AGAIN
        )
    return MissingInputError(
        f"{name} is as its record {by.document.key} says, which is of an upload: nothing says how it was "
        "built.",
        hint="Take a file that a run's own stages built.",
    )
