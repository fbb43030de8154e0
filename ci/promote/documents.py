"""What a distribution bucket keeps, as `docs/releases.md` lays it out: wheels, and who decided on them."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import Field

from ci.publish.index import IndexUpdate, Notice, RecordSource, write_index
from core import console, parallel
from core.cell import GroupCell
from core.data import AnyModel, Model, OptionalText, parse_json
from core.errors import MissingInputError, StoreError
from core.files import digest_of
from core.run import Platform, key_name, locations
from core.run.records import FileRecord, Record
from core.stores import PutResult, Store
from core.wheel.distributions import SIDECAR
from pytorch_build.test.record import parse_record

STAGING = locations.STAGING
RELEASE = "v2"
AREAS = (RELEASE, STAGING)
MANIFESTS = "manifests"
DECISIONS = f"{MANIFESTS}/decisions"
INTENTS = f"{MANIFESTS}/promoting"
REFUSALS = f"{MANIFESTS}/refused"
Rule = Literal["tests", "bypass", "override"]
AnyFile = TypeVar("AnyFile", bound=FileRecord)
Digest = Field(pattern=r"^[0-9a-f]{64}$")


class DocumentDigest(Model):
    """A document that something follows from, with the digest of what was read."""

    key: str
    sha256: str = Digest


def digest_document(key: str, content: bytes) -> DocumentDigest:
    """Return a document's key with the digest of its content."""
    return DocumentDigest(
        key=key,
        sha256=hashlib.sha256(content).hexdigest(),
    )


# What a run has


@dataclass(frozen=True, kw_only=True)
class StoredRecord:
    """A record, and where it was read."""

    record: Record
    document: DocumentDigest

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The files that it names, if the step was successful."""
        return self.record.files if self.record.status == "ok" else ()

    @property
    def is_build(self) -> bool:
        """Whether it is of a step that built its files."""
        return self.record.stage.startswith("build_")


def parse_stored_record(key: str, content: bytes) -> StoredRecord:
    """Parse a record that was read."""
    return StoredRecord(
        record=parse_record(content, where=key),
        document=digest_document(key, content),
    )


# What is staged


class StagedFile(FileRecord):
    """A wheel or sdist that was staged."""

    source_key: str  # in the store of its run
    torch_ref: OptionalText = None
    python: OptionalText = None  # an ABI tag


class StagedLock(Model):
    """A source lock of the run, and what it promises of an artifact group."""

    torch_ref: str
    document: DocumentDigest
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
    records: tuple[DocumentDigest, ...]
    reports: tuple[DocumentDigest, ...] = ()
    locks: tuple[StagedLock, ...] = ()


# What is decided


class Evidence(Model):
    """A test that a ruling rests on."""

    stage: str
    run_id: str
    python: OptionalText
    record: DocumentDigest
    report: DocumentDigest | None


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


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a set is not promoted: for a cell of it, or as a whole."""

    cell: GroupCell
    message: str
    overridable: bool = False

    def __str__(self) -> str:
        return f"{self.cell}: {self.message}" if str(self.cell) else self.message


class PromotedFile(FileRecord):
    """A wheel or sdist of the release, and what was staged and tested of it."""

    family: str
    staged_key: str
    staged_sha256: str = Digest
    license: str = Field(
        default="",
        exclude=True,
    )  # the staging record has it


class Decision(Model):
    """Whether a set is promoted, on which grounds, when and by whom; the store keeps it where it is."""

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
    staging: tuple[DocumentDigest, ...]
    rulings: tuple[Ruling, ...]
    reasons: tuple[Reason, ...] = Field(
        default=(),
        exclude=True,
    )  # against it; none of a set that is promoted
    override: Override | None = None  # None where no ruling needs it
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


class ReleaseRecord(Model):
    """What the release index of an artifact group lists of a promoted set."""

    schema_version: Literal[1] = 1
    status: Literal["ok"] = "ok"
    family: str
    decision: str
    files: tuple[PromotedFile, ...]


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
        return refusal_key(self.set_name, self.family, self.platform)

    @property
    def notice(self) -> Notice:
        """What the page of staging says of it."""
        reasons = console.counted(len(self.reasons), "reason")
        return Notice(
            heading=f"Not released: {self.set_name} for {self.platform}",
            text=f"{self.by} was refused its promotion at {self.refused}, for {reasons}:",
            lines=self.reasons,
        )


def identity_of(promoted: Sequence[PromotedFile]) -> str:
    """Digest what is promoted: target keys and the bytes that were tested; not who, when or why."""
    tested_bytes = [(file.key, file.staged_sha256) for file in promoted]
    return digest_of(sorted(tested_bytes))[:16]


# Where it lies


def folder(area: str, artifact_group: str) -> str:
    """Return the key prefix of a group's wheels, in `STAGING` or `RELEASE`."""
    return f"{area}/{artifact_group}"


def manifests(area: str, artifact_group: str | None = None) -> str:
    """Return the key prefix of what says which files an area's pages list: of all groups, or of one."""
    prefix = f"{MANIFESTS}/{area}"
    return prefix if artifact_group is None else f"{prefix}/{artifact_group}"


def staging_record_key(artifact_group: str, run_prefix: str) -> str:
    """Return the key of the record of what was staged of the run with this prefix."""
    return f"{manifests(STAGING, artifact_group)}/{key_name(run_prefix)}.json"


def refusal_key(set_name: str, artifact_group: str, platform: Platform) -> str:
    """Return the key of why a set of an artifact group is not released."""
    return f"{REFUSALS}/{artifact_group}/{set_name}-{platform}.json"


def list_keys(
    store: Store,
    prefix: str,
    *,
    recursive: bool = True,
) -> Sequence[str]:
    """Return the keys below a prefix."""
    return [stored_object.key for stored_object in store.list(prefix, recursive=recursive)]


def folder_keys(
    store: Store,
    area: str,
    artifact_group: str,
) -> AbstractSet[str]:
    """Return the keys of a group's wheels, sidecars and flat pages in an area."""
    return frozenset(list_keys(store, folder(area, artifact_group), recursive=False))


def released_and_staged_keys(store: Store) -> Sequence[str]:
    """Return every key of the release index and of staging."""
    released_keys = list_keys(store, f"{RELEASE}/")
    staged_keys = list_keys(store, f"{STAGING}/")
    return [*released_keys, *staged_keys]


def keys_of(files: Iterable[FileRecord]) -> set[str]:
    """Return the keys of files."""
    return {file.key for file in files}


# Reading and writing


def serialized(document: Model) -> bytes:
    """Write a document as the JSON that the store keeps; the same document gives the same bytes."""
    return (document.model_dump_json(indent=2) + "\n").encode()


def parse(
    content: bytes,
    model: type[AnyModel],
    *,
    where: str,
) -> AnyModel:
    """Return a document of the store; anything else is a `DataError` that names `where`."""
    return parse_json(content.decode(errors="replace"), model, where=where)


def read(
    store: Store,
    key: str,
    model: type[AnyModel],
) -> AnyModel:
    """Read a document of the store."""
    return parse(store.read(key), model, where=f"{store.url}/{key}")


def find(
    store: Store,
    key: str,
    model: type[AnyModel],
) -> AnyModel | None:
    """Read a document of the store, if it is there; another process may remove it at any moment."""
    try:
        return read(store, key, model)
    except MissingInputError:
        return None


def copy_files(
    source_keys: Mapping[AnyFile, str],
    *,
    source: Store,
    target: Store,
    jobs: int,
) -> int:
    """Copy files to their keys from those in another store, then their sidecars; return how many were new."""

    def copy_file(file: AnyFile) -> PutResult:
        return target.copy(file.key, source, source_keys[file], sha256=file.sha256)

    def copy_sidecar(file: AnyFile) -> PutResult:
        source_key = f"{source_keys[file]}{SIDECAR}"
        return target.copy(f"{file.key}{SIDECAR}", source, source_key, sha256=file.metadata_sha256)

    results = parallel.map_in_threads(copy_file, source_keys, jobs=jobs)
    with_sidecar = [file for file in source_keys if file.metadata_sha256]
    parallel.map_in_threads(copy_sidecar, with_sidecar, jobs=jobs)
    return sum(result.outcome != "unchanged" for result in results)


def staging_records(
    store: Store, artifact_groups: Sequence[str] = ()
) -> Sequence[tuple[StagingRecord, DocumentDigest]]:
    """Read the staging records of all artifact groups, or of some, each with its digest."""
    prefixes = [manifests(STAGING, artifact_group) for artifact_group in artifact_groups]
    keys: list[str] = []
    for prefix in prefixes or [manifests(STAGING)]:
        keys += [key for key in list_keys(store, prefix) if key.endswith(".json")]

    contents = parallel.map_in_threads(store.read, keys)
    records: list[tuple[StagingRecord, DocumentDigest]] = []
    for key, content in zip(keys, contents, strict=True):
        record = parse(content, StagingRecord, where=f"{store.url}/{key}")
        records.append((record, digest_document(key, content)))
    return records


def staged_versions(
    store: Store,
    distribution: str = "torch",
    *,
    run_id: str | None = None,
) -> frozenset[str]:
    """List the versions of a distribution that are staged; with a run's id, those that were staged of it."""
    records: list[StagingRecord] = []
    for record, _digest in staging_records(store):
        if run_id is None or record.run_id == run_id:
            records.append(record)
    return versions_in(records, distribution)


def versions_in(records: Sequence[StagingRecord], distribution: str) -> frozenset[str]:
    """List the versions of a distribution that staging records name."""
    versions: set[str] = set()
    for record in records:
        versions |= {file.version for file in record.files if file.distribution == distribution}
    return frozenset(versions)


def decisions(store: Store, set_name: str = "") -> Sequence[Decision]:
    """Read the promotions that were completed: of all sets, or of one."""
    keys = list_keys(store, f"{DECISIONS}/{set_name}")
    return [read(store, key, Decision) for key in keys]


def unfinished(store: Store, set_name: str = "") -> Sequence[Decision]:
    """Read the promotions that are running, or were interrupted: of all sets, or of one."""
    intents: list[Decision] = []
    for key in list_keys(store, f"{INTENTS}/{set_name}"):
        if key.endswith(".json"):
            intent = find(store, key, Decision)
            if intent is not None:
                intents.append(intent)
    return intents


def refusals(store: Store, artifact_group: str) -> Sequence[Refusal]:
    """Read why sets of a group were not released; those that somebody removes meanwhile are left out."""
    keys = list_keys(store, f"{REFUSALS}/{artifact_group}", recursive=False)
    group_refusals = [find(store, key, Refusal) for key in keys]
    return [refusal for refusal in group_refusals if refusal is not None]


def is_unreleased(store: Store, refusal: Refusal) -> bool:
    """Return whether something of a refused set is up for testing that was not released since."""
    staged_keys = folder_keys(store, STAGING, refusal.family)
    released_keys = folder_keys(store, RELEASE, refusal.family)
    for key in refusal.staged_keys:
        if key in staged_keys and key.replace(STAGING, RELEASE, 1) not in released_keys:
            return True
    return False


# Pages


@dataclass(frozen=True, kw_only=True)
class StagingSource(RecordSource):
    """What was staged of an artifact group, and which sets of it were not released."""

    artifact_group: str

    def notices(self) -> Sequence[Notice]:
        """Tell why each set was not released that is still up for testing."""
        group_refusals = refusals(self.store, self.artifact_group)
        return [refusal.notice for refusal in group_refusals if is_unreleased(self.store, refusal)]


def write_pages(
    store: Store,
    area: str,
    artifact_group: str,
    *,
    expected: Collection[str],
) -> IndexUpdate:
    """Write the pages of a group's folder that changed, from what its manifests name.

    A file that no manifest names is not listed: it may be half of a promotion that is running.

    Raises:
        StoreError: A file whose key is `expected` is not listed.
    """
    group_folder = folder(area, artifact_group)
    prefix = manifests(area, artifact_group)
    source = RecordSource(
        store=store,
        prefix=prefix,
    )
    if area == STAGING:
        source = StagingSource(
            store=store,
            prefix=prefix,
            artifact_group=artifact_group,
        )

    # A manifest may name files that are gone.
    update = write_index(
        store,
        group_folder,
        source,
        title=group_folder,
        strict=False,
    )

    unlisted = [f"{key}: {reason}" for key, reason in update.held_back_files.items() if key in expected]
    if unlisted:
        raise StoreError(
            f"Not listed in {store.url}/{group_folder}:\n" + "\n".join(unlisted),
            hint="Find out who changed them; then run the same command again.",
        )
    return update
