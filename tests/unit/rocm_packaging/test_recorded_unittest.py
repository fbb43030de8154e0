"""The results of a `rocm_sdk` that others built: its tests run by `unittest`, each a row of a report."""

import sys
from pathlib import Path

import pytest

from core import process
from rocm_packaging import recorded_unittest
from rocm_packaging.sdk_report import CheckResult, SdkReport, read_report
from rocm_packaging.selftest import REPORT_MODULE
from tests.kit.rocm_sdk import install_files, install_metadata

# As TheRock's packages run their tests.
MAIN = """
import sys
import unittest

def main(argv):
    assert argv == ["test"]
    suite = unittest.TestLoader().loadTestsFromName("rocm_sdk.tests.core_test")
    if not unittest.TextTestRunner(stream=sys.stdout, verbosity=3).run(suite).wasSuccessful():
        sys.exit(1)
"""
TESTS = """
import unittest

class CoreTest(unittest.TestCase):
    def test_passes(self):
        print("no line end", end="")

    def test_fails_with_many_lines(self):
        raise AssertionError("the layout is another one\\n\\n- two\\n+ lines")

    def test_fails_in_subtest(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)

    def test_raises(self):
        raise OSError("libx.so: cannot open")

    @unittest.skip("it's no GPU")
    def test_is_skipped(self):
        raise AssertionError

    @unittest.expectedFailure
    def test_fails_as_expected(self):
        raise AssertionError

    @unittest.expectedFailure
    def test_passes_unexpectedly(self):
        pass

class BrokenTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise ValueError("no folder")

    def test_never_runs(self):
        pass
"""
PASSING_TESTS = """
import unittest

class CoreTest(unittest.TestCase):
    def test_passes(self):
        pass
"""
EXPECTED_RESULTS = {
    "test_passes": ("passed", ""),
    "test_fails_with_many_lines": ("failed", "the layout is another one"),
    "test_fails_in_subtest": ("failed", "1 == 1"),
    "test_raises": ("failed", "OSError: libx.so: cannot open"),
    "test_is_skipped": ("skipped", "it's no GPU"),
    "test_fails_as_expected": ("passed", ""),
    "test_passes_unexpectedly": ("failed", "it passed, and is expected to fail"),
    "setUpClass": ("failed", "ValueError: no folder"),
}


def run_recorded(site: Path, tests: str) -> tuple[int, SdkReport]:
    """Run the tests of an installed `rocm_sdk`; return the exit code and the report."""
    files = {
        "__init__.py": "",
        "__main__.py": MAIN,
        "tests/__init__.py": "",
        "tests/core_test.py": tests,
    }
    install_files(site / "rocm_sdk", files)
    install_metadata(site, "rocm", version="7.1.0")
    path = site / "report.json"

    command: list[str | Path] = [
        sys.executable,
        recorded_unittest.__file__,
        REPORT_MODULE,
        path,
    ]
    completed = process.capture(command, env=process.inherited(PYTHONPATH=str(site)), check=False)

    return completed.returncode, read_report(path.read_bytes())


def checks_of(report: SdkReport) -> dict[str, CheckResult]:
    """Return a report's checks by name."""
    return {check.name: check for check in report.checks}


@pytest.mark.processes
def test_keeps_the_result_of_every_test_and_its_reason(sdk_site: Path) -> None:
    exit_code, report = run_recorded(sdk_site, TESTS)

    results = {name: (check.outcome, check.reason) for name, check in checks_of(report).items()}
    assert exit_code == 1
    assert results == EXPECTED_RESULTS
    assert {check.group for check in report.checks} == {"core"}
    assert "core_test.py" in checks_of(report)["test_raises"].traceback
    assert report.facts == {"rocm": "7.1.0"}


@pytest.mark.processes
def test_ends_as_the_tests_of_the_package_end(sdk_site: Path) -> None:
    exit_code, report = run_recorded(sdk_site, PASSING_TESTS)

    assert exit_code == 0
    assert [check.outcome for check in report.checks] == ["passed"]
