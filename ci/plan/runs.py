"""Which run of CI to take artifacts from: the newest of a commit or of a branch that has some."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from core import console
from core.errors import MissingInputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_RUNS = 200
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_WHOLE = 40


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a workflow."""

    run_id: str
    commit: str
    branch: str
    status: str
    conclusion: str
    created: str
    url: str
    fork: bool
    workflow: str = ""

    @property
    def successful(self) -> bool:
        """Whether it succeeded."""
        return self.status == "completed" and self.conclusion == "success"


@dataclass(frozen=True, kw_only=True)
class RunQuery:
    """Which runs count."""

    repository: str
    workflow: str
    commit: str = ""
    branch: str = ""
    require_successful: bool = True

    def __post_init__(self) -> None:
        if self.commit and not _COMMIT.fullmatch(self.commit):
            raise UsageError(
                f"--commit {self.commit!r} is not a commit.", hint="Give 7 to 40 hexadecimal digits."
            )

    @property
    def what(self) -> str:
        """The runs, in words."""
        kind = "successful run" if self.require_successful else "run"
        where = f"commit {self.commit}" if self.commit else f"branch {self.branch}"
        return f"{kind} of {self.workflow} for {where} in {self.repository}"


class RunSource(Protocol):
    """Where runs are looked up (`ci.github.GitHub`)."""

    def whole_commit(self, repository: str, commit: str) -> str:
        """Return all 40 digits of a commit."""
        ...

    def run(self, repository: str, run_id: str) -> Run:
        """Return one run."""
        ...

    def runs(self, query: RunQuery) -> Iterator[Run]:
        """Yield runs, the newest first, requesting more as they are taken."""
        ...


def find_run(source: RunSource, query: RunQuery, holds_artifacts: Callable[[Run], bool]) -> Run:
    """Find the newest run that counts and has artifacts."""
    if query.commit and len(query.commit) < _WHOLE:
        query = replace(query, commit=source.whole_commit(query.repository, query.commit))
    looked_at = 0
    for run in islice(source.runs(query), MOST_RUNS):
        if query.require_successful and not run.successful:
            continue
        looked_at += 1
        if holds_artifacts(run):
            console.say(f"run {run.run_id} of {run.created}: commit {run.commit[:12]}  {run.url}")
            return run
    if not looked_at:
        hint = "Wait for it to end, or take another one with --no-require-successful."
        raise MissingInputError(f"There is no {query.what}.", hint=hint if query.require_successful else "")
    raise MissingInputError(
        f"The store has artifacts of none of the newest {looked_at}: no {query.what} counts.",
        hint="Their artifacts may be gone: name a newer run, or another store with --from.",
    )
