"""What a store holds of a run, read for its page: records, source locks, test results.

Nothing here fails for a document that cannot be read: that is what the page is to show.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ci.report.cell_name import CellName
from ci.report.model import Problem, StageRun
from core import data, parallel
from core.errors import FatalError, MissingInputError, nearest
from core.run import records
from core.run.outputs import is_record
from core.run.records import Record
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.test import results, summary
from pytorch_build.test.reports import MERGED, reports_of
from pytorch_build.test.summary import GroupEntry, ReportData

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.cli.options import Common
    from core.run.outputs import RunOutputs
    from core.stores import Store, Stored

_LOCK = "source-lock-"
_TEST_DATA = "test-report.json"


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A document that is no record of this version."""

    cell: CellName
    run: StageRun
    problem: Problem


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """What a run holds of an artifact group."""

    name: str
    find_links: str = ""
    records: tuple[tuple[str, Record], ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    tests: tuple[GroupEntry, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a run holds."""

    run_id: str
    platform: str
    prefix: str
    groups: tuple[GroupFacts, ...]
    locks: Mapping[str, SourceLock]
    problems: tuple[Problem, ...] = ()


def read_run(common: Common, *, tests: bool = True) -> RunFacts:
    """Read a run."""
    store, outputs = common.open_for_reading(), common.outputs
    prefix = f"{outputs.prefix}/manifests"
    listed = store.list(prefix)
    groups: dict[str, list[Stored]] = {}
    for stored in listed:
        group, slash, _ = stored.key.removeprefix(f"{prefix}/").partition("/")
        if slash and is_record(stored.key):
            groups.setdefault(group, []).append(stored)
    chosen = _chosen(common, store, sorted(groups))
    locks, problems = _locks(store, [one.key for one in listed if one.key.startswith(f"{prefix}/{_LOCK}")])
    facts = tuple(_group(common, store, name, groups[name], tests=tests) for name in chosen)
    return RunFacts(
        run_id=outputs.run_id,
        platform=outputs.platform,
        prefix=outputs.prefix,
        groups=facts,
        locks={name: lock for name, lock in locks.items() if common.torch_ref in {"", name}},
        problems=problems,
    )


def _chosen(common: Common, store: Store, groups: Sequence[str]) -> Sequence[str]:
    outputs = common.outputs
    if not groups:
        raise MissingInputError(
            f"Run {outputs.run_id} has no records in {store.url}/{outputs.prefix}/manifests.",
            hint="Build something first (nox -s build_torch), or name another run with --run-id.",
        )
    chosen = common.artifact_group
    if chosen and chosen not in groups:
        raise MissingInputError(
            f"Run {outputs.run_id} has no group {chosen!r} in {store.url}.", hint=nearest(chosen, groups)
        )
    return [chosen] if chosen else groups


def _locks(store: Store, keys: Sequence[str]) -> tuple[Mapping[str, SourceLock], tuple[Problem, ...]]:
    locks, problems = {}, []
    for key in (one for one in keys if one.endswith(".json")):
        try:
            text = store.read(key).decode(errors="replace")
            lock = data.parse_json(text, SourceLock, where=key)
            locks[lock.torch_ref] = lock
        except FatalError as problem:
            problems.append(_problem(key, problem.message, "Resolve again: nox -s resolve -- --update"))
    return locks, tuple(problems)


def _group(common: Common, store: Store, name: str, listed: Sequence[Stored], *, tests: bool) -> GroupFacts:
    outputs = common.outputs
    found: list[tuple[str, Record]] = []
    unreadable = []
    for key, content in parallel.each(lambda stored: (stored.key, store.read(stored.key)), listed):
        record = _record(key, content, name)
        if isinstance(record, Unreadable):
            if record.cell.torch_ref and common.torch_ref not in {"", record.cell.torch_ref}:
                continue
            unreadable.append(record)
        elif common.torch_ref in {"", record.cell.torch_ref} or not record.cell.torch_ref:
            found.append((key, record))
    results_of: tuple[GroupEntry, ...] = ()
    problems: tuple[Problem, ...] = ()
    if tests:
        try:
            results_of = _tests(store, outputs, name, [record for _, record in found], listed)
        except FatalError as problem:
            problems = (_problem(outputs.reports_prefix(name), problem.message, problem.hint),)
    return GroupFacts(
        name=name,
        find_links=_address(store, outputs, name),
        records=tuple(found),
        unreadable=tuple(unreadable),
        tests=tuple(
            one for one in results_of if not one.torch_ref or common.torch_ref in {"", one.torch_ref}
        ),
        problems=problems,
    )


def _address(store: Store, outputs: RunOutputs, group: str) -> str:
    """Give the flat page's address; a path of this machine means nothing to others, nor on a page."""
    from core.stores.location import holding

    place = holding(store, f"{outputs.python_prefix(group)}/index.html")
    address = outputs.at(place).python_find_links_url(group)
    return address if address.startswith(("https://", "http://")) else ""


def _record(key: str, content: bytes, group: str) -> Record | Unreadable:
    try:
        return records.parse(content, where=key)
    except FatalError as problem:
        return _unreadable(key, content, group, problem)


def _unreadable(key: str, content: bytes, group: str, problem: FatalError) -> Unreadable:
    """Say what can be said of a document that is no record of this version."""
    name = key.rpartition("/")[2].removesuffix(".json").removesuffix(".failed")
    try:
        said = json.loads(content)
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}
    cell = said.get("cell")
    cell = cell if isinstance(cell, dict) else {}
    version = said.get("schema_version")
    what, hint = problem.message, problem.hint
    if version is not None and version != Record.model_fields["schema_version"].default:
        what = f"It is a record of schema version {version!r}, and this version reads 1."
        hint = "Make the page with the version that wrote the record, or run the stage again with --force."
    stage = said.get("stage")
    run = StageRun(stage=stage if isinstance(stage, str) else name, state="unreadable", error=what, key=key)
    place = CellName(group=group, torch_ref=_word(cell, "torch_ref"), python=_word(cell, "python"))
    return Unreadable(cell=place, run=run, problem=_problem(key, what, hint))


def _word(cell: Mapping[str, object], name: str) -> str:
    value = cell.get(name)
    return value if isinstance(value, str) else ""


def _tests(
    store: Store, outputs: RunOutputs, group: str, found: Sequence[Record], listed: Sequence[Stored]
) -> tuple[GroupEntry, ...]:
    """Read results of tests: as `test_report` filed them, or from the reports where those are newer."""
    prefix = outputs.reports_prefix(group)
    reports = [one for one in store.list(prefix) if one.key.endswith(".xml")]
    filed = store.find(f"{prefix}/{_TEST_DATA}")
    tested = [one for one in listed if one.key.rpartition("/")[2].startswith("test_")]
    if filed and all(one.modified <= filed.modified for one in (*reports, *tested)):
        text = store.read(filed.key).decode(errors="replace")
        return data.parse_json(text, ReportData, where=filed.key).tests
    if not reports:
        return ()
    # the record of all shards says nothing that theirs do not say
    tests = [one for one in found if one.stage.startswith("test_") and MERGED not in one.details]
    read = reports_of(store, outputs, group, tests)
    whole = [replace(one, origin=replace(one.origin, gpu_family=group)) for one in results.merged(read)]
    return summary.data(outputs.run_id, whole).tests


def _problem(where: str, what: str, hint: str = "") -> Problem:
    return Problem(where=where, what=what, hint=hint)
