"""What a run's records, reports and locks say of one artifact group, each with its digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.promote.documents import Cell, Document, Evidence, Lock, document
from core import parallel
from core.data import parse_json
from core.families import CPU
from core.run import records
from core.run.outputs import is_record, key_name
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import DISTRIBUTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.run.outputs import RunOutputs
    from core.run.records import Record
    from core.stores import Store
    from pytorch_build.refs.torch_refs import TorchRef


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A record, and where it was read."""

    record: Record
    document: Document


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """One artifact group of a run, as the run's store has it now."""

    outputs: RunOutputs
    artifact_group: str
    records: tuple[Recorded, ...]
    reports: Mapping[str, Document]

    @property
    def promised(self) -> Mapping[str, frozenset[str]]:
        """The digests that successful stages recorded, by key."""
        return records.promised([one.record for one in self.records])


@dataclass(frozen=True, kw_only=True)
class Test:
    """A test's record, read."""

    __test__ = False  # pytest takes the name for a test's

    cell: Cell
    torch_ref: str
    outcome: str
    why: str
    files: Mapping[str, str]
    targets: tuple[str, ...] = ()
    evidence: Evidence


def read_group(store: Store, outputs: RunOutputs, artifact_group: str) -> RunGroup:
    """Read a group's records and reports."""
    # a ROCm build's own manifest lies among the records
    manifests = [
        one.key for one in store.list(outputs.manifests_prefix(artifact_group)) if is_record(one.key)
    ]
    reports = [
        one.key for one in store.list(outputs.reports_prefix(artifact_group)) if one.key.endswith(".xml")
    ]

    def recorded(key: str) -> Recorded:
        content = store.read(key)
        return Recorded(record=records.parse(content, where=key), document=document(key, content))

    return RunGroup(
        outputs=outputs,
        artifact_group=artifact_group,
        records=tuple(parallel.each(recorded, manifests)),
        reports={one.key: one for one in parallel.each(lambda key: document(key, store.read(key)), reports)},
    )


def read_locks(
    store: Store, outputs: RunOutputs, family: str, refs: Mapping[str, TorchRef]
) -> tuple[Lock, ...]:
    """Read a run's source locks, and what each promises to a cell of a family."""
    listed = store.list(f"{outputs.prefix}/manifests", recursive=False)
    keys = [one.key for one in listed if one.key.rpartition("/")[2].startswith("source-lock-")]
    return tuple(_lock(key, store.read(key), family, refs) for key in keys)


def lock_of(locks: Sequence[Lock], torch_ref: str) -> Lock | None:
    """Find a torch ref's lock."""
    return next((lock for lock in locks if key_name(lock.torch_ref) == key_name(torch_ref)), None)


def _lock(key: str, content: bytes, family: str, refs: Mapping[str, TorchRef]) -> Lock:
    lock = parse_json(content.decode(), SourceLock, where=key)
    gpu = family != CPU
    built = [name for name, locked in lock.projects.items() if not locked.prebuilt]
    if lock.torch_ref in refs:
        built = [name for name in built if name in refs[lock.torch_ref].components]
    return Lock(
        torch_ref=lock.torch_ref,
        document=document(key, content),
        release_type=lock.release_type,
        rocm_version=lock.rocm_version if gpu else "",
        commits={name: lock.projects[name].commit for name in built},
        promised={
            DISTRIBUTIONS[name]: version
            for name in built
            if (version := lock.projects[name].versions.get("rocm" if gpu else "cpu"))
        },
    )
