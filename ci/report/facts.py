"""What a store holds of a run, read for its page: records, source locks, test results.

Nothing here fails for a document that cannot be read: that is what the page is to show.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from ci.report.model import Problem, StageRun, cell_of_record
from ci.report.text import natural
from core import data, parallel
from core.cell import GroupCell, python_of_tag
from core.cli.options import Common
from core.errors import FatalError
from core.run import KEY_SEGMENT, LOCAL_RUN, RunOutputs, choose_groups, is_record, key_name, records
from core.run.records import Record
from core.stores import Store
from core.stores.overlay import store_of
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import torch_ref
from pytorch_build.test import results, summary
from pytorch_build.test.record import parse_record, read_details, why_missing
from pytorch_build.test.reports import check_records, read_reports
from pytorch_build.test.summary import CaseEntry, GroupEntry

_LOCK = "source-lock-"
PAGE = "index.html"
MOST = 25  # runs looked into for the previous one: a request each, in a bucket


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """What a run holds of an artifact group; `unreadable`: what is not a record of this version."""

    name: str
    find_links: str = ""
    records: tuple[tuple[str, Record], ...] = ()
    unreadable: tuple[tuple[GroupCell, StageRun], ...] = ()
    tests: tuple[GroupEntry, ...] = ()
    problems: tuple[Problem, ...] = ()

    @cached_property
    def missing(self) -> Mapping[tuple[GroupCell, str], str]:
        """Tests that count as missing, and why: of other bytes than the run has, or a part of the tests."""
        every = [record for _, record in self.records]
        tests = (one for one in records.latest(every) if one.stage.startswith("test_"))
        found = {(cell_of_record(self.name, one), one.stage): why_missing(one, every) for one in tests}
        return {key: why for key, why in found.items() if why}


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
    prefix, listed = outputs.manifests_prefix(""), manifests(store, outputs)
    groups: dict[str, list[str]] = defaultdict(list)
    for key in listed:
        group, slash, _ = key.removeprefix(prefix).partition("/")
        if slash and is_record(key):
            groups[group].append(key)
    what = f"records in {store.url}/{outputs.prefix}/manifests"
    chosen = choose_groups(store, outputs, sorted(groups), common.artifact_group, content=what)
    locks, problems = _locks(store, [key for key in listed if key.startswith(f"{prefix}{_LOCK}")])
    made = tuple(_group(common, store, name, groups[name], tests=tests) for name in chosen)
    if common.torch_ref and not any(one.cell.torch_ref for group in made for _, one in group.records):
        torch_ref(common.torch_ref)
    return RunFacts(
        run_id=outputs.run_id,
        platform=outputs.platform,
        groups=made,
        locks={name: lock for name, lock in locks.items() if common.torch_ref in {"", name}},
        problems=problems,
    )


def _locks(store: Store, keys: Sequence[str]) -> tuple[Mapping[str, SourceLock], tuple[Problem, ...]]:
    locks, problems = {}, []
    for key in (one for one in keys if one.endswith(".json")):
        try:
            lock = data.parse_json(store.read(key).decode(errors="replace"), SourceLock, where=key)
            locks[lock.torch_ref] = lock
        except FatalError as problem:
            hint = "Resolve again: nox -s resolve -- --update"
            what = problem.message.removeprefix(f"{key}: ")
            problems.append(Problem(where=key, what=what, hint=hint))
    return locks, tuple(problems)


def _group(common: Common, store: Store, name: str, listed: Sequence[str], *, tests: bool) -> GroupFacts:
    outputs = common.outputs
    refs = {None, common.torch_ref}
    found: list[tuple[str, Record]] = []
    unreadable, problems = [], []
    for key, content in zip(listed, parallel.map_in_threads(store.read, listed), strict=True):
        try:
            record = parse_record(content, where=key)
        except FatalError as problem:
            told = Problem(where=key, what=problem.message.removeprefix(f"{key}: "), hint=problem.hint)
            cell, run = _unreadable(told, content, name)
            if not common.torch_ref or cell.torch_ref in refs:
                unreadable.append((cell, run))
                problems.append(told)
        else:
            if not common.torch_ref or record.cell.torch_ref in refs:
                found.append((key, record))
    every = [record for _, record in found]
    entries: tuple[GroupEntry, ...] = ()
    try:
        entries = _tests(store, outputs, name, every) if tests else _recorded(name, every)
    except FatalError as problem:
        where = outputs.reports_prefix(name)
        problems.append(Problem(where=where, what=problem.message, hint=problem.hint))
    flat = f"{outputs.python_prefix(name)}/index.html"
    address = store_of(store, flat).url_of(flat)
    return GroupFacts(
        name=name,
        # a path of this machine means nothing to others, nor on a page
        find_links=address if address.startswith(("https://", "http://")) else "",
        records=tuple(found),
        unreadable=tuple(unreadable),
        tests=tuple(one for one in entries if not common.torch_ref or (one.torch_ref or None) in refs),
        problems=tuple(problems),
    )


def _unreadable(told: Problem, content: bytes, group: str) -> tuple[GroupCell, StageRun]:
    """Return what can be known of a document that is not a record of this version."""
    stage = told.where.rpartition("/")[2].removesuffix(".json").removesuffix(".failed")
    cell, document = GroupCell(artifact_group=group), None
    with suppress(ValueError):
        document = json.loads(content)
    match document:
        case {"stage": str(named)}:
            stage = named
    match document:
        case {"cell": {"torch_ref": str(ref), "python": str(python)}}:
            cell = replace(cell, torch_ref=ref or None, python=python_of_tag(python) if python else None)
    return cell, StageRun(stage=stage, state="unreadable", error=told.what)


def _tests(store: Store, outputs: RunOutputs, group: str, found: Sequence[Record]) -> tuple[GroupEntry, ...]:
    """Read results of tests from the reports, and hold them against the records."""
    read = results.merge_reports(read_reports(store, outputs, group, found))
    tested = check_records(read, found, store=store, outputs=outputs, artifact_group=group)
    whole = [replace(one, origin=replace(one.origin, gpu_family=group)) for one in tested]
    return summary.report_data(outputs.run_id, whole).tests


def _recorded(group: str, found: Sequence[Record]) -> tuple[GroupEntry, ...]:
    """Count results of tests by their records alone, which name what failed; one record is of all shards."""
    entries: dict[str, GroupEntry] = {}
    # a failure lies beside the last success, and is the later of the two
    for record in sorted(found, key=lambda record: record.status == "failed"):
        if not record.stage.startswith("test_") or "-" in record.stage:
            continue
        details = read_details(record)
        if details.outcomes is None:
            continue
        failures = [CaseEntry(test=test, outcome="failed", seconds=0) for test in details.failing]
        entries[record.name] = GroupEntry(
            stage=record.stage,
            torch_ref=record.cell.torch_ref or "",
            python=record.cell.python_tag or "",
            gpu_family=group,
            passed=record.status == "ok",
            shards=1,
            seconds=record.seconds,
            totals=details.outcomes,
            failures=tuple(failures),
        )
    return tuple(entries.values())


def previous(store: Store, outputs: RunOutputs, facts: RunFacts) -> str:
    """Find the last run before this one that built its cells, or tried to; "" where there is none.

    It is of the same release type, as its source lock says.
    """
    cells, types = built(facts), {lock.release_type for lock in facts.locks.values()}
    for run_id in earlier(stored_runs(store, outputs), outputs.run_id)[:MOST] if cells else ():
        listed = manifests(store, replace(outputs, run_id=run_id))
        if has_built(listed, cells) and (not types or release_type(store, listed) in {"", *types}):
            return run_id
    return ""


def built(facts: RunFacts) -> frozenset[GroupCell]:
    """Name the cells that a run built, or tried to build."""
    return frozenset(
        cell_of_record(group.name, record)
        for group in facts.groups
        for _, record in group.records
        if record.stage.startswith("build_") and record.cell.torch_ref
    )


def manifests(store: Store, outputs: RunOutputs) -> Sequence[str]:
    """List the documents of a run by their keys: one request, whatever the run holds."""
    return [one.key for one in store.list(f"{outputs.prefix}/manifests")]


def page_key(outputs: RunOutputs) -> str:
    """Return the key of a run's page."""
    return f"{outputs.prefix}/reports/{PAGE}"


def stored_runs(store: Store, outputs: RunOutputs) -> Sequence[str]:
    """Name a store's runs, the last first: by number, and others by when they put their first record."""
    end = f"-{outputs.platform}"
    folders = (one.removesuffix(end) for one in store.folders(outputs.external_repo) if one.endswith(end))
    runs = [one for one in folders if KEY_SEGMENT.fullmatch(one)]
    numbers = sorted((one for one in runs if one.isdecimal()), key=int)
    if len(numbers) == len(runs):
        return numbers[::-1]

    def began(run_id: str) -> float:
        listed = store.list(f"{replace(outputs, run_id=run_id).prefix}/manifests")
        return min((one.modified for one in listed), default=0.0)

    times = dict(zip(runs, parallel.map_in_threads(began, runs), strict=True))
    # a copied store has other times, and the order of numbers
    times |= zip(numbers, accumulate((times[one] for one in numbers), max), strict=True)
    return sorted(runs, key=lambda one: (times[one], natural(one)), reverse=True)


def earlier(runs: Sequence[str], run_id: str) -> Sequence[str]:
    """Return the runs before one, of runs the last first; the one of this machine follows all others."""
    after = runs.index(run_id) + 1 if run_id in runs and run_id != LOCAL_RUN else 0
    return [one for one in runs[after:] if one not in {LOCAL_RUN, run_id}]


def release_type(store: Store, listed: Iterable[str]) -> str:
    """Return what a run was made for, by its first source lock that can be read; "" where none says."""
    locks, _ = _locks(store, [key for key in listed if f"/manifests/{_LOCK}" in key][:1])
    return next((lock.release_type for lock in locks.values()), "")


def has_built(listed: Iterable[str], cells: Iterable[GroupCell]) -> bool:
    """Whether a run built cells, or tried to, by the keys of its manifests; what a cell lacks is any."""
    names = ["/".join(key.rsplit("/", 2)[1:]) for key in listed]
    for cell in cells:
        artifact_group = re.escape(cell.artifact_group) if cell.artifact_group is not None else "[^/]+"
        torch_ref = re.escape(key_name(cell.torch_ref)) if cell.torch_ref is not None else "[^/]+"
        python_tag = re.escape(cell.python_tag) if cell.python_tag is not None else r"cp\d+t?"
        pattern = re.compile(rf"{artifact_group}/build_[a-z]+-{torch_ref}-{python_tag}(\.failed)?\.json")
        if not any(pattern.fullmatch(name) for name in names):
            return False
    return True
