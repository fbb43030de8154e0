"""A run's records, reports, tests and locks of one artifact group, each with its digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ci.promote.documents import Cell, Document, Evidence, Lock, document
from core import parallel
from core.data import parse_json
from core.families import CPU, families, group_families
from core.run import records
from core.run.outputs import is_record, key_name
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import DISTRIBUTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from core.run.outputs import RunOutputs
    from core.run.records import FileRecord, Record
    from core.stores import Store
    from pytorch_build.refs.torch_refs import TorchRef

# arguments for pytest that do not choose tests
_HARMLESS = ("-v", "-q", "-s", "-r", "-x", "-l", "--log-cli-level", "--tb", "--color", "--durations")
_BACKENDS = ("uv", "pip")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A record, and where it was read."""

    record: Record
    document: Document

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The files that it names, if the stage was successful."""
        return self.record.files if self.record.status == "ok" else ()


def recorded(key: str, content: bytes) -> Recorded:
    """Parse a record that was read."""
    return Recorded(record=records.parse(content, where=key), document=document(key, content))


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """One artifact group of a run, as the run's store has it now."""

    outputs: RunOutputs
    artifact_group: str
    records: tuple[Recorded, ...]
    reports: tuple[Document, ...]

    @property
    def promised(self) -> Mapping[str, frozenset[str]]:
        """The digests that successful stages recorded, by key."""
        return records.promised([one.record for one in self.records])

    @property
    def tests(self) -> Iterator[Test]:
        """The records of its tests."""
        return (_test(one, self) for one in self.records if one.record.stage.startswith("test_"))


@dataclass(frozen=True, kw_only=True)
class Test:
    """The record of a test."""

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
    return RunGroup(
        outputs=outputs,
        artifact_group=artifact_group,
        records=tuple(parallel.each(lambda key: recorded(key, store.read(key)), manifests)),
        reports=tuple(parallel.each(lambda key: document(key, store.read(key)), reports)),
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
    kind: Literal["rocm", "cpu"] = "cpu" if family == CPU else "rocm"
    of_ref = refs[lock.torch_ref].components if lock.torch_ref in refs else lock.projects
    built = {name: one for name, one in lock.projects.items() if not one.prebuilt and name in of_ref}
    return Lock(
        torch_ref=lock.torch_ref,
        document=document(key, content),
        release_type=lock.release_type,
        rocm_version="" if family == CPU else lock.rocm_version,
        commits={name: one.commit for name, one in built.items()},
        promised={
            DISTRIBUTIONS[name]: version for name, one in built.items() if (version := one.versions.get(kind))
        },
    )


def _test(by: Recorded, group: RunGroup) -> Test:
    record = by.record
    outcome, why = _outcome(record, group)
    named = record.inputs.get("files") or record.inputs.get("packages") or {}
    known = families()
    tested = (record.cell.gpu_family or group_families(group.artifact_group)).split(";")
    return Test(
        cell=Cell(family=group.artifact_group, platform=record.platform, python=record.cell.python),
        torch_ref=record.cell.torch_ref,
        outcome=outcome,
        why=why,
        files={str(name): str(digest) for name, digest in named.items()},
        targets=tuple(gpu for one in tested if one in known for gpu in known[one].targets),
        evidence=Evidence(
            stage=record.stage,
            run_id=record.run_id,
            python=record.cell.python,
            record=by.document,
            report=_report(record),
        ),
    )


def _outcome(record: Record, group: RunGroup) -> tuple[str, str]:
    """Return whether a test passed, failed, or counts for nothing, and why."""
    if record.status != "ok":
        return "failed", record.error or "no error message"
    totals = _totals(record.details)
    if totals is None:
        return "void", "its record holds no totals"
    passed, failed = totals
    if failed:
        return "failed", f"{failed} tests failed"
    void = _void(record, group) or ("" if passed else "no test passed")
    return ("void", void) if void else ("passed", "")


def _totals(details: Mapping[str, Any]) -> tuple[int, int] | None:
    """Count what passed and what failed, of a report of pytest or of `rocm-sdk test`."""
    if isinstance(tests := details.get("tests"), dict):
        failed = int(tests.get("failures", 0)) + int(tests.get("errors", 0))
        return int(tests.get("tests", 0)) - int(tests.get("skipped", 0)) - failed, failed
    if isinstance(checks := details.get("checks"), dict):
        return int(checks.get("passed", 0)), int(checks.get("failed", 0))
    return None


def _void(record: Record, group: RunGroup) -> str:
    """Return why a release cannot rest on a test that passed; "" where it can."""
    if not record.inputs.get("installed", True):
        return "it tested what an environment held already"
    chosen = [str(word) for word in record.inputs.get("arguments", ())]
    chosen = [word for word in chosen if word not in _BACKENDS and not word.startswith(_HARMLESS)]
    if chosen:
        return f"it ran with {' '.join(chosen)}"
    if "gpu" in record.inputs and not record.inputs["gpu"] and group.artifact_group != CPU:
        return "it ran on a machine without a GPU"
    report = _report(record)
    if report is None:
        return "its record names no report"
    # by its name, as a run that was uploaded may lie under another prefix than where it was tested
    name = report.key.rpartition("/")[2]
    found = next((one for one in group.reports if one.key.rpartition("/")[2] == name), None)
    if found is None:
        return f"its report {name} is gone"
    return "" if found.sha256 == report.sha256 else f"its report {name} was replaced"


def _report(record: Record) -> Document | None:
    said = record.details.get("report")
    if not isinstance(said, dict) or not {"key", "sha256"} <= said.keys():
        return None
    return Document(key=str(said["key"]), sha256=str(said["sha256"]))
