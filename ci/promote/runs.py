"""What a run's records, reports and locks say of one artifact group, each with its digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ci.promote.documents import Cell, Document, Evidence, Lock, document
from core import parallel
from core.data import parse_json
from core.families import CPU, families, group_families
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


# arguments for pytest that choose no tests
_HARMLESS = ("-v", "-q", "-s", "-r", "-x", "-l", "--log-cli-level", "--tb", "--color", "--durations")
_BACKENDS = ("uv", "pip")


def tests_of(group: RunGroup) -> tuple[Test, ...]:
    """Read the test records of a run's group."""
    return tuple(_test(one, group) for one in group.records if one.record.stage.startswith("test_"))


def _test(recorded: Recorded, group: RunGroup) -> Test:
    record = recorded.record
    outcome, why = _outcome(record, group)
    named = record.inputs.get("files") or record.inputs.get("packages") or {}
    report = _report(record)
    return Test(
        cell=Cell(family=group.artifact_group, platform=record.platform, python=record.cell.python),
        torch_ref=record.cell.torch_ref,
        outcome=outcome,
        why=why,
        files={str(name): str(digest) for name, digest in named.items()},
        targets=_targets(record.cell.gpu_family or group_families(group.artifact_group)),
        evidence=Evidence(
            stage=record.stage,
            run_id=record.run_id,
            python=record.cell.python,
            record=recorded.document,
            report=report,
        ),
    )


def _targets(gpu_family: str) -> tuple[str, ...]:
    known = families()
    return tuple(gpu for one in gpu_family.split(";") if one in known for gpu in known[one].targets)


def _outcome(record: Record, group: RunGroup) -> tuple[str, str]:
    """Say whether a test passed, failed, or counts for nothing, and why."""
    if record.status != "ok":
        return "failed", record.error or "it says no more"
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
    """Say why a test that passed is none that a release can rest on; "" where it is one."""
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
    found = next((one for key, one in group.reports.items() if key.rpartition("/")[2] == name), None)
    if found is None:
        return f"its report {name} is gone"
    return "" if found.sha256 == report.sha256 else f"its report {name} was replaced"


def _report(record: Record) -> Document | None:
    said = record.details.get("report")
    if not isinstance(said, dict) or not {"key", "sha256"} <= said.keys():
        return None
    return Document(key=str(said["key"]), sha256=str(said["sha256"]))
