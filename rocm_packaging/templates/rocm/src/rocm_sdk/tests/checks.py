"""Checks and their results: one a fact or library, run side by side, reported in a fixed order."""

import os
import time
from concurrent.futures import ThreadPoolExecutor


class Skip(Exception):
    """A check that does not apply to what is installed, with the reason."""


class Check:
    """One check: a name that is the same in every run, and a function that raises where it fails.

    What the function returns, if anything, is a remark for people.
    """

    def __init__(self, group, name, function, *arguments):
        self.group = group
        self.name = name
        self._function = function
        self._arguments = arguments

    def run(self):
        started = time.monotonic()
        try:
            outcome, text = "passed", self._function(*self._arguments) or ""
        except Skip as reason:
            outcome, text = "skipped", str(reason)
        except AssertionError as problem:
            outcome, text = "failed", str(problem) or "an assertion without words"
        except Exception as problem:  # a check that breaks has not passed
            outcome, text = "failed", f"{type(problem).__name__}: {problem}"
        return Result(self, outcome, text, time.monotonic() - started)


class Result:
    """What came of a check: ``passed``, ``skipped`` or ``failed``, why, and in how many seconds."""

    def __init__(self, check, outcome, text, seconds):
        self.group = check.group
        self.name = check.name
        self.outcome = outcome
        self.text = text
        self.seconds = seconds


def results_of(checks, jobs=None):
    """Run checks side by side; their results, in the order of the checks."""
    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        yield from pool.map(Check.run, checks)


def expect(condition, problem):
    """Fail with a sentence unless a condition holds."""
    if not condition:
        raise AssertionError(problem)


def expect_none(problems, what, shown=20):
    """Fail where there are problems, and list the first of them."""
    problems = list(problems)
    more = f"\n… and {len(problems) - shown} more" if len(problems) > shown else ""
    lines = "\n".join(str(problem) for problem in problems[:shown])
    expect(not problems, f"{len(problems)} {what}:\n{lines}{more}")
