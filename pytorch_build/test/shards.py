"""Which shard runs which test, by what tests took in earlier runs.

A plan is pure and deterministic: the same files, durations and number of shards give the same plan on every
machine. Whole files go where the time stays shortest, longest first. A file is taken apart only where the
shards would differ by more than `BALANCE` otherwise: first into its classes, then into tests. What has no
recorded duration (a new class, a new test) belongs to the rest of its file, and so to exactly one shard.

All shards of a run must read the same durations, or tests would run twice or never: `for_run` keeps the
ones that the first shard found among the run's outputs. Reports name the plan that they come from.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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

# how much longer than their mean the longest shard may take
BALANCE = 1.1
# tests that take less stay with their class: a plan of every test would be megabytes
LISTED_SECONDS = 1.0


class FileDuration(Model):
    """What one test file took."""

    seconds: float = Field(ge=0, allow_inf_nan=False)
    starting: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    parts: dict[str, float] = {}  # noqa: RUF012 - pydantic copies it


class Durations(Model):
    """A table of durations."""

    schema_version: Literal[1] = 1
    files: dict[str, FileDuration] = {}  # noqa: RUF012 - pydantic copies it

    def below(self, file: str, part: str) -> Sequence[tuple[str, float]]:
        """Return the parts directly below a file or class, sorted."""
        known = self.files.get(file, FileDuration(seconds=0))
        above, depth = f"{part or file}::", (part or file).count("::") + 1
        return sorted(
            (name, seconds)
            for name, seconds in known.parts.items()
            if name.startswith(above) and name.count("::") == depth
        )


@dataclass(frozen=True, kw_only=True, order=True)
class Shard:
    """One of several equal parts of the tests: ``index`` from 1 to ``count``."""

    index: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str) -> Shard:
    """Read ``k/n``."""
    found = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"--shard {text!r} is not K/N with K from 1 to N, such as 2/6.")
    return Shard(index=int(found[1]), count=int(found[2]))


@dataclass(frozen=True, kw_only=True, order=True)
class Unit:
    """What runs in one shard as a whole: a file, or what is at or below a node id of it."""

    file: str
    part: str = ""
    seconds: float = 0.0

    @property
    def prefix(self) -> str:
        """The node id that it begins with."""
        return self.part or self.file


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one shard runs of a file: the tests that are nearer to `keep` than to `drop`."""

    file: str
    keep: tuple[str, ...]
    drop: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the shard runs the whole file."""
        return not self.drop

    def takes(self, test: str) -> bool:
        """Whether the shard runs a test, by its node id."""
        return _nearest(test, self.keep) > _nearest(test, self.drop)


def _nearest(test: str, prefixes: Iterable[str]) -> int:
    """Return the length of the longest of these node ids that a test is, or is below; 0 for none."""
    return max(
        (len(one) for one in prefixes if test == one or test.startswith((f"{one}::", f"{one}["))), default=0
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All shards."""

    shards: tuple[tuple[Unit, ...], ...]
    seconds: tuple[float, ...]

    @property
    def digest(self) -> str:
        """What shards that were planned alike agree on."""
        return files.digest_of([[unit.prefix for unit in units] for units in self.shards])

    @property
    def imbalance(self) -> float:
        """How much longer than the mean the longest shard takes: 1.0 is even."""
        mean = sum(self.seconds) / len(self.seconds)
        return max(self.seconds) / mean if mean else 1.0

    def parts(self, shard: Shard) -> tuple[Part, ...]:
        """Return what a shard runs, the longest file first."""
        everywhere: dict[str, set[str]] = defaultdict(set)
        for units in self.shards:
            for unit in units:
                everywhere[unit.file].add(unit.prefix)
        seconds: dict[str, float] = defaultdict(float)
        mine: dict[str, set[str]] = defaultdict(set)
        for unit in self.shards[shard.index - 1]:
            seconds[unit.file] += unit.seconds
            mine[unit.file].add(unit.prefix)
        return tuple(
            Part(file=file, keep=tuple(sorted(mine[file])), drop=tuple(sorted(everywhere[file] - mine[file])))
            for file in sorted(mine, key=lambda file: (-seconds[file], file))
        )


def plan(test_files: Iterable[str], durations: Durations, count: int) -> Plan:
    """Put test files into shards."""
    named = sorted(set(test_files))
    if not named:
        raise MissingInputError("There are no test files to put into shards.")
    known = {name: one for name, one in durations.files.items() if name in named} or durations.files
    typical = FileDuration(
        seconds=median([one.seconds for one in known.values()] or [1.0]),
        starting=median([one.starting for one in known.values()] or [0.0]),
    )
    units = [Unit(file=name, seconds=known.get(name, typical).seconds) for name in named]
    placed = partial(
        _placed, starting={name: known.get(name, typical).starting for name in named}, count=count
    )
    best = tried = placed(units)
    while tried.imbalance > BALANCE:
        apart = _apart(units, durations, total=sum(tried.seconds) / count)
        if apart is None:
            break
        units = apart
        tried = placed(units)
        best = min(best, tried, key=lambda one: max(one.seconds))
    return best


def _placed(units: Sequence[Unit], *, starting: Mapping[str, float], count: int) -> Plan:
    """Put the longest unit where the shard stays shortest, and so on; starting a file is part of its time."""
    loads = [0.0] * count
    shards: list[list[Unit]] = [[] for _ in range(count)]
    held: list[set[str]] = [set() for _ in range(count)]
    for unit in sorted(units, key=lambda one: (-one.seconds - starting[one.file], one.file, one.part)):
        after = [
            load + unit.seconds + (0 if unit.file in held[at] else starting[unit.file])
            for at, load in enumerate(loads)
        ]
        # of equal ones the one with fewer files: what takes no known time takes some
        best = min(range(count), key=lambda at: (after[at], len(held[at]), at))
        loads[best] = after[best]
        shards[best].append(unit)
        held[best].add(unit.file)
    return Plan(shards=tuple(map(tuple, shards)), seconds=tuple(loads))


def _apart(units: Sequence[Unit], durations: Durations, *, total: float) -> list[Unit] | None:
    """Take the longest unit apart that can be and matters; None where there is none."""
    enough = total * (BALANCE - 1) / 2
    named = {unit.part for unit in units}
    for unit in sorted(units, key=lambda one: (-one.seconds, one.file, one.part)):
        if unit.seconds <= enough:
            return None
        inner = [
            Unit(file=unit.file, part=name, seconds=seconds)
            for name, seconds in durations.below(unit.file, unit.part)
            if name not in named
        ]
        if inner:
            # the rest stays what it was, less what is named now, so that nothing is lost
            rest = replace(unit, seconds=max(0.0, unit.seconds - sum(one.seconds for one in inner)))
            return [*(one for one in units if one != unit), rest, *inner]
    return None


def show(made: Plan, mine: Shard) -> None:
    """Print a row per shard, and what this one runs."""
    rows = [
        (
            f"{at}/{len(made.shards)}{' (this one)' if at == mine.index else ''}",
            str(len({unit.file for unit in units})),
            str(sum(bool(unit.part) for unit in units)),
            console.duration(seconds),
        )
        for at, (units, seconds) in enumerate(zip(made.shards, made.seconds, strict=True), start=1)
    ]
    console.table(("shard", "files", "parts of files", "expected"), rows)
    for part in made.parts(mine):
        console.detail(part.file if part.whole else f"{part.file}: {', '.join(part.keep)}")


def durations_of(documents: Iterable[Document]) -> Durations:
    """Record what reports say; of several attempts and shards of a file the sum."""
    tests: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    started: dict[str, float] = defaultdict(float)
    for document in documents:
        spent: dict[str, float] = defaultdict(float)
        for case in document.cases:
            # GPUs run a file one after the other
            file = case.file.partition("@")[0]
            spent[file] += case.seconds
            if case.outcome not in {"crashed", "timeout"}:
                names = case.test.partition("[")[0].partition("::")[2]
                tests[file][f"{file}::{names}" if names else file] += case.seconds
        for suite_name, suite in document.suites.items():
            # pytest's suite does not name the file, which is clear where there is but one
            name = next(iter(spent)) if len(spent) == 1 else suite_name.partition("@")[0]
            # shards that share a file start it once each
            started[name] = max(started[name], suite.seconds - spent.get(name, 0.0), 0.0)
    # what is not a file (a report of one that could not be collected) cannot be put into a shard
    named = sorted(name for name in tests if name.endswith(".py"))
    return Durations(files={name: _of_file(tests[name], started[name]) for name in named})


def _of_file(tests: dict[str, float], starting: float) -> FileDuration:
    parts: dict[str, float] = defaultdict(float)
    for test, seconds in tests.items():
        file, *names = test.split("::")
        if len(names) > 1:
            parts[f"{file}::{names[0]}"] += seconds
        if seconds >= LISTED_SECONDS and names:
            parts[test] += seconds
    return FileDuration(
        seconds=round(sum(tests.values()), 3),
        starting=round(starting, 3),
        parts={name: round(seconds, 3) for name, seconds in sorted(parts.items())},
    )


def latest_key(outputs: RunOutputs, artifact_group: str, config: str) -> str:
    """Key of what the last run of a repository recorded; of all runs, so outside of each."""
    return f"{outputs.external_repo}test-durations/{outputs.platform}/{artifact_group}/{config}.json"


def for_run(store: Store, outputs: RunOutputs, artifact_group: str, config: str) -> Durations:
    """Return the durations that plan a run: its own, which its first shard takes from the last run."""
    own = f"{outputs.reports_prefix(artifact_group)}/durations-{config}.json"
    latest = latest_key(outputs, artifact_group, config)
    if not outputs.immutable:
        # the local run is planned anew each time, and its report shows if its shards disagree
        return _read(store, latest)
    if store.find(own) is None:
        try:
            store.put_bytes(own, _serialized(_read(store, latest)), if_match="")
        except ConflictError:
            console.say("Another shard was first to choose the durations; they are taken.")
    return _read(store, own)


def record_durations(
    store: Store, outputs: RunOutputs, artifact_group: str, config: str, durations: Durations
) -> None:
    """Keep what a whole run took, for later ones; files that it did not run keep what was known."""
    key = latest_key(outputs, artifact_group, config)
    before = store.find(key)
    merged = Durations(files=dict(sorted({**_read(store, key).files, **durations.files}.items())))
    try:
        store.put_bytes(key, _serialized(merged), if_match=before.etag if before else "")
    except ConflictError:
        console.say(f"{key}: another run recorded its durations at the same time; those are kept.")


def _read(store: Store, key: str) -> Durations:
    if store.find(key) is None:
        return Durations()
    return parse_json(store.read(key).decode(errors="replace"), Durations, where=f"{store.url}/{key}")


def _serialized(found: Durations) -> bytes:
    return f"{found.model_dump_json(indent=1)}\n".encode()
