"""Results of tests as `unittest` reports them: rows with an outcome, a reason and a duration; a JSON file."""

import json
import os
import re
import tempfile
import time
import unittest

_OUTCOMES_IN_LINES = {"passed": "ok", "skipped": "skip", "failed": "FAIL"}


class Recorder(unittest.TestResult):
    """Keeps a row a test: group, name, outcome (passed, skipped, failed), text, traceback, seconds.

    It takes what `unittest.TextTestRunner` gives to a class of results, and can be one.
    """

    def __init__(self, stream=None, descriptions=None, verbosity=None):
        super().__init__(stream, descriptions, verbosity)
        self._rows_by_test = {}
        self._starts = {}

    @property
    def rows(self):
        """The rows, in the order in which the tests result."""
        return list(self._rows_by_test.values())

    def startTest(self, test):
        super().startTest(test)
        self._starts[test.id()] = time.monotonic()

    def addSuccess(self, test):
        super().addSuccess(test)
        self._add_row(test, "passed")

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self._add_row(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._add_row(test, "skipped", text=reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._add_row(
            test, "failed", text=_reason(err), traceback=self.failures[-1][1]
        )

    def addError(self, test, err):
        super().addError(test, err)
        self._add_row(
            test, "failed", text=_reason(err), traceback=self.errors[-1][1]
        )

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self._add_row(test, "failed", text="it passed, and is expected to fail")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            traceback = [*self.errors, *self.failures][-1][1]
            self._add_row(test, "failed", text=_reason(err), traceback=traceback)

    def _add_row(self, test, outcome, *, text="", traceback=""):
        """Add a test's row, unless one of its subtests has failed before."""
        started = self._starts.get(test.id(), time.monotonic())
        row = {
            "group": getattr(test, "group", None) or _group_of_module(test.id()),
            "name": getattr(test, "name", None) or _name_of_function(test.id()),
            "outcome": outcome,
            "text": text,
            "traceback": traceback,
            "seconds": round(time.monotonic() - started, 3),
        }
        self._rows_by_test.setdefault(test.id(), row)


def _reason(error):
    """Return why a test failed: an assertion's sentence, else the exception."""
    _, exception, _ = error
    if not isinstance(exception, AssertionError):
        return f"{type(exception).__name__}: {exception}"
    return str(exception) or "an assertion without words"


def _group_of_module(identifier):
    """Return ``core`` for ``rocm_sdk.tests.core_test.CoreTest.test_x``."""
    module = re.search(r"(\w+?)_test\b", identifier)
    return module[1] if module else "base"


def _name_of_function(identifier):
    """Return ``test_x``; ``setUpClass`` for ``setUpClass (rocm_sdk.tests.core_test.CoreTest)``."""
    return identifier.partition(" (")[0].rpartition(".")[2]


def line(row):
    """Return a line about a row; a failure's text follows it."""
    head = (
        f"{_OUTCOMES_IN_LINES[row['outcome']]:4}  {row['group']}: {row['name']}"
    )
    text = row["text"]
    if not text:
        return head
    if row["outcome"] == "failed":
        return head + "".join(
            f"\n      {text_line}" for text_line in text.splitlines()
        )
    return f"{head} ({text})"


def count_outcomes(rows):
    """Return how many rows there are of each outcome."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for row in rows:
        counts[row["outcome"]] += 1
    return counts


def write(path, facts, rows):
    """Write a report, `facts` about the installation and the rows, that is there whole or not at all."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".rocm-sdk-test-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump({"facts": facts, "checks": rows}, stream, indent=1)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
