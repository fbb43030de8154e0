"""Which shard runs which test: whole files by recorded durations, longest first; big files in parts.

Pure and deterministic: the same files, durations and number of shards give the same plan on every machine,
whatever the order they come in. A file is taken apart only where the shards would differ by more than
`BALANCE` otherwise: first into its classes, then into tests. What nobody has recorded (a new class,
a new test) belongs to the rest of its file, and so to exactly one shard.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from core import console, files
from core.data import Model, parse_json, read_text
from core.errors import ConflictError, MissingInputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from core.junit import Document
    from core.run.outputs import RunOutputs
    from core.stores import Store


# how much longer than their mean the longest shard may take
BALANCE = 1.1
_SHARD = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")
_UNKNOWN_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, order=True)
class Shard:
    """One of several equal parts of the tests: ``index`` from 1 to ``count``."""

    index: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str) -> Shard:
    """Read ``k/n``."""
    found = _SHARD.fullmatch(text)
    if not found:
        raise UsageError(f"--shard {text!r} is not K/N, such as 2/6.")
    index, count = int(found[1]), int(found[2])
    if not count:
        raise UsageError(f"--shard {text!r}: the tests cannot be in 0 shards.")
    if not 1 <= index <= count:
        raise UsageError(
            f"--shard {text!r}: there is no shard {index} of {count}.", hint=f"1/{count} is the first."
        )
    return Shard(index=index, count=count)


@dataclass(frozen=True, kw_only=True, order=True)
class Unit:
    """What is run in one shard as a whole."""

    file: str
    part: str = ""
    seconds: float = 0.0

    @property
    def prefix(self) -> str:
        """The node id that it begins with."""
        return self.part or self.file


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one shard runs of a file."""

    file: str
    keep: tuple[str, ...]
    drop: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the shard runs the whole file."""
        return not self.drop

    def takes(self, test: str) -> bool:
        """Say whether the shard runs a test, by its node id."""
        keep, drop = _nearest(test, self.keep), _nearest(test, self.drop)
        return keep > drop


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
        """Give what a shard runs, the longest file first."""
        everywhere: dict[str, set[str]] = defaultdict(set)
        for units in self.shards:
            for unit in units:
                everywhere[unit.file].add(unit.prefix)
        mine: dict[str, list[Unit]] = defaultdict(list)
        for unit in self.shards[shard.index - 1]:
            mine[unit.file].append(unit)
        ordered = sorted(mine, key=lambda file: (-sum(unit.seconds for unit in mine[file]), file))
        return tuple(_part(file, {unit.prefix for unit in mine[file]}, everywhere[file]) for file in ordered)


def plan(test_files: Iterable[str], durations: Durations, count: int) -> Plan:
    """Put test files into shards."""
    named = sorted(set(test_files))
    if not named:
        raise MissingInputError("There are no test files to put into shards.")
    known = {name: one for name, one in durations.files.items() if name in named} or durations.files
    typical = median([one.seconds for one in known.values()] or [_UNKNOWN_SECONDS])
    typical_start = median([one.starting for one in known.values()] or [0.0])
    units = [Unit(file=name, seconds=known[name].seconds if name in known else typical) for name in named]
    starting = {name: known[name].starting if name in known else typical_start for name in named}
    best = _placed(units, starting, count)
    tried = best
    while tried.imbalance > BALANCE:
        apart = _apart(units, durations, total=sum(tried.seconds) / count)
        if apart is None:
            break
        units = apart
        tried = _placed(units, starting, count)
        if max(tried.seconds) < max(best.seconds):
            best = tried
    return best


def show(made: Plan, mine: Shard) -> None:
    """Print a row a shard, and what this one runs."""
    rows = []
    for at, (units, seconds) in enumerate(zip(made.shards, made.seconds, strict=True), start=1):
        name = f"{at}/{len(made.shards)}"
        test_files = {unit.file for unit in units}
        parts = sum(bool(unit.part) for unit in units)
        rows.append(
            (
                f"{name} (this one)" if at == mine.index else name,
                str(len(test_files)),
                str(parts),
                console.duration(seconds),
            )
        )
    console.table(("shard", "files", "parts of files", "expected"), rows)
    for part in made.parts(mine):
        console.detail(part.file if part.whole else f"{part.file}: {', '.join(part.keep)}")


def _part(file: str, mine: set[str], everywhere: set[str]) -> Part:
    return Part(file=file, keep=tuple(sorted(mine)), drop=tuple(sorted(everywhere - mine)))


def _nearest(test: str, prefixes: Iterable[str]) -> int:
    """Give the length of the longest of these node ids that a test is, or is below; 0 for none."""
    return max(
        (len(one) for one in prefixes if test == one or test.startswith((f"{one}::", f"{one}["))), default=0
    )


def _placed(units: Sequence[Unit], starting: Mapping[str, float], count: int) -> Plan:
    """Put the longest unit where the shard stays shortest, and so on; starting a file is part of its time."""
    loads = [0.0] * count
    shards: list[list[Unit]] = [[] for _ in range(count)]
    held: list[set[str]] = [set() for _ in range(count)]
    for unit in sorted(units, key=lambda one: (-one.seconds - starting[one.file], one.file, one.part)):
        after = [
            load + unit.seconds + (0 if unit.file in held[at] else starting[unit.file])
            for at, load in enumerate(loads)
        ]
        # of equal ones the one with fewer files: what takes no time known takes some
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
            rest = replace(unit, seconds=max(0.0, unit.seconds - sum(one.seconds for one in inner)))
            # the rest stays what it was, less what is named now, so that nothing is lost
            return [*(one for one in units if one != unit), rest, *inner]
    return None


# tests that take less stay with their class: a plan of every test would be megabytes
LISTED_SECONDS = 1.0


class FileDuration(Model):
    """What one test file took."""

    seconds: float = Field(ge=0, allow_inf_nan=False)
    starting: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    parts: dict[str, float] = {}  # noqa: RUF012 - pydantic copies it


class Durations(Model):
    """A table of durations: what ``--durations FILE`` takes."""

    schema_version: Literal[1] = 1
    files: dict[str, FileDuration] = {}  # noqa: RUF012 - pydantic copies it

    def below(self, file: str, part: str) -> Sequence[tuple[str, float]]:
        """Give the parts directly below a file or class, sorted."""
        known = self.files.get(file)
        above, depth = f"{part or file}::", (part or file).count("::") + 1
        listed = known.parts.items() if known else ()
        return sorted(
            (name, seconds)
            for name, seconds in listed
            if name.startswith(above) and name.count("::") == depth
        )


def of_documents(documents: Iterable[Document]) -> Durations:
    """Record what reports say; of several attempts and shards of a file the sum."""
    tests: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    started: dict[str, float] = defaultdict(float)
    for document in documents:
        spent: dict[str, float] = defaultdict(float)
        for case in document.cases:
            file = _plain(case.file)
            spent[file] += case.seconds
            if case.outcome not in {"crashed", "timeout"}:
                names = case.test.partition("[")[0].partition("::")[2]
                tests[file][f"{file}::{names}" if names else file] += case.seconds
        for suite_name, suite in document.suites.items():
            # pytest names its suite after nothing, which is of one file where there is but one
            name = next(iter(spent)) if len(spent) == 1 else _plain(suite_name)
            # shards that share a file start it once each
            started[name] = max(started[name], suite.seconds - spent.get(name, 0.0), 0.0)
    # what is no file (a report of one that could not be collected) cannot be put into a shard
    named = sorted(name for name in tests if name.endswith(".py"))
    return Durations(files={name: _of_file(tests[name], started[name]) for name in named})


def read_durations(path: Path) -> Durations:
    """Read a table that a person names."""
    return parse_json(read_text(path), Durations, where=path)


def latest_key(outputs: RunOutputs, artifact_group: str, config: str) -> str:
    """Key of what the last run of a repository recorded; of all runs, so outside of each."""
    return f"{outputs.external_repo}test-durations/{outputs.platform}/{artifact_group}/{config}.json"


def run_key(outputs: RunOutputs, artifact_group: str, config: str) -> str:
    """Key of the durations that all shards of a run are planned by."""
    return f"{outputs.reports_prefix(artifact_group)}/durations-{config}.json"


def for_run(store: Store, outputs: RunOutputs, artifact_group: str, config: str) -> Durations:
    """Give the durations that a run is planned by: its own, which the first shard takes from the last run."""
    own = run_key(outputs, artifact_group, config)
    latest = latest_key(outputs, artifact_group, config)
    if not outputs.immutable:
        # the local run is planned anew each time, and its report says if its shards disagree
        return _read(store, latest)
    if store.find(own) is None:
        found = _read(store, latest)
        try:
            store.put_bytes(own, _serialized(found), if_match="")
        except ConflictError:
            console.say("Another shard was first to choose the durations; they are taken.")
    return _read(store, own)


def record(store: Store, outputs: RunOutputs, artifact_group: str, config: str, found: Durations) -> None:
    """Keep what a whole run took, for later ones; files that it did not run keep what was known."""
    key = latest_key(outputs, artifact_group, config)
    before = store.find(key)
    known = _read(store, key)
    merged = Durations(files=dict(sorted({**known.files, **found.files}.items())))
    try:
        store.put_bytes(key, _serialized(merged), if_match=before.etag if before else "")
    except ConflictError:
        console.say(f"{key}: another run recorded its durations at this moment; its own stay.")


def _plain(file: str) -> str:
    """Give a test file without the GPU that it ran on, which is one run after the other."""
    return file.partition("@")[0]


def _of_file(tests: dict[str, float], starting: float) -> FileDuration:
    parts: dict[str, float] = defaultdict(float)
    for test, seconds in tests.items():
        pieces = test.split("::")
        if len(pieces) > 2:  # noqa: PLR2004 - file, class, test
            parts["::".join(pieces[:2])] += seconds
        if seconds >= LISTED_SECONDS and len(pieces) > 1:
            parts[test] += seconds
    return FileDuration(
        seconds=round(sum(tests.values()), 3),
        starting=round(starting, 3),
        parts={name: round(seconds, 3) for name, seconds in sorted(parts.items())},
    )


def _read(store: Store, key: str) -> Durations:
    if store.find(key) is None:
        return Durations()
    return parse_json(store.read(key).decode(errors="replace"), Durations, where=f"{store.url}/{key}")


def _serialized(found: Durations) -> bytes:
    return f"{found.model_dump_json(indent=1)}\n".encode()
