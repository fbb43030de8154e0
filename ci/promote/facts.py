"""What a promotion is decided on: plain values, gathered by `ci.promote.facts`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from email import message_from_bytes
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from ci.promote import documents
from ci.promote.documents import Cell, StagingRecord
from ci.promote.runs import RunGroup, lock_of, read_group, tests_of
from core import parallel
from core.errors import MissingInputError, WheelError, nearest
from core.run.outputs import RunOutputs
from core.wheel import distributions
from core.wheel.distributions import SIDECAR
from core.wheel.wheels import parse_sdist_name, parse_wheel_name
from rocm_packaging.packages.layouts import BOOTSTRAP, device_host, is_rocm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ci.promote.documents import Document, StagedFile
    from ci.promote.runs import Test
    from core.stores import Store


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel or sdist of the set, as it was staged and as it is found now."""

    cell: Cell
    file: StagedFile
    found: str
    sidecar: str
    built: frozenset[str]
    requires: tuple[str, ...] = ()

    @property
    def is_rocm(self) -> bool:
        """Whether it is one of ROCm's own packages."""
        return is_rocm(self.file.distribution)


@dataclass(frozen=True, kw_only=True)
class FailedBuild:
    """A build of the set's that failed after its last success, or never had one."""

    cell: Cell
    stage: str
    error: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the decision on a set follows from."""

    set_name: str
    wheels: tuple[Wheel, ...]
    tests: tuple[Test, ...] = ()
    failed_builds: tuple[FailedBuild, ...] = ()
    promised: Mapping[Cell, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    commits: Mapping[Cell, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    released: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=lambda: MappingProxyType({}))
    staging: tuple[Document, ...] = ()
    troubles: tuple[tuple[Cell, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class SetRequest:
    """Which set."""

    distribution: str
    version: str
    families: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    cells: tuple[tuple[str, Cell], ...] = ()

    @property
    def set_name(self) -> str:
        """The set's name."""
        return f"{self.distribution}-{self.version}"


@dataclass(frozen=True, kw_only=True)
class Member:
    """What one staging record has of the set, and its run."""

    record: StagingRecord
    document: Document
    files: tuple[StagedFile, ...]
    torch_refs: frozenset[str]
    group: RunGroup

    @property
    def cell(self) -> Cell:
        """Its family and platform."""
        return Cell(family=self.record.family, platform=self.record.platform)


def staging_records(bucket: Store, families: Sequence[str] = ()) -> Sequence[tuple[StagingRecord, Document]]:
    """Read the staging records: all, or those of families."""
    prefixes = [documents.manifests(documents.STAGING, family) for family in families] or [
        documents.manifests(documents.STAGING)
    ]
    keys = [one.key for prefix in prefixes for one in bucket.list(prefix) if one.key.endswith(".json")]
    return parallel.each(partial(documents.read, bucket, model=StagingRecord), keys)


def staged_versions(bucket: Store, distribution: str) -> frozenset[str]:
    """List the versions of a distribution that are staged."""
    return frozenset(
        file.version
        for record, _ in staging_records(bucket)
        for file in record.files
        if file.distribution == distribution
    )


def gather(
    bucket: Store, request: SetRequest, open_source: Callable[[str], Store], *, jobs: int = parallel.JOBS
) -> Facts:
    """Gather what there is of a set."""
    records = staging_records(bucket, request.families)
    found = [pair for pair in records if _files(pair[0], request)[0]]
    if not found:
        known = {
            file.version
            for record, _ in records
            for file in record.files
            if file.distribution == request.distribution
        }
        raise MissingInputError(
            f"No {request.distribution} {request.version} is staged in {bucket.url}.",
            hint=nearest(request.version, known),
        )
    members = tuple(_member(pair, request, open_source) for pair in found)
    members = tuple(
        one for one in members if not request.platforms or one.record.platform in request.platforms
    )
    wheels = _wheels(bucket, members, jobs)
    families = sorted({one.record.family for one in members})
    return Facts(
        set_name=request.set_name,
        wheels=wheels,
        tests=tuple(test for one in members for test in tests_of(one.group)),
        failed_builds=tuple(failure for one in members for failure in _failures(one, request)),
        promised=_promised(members, request),
        commits=_commits(members),
        released={family: _released(bucket, family) for family in families},
        staging=tuple(one.document for one in members),
        troubles=tuple(_troubles(members, request)),
    )


def _files(record: StagingRecord, request: SetRequest) -> tuple[tuple[StagedFile, ...], frozenset[str]]:
    """Choose what belongs to the set, and say which torch refs it was built from."""
    if request.distribution != "torch":
        files = (one for one in record.files if is_rocm(one.distribution) and one.version == request.version)
        return tuple(files), frozenset()
    heads = [one for one in record.files if (one.distribution, one.version) == ("torch", request.version)]
    refs = frozenset(one.torch_ref for one in heads)
    locks = {ref: lock_of(record.locks, ref) for ref in refs}
    rocm = {lock.rocm_version for lock in locks.values() if lock}

    def belongs(file: StagedFile) -> bool:
        if is_rocm(file.distribution):
            return file.version in rocm or file.distribution == BOOTSTRAP
        lock = locks.get(file.torch_ref)
        promised = (
            lock.promised.get(device_host(file.distribution) or file.distribution, file.version)
            if lock
            else file.version
        )
        return file in heads or (
            file.distribution != "torch" and file.torch_ref in refs and file.version == promised
        )

    return tuple(one for one in record.files if belongs(one)) if heads else (), refs


def _member(
    pair: tuple[StagingRecord, Document], request: SetRequest, open_source: Callable[[str], Store]
) -> Member:
    record, document = pair
    files, refs = _files(record, request)
    own = f"{record.run_id}-{record.platform}"
    outputs = RunOutputs(
        run_id=record.run_id, platform=record.platform, external_repo=record.prefix.removesuffix(own)
    )
    group = read_group(open_source(record.store), outputs, record.artifact_group)
    return Member(record=record, document=document, files=files, torch_refs=refs, group=group)


def _wheels(bucket: Store, members: Sequence[Member], jobs: int) -> tuple[Wheel, ...]:
    """Look every staged file of the set up: its digest, its sidecar."""
    prefixes = {documents.folder(documents.STAGING, one.record.family) for one in members}
    listings = parallel.each(partial(bucket.list, recursive=False), sorted(prefixes))
    present = {one.key for listing in listings for one in listing}

    def looked_up(one: tuple[Member, StagedFile]) -> Wheel:
        member, file = one
        sidecar_key = f"{file.key}{SIDECAR}"
        sidecar = bucket.read(sidecar_key) if sidecar_key in present else b""
        headers = message_from_bytes(sidecar)
        return Wheel(
            cell=Cell(family=member.record.family, platform=member.record.platform, python=file.python),
            file=file,
            found=bucket.digest(file.key) if file.key in present else "",
            sidecar=hashlib.sha256(sidecar).hexdigest() if sidecar else "",
            built=member.group.promised.get(file.source_key, frozenset()),
            requires=tuple(str(text) for text in headers.get_all("Requires-Dist", ())),
        )

    # a file that two runs have staged alike is one, and either run may speak for it
    chosen = {(one.cell, file.key): (one, file) for one in members for file in one.files}
    return tuple(parallel.each(looked_up, [chosen[key] for key in sorted(chosen)], jobs=jobs))


def _failures(member: Member, request: SetRequest) -> Sequence[FailedBuild]:
    failures = []
    for one in member.group.records:
        record = one.record
        of_set = record.stage == "build_rocm" or record.cell.torch_ref in member.torch_refs
        wanted = not (record.cell.python and request.pythons) or record.cell.python in request.pythons
        if record.status == "failed" and record.stage.startswith("build_") and of_set and wanted:
            cell = Cell(
                family=member.record.family, platform=member.record.platform, python=record.cell.python
            )
            failures.append(FailedBuild(cell=cell, stage=record.stage, error=record.error))
    return failures


def _promised(members: Sequence[Member], request: SetRequest) -> Mapping[Cell, Mapping[str, str]]:
    """Say what each cell is to have, by the source locks: no cell may lack a Python that another has."""
    promised: dict[Cell, Mapping[str, str]] = {}
    for member in members:
        for ref in member.torch_refs:
            lock = lock_of(member.record.locks, ref)
            for cell in _cells(member, members, request) if lock else ():
                promised[cell] = lock.promised if lock else {}
    return promised


def _cells(member: Member, members: Sequence[Member], request: SetRequest) -> Sequence[Cell]:
    if request.cells:
        here = (member.cell.family, member.cell.platform)
        named = [cell for ref, cell in request.cells if ref in member.torch_refs]
        return [cell for cell in named if (cell.family, cell.platform) == here]
    platform = member.record.platform
    alike = [one for one in members if one.record.platform == platform]
    pythons = request.pythons or {file.python for one in alike for file in one.files if file.python}
    return [Cell(family=member.record.family, platform=platform, python=python) for python in sorted(pythons)]


def _commits(members: Sequence[Member]) -> Mapping[Cell, Mapping[str, str]]:
    found: dict[Cell, Mapping[str, str]] = {}
    for member in members:
        for ref in member.torch_refs:
            lock = lock_of(member.record.locks, ref)
            found[member.cell] = lock.commits if lock else {}
    return found


def _released(bucket: Store, family: str) -> frozenset[tuple[str, str]]:
    """List what the release index of a family has already."""
    prefix = documents.folder(documents.RELEASE, family)
    found = set()
    for one in bucket.list(prefix, recursive=False):
        name = one.key.rpartition("/")[2]
        if distributions.is_distribution(name):
            try:
                parsed = parse_wheel_name(name) if name.endswith(".whl") else parse_sdist_name(name)
            except WheelError:
                continue  # somebody's file that no installer takes satisfies nothing
            found.add((parsed.distribution, str(parsed.version)))
    return frozenset(found)


def _troubles(members: Sequence[Member], request: SetRequest) -> Sequence[tuple[Cell, str]]:
    """Say what was asked for and is not there at all, or whose run cannot be asked any more."""
    what = f"no {request.distribution} {request.version} is staged"
    there = {(one.cell.family, one.cell.platform) for one in members}
    families = {family for family, _ in there}
    absent = [Cell(family=one, platform="") for one in request.families if one not in families]
    refs = {ref for one in members for ref in one.torch_refs}
    absent += [
        Cell(family=cell.family, platform=cell.platform)
        for ref, cell in request.cells
        if ref in refs and (cell.family, cell.platform) not in there
    ]
    absent += [
        Cell(family="", platform=one) for one in request.platforms if one not in {name for _, name in there}
    ]
    troubles = [(cell, what) for cell in dict.fromkeys(absent)]
    for member in members:
        where = f"run {member.record.run_id} in {member.record.store}"
        if not member.group.records:
            troubles.append((member.cell, f"{where} has no records of it (any more)"))
        for ref in sorted(member.torch_refs):
            if lock_of(member.record.locks, ref) is None:
                said = f"{where} was staged without a source lock of {ref or 'any torch ref'}"
                troubles.append((member.cell, f"{said}, so nobody knows what the set is to hold"))
    return troubles
