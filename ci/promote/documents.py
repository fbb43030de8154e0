"""The two documents of a distribution bucket: what was staged, and what was promoted on which grounds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import Field

from ci.publish.indexing import Indexed, Records, write_index
from core.data import Model, parse_json
from core.errors import StoreError
from core.run.outputs import (
    Platform,
    key_name,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from core.stores import Store


Rule = Literal["tests", "bypass", "override"]
Digest = Field(pattern=r"^[0-9a-f]{64}$")


@dataclass(frozen=True, kw_only=True, order=True)
class Cell:
    """A part of a set that is tested together."""

    family: str
    platform: str
    python: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.family, self.platform, self.python) if part)


class Document(Model):
    """A document that something follows from, as it was read."""

    key: str
    sha256: str = Digest


class StagedFile(Model):
    """A wheel or sdist that was staged."""

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
    """A source lock of the run."""

    torch_ref: str
    document: Document
    release_type: str
    rocm_version: str = ""
    commits: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    promised: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it


class StagingRecord(Model):
    """What was staged of a run for a family."""

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
    """A test that a ruling rests on."""

    stage: str
    run_id: str
    python: str
    record: Document
    report: Document | None


class Ruling(Model):
    """By which rule a cell of the set went out."""

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
    """A wheel or sdist of the release."""

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
    """What was promoted, on which grounds, when and by whom."""

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
    """What the release index of a family lists of a promoted set."""

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
    """Read a document of the store, and say what was read."""
    content = store.read(key)
    where = f"{store.url}/{key}"
    return parse_json(content.decode(), model, where=where), document(key, content)


def document(key: str, content: bytes) -> Document:
    """Name a document by its key and digest."""
    return Document(key=key, sha256=hashlib.sha256(content).hexdigest())


STAGING = "v2-staging"
RELEASE = "v2"
AREAS = (RELEASE, STAGING)
MANIFESTS = "manifests"
DECISIONS = f"{MANIFESTS}/decisions"
INTENTS = f"{MANIFESTS}/promoting"


def folder(area: str, family: str) -> str:
    """Key prefix of a family's wheels, in `STAGING` or `RELEASE`."""
    return f"{area}/{family}"


def manifests(area: str, family: str = "") -> str:
    """Key prefix of what says which files an area's pages list: of all families, or of one."""
    return f"{MANIFESTS}/{area}/{family}".rstrip("/")


def staging_record(family: str, run_prefix: str) -> str:
    """Key of the record of what was staged of the run with this prefix."""
    return f"{manifests(STAGING, family)}/{key_name(run_prefix)}.json"


def release_record(family: str, set_name: str, identity: str) -> str:
    """Key of the document of what the release index of a family lists of a promoted set."""
    return f"{manifests(RELEASE, family)}/{set_name}-{identity}.json"


def decision(set_name: str, identity: str) -> str:
    """Key of a decision record, which is written once."""
    return f"{DECISIONS}/{set_name}/{identity}.json"


def intent(set_name: str, identity: str) -> str:
    """Key of what a promotion leaves before it begins, and takes away in the end."""
    return f"{INTENTS}/{set_name}/{identity}.json"


def write_pages(store: Store, area: str, family: str, *, expected: Collection[str]) -> Indexed:
    """Write the pages that changed.

    A file that no manifest names is not listed: it may be half of a promotion that goes on.
    """
    where = folder(area, family)
    # files go by retention while what names them stays
    source = Records(store=store, prefix=manifests(area, family), refuses_absent=False)
    indexed = write_index(store, where, source, title=where, strict=False)
    unlisted = [f"{one.stored.key}: {one.why}" for one in indexed.held if one.stored.key in expected]
    if unlisted:
        raise StoreError(
            f"Not listed in {store.url}/{where}:\n" + "\n".join(unlisted),
            hint="Find out who changed them; then run the same command again.",
        )
    return indexed
