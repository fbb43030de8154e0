"""The runs that a store holds: their order, what they built, and which one came before a run."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ci.report.facts import INDEX, RunFacts, list_manifests, read_locks
from ci.report.names import cell_of_record, natural_key
from core import parallel
from core.cell import GroupCell
from core.run import KEY_SEGMENT, LOCAL_RUN, RunOutputs, key_name
from core.stores import Store

# Each run that is looked into for the previous one takes a request of a bucket.
MOST_RUNS_BEFORE = 25


def page_key(outputs: RunOutputs) -> str:
    """Return the key of a run's page."""
    return f"{outputs.prefix}/reports/{INDEX}"


def list_runs(store: Store, outputs: RunOutputs) -> Sequence[str]:
    """Return a store's runs, the last first: by number, and others by when they put their first record."""
    suffix = f"-{outputs.platform}"
    run_ids: list[str] = []
    for folder in store.folders(outputs.external_repo):
        run_id = folder.removesuffix(suffix)
        if run_id != folder and KEY_SEGMENT.fullmatch(run_id):
            run_ids.append(run_id)

    numbers = [run_id for run_id in run_ids if run_id.isdecimal()]
    numbers.sort(key=int)
    if len(numbers) == len(run_ids):
        return numbers[::-1]

    times = _times_of_runs(store, outputs, run_ids, numbers)
    run_ids.sort(key=natural_key)
    run_ids.sort(key=lambda run_id: times[run_id])
    return run_ids[::-1]


def _times_of_runs(
    store: Store,
    outputs: RunOutputs,
    run_ids: Sequence[str],
    numbers: Sequence[str],
) -> Mapping[str, float]:
    """Return when runs put their first record; of those with numbers, no earlier than smaller numbers did."""
    first_times = parallel.map_in_threads(partial(_time_of_first_record, store, outputs), run_ids)
    times = dict(zip(run_ids, first_times, strict=True))
    # Files of a copied store have the times of the copy, but its runs keep the order of their numbers.
    latest_time = 0.0
    for number in numbers:
        latest_time = max(latest_time, times[number])
        times[number] = latest_time
    return times


def _time_of_first_record(store: Store, outputs: RunOutputs, run_id: str) -> float:
    outputs = replace(outputs, run_id=run_id)
    documents = store.list(f"{outputs.prefix}/manifests")
    return min((document.modified for document in documents), default=0.0)


def runs_before(run_ids: Sequence[str], run_id: str) -> Sequence[str]:
    """Return the runs before one, of runs the last first; this machine's own run follows all others."""
    first = 0
    if run_id in run_ids and run_id != LOCAL_RUN:
        first = run_ids.index(run_id) + 1
    not_before = {LOCAL_RUN, run_id}
    return [earlier_id for earlier_id in run_ids[first:] if earlier_id not in not_before]


def find_previous_run(store: Store, outputs: RunOutputs, facts: RunFacts) -> str | None:
    """Return the last run before one that built its cells, or tried to; None where there is none.

    It is of the same release type, as its source lock says.
    """
    cells = built_cells(facts)
    if not cells:
        return None

    release_types = {lock.release_type for lock in facts.locks.values()}
    run_ids = runs_before(list_runs(store, outputs), outputs.run_id)
    for run_id in run_ids[:MOST_RUNS_BEFORE]:
        earlier_outputs = replace(outputs, run_id=run_id)
        keys = list_manifests(store, earlier_outputs)
        if not has_built(keys, cells):
            continue
        if not release_types:
            return run_id
        release_type = read_release_type(store, earlier_outputs, keys)
        if release_type is None or release_type in release_types:
            return run_id
    return None


def built_cells(facts: RunFacts) -> frozenset[GroupCell]:
    """Return the cells that a run built, or tried to build."""
    cells: set[GroupCell] = set()
    for group in facts.groups:
        for record in group.records:
            is_build = record.stage.startswith("build_")
            if is_build and record.cell.torch_ref is not None:
                cells.add(cell_of_record(group.name, record))
    return frozenset(cells)


def read_release_type(store: Store, outputs: RunOutputs, keys: Sequence[str]) -> str | None:
    """Return what a run was made for, by its first source lock; None where that does not say it."""
    keys_of_locks = list(filter(outputs.is_source_lock, keys))
    locks, _ = read_locks(store, outputs, keys_of_locks[:1])
    for lock in locks.values():
        return lock.release_type
    return None


def has_built(keys: Iterable[str], cells: Collection[GroupCell]) -> bool:
    """Return whether a run built cells, or tried to, by the keys of its records; what a cell lacks is any."""
    for cell in cells:
        pattern = _pattern_of_builds(cell)
        if not any(pattern.search(key) for key in keys):
            return False
    return True


def _pattern_of_builds(cell: GroupCell) -> re.Pattern[str]:
    """Return what matches the end of the key of a build's record: its group and its file name."""
    artifact_group = "[^/]+"
    if cell.artifact_group is not None:
        artifact_group = re.escape(cell.artifact_group)
    torch_ref = "[^/]+"
    if cell.torch_ref is not None:
        torch_ref = re.escape(key_name(cell.torch_ref))
    python_tag = r"cp\d+t?"
    if cell.python_tag is not None:
        python_tag = re.escape(cell.python_tag)
    name = rf"build_[a-z]+-{torch_ref}-{python_tag}(\.failed)?\.json"
    return re.compile(rf"/{artifact_group}/{name}\Z")
