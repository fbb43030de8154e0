"""What a store holds of a run, read for its page: records, source locks, test results.

A document that cannot be read is no error here, but a problem that the page shows.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from ci.report.model import ReleaseRow, ReportedProblem, StageRun
from ci.report.names import cell_of_record
from core import data, parallel
from core.cell import GroupCell, python_of_tag
from core.cli.options import Common
from core.errors import FatalError
from core.run import RunOutputs, choose_groups, record_keys_by_group, records
from core.run.records import Record
from core.stores import Store
from core.stores.overlay import store_of
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import torch_ref
from pytorch_build.test import summary
from pytorch_build.test.cell_results import merge_reports
from pytorch_build.test.record import parse_record, read_details
from pytorch_build.test.record_validity import check_records, why_missing
from pytorch_build.test.stored_reports import read_reports_of_group
from pytorch_build.test.summary import CaseData, CellData

if TYPE_CHECKING:
    from pytorch_build.test.cell_results import CellResults

CellStage: TypeAlias = tuple[GroupCell, str]

INDEX = "index.html"


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """What a run holds of an artifact group: records in the order of their keys, and what is no record."""

    name: str
    find_links: str = ""
    records: tuple[Record, ...] = ()
    unreadable: tuple[tuple[GroupCell, StageRun], ...] = ()
    tests: tuple[CellData, ...] = ()
    problems: tuple[ReportedProblem, ...] = ()

    @cached_property
    def void_tests(self) -> Mapping[CellStage, str]:
        """Why results count as missing: of other bytes than the run has, or of a part of the tests."""
        reasons: dict[CellStage, str] = {}
        for record in records.latest(self.records):
            if not record.stage.startswith("test_"):
                continue
            reason = why_missing(record, self.records)
            if reason:
                cell = cell_of_record(self.name, record)
                reasons[cell, record.stage] = reason
        return reasons


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a run holds, and what was decided on its wheels."""

    run_id: str
    platform: str
    groups: tuple[GroupFacts, ...]
    locks: Mapping[str, SourceLock]
    releases: tuple[ReleaseRow, ...] = ()
    problems: tuple[ReportedProblem, ...] = ()

    @property
    def all_records(self) -> Sequence[Record]:
        """The records of all groups."""
        all_records: list[Record] = []
        for group in self.groups:
            all_records += group.records
        return all_records


def read_run(common: Common, *, tests: bool = True) -> RunFacts:
    """Return what the store holds of a run. Without `tests`, records alone tell the results of tests."""
    store = common.open_for_reading()
    outputs = common.outputs
    keys = list_manifests(store, outputs)
    record_keys = record_keys_by_group(outputs, keys)
    artifact_groups = choose_groups(
        store,
        outputs,
        sorted(record_keys),
        common.artifact_group,
        content=f"records in {store.url}/{outputs.prefix}/manifests",
    )
    locks, problems = read_locks(store, outputs, keys)

    groups = [_read_group(common, store, name, record_keys[name], tests=tests) for name in artifact_groups]
    facts = RunFacts(
        run_id=outputs.run_id,
        platform=outputs.platform,
        groups=tuple(groups),
        locks={ref: lock for ref, lock in locks.items() if _is_selected(common, ref)},
        problems=problems,
    )
    if common.torch_ref and all(record.cell.torch_ref is None for record in facts.all_records):
        # The error names the ref that was probably meant.
        torch_ref(common.torch_ref)
    return facts


def list_manifests(store: Store, outputs: RunOutputs) -> Sequence[str]:
    """Return the keys of a run's documents: one request, whatever the run holds."""
    documents = store.list(f"{outputs.prefix}/manifests")
    return [document.key for document in documents]


def _is_selected(common: Common, ref: str | None) -> bool:
    """Return whether the options select a torch ref; what has no ref belongs to all."""
    return not common.torch_ref or ref is None or ref == common.torch_ref


def read_locks(
    store: Store, outputs: RunOutputs, keys: Sequence[str]
) -> tuple[Mapping[str, SourceLock], tuple[ReportedProblem, ...]]:
    """Return the source locks among a run's documents by their torch refs, and those that cannot be read."""
    locks: dict[str, SourceLock] = {}
    problems: list[ReportedProblem] = []
    for key in filter(outputs.is_source_lock, keys):
        try:
            text = store.read(key).decode(errors="replace")
            lock = data.parse_json(text, SourceLock, where=key)
        except FatalError as error:
            message = error.message.removeprefix(f"{key}: ")
            hint = "Resolve again: nox -s resolve -- --update"
            problems.append(
                ReportedProblem(
                    where=key,
                    what=message,
                    hint=hint,
                )
            )
        else:
            locks[lock.torch_ref] = lock
    return locks, tuple(problems)


def _read_group(
    common: Common,
    store: Store,
    name: str,
    keys: Sequence[str],
    *,
    tests: bool,
) -> GroupFacts:
    """Return what a run holds of an artifact group, of the selected torch ref."""
    outputs = common.outputs
    all_records: list[Record] = []
    unreadable: list[tuple[GroupCell, StageRun]] = []
    problems: list[ReportedProblem] = []
    contents = parallel.map_in_threads(store.read, keys)
    for key, content in zip(keys, contents, strict=True):
        try:
            record = parse_record(content, where=key)
        except FatalError as error:
            message = error.message.removeprefix(f"{key}: ")
            cell, stage_run = _unreadable_stage(key, content, name, message)
            if _is_selected(common, cell.torch_ref):
                unreadable.append((cell, stage_run))
                problems.append(
                    ReportedProblem(
                        where=key,
                        what=message,
                        hint=error.hint,
                    )
                )
        else:
            if _is_selected(common, record.cell.torch_ref):
                all_records.append(record)

    entries: Sequence[CellData] = ()
    try:
        if tests:
            entries = _results_of_reports(store, outputs, name, all_records)
        else:
            entries = _results_of_records(name, all_records)
    except FatalError as error:
        where = outputs.reports_prefix(name)
        problems.append(
            ReportedProblem(
                where=where,
                what=error.message,
                hint=error.hint,
            )
        )

    index_key = f"{outputs.python_prefix(name)}/{INDEX}"
    return GroupFacts(
        name=name,
        find_links=_public_address(store, index_key),
        records=tuple(all_records),
        unreadable=tuple(unreadable),
        tests=tuple(entry for entry in entries if _is_selected(common, entry.torch_ref or None)),
        problems=tuple(problems),
    )


def _public_address(store: Store, key: str) -> str:
    """Return the address of a key; "" for a path of this machine, which means nothing on a page."""
    address = store_of(store, key).url_of(key)
    if not address.startswith(("https://", "http://")):
        return ""
    return address


def _unreadable_stage(
    key: str,
    content: bytes,
    artifact_group: str,
    message: str,
) -> tuple[GroupCell, StageRun]:
    """Return what can be known of a document that is not a record of this version: its cell and stage."""
    _, _, file_name = key.rpartition("/")
    stage = file_name.removesuffix(".json").removesuffix(".failed")
    cell = GroupCell(artifact_group=artifact_group)

    document: object = None
    with suppress(ValueError):
        document = json.loads(content)
    match document:
        case {"stage": str(name)}:
            stage = name
    match document:
        case {"cell": {"torch_ref": str(ref), "python": str(python_tag)}}:
            python = python_of_tag(python_tag) if python_tag else None
            cell = replace(cell, torch_ref=ref or None, python=python)
    return cell, StageRun(
        stage=stage,
        state="unreadable",
        error=message,
    )


def _results_of_reports(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
    all_records: Sequence[Record],
) -> Sequence[CellData]:
    """Return the results of tests by their reports, checked against the records."""
    reports = merge_reports(read_reports_of_group(store, outputs, artifact_group, all_records))
    checked = check_records(
        reports,
        all_records,
        store=store,
        outputs=outputs,
        artifact_group=artifact_group,
    )
    # A test of one of several families is a test of their group.
    tests_of_group: list[CellResults] = []
    for cell_results in checked:
        origin = replace(cell_results.origin, gpu_family=artifact_group)
        tests_of_group.append(replace(cell_results, origin=origin))
    return summary.summary_data(outputs.run_id, tests_of_group).tests


def _results_of_records(artifact_group: str, all_records: Sequence[Record]) -> Sequence[CellData]:
    """Return the results of tests by their records alone, which name what failed."""
    entries: dict[str, CellData] = {}
    # A failure lies beside the last success, and is the later of the two.
    for record in sorted(all_records, key=lambda record: record.status == "failed"):
        is_shard = "-" in record.stage
        if not record.stage.startswith("test_") or is_shard:
            continue
        details = read_details(record)
        if details.outcomes is None:
            continue
        failures = [
            CaseData(
                test=test,
                outcome="failed",
                seconds=0,
            )
            for test in details.failing
        ]
        entries[record.name] = CellData(
            stage=record.stage,
            torch_ref=record.cell.torch_ref or "",
            python=record.cell.python_tag or "",
            gpu_family=artifact_group,
            passed=record.status == "ok",
            shards=1,
            seconds=record.seconds,
            totals=details.outcomes,
            failures=tuple(failures),
        )
    return tuple(entries.values())
