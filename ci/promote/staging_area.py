"""From a run's outputs to `v2-staging/{family}/`: what is chosen, and how it gets there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ci.promote import documents
from ci.promote.documents import StagedFile, StagingRecord
from core import parallel
from core.errors import ConflictError, MissingInputError, StoreError, UsageError, nearest
from core.run import records
from core.wheel import parse_wheel_name
from core.wheel.distributions import SIDECAR
from rocm_packaging.packages.layouts import is_rocm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci.promote.documents import Document, Lock
    from ci.promote.runs import RunGroup
    from core.run.records import FileRecord
    from core.stores import Outcome, Store

Kind = Literal["all", "rocm", "pytorch"]
_TRIES = 5


def is_sample(version: str) -> bool:
    """Return whether a wheel is the sample's, by its local version; such wheels are never published."""
    try:
        return "sample" in (Version(version).local or "")
    except InvalidVersion:
        return False


def chosen_files(group: RunGroup, kind: Kind = "all", packages: Sequence[str] = ()) -> tuple[StagedFile, ...]:
    """Choose the files of a group that are staged, by name."""
    prefix = f"{group.outputs.python_prefix(group.artifact_group)}/"
    where = f"run {group.outputs.run_id}, group {group.artifact_group}"
    found: dict[str, StagedFile] = {}
    for one in group.records:
        for file in one.files:
            of_kind = kind == "all" or is_rocm(file.distribution) == (kind == "rocm")
            if file.key.startswith(prefix) and of_kind:
                staged = _staged(file, group.artifact_group, one.record.cell.torch_ref)
                # an upload's record knows no ref: the builder's does
                found[file.name] = staged if staged.torch_ref else found.get(file.name, staged)
    if not found:
        what = "wheel or sdist" if kind == "all" else f"{kind} wheel or sdist"
        raise MissingInputError(
            f"No record of {where}, names a {what}.",
            hint="Build and upload something first, or name another run with --run-id.",
        )
    names = {file.distribution for file in found.values()}
    wanted = {canonicalize_name(name) for name in packages} or names
    if unknown := sorted(wanted - names):
        raise UsageError(f"--packages: {where}, has no {unknown[0]}.", hint=nearest(unknown[0], names))
    files = tuple(found[name] for name in sorted(found) if found[name].distribution in wanted)
    if sample := [file.name for file in files if is_sample(file.version)]:
        raise UsageError(
            "Wheels of the sample are never published:\n" + "\n".join(sample),
            hint="Build a torch ref of upstream's, or your own.",
        )
    return files


def stage_group(source: Store, target: Store, planned: StagingRecord, *, jobs: int = parallel.JOBS) -> int:
    """Copy wheels, sidecars, then the staging record; return how many were new. Pages are the caller's."""

    def copied(file: StagedFile) -> Outcome:
        return target.copy(file.key, source, file.source_key, sha256=file.sha256, replace=False)

    def copied_sidecar(file: StagedFile) -> Outcome:
        key, source_key = f"{file.key}{SIDECAR}", f"{file.source_key}{SIDECAR}"
        return target.copy(key, source, source_key, sha256=file.metadata_sha256, replace=False)

    outcomes = parallel.each(copied, planned.files, jobs=jobs)
    parallel.each(copied_sidecar, [file for file in planned.files if file.metadata_sha256], jobs=jobs)
    _record(target, planned)
    return sum(outcome != "unchanged" for outcome in outcomes)


def planned_record(
    store: Store, group: RunGroup, files: Sequence[StagedFile], locks: Sequence[Lock]
) -> StagingRecord:
    """Write down what is staged of a run for a family: which run, commits, records and reports."""
    named = {file.source_key for file in files}
    return StagingRecord(
        family=group.artifact_group,
        run_id=group.outputs.run_id,
        platform=group.outputs.platform,
        store=store.url,
        prefix=group.outputs.prefix,
        artifact_group=group.artifact_group,
        staged=records.now(),
        files=tuple(files),
        records=tuple(
            one.document
            for one in group.records
            if one.record.stage.startswith("test_") or named & {file.key for file in one.record.files}
        ),
        reports=group.reports,
        locks=tuple(locks),
    )


def merged(old: StagingRecord, new: StagingRecord) -> StagingRecord:
    """Add what was staged of the same run before; the old record itself where nothing is new."""
    before = {file.name: file for file in old.files}
    for file in new.files:
        if file.name in before and before[file.name].sha256 != file.sha256:
            raise StoreError(
                f"{file.key} was staged with other bytes before: {before[file.name].sha256[:12]}.",
                hint="A name stands for the same bytes for ever: build under another version.",
            )
    files = {**before, **{file.name: file for file in new.files}}

    def together(*documents: Document) -> tuple[Document, ...]:
        by_key = {one.key: one for one in documents}
        return tuple(by_key[key] for key in sorted(by_key))

    whole = new.model_copy(
        update={
            "files": tuple(files[name] for name in sorted(files)),
            "records": together(*old.records, *new.records),
            "reports": together(*old.reports, *new.reports),
        }
    )
    return old if whole.model_copy(update={"staged": old.staged}) == old else whole


def _record(target: Store, planned: StagingRecord) -> None:
    """Write the staging record, with what another job has staged of the run meanwhile."""
    key = documents.staging_record(planned.family, planned.prefix)
    for _ in range(_TRIES):
        found = target.find(key)
        whole = merged(documents.read(target, key, StagingRecord), planned) if found else planned
        try:
            target.put_bytes(key, documents.serialized(whole), if_match=found.etag if found else "")
        except ConflictError:
            continue
        return
    raise StoreError(
        f"{key} in {target.url} was written by others {_TRIES} times.", hint="Stage again later."
    )


def _staged(file: FileRecord, family: str, torch_ref: str) -> StagedFile:
    rocm = is_rocm(file.distribution)
    return StagedFile(
        **file.model_dump(exclude={"key"}),
        key=f"{documents.folder(documents.STAGING, family)}/{file.name}",
        source_key=file.key,
        torch_ref="" if rocm else torch_ref,
        python="" if rocm else python_of(file.name),
    )


def python_of(filename: str) -> str:
    """Return which Python a wheel is for by its ABI tag (``cp312``); "" for several, or an sdist."""
    if not filename.endswith(".whl"):
        return ""
    abis = {tag.abi for tag in parse_wheel_name(filename).tags}
    return "" if abis & {"none", "abi3"} else min(abis)
