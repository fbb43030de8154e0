from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from ci.plan.runs import MOST_RUNS, Run, RunQuery, find_run
from core.errors import MissingInputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

QUERY = RunQuery(repository="ROCm/TheRock", workflow="multi_arch_ci.yml", branch="main")
GOOD = Run(
    run_id="1",
    commit="d" * 40,
    branch="main",
    status="completed",
    conclusion="success",
    created="2026-08-22T05:00:00Z",
    url="https://github.com/ROCm/TheRock/actions/runs/1",
    fork=False,
)


@dataclass
class Recorded:
    """A source that gives runs, and notes what it was asked."""

    found: list[Run]
    asked: list[RunQuery] = field(default_factory=list)
    given: int = 0

    def whole_commit(self, repository: str, commit: str) -> str:
        assert repository == QUERY.repository
        return commit.ljust(40, "d")

    def run(self, repository: str, run_id: str) -> Run:
        raise AssertionError(repository, run_id)

    def runs(self, query: RunQuery) -> Iterator[Run]:
        self.asked.append(query)
        for run in self.found:
            self.given += 1
            yield run


def test_the_newest_run_with_artifacts_counts() -> None:
    source = Recorded([replace(GOOD, run_id=str(number)) for number in (5, 4, 3)])
    assert find_run(source, QUERY, lambda run: run.run_id in {"4", "3"}).run_id == "4"
    assert source.given == 2


@pytest.mark.parametrize(
    ("status", "conclusion"), [("completed", "failure"), ("in_progress", ""), ("completed", "cancelled")]
)
def test_only_successful_runs_count_unless_others_may(status: str, conclusion: str) -> None:
    source = Recorded([replace(GOOD, run_id="2", status=status, conclusion=conclusion), GOOD])
    assert find_run(source, QUERY, lambda _: True).run_id == "1"
    assert find_run(source, replace(QUERY, require_successful=False), lambda _: True).run_id == "2"


def test_a_short_commit_is_made_whole_first() -> None:
    source = Recorded([GOOD])
    find_run(source, replace(QUERY, branch="", commit="ddddddd"), lambda _: True)
    assert source.asked[0].commit == "d" * 40
    whole = replace(QUERY, branch="", commit="e" * 40)
    find_run(source, whole, lambda _: True)
    assert source.asked[1] == whole


def test_no_run_and_no_artifacts_are_told_apart() -> None:
    with pytest.raises(MissingInputError, match=r"no successful run of multi_arch_ci.yml for branch main"):
        find_run(Recorded([]), QUERY, lambda _: True)
    with pytest.raises(MissingInputError, match="artifacts of none of the newest 2"):
        find_run(Recorded([GOOD, GOOD]), QUERY, lambda _: False)


def test_the_search_ends() -> None:
    source = Recorded([GOOD] * (MOST_RUNS + 50))
    with pytest.raises(MissingInputError, match=f"newest {MOST_RUNS}"):
        find_run(source, QUERY, lambda _: False)
    assert source.given == MOST_RUNS


@pytest.mark.parametrize("commit", ["main", "abc", "g" * 40, "a" * 41, "../../x"])
def test_other_words_are_no_commit(commit: str) -> None:
    with pytest.raises(UsageError, match="is not a commit"):
        replace(QUERY, commit=commit)
