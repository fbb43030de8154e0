"""Which shard runs which test files, by what they took in earlier runs.

A plan is pure and deterministic: the same files, durations and number of shards give the same plan on every
machine. Files go where the time stays shortest, longest first. They are not divided: of PyTorch's own files
the longest have one class each, and dividing the others made no longest shard shorter.

All shards of a run must read the same durations, or files would run twice or never: `durations_for_run`
keeps the ones that the first shard found among the run's outputs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from core import console, files
from core.data import Model, parse_json
from core.errors import ConflictError, MissingInputError, UsageError
from core.run import RunOutputs
from core.stores import Store

if TYPE_CHECKING:
    from pytorch_build.test.junit.document import Document


class FileDuration(Model):
    """What one test file took: its tests, and starting it.

    Tables of earlier versions have parts, too: classes and long tests.
    """

    seconds: float = Field(ge=0, allow_inf_nan=False)
    starting: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    parts: dict[str, float] = Field(default={}, exclude=True)

    @property
    def total(self) -> float:
        """The time from its start to its end."""
        return self.seconds + self.starting


class Durations(Model):
    """How long test files take, by their paths."""

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
        shard = Shard(index=int(match[1]), count=int(match[2]))
        if 1 <= shard.index <= shard.count:
            return shard
    raise UsageError(f"--shard {text!r} is not K/N with K from 1 to N, such as 2/6.")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All shards: the files of each, the longest first, and how long they take."""

    shards: tuple[tuple[str, ...], ...]
    seconds: tuple[float, ...]

    @property
    def digest(self) -> str:
        """What shards that were planned alike agree on."""
        return files.digest_of([list(names) for names in self.shards])

    def files_of(self, shard: Shard) -> tuple[str, ...]:
        """Return what a shard runs."""
        return self.shards[shard.index - 1]


def plan_shards(
    test_files: Iterable[str],
    durations: Durations,
    count: int,
) -> Plan:
    """Return which shard runs which test files."""
    names = sorted(set(test_files))
    if not names:
        raise MissingInputError("There are no test files to put into shards.")

    expected = _expected_durations(names, durations)
    shards: list[list[str]] = [[] for _index in range(count)]
    seconds = [0.0] * count
    for name in sorted(names, key=lambda name: (-expected[name].total, name)):
        shortest = 0
        for index in range(count):
            # Of equal ones the one with fewer files: what takes no known time takes some.
            rank = (seconds[index], len(shards[index]))
            if rank < (seconds[shortest], len(shards[shortest])):
                shortest = index
        shards[shortest].append(name)
        seconds[shortest] += expected[name].total

    shards_of_names = tuple(tuple(names) for names in shards)
    return Plan(shards=shards_of_names, seconds=tuple(seconds))


def _expected_durations(
    names: Sequence[str],
    durations: Durations,
) -> Mapping[str, FileDuration]:
    """Return what files take: of unknown ones the median of the known, of those that run if there are any."""
    recorded: dict[str, FileDuration] = {}
    for name in names:
        if name in durations.files:
            recorded[name] = durations.files[name]

    examples = list((recorded or durations.files).values())
    if not examples:
        examples = [FileDuration(seconds=1.0)]
    typical = FileDuration(
        seconds=median(duration.seconds for duration in examples),
        starting=median(duration.starting for duration in examples),
    )
    return {name: recorded.get(name, typical) for name in names}


def print_plan(plan: Plan, this_shard: Shard) -> None:
    """Print a row per shard, and what this one runs."""
    rows: list[tuple[str, ...]] = []
    for index, names in enumerate(plan.shards, start=1):
        shard = Shard(index=index, count=len(plan.shards))
        shard_name = f"{shard} (this one)" if shard == this_shard else str(shard)
        expected_time = console.duration(plan.seconds[index - 1])
        rows.append((shard_name, str(len(names)), expected_time))
    console.table(("shard", "files", "expected"), rows)
    for name in plan.files_of(this_shard):
        console.detail(name)


def durations_of_files(documents: Iterable[Document]) -> Durations:
    """Return how long the files in reports took; of several attempts at a file the sum."""
    test_seconds: dict[str, float] = defaultdict(float)
    start_seconds: dict[str, float] = defaultdict(float)
    for document in documents:
        for case in document.cases:
            if case.outcome not in {"crashed", "timeout"}:
                test_seconds[_without_target(case.file)] += case.seconds
        # Every attempt starts the file again, and a plan counts one start.
        for file, seconds in _start_seconds(document).items():
            start_seconds[file] = max(start_seconds[file], seconds)

    durations: dict[str, FileDuration] = {}
    for file in sorted(test_seconds):
        # What is not a file (a report of one that could not be collected) cannot be put into a shard.
        if file.endswith(".py"):
            durations[file] = FileDuration(
                seconds=round(test_seconds[file], 3),
                starting=round(start_seconds[file], 3),
            )
    return Durations(files=durations)


def _without_target(file: str) -> str:
    """Return a file's own name: GPUs of several architectures run it one after the other."""
    return file.partition("@")[0]


def _start_seconds(document: Document) -> Mapping[str, float]:
    """Return what each file took beside its tests: its process, its imports, and collecting the tests."""
    test_seconds: dict[str, float] = defaultdict(float)
    for case in document.cases:
        test_seconds[_without_target(case.file)] += case.seconds

    start_seconds: dict[str, float] = {}
    for suite_name, suite in document.suites.items():
        file = _without_target(suite_name)
        # pytest's suite does not name the file, which is clear where there is but one.
        if len(test_seconds) == 1:
            file = next(iter(test_seconds))
        remaining_seconds = suite.seconds - test_seconds.get(file, 0.0)
        start_seconds[file] = max(start_seconds.get(file, 0.0), remaining_seconds)
    return start_seconds


def latest_durations_key(
    outputs: RunOutputs,
    artifact_group: str,
    config: str,
) -> str:
    """Return the key of what the last run of a repository recorded; it lies outside of each run."""
    return f"{outputs.external_repo}test-durations/{outputs.platform}/{artifact_group}/{config}.json"


def durations_for_run(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
    config: str,
) -> Durations:
    """Return the durations that plan a run: its own, which its first shard takes from the last run."""
    latest = latest_durations_key(outputs, artifact_group, config)
    if not outputs.immutable:
        # The local run is planned anew each time, and its report shows if its shards disagree.
        return _read_durations(store, latest)

    key = f"{outputs.reports_prefix(artifact_group)}/durations-{config}.json"
    if store.find(key) is None:
        try:
            content = _serialized(_read_durations(store, latest))
            store.put_bytes(key, content, if_match="")
        except ConflictError:
            console.say("Another shard was first to choose the durations; they are taken.")
    return _read_durations(store, key)


def record_durations(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
    config: str,
    durations: Durations,
) -> None:
    """Keep what a whole run took, for later ones; files that it did not run keep what was known."""
    key = latest_durations_key(outputs, artifact_group, config)
    known_file = store.find(key)
    merged_files = {**_read_durations(store, key).files, **durations.files}
    merged = Durations(files=dict(sorted(merged_files.items())))
    known_tag = known_file.etag if known_file else ""
    try:
        store.put_bytes(key, _serialized(merged), if_match=known_tag)
    except ConflictError:
        console.say(f"{key}: another run recorded its durations at the same time; those are kept.")


def _read_durations(store: Store, key: str) -> Durations:
    if store.find(key) is None:
        return Durations()
    text = store.read(key).decode(errors="replace")
    return parse_json(text, Durations, where=f"{store.url}/{key}")


def _serialized(durations: Durations) -> bytes:
    return f"{durations.model_dump_json(indent=1)}\n".encode()
