"""Which shard runs which test, by what tests took in earlier runs.

A plan is pure and deterministic: the same files, durations and number of shards give the same plan on every
machine. Whole files go where the time stays shortest, longest first. Where the longest shard would take more
than `BALANCE` times the mean, long files are divided into their classes. What has no recorded duration (a new
class, a function) belongs to the rest of its file, and so to exactly one shard.

All shards of a run must read the same durations, or tests would run twice or never: `for_run` keeps the ones
that the first shard found among the run's outputs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from core import console, files
from core.data import Model, parse_json
from core.errors import ConflictError, MissingInputError, UsageError
from core.run import RunOutputs
from core.stores import Store

if TYPE_CHECKING:
    from core.junit import Document

# How much longer than their mean the longest shard may take.
BALANCE = 1.1
# Files that take less than this part of the mean stay whole.
_DIVIDED = 0.3


class FileDuration(Model):
    """What one test file took: its tests, and starting it; `parts` are its classes, by their node ids.

    Tables of earlier versions name long tests among the parts, too.
    """

    seconds: float = Field(ge=0, allow_inf_nan=False)
    starting: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    parts: dict[str, float] = {}  # noqa: RUF012 - pydantic copies it

    @property
    def classes(self) -> Mapping[str, float]:
        """What its classes took."""
        return {node: seconds for node, seconds in self.parts.items() if _is_class(node)}


def _is_class(node: str) -> bool:
    """Return whether a node id is a class's, and no test's."""
    return node.count("::") == 1


class Durations(Model):
    """A table of durations."""

    schema_version: Literal[1] = 1
    files: dict[str, FileDuration] = {}  # noqa: RUF012 - pydantic copies it


@dataclass(frozen=True, kw_only=True, order=True)
class Shard:
    """One of several equal parts of the tests: ``index`` from 1 to ``count``."""

    index: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str) -> Shard:
    """Read ``k/n``."""
    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if match is not None:
        shard = Shard(
            index=int(match[1]),
            count=int(match[2]),
        )
        if 1 <= shard.index <= shard.count:
            return shard
    raise UsageError(f"--shard {text!r} is not K/N with K from 1 to N, such as 2/6.")


@dataclass(frozen=True, kw_only=True, order=True)
class Unit:
    """What runs in one shard as a whole: a class, or the rest of a file, by its node id."""

    file: str
    node: str
    seconds: float

    @property
    def is_class(self) -> bool:
        """Whether it is a class of its file."""
        return self.node != self.file


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one shard runs of a file.

    Attributes:
        classes: Classes that this shard runs.
        other_classes: Classes that others run.
        has_rest: Whether this shard runs what is in none of them.
    """

    file: str
    classes: frozenset[str] = frozenset()
    other_classes: frozenset[str] = frozenset()
    has_rest: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether the shard runs the whole file."""
        return self.has_rest and not self.other_classes

    def takes(self, test: str) -> bool:
        """Return whether the shard runs a test, by its node id."""
        file, _separator, names = test.partition("::")
        class_name = names.partition("::")[0]
        class_of_test = f"{file}::{class_name}"
        if class_of_test in self.classes:
            return True
        return self.has_rest and class_of_test not in self.other_classes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All shards: what each runs, and how long that takes."""

    shards: tuple[tuple[Unit, ...], ...]
    seconds: tuple[float, ...]

    @property
    def digest(self) -> str:
        """What shards that were planned alike agree on."""
        return files.digest_of([_nodes_of(units) for units in self.shards])

    @property
    def imbalance(self) -> float:
        """How much longer than the mean the longest shard takes: 1.0 is even."""
        mean = sum(self.seconds) / len(self.seconds)
        return max(self.seconds) / mean if mean else 1.0

    def parts(self, shard: Shard) -> tuple[Part, ...]:
        """Return what a shard runs, the longest file first."""
        units_of_shard = self.shards[shard.index - 1]
        nodes = set(_nodes_of(units_of_shard))
        seconds: dict[str, float] = defaultdict(float)
        for unit in units_of_shard:
            seconds[unit.file] += unit.seconds

        classes = self._divided_classes()
        parts: list[Part] = []
        for file in sorted(seconds, key=lambda file: (-seconds[file], file)):
            part = Part(
                file=file,
                classes=frozenset(classes[file] & nodes),
                other_classes=frozenset(classes[file] - nodes),
                has_rest=file in nodes,
            )
            parts.append(part)
        return tuple(parts)

    def _divided_classes(self) -> Mapping[str, set[str]]:
        """Return the classes of each file that go to some shard by themselves."""
        classes: dict[str, set[str]] = defaultdict(set)
        for units in self.shards:
            for unit in units:
                if unit.is_class:
                    classes[unit.file].add(unit.node)
        return classes


def _nodes_of(units: Sequence[Unit]) -> list[str]:
    return [unit.node for unit in units]


def plan(
    test_files: Iterable[str],
    durations: Durations,
    count: int,
) -> Plan:
    """Put test files into shards."""
    names = sorted(set(test_files))
    if not names:
        raise MissingInputError("There are no test files to put into shards.")

    expected = _expected_durations(names, durations)
    whole_files: list[Unit] = []
    for name in names:
        unit = Unit(
            file=name,
            node=name,
            seconds=expected[name].seconds,
        )
        whole_files.append(unit)
    plan_of_files = _place(whole_files, expected, count)
    if plan_of_files.imbalance <= BALANCE:
        return plan_of_files

    longest_whole = sum(plan_of_files.seconds) / count * _DIVIDED
    units: list[Unit] = []
    for unit in whole_files:
        if unit.seconds > longest_whole:
            units += _divide(unit, expected[unit.file])
        else:
            units.append(unit)
    plan_of_classes = _place(units, expected, count)
    return min(
        plan_of_files,
        plan_of_classes,
        key=lambda plan: max(plan.seconds),
    )


def _expected_durations(names: Sequence[str], durations: Durations) -> Mapping[str, FileDuration]:
    """Return what files take: of unknown ones the median of the known, of those that run if there are any."""
    recorded = {name: durations.files[name] for name in names if name in durations.files}
    typical = _typical_duration(list((recorded or durations.files).values()))
    return {name: recorded.get(name, typical) for name in names}


def _typical_duration(durations: Sequence[FileDuration]) -> FileDuration:
    """Return the medians."""
    if not durations:
        return FileDuration(seconds=1.0)
    seconds = [duration.seconds for duration in durations]
    starting = [duration.starting for duration in durations]
    return FileDuration(
        seconds=median(seconds),
        starting=median(starting),
    )


def _divide(unit: Unit, duration: FileDuration) -> Sequence[Unit]:
    """Return the classes of a file, and what is left of it, so that nothing is lost."""
    units: list[Unit] = []
    remaining_seconds = unit.seconds
    for node, seconds in sorted(duration.classes.items()):
        class_unit = Unit(file=unit.file, node=node, seconds=seconds)
        units.append(class_unit)
        remaining_seconds -= seconds
    other_tests = replace(unit, seconds=max(0.0, remaining_seconds))
    return [*units, other_tests]


class _Load:
    """What a shard runs so far, and how long that takes."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.files: set[str] = set()
        self.seconds = 0.0

    def seconds_with(self, unit: Unit, starting: float) -> float:
        """Return how long it takes with one more unit, whose file has to be started once."""
        if unit.file in self.files:
            return self.seconds + unit.seconds
        return self.seconds + unit.seconds + starting

    def add(self, unit: Unit, starting: float) -> None:
        """Add a unit."""
        self.seconds = self.seconds_with(unit, starting)
        self.units.append(unit)
        self.files.add(unit.file)


def _place(
    units: Sequence[Unit],
    expected: Mapping[str, FileDuration],
    count: int,
) -> Plan:
    """Put the longest unit where the shard stays shortest, and so on; starting a file is part of its time."""
    loads = [_Load() for _index in range(count)]

    def longest_first(unit: Unit) -> tuple[float, str]:
        return (-unit.seconds - expected[unit.file].starting, unit.node)

    for unit in sorted(units, key=longest_first):
        starting = expected[unit.file].starting
        best_load = loads[0]
        for load in loads:
            # Of equal ones the one with fewer files: what takes no known time takes some.
            rank = (load.seconds_with(unit, starting), len(load.files))
            best_rank = (best_load.seconds_with(unit, starting), len(best_load.files))
            if rank < best_rank:
                best_load = load
        best_load.add(unit, starting)

    return Plan(
        shards=tuple(tuple(load.units) for load in loads),
        seconds=tuple(load.seconds for load in loads),
    )


def show(plan: Plan, this_shard: Shard) -> None:
    """Print a row per shard, and what this one runs."""
    rows: list[tuple[str, ...]] = []
    for index, units in enumerate(plan.shards, start=1):
        shard = Shard(index=index, count=len(plan.shards))
        name = f"{shard} (this one)" if shard == this_shard else str(shard)
        file_count = len({unit.file for unit in units})
        class_count = sum(unit.is_class for unit in units)
        duration = console.duration(plan.seconds[index - 1])
        rows.append(
            (
                name,
                str(file_count),
                str(class_count),
                duration,
            )
        )
    console.table(
        (
            "shard",
            "files",
            "classes",
            "expected",
        ),
        rows,
    )

    for part in plan.parts(this_shard):
        classes = sorted(part.classes)
        if part.is_whole:
            console.detail(part.file)
        elif part.has_rest:
            other_classes = ", ".join(sorted(part.other_classes))
            console.detail(f"{part.file}: all but {other_classes}")
        else:
            console.detail(", ".join(classes))


def durations_of(documents: Iterable[Document]) -> Durations:
    """Record what reports say; of several attempts and shards of a file the sum."""
    classes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    seconds: dict[str, float] = defaultdict(float)
    starting: dict[str, float] = defaultdict(float)
    for document in documents:
        for case in document.cases:
            if case.outcome in {"crashed", "timeout"}:
                continue
            file = _without_target(case.file)
            seconds[file] += case.seconds
            plain_name = case.test.partition("[")[0]
            names = plain_name.split("::")[1:]
            if len(names) > 1:
                node = f"{file}::{names[0]}"
                classes[file][node] += case.seconds
        for file, starting_seconds in _starting_seconds(document).items():
            # Shards that share a file start it once each.
            starting[file] = max(starting[file], starting_seconds)

    durations: dict[str, FileDuration] = {}
    for file in sorted(seconds):
        # What is not a file (a report of one that could not be collected) cannot be put into a shard.
        if file.endswith(".py"):
            class_seconds = sorted(classes[file].items())
            durations[file] = FileDuration(
                seconds=round(seconds[file], 3),
                starting=round(starting[file], 3),
                parts={node: round(spent, 3) for node, spent in class_seconds},
            )
    return Durations(files=durations)


def _without_target(file: str) -> str:
    """Return a file's own name: GPUs of several architectures run it one after the other."""
    return file.partition("@")[0]


def _starting_seconds(document: Document) -> Mapping[str, float]:
    """Return what each file took beside its tests."""
    test_seconds: dict[str, float] = defaultdict(float)
    for case in document.cases:
        test_seconds[_without_target(case.file)] += case.seconds

    starting: dict[str, float] = {}
    for suite_name, suite in document.suites.items():
        file = _without_target(suite_name)
        # pytest's suite does not name the file, which is clear where there is but one.
        if len(test_seconds) == 1:
            file = next(iter(test_seconds))
        remaining_seconds = suite.seconds - test_seconds.get(file, 0.0)
        starting[file] = max(starting.get(file, 0.0), remaining_seconds)
    return starting


def latest_key(
    outputs: RunOutputs,
    artifact_group: str,
    config: str,
) -> str:
    """Key of what the last run of a repository recorded; of all runs, so outside of each."""
    return f"{outputs.external_repo}test-durations/{outputs.platform}/{artifact_group}/{config}.json"


def for_run(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
    config: str,
) -> Durations:
    """Return the durations that plan a run: its own, which its first shard takes from the last run."""
    latest = latest_key(outputs, artifact_group, config)
    if not outputs.immutable:
        # The local run is planned anew each time, and its report shows if its shards disagree.
        return _read(store, latest)

    key = f"{outputs.reports_prefix(artifact_group)}/durations-{config}.json"
    if store.find(key) is None:
        try:
            store.put_bytes(
                key,
                _serialized(_read(store, latest)),
                if_match="",
            )
        except ConflictError:
            console.say("Another shard was first to choose the durations; they are taken.")
    return _read(store, key)


def record_durations(
    store: Store, outputs: RunOutputs, artifact_group: str, config: str, durations: Durations
) -> None:
    """Keep what a whole run took, for later ones; files that it did not run keep what was known."""
    key = latest_key(outputs, artifact_group, config)
    known_file = store.find(key)
    merged_files = {**_read(store, key).files, **durations.files}
    merged = Durations(files=dict(sorted(merged_files.items())))
    try:
        store.put_bytes(
            key,
            _serialized(merged),
            if_match=known_file.etag if known_file else "",
        )
    except ConflictError:
        console.say(f"{key}: another run recorded its durations at the same time; those are kept.")


def _read(store: Store, key: str) -> Durations:
    if store.find(key) is None:
        return Durations()
    return parse_json(
        store.read(key).decode(errors="replace"),
        Durations,
        where=f"{store.url}/{key}",
    )


def _serialized(durations: Durations) -> bytes:
    return f"{durations.model_dump_json(indent=1)}\n".encode()
