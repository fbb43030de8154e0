"""What a distribution bucket keeps, as `docs/releases.md` lays it out: wheels, and who decided on them."""

import hashlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from ci.publish.index import IndexUpdate, Notice, RecordSource, write_index
from core import console, parallel
from core.data import AnyModel, Model, OptionalText, parse_json
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


class Document(Model):
    """A document that something follows from, as it was read."""

    key: str
    sha256: str = Digest


class StagedFile(FileRecord):
    """A wheel or sdist that was staged."""

    source_key: str
    torch_ref: OptionalText = None
    python: OptionalText = None  # an ABI tag


class Lock(Model):
    """A source lock of the run."""

    torch_ref: str
    document: Document
    release_type: str
    rocm_version: str = ""
    commits: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    promised: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it


class StagingRecord(Model):
    """What was staged of a run for an artifact group, which the documents of releases call a family."""

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
    python: OptionalText
    record: Document
    report: Document | None


class Ruling(Model):
    """The rule by which a cell of the set was released."""

    family: str
    platform: str
    python: OptionalText
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
    def artifact_groups(self) -> Sequence[str]:
        """The artifact groups that have files in it."""
        return sorted({file.family for file in self.files})


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
    """What the release index of an artifact group lists of a promoted set."""

    schema_version: Literal[1] = 1
    status: Literal["ok"] = "ok"
    family: str
    decision: str
    files: tuple[PromotedFile, ...]


def folder(area: str, artifact_group: str) -> str:
    """Return the key prefix of a group's wheels, in `STAGING` or `RELEASE`."""
    return f"{area}/{artifact_group}"


def manifests(area: str, artifact_group: str | None = None) -> str:
    """Return the key prefix of what says which files an area's pages list: of all groups, or of one."""
    prefix = f"{MANIFESTS}/{area}"
    return prefix if artifact_group is None else f"{prefix}/{artifact_group}"


def staging_record(artifact_group: str, run_prefix: str) -> str:
    """Return the key of the record of what was staged of the run with this prefix."""
    return f"{manifests(STAGING, artifact_group)}/{key_name(run_prefix)}.json"


def serialized(document: Model) -> bytes:
    """Write a document as the JSON that the store keeps; the same document gives the same bytes."""
    return (document.model_dump_json(indent=2) + "\n").encode()


def read(store: Store, key: str, model: type[AnyModel]) -> AnyModel:
    """Read a document of the store."""
    return parse_json(store.read(key).decode(), model, where=f"{store.url}/{key}")


def staging_records(
    store: Store, artifact_groups: Sequence[str] = ()
) -> Sequence[tuple[StagingRecord, Document]]:
    """Read the staging records of all artifact groups, or of some, each with its digest."""
    prefixes = [manifests(STAGING, artifact_group) for artifact_group in artifact_groups]
    keys: list[str] = []
    for prefix in prefixes or [manifests(STAGING)]:
        keys += [stored.key for stored in store.list(prefix) if stored.key.endswith(".json")]

    records: list[tuple[StagingRecord, Document]] = []
    for key, content in zip(keys, parallel.map_in_threads(store.read, keys), strict=True):
        record = parse_json(content.decode(), StagingRecord, where=f"{store.url}/{key}")
        records.append((record, document(key, content)))
    return records


def refusals(store: Store, artifact_group: str) -> Sequence[Refusal]:
    """Read why sets of a group were not released; those that somebody removes meanwhile are left out."""
    refusals_of_group: list[Refusal] = []
    for stored in store.list(f"{REFUSALS}/{artifact_group}", recursive=False):
        with suppress(MissingInputError):
            refusals_of_group.append(read(store, stored.key, Refusal))
    return refusals_of_group


def is_unreleased(store: Store, refusal: Refusal) -> bool:
    """Return whether something of a refused set is up for testing that was not released since."""
    staged = {stored.key for stored in store.list(folder(STAGING, refusal.family), recursive=False)}
    released = {stored.key for stored in store.list(folder(RELEASE, refusal.family), recursive=False)}
    return any(
        key in staged and key.replace(STAGING, RELEASE, 1) not in released for key in refusal.staged_keys
    )


@dataclass(frozen=True, kw_only=True)
class StagedWheels(RecordSource):
    """What was staged of an artifact group, and which sets of it were not released."""

    artifact_group: str

    def notices(self) -> Sequence[Notice]:
        """Tell why each set was not released that is still up for testing."""
        return [
            refusal.notice
            for refusal in refusals(self.store, self.artifact_group)
            if is_unreleased(self.store, refusal)
        ]


def document(key: str, content: bytes) -> Document:
    """Name a document by its key and digest."""
    return Document(key=key, sha256=hashlib.sha256(content).hexdigest())


def write_pages(store: Store, area: str, artifact_group: str, *, expected: Collection[str]) -> IndexUpdate:
    """Write the pages of a group's folder that changed, from what its manifests name.

    A file that no manifest names is not listed: it may be half of a promotion that is running.
    """
    where = folder(area, artifact_group)
    source = RecordSource(store=store, prefix=manifests(area, artifact_group))
    if area == STAGING:
        source = StagedWheels(
            store=store, prefix=manifests(area, artifact_group), artifact_group=artifact_group
        )
    # what names files may outlive them
    update = write_index(store, where, source, title=where, strict=False)
    unlisted = [f"{held.key}: {held.reason}" for held in update.held_files if held.key in expected]
    if unlisted:
        raise StoreError(
            f"Not listed in {store.url}/{where}:\n" + "\n".join(unlisted),
            hint="Find out who changed them; then run the same command again.",
        )
    return update
