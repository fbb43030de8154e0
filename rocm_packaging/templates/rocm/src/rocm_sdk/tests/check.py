"""Checks of an installation: tests of which there is one a fact or library, run side by side."""

import os
import unittest
from concurrent.futures import ThreadPoolExecutor

from . import report


class Check(unittest.TestCase):
    """One check: a name that is the same in every run, and a function that raises where it fails.

    It is skipped where the function raises `unittest.SkipTest`.
    """

    def __init__(self, group, name, function, *arguments):
        super().__init__("check")
        self.group = group
        self.name = name
        self._function = function
        self._arguments = arguments

    def id(self):
        return f"rocm_sdk.{self.group}.{self.name}"

    def check(self):
        self._function(*self._arguments)


def skipped_check(group, name, reason):
    """Return a check that does not apply to what is installed."""

    def skip():
        raise unittest.SkipTest(reason)

    return Check(group, name, skip)


def run_check(check):
    """Return the row of a check."""
    # a result of its own, as those of unittest are not made for several threads
    recorder = report.Recorder()
    check.run(recorder)
    (row,) = recorder.rows
    return row


def run_checks(checks, jobs=None):
    """Run checks side by side; yield their rows, in the order of the checks.

    Most of a check is a process that loads a library or starts a program; there are a thousand of them.
    """
    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        yield from pool.map(run_check, checks)


def expect(condition, problem):
    """Fail with a sentence unless a condition holds."""
    if not condition:
        raise AssertionError(problem)


def expect_none(problems, description, most_listed=20):
    """Fail where there are problems, and list the first of them."""
    problems = [str(problem) for problem in problems]
    if not problems:
        return

    lines = [f"{len(problems)} {description}:", *problems[:most_listed]]
    if len(problems) > most_listed:
        lines.append(f"… and {len(problems) - most_listed} more")
    raise AssertionError("\n".join(lines))


def expect_files(paths):
    """Fail where a file is missing or empty."""
    expect_none(
        (path for path in paths if not path.is_file()), "files are missing"
    )
    expect_none(
        (path for path in paths if not path.stat().st_size), "files are empty"
    )
