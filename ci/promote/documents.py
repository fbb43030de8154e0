"""What a distribution bucket keeps, as `docs/releases.md` lays it out: wheels, and who decided on them."""

import hashlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from ci.publish.index import Indexed, Records, write_index
from ci.publish.index.pages import Notice
from core import console, parallel
from core.data import AnyModel, Model, parse_json
from core.errors import MissingInputError, StoreError
from core.run import Platform, key_name, locations
from core.run.records import FileRecord
from core.stores import Store

STAGING = locations.STAGING
RELEASE = "v2"
AREAS = (RELEASE, STAGING)
MANIFESTS = "manifests"
DECISIONS = f"{MANIFESTS}/decisions"
INTENTS = f"{MANIFESTS}/promoting"
REFUSALS = f"{MANIFESTS}/refused"
Rule = Literal["tests", "bypass", "override"]
Digest = Field(pattern=r"^[0-9a-f]{64}$")


@dataclass(frozen=True, kw_only=True, order=True)
class Cell:
    """A part of a set that is tested together."""

    family: str
    platform: str
    python: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """The family and platform."""
        return self.family, self.platform

    def __str__(self) -> str:
        return " ".join(part for part in (self.family, self.platform, self.python) if part)


class Document(Model):
    """A document that something follows from, as it was read."""

    key: str
    sha256: str = Digest


class StagedFile(FileRecord):
    """A wheel or sdist that was staged."""

    source_key: str
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
    """The rule by which a cell of the set was released."""

    family: str
    platform: str
    python: str
    rule: Rule
    evidence: tuple[Evidence, ...] = ()
    overridden: tuple[str, ...] = ()


class Override(Model):
    """The decision to promote without the tests."""

    by: str = Field(min_length=1)
    reason: str = Field(min_length=1)


class PromotedFile(FileRecord):
    """A wheel or sdist of the release."""

    family: str
    staged_key: str
    staged_sha256: str = Digest
    license: str = Field(default="", exclude=True)  # the staging record has it


class Decision(Model):
    """What was promoted, on which grounds, when and by whom."""

    schema_version: Literal[1] = 1
    set_name: str
    identity: str
    status: Literal["promoting", "promoted"] = "promoting"
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

    @property
    def key(self) -> str:
        """Key of the decision record, which is written once."""
        return f"{DECISIONS}/{self.set_name}/{self.identity}.json"

    @property
    def intent_key(self) -> str:
        """Key of what a promotion leaves before it begins, and removes in the end."""
        return f"{INTENTS}/{self.set_name}/{self.identity}.json"

    @property
    def families(self) -> Sequence[str]:
        """The families that have files in it."""
        return sorted({one.family for one in self.files})


class Refusal(Model):
    """Why a set was not released when it was last to be, for one of its families and platforms."""

    schema_version: Literal[1] = 1
    set_name: str
    family: str
    platform: Platform
    refused: str
    by: str
    reasons: tuple[str, ...]
    staged_keys: tuple[str, ...]

    @property
    def key(self) -> str:
        """Key of the document, which the next refusal replaces."""
        return f"{REFUSALS}/{self.family}/{self.set_name}-{self.platform}.json"

    @property
    def notice(self) -> Notice:
        """What the page of staging says of it."""
        reasons = console.counted(len(self.reasons), "reason")
        return Notice(
            heading=f"Not released: {self.set_name} for {self.platform}",
            text=f"{self.by} was refused its promotion at {self.refused}, for {reasons}:",
            lines=self.reasons,
        )


class ReleaseRecord(Model):
    """What the release index of a family lists of a promoted set."""

    schema_version: Literal[1] = 1
    status: Literal["ok"] = "ok"
    family: str
    decision: str
    files: tuple[PromotedFile, ...]


def folder(area: str, family: str) -> str:
    """Return the key prefix of a family's wheels, in `STAGING` or `RELEASE`."""
    return f"{area}/{family}"


def manifests(area: str, family: str = "") -> str:
    """Return the key prefix of what says which files an area's pages list: of all families, or of one."""
    return f"{MANIFESTS}/{area}/{family}".rstrip("/")


def staging_record(family: str, run_prefix: str) -> str:
    """Return the key of the record of what was staged of the run with this prefix."""
    return f"{manifests(STAGING, family)}/{key_name(run_prefix)}.json"


def serialized(document: Model) -> bytes:
    """Write a document as the JSON that the store keeps; the same document gives the same bytes."""
    return (document.model_dump_json(indent=2) + "\n").encode()


def read(store: Store, key: str, model: type[AnyModel]) -> AnyModel:
    """Read a document of the store."""
    return parse_json(store.read(key).decode(), model, where=f"{store.url}/{key}")


def staging_records(store: Store, families: Sequence[str] = ()) -> Sequence[tuple[StagingRecord, Document]]:
    """Read the staging records of all families, or of some, each with its digest."""
    prefixes = [manifests(STAGING, family) for family in families] or [manifests(STAGING)]
    keys = [one.key for prefix in prefixes for one in store.list(prefix) if one.key.endswith(".json")]
    return [
        (parse_json(content.decode(), StagingRecord, where=f"{store.url}/{key}"), document(key, content))
        for key, content in zip(keys, parallel.each(store.read, keys), strict=True)
    ]


def refusals(store: Store, family: str) -> Sequence[Refusal]:
    """Read why sets of a family were not released; those that somebody removes meanwhile are left out."""
    refusals_of_family: list[Refusal] = []
    for stored in store.list(f"{REFUSALS}/{family}", recursive=False):
        with suppress(MissingInputError):
            refusals_of_family.append(read(store, stored.key, Refusal))
    return refusals_of_family


def is_unreleased(store: Store, refusal: Refusal) -> bool:
    """Return whether something of a refused set is up for testing that was not released since."""
    staged = {stored.key for stored in store.list(folder(STAGING, refusal.family), recursive=False)}
    released = {stored.key for stored in store.list(folder(RELEASE, refusal.family), recursive=False)}
    return any(
        key in staged and key.replace(STAGING, RELEASE, 1) not in released for key in refusal.staged_keys
    )


@dataclass(frozen=True, kw_only=True)
class StagedWheels(Records):
    """What was staged of a family, and which sets of it were not released."""

    family: str

    def notices(self) -> Sequence[Notice]:
        """Tell why each set was not released that is still up for testing."""
        return [
            refusal.notice
            for refusal in refusals(self.store, self.family)
            if is_unreleased(self.store, refusal)
        ]


def document(key: str, content: bytes) -> Document:
    """Name a document by its key and digest."""
    return Document(key=key, sha256=hashlib.sha256(content).hexdigest())


def write_pages(store: Store, area: str, family: str, *, expected: Collection[str]) -> Indexed:
    """Write the pages of a family's folder that changed, from what its manifests name.

    A file that no manifest names is not listed: it may be half of a promotion that is running.
    """
    where = folder(area, family)
    source = Records(store=store, prefix=manifests(area, family))
    if area == STAGING:
        source = StagedWheels(store=store, prefix=manifests(area, family), family=family)
    # what names files may outlive them
    indexed = write_index(store, where, source, title=where, strict=False)
    unlisted = [f"{one.stored.key}: {one.why}" for one in indexed.held if one.stored.key in expected]
    if unlisted:
        raise StoreError(
            f"Not listed in {store.url}/{where}:\n" + "\n".join(unlisted),
            hint="Find out who changed them; then run the same command again.",
        )
    return indexed
