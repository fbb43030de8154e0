"""The results of one process of a test file: of each test, and of the file where none explains its end.

A process that ended in any way in which pytest does not end by itself has failed, whatever its tests said
before: the test that had started is the one that took it down, else the file as a whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core import console, process
from pytorch_build.check import name_first_few
from pytorch_build.test.junit.document import OUTCOMES, Case, Outcome, merge_attempts_by_test, worst_case
from pytorch_build.test.junit.texts import clean, cut, first_line

if TYPE_CHECKING:
    from core.process import Ending
    from pytorch_build.test.plugin import AppliedRule, EndedEvent, EventLog

# https://docs.pytest.org/en/stable/reference/exit-codes.html
_TESTS_FAILED = 1
_NO_TEST = 5
_ENDS_OF_PYTEST = (0, _TESTS_FAILED, _NO_TEST)
_EXIT_WORDS = {
    2: "was interrupted",
    3: "had an internal error",
    4: "refused its arguments",
}

_OUTCOMES: dict[str, Outcome] = {outcome: outcome for outcome in OUTCOMES}
_OUTCOMES |= {"xpassed": "passed", "rerun": "failed"}
# What pytest-timeout writes, in its older and newer words.
_TIMEOUT = re.compile(r"Timeout \(?>[0-9.]+s\)?")


@dataclass(frozen=True, kw_only=True)
class EndedProcess:
    """A process that ran tests and has ended.

    Attributes:
        ending: How it ended.
        ended_at: When, in seconds since 1970.
        event_logs: What each pytest process in it wrote down; upstream's runner starts several.
        output: The end of what it printed.
    """

    ending: Ending
    ended_at: float
    event_logs: Sequence[EventLog]
    output: str

    @property
    def existing(self) -> frozenset[str] | None:
        """The tests that exist; None where none was collected."""
        existing: set[str] = set()
        has_collected = False
        for event_log in self.event_logs:
            has_collected |= event_log.collected is not None
            existing |= event_log.existing
        return frozenset(existing) if has_collected else None

    @property
    def could_collect(self) -> bool:
        """Whether the tests were collected, and nothing stood in the way."""
        for event_log in self.event_logs:
            if any(result.outcome == "error" for result in event_log.results):
                return False
        return self.existing is not None

    @property
    def running_test(self) -> str | None:
        """The test that had started and not ended; None where none had."""
        for event_log in self.event_logs:
            if event_log.running is not None:
                return event_log.running
        return None

    @property
    def unreached(self) -> set[str]:
        """The tests that were about to run and never started."""
        unreached: set[str] = set()
        for event_log in self.event_logs:
            unreached.update(event_log.unreached)
        return unreached


@dataclass(frozen=True, kw_only=True)
class ProcessResults:
    """The results of a process; `ended_early` says whether it ended before pytest was done."""

    ended_process: EndedProcess
    cases: tuple[Case, ...]
    ended_early: bool = False


def results_of_process(
    file: str,
    ended_process: EndedProcess,
    *,
    test_timeout: float = math.inf,
    may_be_empty: bool,
) -> ProcessResults:
    """Return the results of one process of a test file, whose tests may take `test_timeout` each."""
    cases = _cases_of_tests(file, ended_process.event_logs)
    failure = _failure_of_process(ended_process, cases, test_timeout)
    if failure is not None:
        failed_test = ended_process.running_test or file
        cases[failed_test] = _case_of_failure(file, failed_test, ended_process, failure)
        return ProcessResults(
            ended_process=ended_process,
            cases=tuple(cases.values()),
            ended_early=True,
        )

    repeated_tests = _repeated_tests(ended_process.event_logs)
    if repeated_tests:
        failure = _Failure("error", f"{name_first_few(repeated_tests)} ended more than once")
    elif not cases and not may_be_empty:
        failure = _Failure("error", "no test ran")
    if failure is not None:
        cases[file] = _case_of_failure(file, file, ended_process, failure)
    return ProcessResults(
        ended_process=ended_process,
        cases=tuple(cases.values()),
    )


def result_of_script(
    file: str,
    ending: Ending,
    output: str,
) -> Case:
    """Return the result of a program that is not a test file: it passed if it ended with status 0."""
    failure = _failure_of_stopped(ending)
    if failure is None and ending.returncode != 0:
        line = first_line(message="", text=output) or f"it ended with status {ending.returncode}"
        failure = _Failure("failed", line)
    if failure is None:
        return Case(
            test=file,
            file=file,
            outcome="passed",
            seconds=ending.seconds,
        )
    return Case(
        test=file,
        file=file,
        outcome=failure.outcome,
        seconds=ending.seconds,
        line=failure.line,
        text=cut(clean(output)),
    )


def explanation_by_rule(case: Case, rules: Mapping[str, AppliedRule]) -> str:
    """Return which rule explains that a test was skipped or tried again, and why; "" for none."""
    rule = rules.get(case.rule)
    if rule is None:
        return ""
    was_retried = case.attempts > 1
    if rule.action == "retry":
        explains = was_retried
    else:
        explains = case.outcome in {"skipped", "xfailed"} and not was_retried
    return f"{rule.name}: {rule.reason}" if explains else ""


# Results of tests


def _cases_of_tests(file: str, event_logs: Sequence[EventLog]) -> dict[str, Case]:
    """Return a result for each test; where upstream's runner ran one several times, the worst counts."""
    cases_of_test: dict[str, list[Case]] = {}
    for event_log in event_logs:
        attempts = [
            _case_of_attempt(file, result) for result in event_log.results if result.outcome != "unrun"
        ]
        for case in merge_attempts_by_test(attempts):
            cases_of_test.setdefault(case.test, []).append(case)
    return {test: worst_case(cases) for test, cases in cases_of_test.items()}


def _case_of_attempt(file: str, result: EndedEvent) -> Case:
    """Return one attempt at a test as a result."""
    outcome = _OUTCOMES[result.outcome]
    seconds = max(0.0, result.seconds)
    if outcome == "passed":
        return Case(
            test=result.test,
            file=file,
            outcome=outcome,
            seconds=seconds,
            rule=result.rule,
        )

    line = first_line(result.message, result.text)
    if outcome in {"failed", "error"} and _TIMEOUT.search(line):
        outcome = "timeout"
    return Case(
        test=result.test,
        file=file,
        outcome=outcome,
        seconds=seconds,
        line=line,
        text=cut(clean(result.text or result.message)),
        rule=result.rule,
    )


def _repeated_tests(event_logs: Sequence[EventLog]) -> list[str]:
    """Return the tests that ended more than once in one process although none was tried again."""
    repeated_tests: list[str] = []
    for event_log in event_logs:
        finished: set[str] = set()
        for result in event_log.results:
            if result.test in finished:
                repeated_tests.append(result.test)
            if result.outcome != "rerun":
                finished.add(result.test)
    return sorted(set(repeated_tests))


# Results of processes


@dataclass(frozen=True)
class _Failure:
    """How a process has failed, and why."""

    outcome: Outcome
    line: str


def _case_of_failure(
    file: str,
    test: str,
    ended_process: EndedProcess,
    failure: _Failure,
) -> Case:
    return Case(
        test=test,
        file=file,
        outcome=failure.outcome,
        seconds=ended_process.ending.seconds,
        line=failure.line,
        text=cut(clean(ended_process.output)),
    )


def _failure_of_process(
    ended_process: EndedProcess,
    cases: Mapping[str, Case],
    test_timeout: float,
) -> _Failure | None:
    """Return why a process has failed beside its tests; None where pytest ended by itself."""
    failure = _failure_of_running_test(ended_process, test_timeout) or _failure_of_stopped(
        ended_process.ending
    )
    if failure is not None:
        return failure
    has_failed_tests = any(case.failing for case in cases.values())
    if ended_process.existing is None and not has_failed_tests:
        return _failure_before_tests(ended_process)
    if ended_process.ending.returncode in _EXIT_WORDS:
        # A file that cannot be collected interrupts pytest, and is a result by itself.
        return None if has_failed_tests else _failure_of_pytest(ended_process.ending.returncode)
    return _failure_after_tests(ended_process, has_failed_tests=has_failed_tests)


def _failure_after_tests(ended_process: EndedProcess, *, has_failed_tests: bool) -> _Failure | None:
    """Return what a status says that the tests do not."""
    status = ended_process.ending.returncode
    status_text = process.status(status)
    if status not in _ENDS_OF_PYTEST:
        return _Failure("crashed", f"the interpreter ended with {status_text} after the last test")
    if status == _TESTS_FAILED and not has_failed_tests:
        return _Failure("error", f"pytest ended with {status_text} and named no test as failed")
    # After a failure, pytest's -x leaves out the others.
    if status != _TESTS_FAILED and ended_process.unreached:
        return _Failure("crashed", f"the interpreter ended with {status_text} between two tests")
    return None


def _failure_of_pytest(status: int) -> _Failure:
    """Return how pytest itself failed, by its exit status."""
    words = _EXIT_WORDS[status]
    return _Failure("error", f"pytest {words} ({process.status(status)})")


def _failure_of_running_test(ended_process: EndedProcess, test_timeout: float) -> _Failure | None:
    """Return how the process ended in a test that had started; None where none had."""
    for event_log in ended_process.event_logs:
        if event_log.running is None:
            continue
        if ended_process.ended_at - event_log.last_time >= test_timeout:
            return _Failure("timeout", f"it did not end within {console.duration(test_timeout)}")
        status_text = process.status(ended_process.ending.returncode)
        crash = _Failure("crashed", f"its process ended with {status_text}")
        return _failure_of_stopped(ended_process.ending) or crash
    return None


def _failure_of_stopped(ending: Ending) -> _Failure | None:
    """Return why a process was stopped, or which signal it died of; None where it ended by itself."""
    if ending.stopped is not None:
        return _Failure("timeout" if ending.late else "error", ending.stopped)
    if ending.returncode < 0:
        return _Failure("crashed", f"the interpreter died of {process.status(ending.returncode)}")
    return None


def _failure_before_tests(ended_process: EndedProcess) -> _Failure | None:
    """Return why pytest collected nothing; a file that skips itself as a whole is a result."""
    status = ended_process.ending.returncode
    status_text = process.status(status)
    if status in _EXIT_WORDS:
        return _failure_of_pytest(status)
    if status == 0:
        return _Failure("crashed", f"the interpreter ended with {status_text} before pytest did")
    line = first_line(message="", text=ended_process.output)
    return _Failure("error", f"pytest did not begin ({status_text}): {line}")
