"""What a decision follows from: staging records, staged objects, and what the runs say of them now."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NoReturn

from ci.github import first_line
from ci.promote import documents
from ci.promote.runs import RunGroup, Test, lock_of, read_group
from core import parallel
from core.cell import GroupCell, python_of_tag
from core.errors import MissingInputError, nearest
from core.packages.candidates import candidate_named, requirements_in
from core.run import Platform, RunOutputs
from core.run.records import Record
from core.stores import Store
from core.wheel.distributions import SIDECAR
from pytorch_build.lock.versions import without_edits
from rocm_packaging.packages.layouts import BOOTSTRAP, host_distribution, is_rocm


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel or sdist of the set, as it was staged and as it is found now."""

    cell: GroupCell
    file: documents.StagedFile
    found: str
    sidecar: str
    built: frozenset[str]
    requires: tuple[str, ...] = ()

    @property
    def artifact_group(self) -> str:
        """The artifact group that it was staged in."""
        return self.cell.artifact_group or ""

    @property
    def is_rocm(self) -> bool:
        """Whether it is one of ROCm's own packages."""
        return is_rocm(self.file.distribution)


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a set is not promoted: for a cell of it, or as a whole."""

    cell: GroupCell
    message: str
    overridable: bool = False

    @property
    def in_words(self) -> str:
        """The reason with the part of the set that it is about."""
        return f"{self.cell}: {self.message}" if str(self.cell) else self.message


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the decision on a set follows from."""

    set_name: str
    wheels: tuple[Wheel, ...]
    tests: tuple[Test, ...] = ()
    promised: Mapping[GroupCell, Mapping[str, str]] = field(default_factory=dict)
    commits: Mapping[GroupCell, Mapping[str, str]] = field(default_factory=dict)
    released: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    staging: tuple[documents.Document, ...] = ()
    troubles: tuple[Reason, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SetRequest:
    """Which set, and what it must have."""

    distribution: str
    version: str
    artifact_groups: tuple[str, ...] = ()
    platforms: tuple[Platform, ...] = ()
    python_tags: tuple[str, ...] = ()
    cells: tuple[GroupCell, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Member:
    """What one staging record has of the set, and its run."""

    record: documents.StagingRecord
    document: documents.Document
    files: tuple[documents.StagedFile, ...]
    group: RunGroup

    @property
    def place(self) -> GroupCell:
        return GroupCell(artifact_group=self.record.family, platform=self.record.platform)

    def cell(self, python_tag: str | None) -> GroupCell:
        if python_tag is None:
            return self.place
        return replace(self.place, python=python_of_tag(python_tag))

    @cached_property
    def torch_refs(self) -> frozenset[str | None]:
        return frozenset(file.torch_ref for file in self.files if file.distribution == "torch")

    @cached_property
    def locks(self) -> Mapping[str | None, documents.Lock | None]:
        torch_refs = sorted(self.torch_refs, key=lambda torch_ref: torch_ref or "")
        return {torch_ref: lock_of(self.record.locks, torch_ref) for torch_ref in torch_refs}


def staged_versions(bucket: Store, distribution: str = "torch") -> frozenset[str]:
    """List the versions of a distribution that are staged."""
    return _versions([record for record, _ in documents.staging_records(bucket)], distribution)


def _versions(records: Sequence[documents.StagingRecord], distribution: str) -> frozenset[str]:
    files = (file for record in records for file in record.files)
    return frozenset(file.version for file in files if file.distribution == distribution)


def gather(
    bucket: Store, request: SetRequest, open_source: Callable[[str], Store], *, jobs: int = parallel.JOBS
) -> Facts:
    """Gather what there is of a set."""
    records = documents.staging_records(bucket, request.artifact_groups)
    found = [(record, document, _files(record, request)) for record, document in records]
    if not any(files for _, _, files in found):
        _refuse_empty_set(bucket, request)

    members = [
        _Member(record=record, document=document, files=files, group=_group(record, open_source))
        for record, document, files in found
        if files and (not request.platforms or record.platform in request.platforms)
    ]
    promised: dict[GroupCell, Mapping[str, str]] = {}
    commits: dict[GroupCell, Mapping[str, str]] = {}
    troubles: list[Reason] = []
    for member in members:
        for lock in member.locks.values():
            commits[member.place] = lock.commits if lock is not None else {}
            if lock is not None:
                promised.update(dict.fromkeys(_cells(member, members, request), lock.promised))
        troubles += _failures(member, request)
    troubles += _troubles(members, request)
    for member in members:
        troubles += _edited(member)

    artifact_groups = {member.record.family for member in members}
    return Facts(
        set_name=f"{request.distribution}-{request.version}",
        wheels=_wheels(bucket, members, jobs),
        tests=tuple(test for member in members for test in member.group.tests),
        promised=promised,
        commits=commits,
        released={artifact_group: _released(bucket, artifact_group) for artifact_group in artifact_groups},
        staging=tuple(member.document for member in members),
        troubles=tuple(troubles),
    )


def _refuse_empty_set(bucket: Store, request: SetRequest) -> NoReturn:
    """Refuse a set of which nothing is staged; the hint names what is."""
    records = [record for record, _ in documents.staging_records(bucket)]
    holders = [
        record.family for record in records if request.version in _versions([record], request.distribution)
    ]
    versions = _versions(records, request.distribution)
    other = nearest(request.version, versions) if versions else "Stage it first: nox -s stage."
    groups = ", ".join(request.artifact_groups) or "any family"
    raise MissingInputError(
        f"No {request.distribution} {request.version} of {groups} is staged in {bucket.url}.",
        hint=f"There is one of {', '.join(sorted(holders))}." if holders else other,
    )


def _files(record: documents.StagingRecord, request: SetRequest) -> tuple[documents.StagedFile, ...]:
    """Choose what belongs to the set."""
    if request.distribution != "torch":
        files = (one for one in record.files if is_rocm(one.distribution) and one.version == request.version)
        return tuple(files)
    heads = [one for one in record.files if (one.distribution, one.version) == ("torch", request.version)]
    refs = {one.torch_ref for one in heads}
    locks = {ref: lock_of(record.locks, ref) for ref in refs}
    rocm = {lock.rocm_version for lock in locks.values() if lock}

    def belongs(file: documents.StagedFile) -> bool:
        name = file.distribution
        if is_rocm(name):
            return file.version in rocm or name == BOOTSTRAP
        if name == "torch" or file.torch_ref not in refs:
            return file in heads
        lock = locks[file.torch_ref]
        version = without_edits(file.version)  # edits are said, and not left out
        return not lock or version == lock.promised.get(host_distribution(name) or name, version)

    return tuple(one for one in record.files if belongs(one)) if heads else ()


def _group(record: documents.StagingRecord, open_source: Callable[[str], Store]) -> RunGroup:
    own = f"{record.run_id}-{record.platform}"
    outputs = RunOutputs(
        run_id=record.run_id, platform=record.platform, external_repo=record.prefix.removesuffix(own)
    )
    return read_group(open_source(record.store), outputs, record.artifact_group)


def _wheels(bucket: Store, members: Sequence[_Member], jobs: int) -> tuple[Wheel, ...]:
    """Look every staged file of the set up: its digest, its sidecar."""
    folders = {documents.folder(documents.STAGING, member.record.family) for member in members}
    listings = parallel.map_in_threads(partial(bucket.list, recursive=False), sorted(folders))
    present = {stored.key for listing in listings for stored in listing}

    def look_up(staged: tuple[_Member, documents.StagedFile]) -> Wheel:
        member, file = staged
        sidecar_key = f"{file.key}{SIDECAR}"
        sidecar = bucket.read(sidecar_key) if sidecar_key in present else b""
        return Wheel(
            cell=member.cell(file.python),
            file=file,
            found=bucket.digest(file.key) if file.key in present else "",
            sidecar=hashlib.sha256(sidecar).hexdigest() if sidecar else "",
            built=member.group.promised.get(file.source_key, frozenset()),
            requires=requirements_in(sidecar),
        )

    # A file that two runs have staged alike is one, and either run may speak for it.
    staged_files: dict[tuple[GroupCell, str], tuple[_Member, documents.StagedFile]] = {}
    for member in members:
        for file in member.files:
            staged_files[member.cell(file.python), file.key] = (member, file)
    ordered = [staged_files[place] for place in sorted(staged_files)]
    return tuple(parallel.map_in_threads(look_up, ordered, jobs=jobs))


def _failures(member: _Member, request: SetRequest) -> Iterator[Reason]:
    """Find builds of the set's that failed after their last success, or never had one."""
    for recorded in member.group.records:
        record = recorded.record
        python_tag = record.cell.python_tag
        is_of_set = record.stage == "build_rocm" or record.cell.torch_ref in member.torch_refs
        is_requested = python_tag is None or not request.python_tags or python_tag in request.python_tags
        is_build = record.stage.startswith("build_")
        if record.status == "failed" and is_build and is_of_set and is_requested:
            message = f"{record.stage} failed: {first_line(record.error)}"
            yield Reason(cell=member.cell(python_tag), message=message)


def _edited(member: _Member) -> Iterator[Reason]:
    """Find files of the set that were built from what no commit holds, or from another than was locked."""
    staged_keys = {file.source_key for file in member.files}
    for recorded in member.group.records:
        record = recorded.record
        sources = record.edited or _other_commit(record, member.locks.get(record.cell.torch_ref))
        if not sources:
            continue
        for file in record.files:
            if file.key in staged_keys:
                message = f"{file.name} was built from: {sources}"
                yield Reason(cell=member.cell(record.cell.python_tag), message=message)


def _other_commit(record: Record, lock: documents.Lock | None) -> str:
    """Return which commit a changed tree is of, and which one was locked; "" where that is the same."""
    match record.details.get("source"):
        case {"tree": _, "commit": str(commit)} if lock is not None:
            locked_commit = lock.commits.get(record.stage.removeprefix("build_"), commit)
            if commit != locked_commit:
                return f"commit {commit[:12]}, and the source lock has {locked_commit[:12]}"
    return ""


def _cells(member: _Member, members: Sequence[_Member], request: SetRequest) -> Sequence[GroupCell]:
    """Return the cells that a lock's promise is for: none may lack a Python that another has."""
    if request.cells:
        return [
            replace(cell, torch_ref=None)
            for cell in request.cells
            if cell.torch_ref in member.torch_refs and cell.place == member.place
        ]

    python_tags = set(request.python_tags)
    if not python_tags:
        for other in members:
            if other.record.platform == member.record.platform:
                python_tags.update(file.python for file in other.files if file.python is not None)
    return [member.cell(python_tag) for python_tag in sorted(python_tags)]


def _released(bucket: Store, artifact_group: str) -> frozenset[tuple[str, str]]:
    """List what the release index of an artifact group has already."""
    released: set[tuple[str, str]] = set()
    for stored in bucket.list(documents.folder(documents.RELEASE, artifact_group), recursive=False):
        filename = stored.key.rpartition("/")[2]
        candidate = candidate_named(filename, url=stored.key)
        if candidate is not None:
            released.add((candidate.distribution, candidate.version))
    return frozenset(released)


def _troubles(members: Sequence[_Member], request: SetRequest) -> Iterator[Reason]:
    """Find what was requested and does not exist at all, or whose run cannot be read any more."""
    for cell in dict.fromkeys(_absent_places(members, request)):
        message = f"no {request.distribution} {request.version} is staged"
        yield Reason(cell=cell, message=message)

    for member in members:
        run = f"run {member.record.run_id} in {member.record.store}"
        if not member.group.records:
            yield Reason(cell=member.place, message=f"{run} has no records of it (any more)")
        for torch_ref, lock in member.locks.items():
            if lock is None:
                message = f"{run} was staged without a source lock of {torch_ref or 'any torch ref'}"
                message += ", so nothing says what the set should contain"
                yield Reason(cell=member.place, message=message)


def _absent_places(members: Sequence[_Member], request: SetRequest) -> Iterator[GroupCell]:
    """Yield the artifact groups and platforms that were requested, and of which nothing is staged."""
    places = {member.place for member in members}
    artifact_groups = {place.artifact_group for place in places}
    platforms = {place.platform for place in places}
    torch_refs = {torch_ref for member in members for torch_ref in member.torch_refs}

    for artifact_group in request.artifact_groups:
        if artifact_group not in artifact_groups:
            yield GroupCell(artifact_group=artifact_group)
    for cell in request.cells:
        if cell.torch_ref in torch_refs and cell.place not in places:
            yield cell.place
    for platform in request.platforms:
        if platform not in platforms:
            yield GroupCell(platform=platform)
