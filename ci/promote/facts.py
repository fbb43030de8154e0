"""What a decision follows from: staging records, staged objects, and what the runs say of them now."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from ci.github import first_line
from ci.promote import documents
from ci.promote.runs import RunGroup, Test, lock_of, read_group
from core import parallel
from core.errors import MissingInputError, nearest
from core.packages import offers_named, requirements_in
from core.run import RunOutputs
from core.stores import Store
from core.wheel.distributions import SIDECAR
from pytorch_build.lock.versions import without_edits
from rocm_packaging.packages.layouts import BOOTSTRAP, device_host, is_rocm


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel or sdist of the set, as it was staged and as it is found now."""

    cell: documents.Cell
    file: documents.StagedFile
    found: str
    sidecar: str
    built: frozenset[str]
    requires: tuple[str, ...] = ()

    @property
    def is_rocm(self) -> bool:
        """Whether it is one of ROCm's own packages."""
        return is_rocm(self.file.distribution)


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a set is not promoted."""

    cell: documents.Cell
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
    promised: Mapping[documents.Cell, Mapping[str, str]] = field(default_factory=dict)
    commits: Mapping[documents.Cell, Mapping[str, str]] = field(default_factory=dict)
    released: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    staging: tuple[documents.Document, ...] = ()
    troubles: tuple[Reason, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SetRequest:
    """Which set, and what it must have."""

    distribution: str
    version: str
    families: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    cells: tuple[tuple[str, documents.Cell], ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Member:
    """What one staging record has of the set, and its run."""

    record: documents.StagingRecord
    document: documents.Document
    files: tuple[documents.StagedFile, ...]
    group: RunGroup

    def cell(self, python: str = "") -> documents.Cell:
        return documents.Cell(family=self.record.family, platform=self.record.platform, python=python)

    @cached_property
    def torch_refs(self) -> frozenset[str]:
        return frozenset(one.torch_ref for one in self.files if one.distribution == "torch")

    @cached_property
    def locks(self) -> Mapping[str, documents.Lock | None]:
        return {ref: lock_of(self.record.locks, ref) for ref in sorted(self.torch_refs)}


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
    records = documents.staging_records(bucket, request.families)
    found = [(record, document, _files(record, request)) for record, document in records]
    if not any(files for _, _, files in found):
        every = [record for record, _ in documents.staging_records(bucket)]
        held = [one.family for one in every if request.version in _versions([one], request.distribution)]
        known = _versions(every, request.distribution)
        other = nearest(request.version, known) if known else "Stage it first: nox -s stage."
        raise MissingInputError(
            f"No {request.distribution} {request.version} of {', '.join(request.families) or 'any family'} "
            f"is staged in {bucket.url}.",
            hint=f"There is one of {', '.join(sorted(held))}." if held else other,
        )
    members = [
        _Member(record=record, document=document, files=files, group=_group(record, open_source))
        for record, document, files in found
        if files and (not request.platforms or record.platform in request.platforms)
    ]
    locked = [(one, lock) for one in members for lock in one.locks.values() if lock]
    return Facts(
        set_name=f"{request.distribution}-{request.version}",
        wheels=_wheels(bucket, members, jobs),
        tests=tuple(test for one in members for test in one.group.tests),
        promised={cell: lock.promised for one, lock in locked for cell in _cells(one, members, request)},
        commits={one.cell(): lock.commits if lock else {} for one in members for lock in one.locks.values()},
        released={family: _released(bucket, family) for family in {one.record.family for one in members}},
        staging=tuple(one.document for one in members),
        troubles=(
            *(failure for one in members for failure in _failures(one, request)),
            *(Reason(cell=cell, message=said) for cell, said in _troubles(members, request)),
            *(reason for one in members for reason in _edited(one)),
        ),
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
        return not lock or version == lock.promised.get(device_host(name) or name, version)

    return tuple(one for one in record.files if belongs(one)) if heads else ()


def _group(record: documents.StagingRecord, open_source: Callable[[str], Store]) -> RunGroup:
    own = f"{record.run_id}-{record.platform}"
    outputs = RunOutputs(
        run_id=record.run_id, platform=record.platform, external_repo=record.prefix.removesuffix(own)
    )
    return read_group(open_source(record.store), outputs, record.artifact_group)


def _wheels(bucket: Store, members: Sequence[_Member], jobs: int) -> tuple[Wheel, ...]:
    """Look every staged file of the set up: its digest, its sidecar."""
    prefixes = {documents.folder(documents.STAGING, one.record.family) for one in members}
    listings = parallel.each(partial(bucket.list, recursive=False), sorted(prefixes))
    present = {one.key for listing in listings for one in listing}

    def looked_up(one: tuple[_Member, documents.StagedFile]) -> Wheel:
        member, file = one
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

    # a file that two runs have staged alike is one, and either run may speak for it
    chosen = {(one.cell(file.python), file.key): (one, file) for one in members for file in one.files}
    return tuple(parallel.each(looked_up, [chosen[key] for key in sorted(chosen)], jobs=jobs))


def _failures(member: _Member, request: SetRequest) -> Iterator[Reason]:
    """Find builds of the set's that failed after their last success, or never had one."""
    for record in (one.record for one in member.group.records):
        python = record.cell.python
        of_set = record.stage == "build_rocm" or record.cell.torch_ref in member.torch_refs
        wanted = not (python and request.pythons) or python in request.pythons
        if record.status == "failed" and record.stage.startswith("build_") and of_set and wanted:
            said = f"{record.stage} failed: {first_line(record.error)}"
            yield Reason(cell=member.cell(python), message=said)


def _edited(member: _Member) -> Iterator[Reason]:
    """Find files of the set that were built from what no commit holds, or from another than was locked."""
    staged = {file.source_key for file in member.files}
    for record in (one.record for one in member.group.records):
        lock = member.locks.get(record.cell.torch_ref)
        said = record.edited
        match record.details.get("source"):
            case {"tree": _, "commit": str(commit)} if lock and not said:
                wanted = lock.commits.get(record.stage.removeprefix("build_"), commit)
                if commit != wanted:
                    said = f"commit {commit[:12]}, and the source lock has {wanted[:12]}"
        for file in record.files if said else ():
            if file.key in staged:
                message = f"{file.name} was built from: {said}"
                yield Reason(cell=member.cell(record.cell.python), message=message)


def _cells(member: _Member, members: Sequence[_Member], request: SetRequest) -> Sequence[documents.Cell]:
    """Return the cells that a lock's promise is for: none may lack a Python that another has."""
    if request.cells:
        of_refs = [cell for ref, cell in request.cells if ref in member.torch_refs]
        return [cell for cell in of_refs if cell.place == member.cell().place]
    alike = [one for one in members if one.record.platform == member.record.platform]
    pythons = request.pythons or {file.python for one in alike for file in one.files if file.python}
    return [member.cell(python) for python in sorted(pythons)]


def _released(bucket: Store, family: str) -> frozenset[tuple[str, str]]:
    """List what the release index of a family has already."""
    listed = bucket.list(documents.folder(documents.RELEASE, family), recursive=False)
    offers = (offer for one in listed for offer in offers_named(one.key.rpartition("/")[2], url=one.key))
    return frozenset((offer.distribution, offer.version) for offer in offers)


def _troubles(members: Sequence[_Member], request: SetRequest) -> Iterator[tuple[documents.Cell, str]]:
    """Find what was requested and does not exist at all, or whose run cannot be read any more."""
    there = {one.cell().place for one in members}
    families, platforms = ({place[part] for place in there} for part in (0, 1))
    refs = {ref for one in members for ref in one.torch_refs}
    absent = [
        *((family, "") for family in request.families if family not in families),
        *(cell.place for ref, cell in request.cells if ref in refs and cell.place not in there),
        *(("", platform) for platform in request.platforms if platform not in platforms),
    ]
    for family, platform in dict.fromkeys(absent):
        said = f"no {request.distribution} {request.version} is staged"
        yield documents.Cell(family=family, platform=platform), said
    for member in members:
        where = f"run {member.record.run_id} in {member.record.store}"
        if not member.group.records:
            yield member.cell(), f"{where} has no records of it (any more)"
        for ref, lock in member.locks.items():
            if lock is None:
                said = f"{where} was staged without a source lock of {ref or 'any torch ref'}"
                yield member.cell(), f"{said}, so nothing says what the set should contain"
