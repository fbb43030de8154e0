"""The two documents of a distribution bucket: what was staged, and what was promoted on which grounds."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import Field

from core.data import Model, parse_json
from core.run.outputs import Platform  # noqa: TC001 - pydantic reads it

if TYPE_CHECKING:
    from core.stores import Store

Rule = Literal["tests", "bypass", "override"]
Digest = Field(pattern=r"^[0-9a-f]{64}$")


class Document(Model):
    """A document that something follows from, as it was read.

    Attributes:
        key: Its key, in the store that it was read from.
        sha256: Hex SHA-256 of its bytes.
    """

    key: str
    sha256: str = Digest


class StagedFile(Model):
    """A wheel or sdist that was staged.

    Attributes:
        name: File name.
        key: Its key in the distribution bucket.
        source_key: Its key in the run's store.
        size: Bytes.
        sha256: Hex SHA-256, as the run's record has it.
        distribution: Normalised distribution name.
        version: Its version.
        requires_python: Its Requires-Python; "" for none.
        metadata_sha256: Hex SHA-256 of its sidecar; "" where there is none.
        license: The licence that a wheel names; "" where it names none.
        torch_ref: The torch ref it was built from; "" for ROCm's own packages.
        python: The Python it is for, ``cp312``; "" for any.
    """

    name: str
    key: str
    source_key: str
    size: int = Field(ge=0)
    sha256: str = Digest
    distribution: str
    version: str
    requires_python: str = ""
    metadata_sha256: str = ""
    license: str = ""
    torch_ref: str = ""
    python: str = ""


class Lock(Model):
    """A source lock of the run.

    Attributes:
        torch_ref: The torch ref that it locks.
        document: The lock itself.
        release_type: The release type that its versions are for.
        rocm_version: The ROCm version that they are for; "" for the family cpu.
        commits: Project to commit, of those that are built.
        promised: Distribution to the version that a cell of this family is to have.
    """

    torch_ref: str
    document: Document
    release_type: str
    rocm_version: str = ""
    commits: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    promised: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it


class StagingRecord(Model):
    """What was staged of a run for a family.

    Attributes:
        status: As records of stages have it, since pages are written from both.
        family: The folder under ``v2-staging/``.
        run_id: The run.
        platform: Its platform.
        store: The store that holds the run's outputs.
        prefix: The run's prefix there.
        artifact_group: The group there.
        staged: When the content of this document last changed, ISO 8601, UTC.
        files: What was copied, by name.
        records: The run's records that name it or tested it, as they were then.
        reports: The run's test reports, as they were then.
        locks: The run's source locks.
    """

    schema_version: Literal[1] = 1
    status: Literal["ok"] = "ok"
    family: str
    run_id: str
    platform: Platform
    store: str
    prefix: str
    artifact_group: str
    staged: str
    files: tuple[StagedFile, ...]
    records: tuple[Document, ...]
    reports: tuple[Document, ...] = ()
    locks: tuple[Lock, ...] = ()


class Evidence(Model):
    """A test that a ruling rests on.

    Attributes:
        stage: The session that tested.
        run_id: Its run.
        python: The Python it ran under.
        record: Its record.
        report: Its JUnit report.
    """

    stage: str
    run_id: str
    python: str
    record: Document
    report: Document | None


class Ruling(Model):
    """By which rule a cell of the set went out.

    Attributes:
        family: GPU family.
        platform: Platform.
        python: Python tag; "" for ROCm's own packages.
        rule: ``tests`` (they passed), ``bypass`` (the family's data excuses that there is no runner),
            ``override`` (a person's decision).
        evidence: The tests.
        overridden: What the person's decision stands against.
    """

    family: str
    platform: str
    python: str
    rule: Rule
    evidence: tuple[Evidence, ...] = ()
    overridden: tuple[str, ...] = ()


class Override(Model):
    """A person's decision to promote without the tests."""

    by: str = Field(min_length=1)
    reason: str = Field(min_length=1)


class PromotedFile(Model):
    """A wheel or sdist of the release.

    Attributes:
        family: The folder under ``v2/``.
        name: File name.
        key: Its key.
        size: Bytes.
        sha256: Hex SHA-256.
        distribution: Normalised distribution name.
        version: Its version.
        requires_python: Its Requires-Python; "" for none.
        metadata_sha256: Hex SHA-256 of its sidecar; "" where there is none.
        staged_key: The staged file that it is, or was made from.
        staged_sha256: That file's hex SHA-256: the one that was tested.
    """

    family: str
    name: str
    key: str
    size: int
    sha256: str = Digest
    distribution: str
    version: str
    requires_python: str = ""
    metadata_sha256: str = ""
    staged_key: str
    staged_sha256: str = Digest


class Decision(Model):
    """What was promoted, on which grounds, when and by whom.

    Attributes:
        set_name: The set, such as ``torch-2.10.0+rocm7.10.0``.
        identity: Digest of what is promoted: the same files have the same decision.
        status: ``promoting`` until every file and page is there, then ``promoted``.
        release_type: The release type whose bucket this is.
        from_version: ROCm's version before the wheels were rewritten; "" where they were not.
        to_version: ROCm's version after it.
        gpu_targets: The gfx targets that were kept, where not all were.
        left_out: The staged device packages that were not, by key.
        decided: When, ISO 8601, UTC.
        by: Who ran the command.
        staging: The staging records.
        rulings: By which rule each cell went out.
        override: The person's decision that some rulings name.
        files: What was promoted.
    """

    schema_version: Literal[1] = 1
    set_name: str
    identity: str
    status: Literal["promoting", "promoted"]
    release_type: str
    from_version: str = ""
    to_version: str = ""
    gpu_targets: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    decided: str
    completed: str = ""
    by: str
    staging: tuple[Document, ...]
    rulings: tuple[Ruling, ...]
    override: Override | None = None
    files: tuple[PromotedFile, ...]


class ReleaseRecord(Model):
    """What the release index of a family lists of a promoted set.

    Attributes:
        status: As records of stages have it, since pages are written from both.
        family: The folder under ``v2/``.
        decision: Key of the decision on the set.
        files: Its files.
    """

    schema_version: Literal[1] = 1
    status: Literal["ok"] = "ok"
    family: str
    decision: str
    files: tuple[PromotedFile, ...]


AnyDocument = TypeVar("AnyDocument", bound=Model)


def serialized(document: Model) -> bytes:
    """Write a document as the JSON that the store keeps; the same document gives the same bytes."""
    return (document.model_dump_json(indent=2) + "\n").encode()


def read(store: Store, key: str, model: type[AnyDocument]) -> tuple[AnyDocument, Document]:
    """Read a document of the store, and say what was read.

    Raises:
        MissingInputError: There is none.
        DataError: It is another thing.
    """
    content = store.read(key)
    where = f"{store.url}/{key}"
    return parse_json(content.decode(), model, where=where), document(key, content)


def document(key: str, content: bytes) -> Document:
    """Name a document by its key and digest."""
    return Document(key=key, sha256=hashlib.sha256(content).hexdigest())
