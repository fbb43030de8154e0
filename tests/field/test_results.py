"""Results of upstream's tests that other runners lost: of crashes and of subtests."""

from pathlib import Path

import pytest

from pytorch_build.test.file_run import FileSettings
from tests.kit.torch_test_files import outcomes_of, run_settings, run_text

pytestmark = pytest.mark.processes


@pytest.fixture
def settings(tmp_path: Path) -> FileSettings:
    """Return the settings of a run."""
    return run_settings(tmp_path)


# https://github.com/apache/tvm/issues/10681
# A segmentation fault ended pytest before it wrote any JUnit XML, and the tests before it were lost, too.
def test_a_segmentation_fault_loses_no_other_result(settings: FileSettings) -> None:
    text = """\
import ctypes

def test_before(): pass
def test_crash(): ctypes.string_at(0)
def test_after(): pass
"""

    outcomes = outcomes_of(run_text(settings, text))

    assert outcomes["test_before"] == outcomes["test_after"] == "passed"
    assert outcomes["test_crash"] in {"failed", "error", "crashed"}


# https://github.com/pytest-dev/pytest-subtests/issues/209
# A test of which one subtest failed was written down as passed.
def test_a_failed_subtest_fails_its_test(settings: FileSettings) -> None:
    text = """\
import unittest

class TestIt(unittest.TestCase):
    def test_fails_in_part(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)

    def test_skips_in_part(self):
        for number in range(3):
            with self.subTest(number=number):
                if number == 1:
                    self.skipTest("not here")

def test_fails_in_part(subtests):
    for number in range(3):
        with subtests.test(number=number):
            assert number != 1
"""

    assert outcomes_of(run_text(settings, text)) == {
        "TestIt::test_fails_in_part": "failed",
        "TestIt::test_skips_in_part": "passed",
        "test_fails_in_part": "failed",
    }
