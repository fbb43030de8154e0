"""What a store holds of a run, read for its page: records, source locks, test results.

Nothing here fails for a document that cannot be read: that is what the page is to show.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ci.report.model import CellName, Problem, StageRun
from ci.report.text import natural
from core import data, parallel
from core.errors import FatalError, MissingInputError, nearest
from core.run import LOCAL_RUN, is_record, key_name, records
from core.run.records import Record
from core.stores.location import holding
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.test import results, summary
from pytorch_build.test.reports import checked, reports_of, why_missing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from core.cli.options import Common
    from core.run import RunOutputs
    from core.stores import Store, Stored
    from pytorch_build.test.summary import GroupEntry


_LOCK = "source-lock-"
MOST = 25  # runs looked into for the previous one: a request each, in a bucket


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A document that is not a record of this version."""

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

    @cached_property
    def missing(self) -> Mapping[tuple[CellName, str], str]:
        """Tests that count as missing, and why: of other bytes than the run has, or a part of the tests."""
        every = [record for _, record in self.records]
        tests = (one for one in every if one.stage.startswith("test_"))
        found = ((CellName.of(self.name, one.cell), one.stage, why_missing(one, every)) for one in tests)
        return {(name, stage): why for name, stage, why in found if why}


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a run holds."""

    run_id: str
    platform: str
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
            hint = "Resolve again: nox -s resolve -- --update"
            problems.append(Problem(where=key, what=problem.message, hint=hint))
    return locks, tuple(problems)


def _group(common: Common, store: Store, name: str, listed: Sequence[Stored], *, tests: bool) -> GroupFacts:
    outputs, refs = common.outputs, {"", common.torch_ref}
    found: list[tuple[str, Record]] = []
    unreadable = []
    for key, content in parallel.each(lambda stored: (stored.key, store.read(stored.key)), listed):
        try:
            record = records.parse(content, where=key)
        except FatalError as problem:
            broken = _unreadable(key, content, name, problem)
            if not common.torch_ref or broken.cell.torch_ref in refs:
                unreadable.append(broken)
        else:
            if not common.torch_ref or record.cell.torch_ref in refs:
                found.append((key, record))
    results_of: tuple[GroupEntry, ...] = ()
    problems: tuple[Problem, ...] = ()
    if tests:
        try:
            results_of = _tests(store, outputs, name, [record for _, record in found])
        except FatalError as problem:
            where = outputs.reports_prefix(name)
            problems = (Problem(where=where, what=problem.message, hint=problem.hint),)
    return GroupFacts(
        name=name,
        find_links=_address(store, outputs, name),
        records=tuple(found),
        unreadable=tuple(unreadable),
        tests=tuple(one for one in results_of if not common.torch_ref or one.torch_ref in refs),
        problems=problems,
    )


def _address(store: Store, outputs: RunOutputs, group: str) -> str:
    """Return the flat page's address; a path of this machine means nothing to others, nor on a page."""
    place = holding(store, f"{outputs.python_prefix(group)}/index.html")
    address = outputs.at(place).python_find_links_url(group)
    return address if address.startswith(("https://", "http://")) else ""


def _unreadable(key: str, content: bytes, group: str, problem: FatalError) -> Unreadable:
    """Return what can be known of a document that is not a record of this version."""
    try:
        document = json.loads(content)
    except ValueError:
        document = {}
    document = document if isinstance(document, dict) else {}
    cell, version = document.get("cell"), document.get("schema_version")
    words = (
        {name: one for name, one in cell.items() if isinstance(one, str)} if isinstance(cell, dict) else {}
    )
    what, hint = problem.message, problem.hint
    if version is not None and version != Record.model_fields["schema_version"].default:
        what = f"It is a record of schema version {version!r}, and this version reads 1."
        hint = "Make the page with the version that wrote the record, or run the stage again with --force."
    stage = document.get("stage")
    if not isinstance(stage, str):
        stage = key.rpartition("/")[2].removesuffix(".json").removesuffix(".failed")
    place = CellName(group=group, torch_ref=words.get("torch_ref", ""), python=words.get("python", ""))
    run = StageRun(stage=stage, state="unreadable", error=what, key=key)
    return Unreadable(cell=place, run=run, problem=Problem(where=key, what=what, hint=hint))


def _tests(store: Store, outputs: RunOutputs, group: str, found: Sequence[Record]) -> tuple[GroupEntry, ...]:
    """Read results of tests from the reports, and hold them against the records."""
    read = results.merged(reports_of(store, outputs, group, found))
    tested = checked(read, found, store=store, outputs=outputs, artifact_group=group)
    whole = [replace(one, origin=replace(one.origin, gpu_family=group)) for one in tested]
    return summary.data(outputs.run_id, whole).tests


def previous(store: Store, outputs: RunOutputs, facts: RunFacts) -> str:
    """Find the last run before this one that built all of its cells; "" where there is none."""
    cells = built(facts)
    found = earlier(store.folders(outputs.external_repo), outputs) if cells else ()
    for run_id in found[:MOST]:
        prefix = f"{outputs.external_repo}{run_id}-{outputs.platform}/manifests/"
        if has_built({one.key.removeprefix(prefix) for one in store.list(prefix)}, cells):
            return run_id
    return ""


def built(facts: RunFacts) -> frozenset[CellName]:
    """Name the cells that a run built, or tried to build."""
    return frozenset(
        CellName.of(group.name, record.cell)
        for group in facts.groups
        for _, record in group.records
        if record.stage.startswith("build_") and record.cell.torch_ref
    )


def earlier(folders: Iterable[str], outputs: RunOutputs) -> Sequence[str]:
    """Return the runs before this one, the last first: a run's id grows, as those of GitHub do."""
    end = f"-{outputs.platform}"
    runs = {one.removesuffix(end) for one in folders if one.endswith(end)} - {LOCAL_RUN, outputs.run_id}
    own = natural(outputs.run_id)
    before = [one for one in runs if outputs.run_id == LOCAL_RUN or natural(one) < own]
    return sorted(before, key=natural, reverse=True)


def has_built(records: Collection[str], cells: Iterable[CellName]) -> bool:
    """Whether a run built cells, and no build of theirs failed."""
    for cell in cells:
        name = re.escape(key_name("-".join(part for part in (cell.torch_ref, cell.python) if part)))
        pattern = re.compile(rf"{re.escape(cell.group)}/build_[a-z]+-{name}(\.failed)?\.json")
        found = [one for one in records if pattern.fullmatch(one)]
        if not found or any(one.endswith(".failed.json") for one in found):
            return False
    return True
