"""What a report holds: the result of each test, each test file as a whole, and the document around them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from pytorch_build.test.junit.texts import cut

Outcome = Literal["passed", "skipped", "xfailed", "flaky", "error", "failed", "timeout", "crashed"]
# From the best to the worst: of several results of one test, the worst counts; a failed call says more
# than the failed clean-up after it.
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FAILING: frozenset[str] = frozenset({"failed", "error", "timeout", "crashed"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The result of one test.

    Attributes:
        test: Its node id (``test_nn.py::TestNN::test_relu``); the file where the whole file failed.
        outcome: ``flaky`` is failed and then passed; ``crashed`` is a dead interpreter.
        seconds: How long all attempts took.
        line: The first line that matters of why it did not pass.
        text: All output about that, cut to `texts.TEXT_LIMIT` characters.
        file: The test file, or the name of its suite where the report names no file.
        attempts: How often it was tried.
        rule: Why it may be skipped or tried again.
        shard: The shard that ran it (``2/6``), where results of several shards are together.
    """

    test: str
    outcome: Outcome
    seconds: float = 0.0
    line: str = ""
    text: str = ""
    file: str = ""
    attempts: int = 1
    rule: str = ""
    shard: str = ""

    @property
    def failing(self) -> bool:
        """Whether it counts against the wheels."""
        return self.outcome in FAILING


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A test file as a whole: its duration, and its properties."""

    seconds: float = 0.0
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Document:
    """The content of one report: a result per test, in its order.

    Attributes:
        suites: By test file (or the name that the report gives a suite).
        problems: Why the report cannot be trusted as it is: cut off, empty, invalid.
        timestamp: When its first suite began, as written there.
    """

    cases: tuple[Case, ...] = ()
    suites: Mapping[str, Suite] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    timestamp: str = ""

    @property
    def failing(self) -> tuple[Case, ...]:
        """The results that count against the wheels."""
        return tuple(case for case in self.cases if case.failing)


def failure_line(case: Case) -> str:
    """Return a failure in one line: the test, its outcome, and why."""
    line = f"{case.test} {case.outcome}"
    return f"{line}: {case.line}" if case.line else line


# Counts


def count_outcomes(cases: Iterable[Case]) -> dict[str, int]:
    """Return the number of results of each outcome, 0 for those that did not occur."""
    occurrences = Counter(case.outcome for case in cases)
    return {outcome: occurrences[outcome] for outcome in OUTCOMES}


def suite_totals(cases: Collection[Case]) -> dict[str, int]:
    """Return the numbers that JUnit reports give of a suite."""
    by_outcome = count_outcomes(cases)
    errors = by_outcome["error"]
    errors += by_outcome["crashed"]
    errors += by_outcome["timeout"]
    skipped = by_outcome["skipped"]
    skipped += by_outcome["xfailed"]
    return {
        "tests": len(cases),
        "failures": by_outcome["failed"],
        "errors": errors,
        "skipped": skipped,
    }


# Several results of one test


def severity(outcome: Outcome) -> int:
    """Return how bad an outcome is, compared with others."""
    return OUTCOMES.index(outcome)


def worst_case(cases: Sequence[Case]) -> Case:
    """Return one result for several parts of a test (a failed call and a failed teardown, subtests)."""
    if len(cases) == 1:
        return cases[0]

    worst = cases[0]
    seconds = 0.0
    attempts = 1
    texts: list[str] = []
    for case in cases:
        if severity(case.outcome) > severity(worst.outcome):
            worst = case
        seconds += case.seconds
        attempts = max(attempts, case.attempts)
        if case.text and case.text not in texts:
            texts.append(case.text)

    text = cut("\n".join(texts))
    return replace(
        worst,
        seconds=seconds,
        text=text,
        attempts=attempts,
    )


def merge_attempts(attempts: Sequence[Case]) -> Case:
    """Return one result for all attempts at a test, in their order: flaky if it failed and then passed."""
    result = attempts[-1]
    failure = next((case for case in attempts if case.failing), None)
    if failure is not None and result.outcome == "passed":
        result = replace(
            result,
            outcome="flaky",
            line=failure.line,
            text=failure.text,
        )
    elif failure is not None and not result.failing:
        # Skipped after a failure: it was never seen to pass.
        result = failure

    attempt_count = 0
    seconds = 0.0
    for case in attempts:
        attempt_count += case.attempts
        seconds += case.seconds
    return replace(
        result,
        attempts=attempt_count,
        seconds=seconds,
    )


def merge_attempts_by_test(cases: Iterable[Case]) -> Sequence[Case]:
    """Return one result for each test, in their order; of several of one test the first comes first."""
    attempts_of: dict[str, list[Case]] = {}
    for case in cases:
        attempts_of.setdefault(case.test, []).append(case)
    return [merge_attempts(attempts) for attempts in attempts_of.values()]
