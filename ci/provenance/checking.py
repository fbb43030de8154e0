"""Whether a file, its record and its statement agree: pure, the first contradiction is the error."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic reads it
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field

from ci.provenance.facts import inputs_of
from ci.provenance.statements import PREDICATE_TYPE
from ci.report.text import spelt
from core.data import Model
from core.errors import MissingInputError, ProvenanceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci.promote.run_records import Recorded
    from core.run.records import FileRecord

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
