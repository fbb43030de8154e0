"""How long tests took: recorded by earlier runs, read by shards.

All shards of a run must read the same durations, or tests would run twice or never: `for_run` keeps the
ones that the first shard found among the run's outputs. Reports name the plan that they come from.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from core import console
from core.data import Model, parse_json, read_text
from core.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from core.junit import Document
    from core.run.outputs import RunOutputs
    from core.stores import Store

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
