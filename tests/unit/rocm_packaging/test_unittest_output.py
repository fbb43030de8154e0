from __future__ import annotations

import io
import re
import sys
import unittest

import pytest

from core.errors import CheckError
from rocm_packaging import selftest


class CoreTest(unittest.TestCase):
    __test__ = False
    noise: io.StringIO

    def test_a(self) -> None:
        self.noise.write("a child's words\nover two lines\n")

    def test_b(self) -> None:
        raise AssertionError("the layout is another one\n\n- two\n+ lines")

    @unittest.skip("it's no GPU")
    def test_c(self) -> None:
        raise AssertionError

    def test_d(self) -> None:
        """Has a docstring."""

    def test_e(self) -> None:
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)  # noqa: PT009 - pytest would word it anew

    @unittest.expectedFailure
    def test_f(self) -> None:
        raise AssertionError

    def test_g(self) -> None:
        raise OSError("libx.so: cannot open")

    def test_h(self) -> None:
        self.noise.write("no line end")


class BrokenTest(unittest.TestCase):
    __test__ = False

    @classmethod
    def setUpClass(cls) -> None:
        raise ValueError("no folder")

    def test_never(self) -> None:
        raise AssertionError


def output(*cases: unittest.TestCase) -> str:
    stream = io.StringIO()
    CoreTest.noise = stream
    unittest.TextTestRunner(stream=stream, verbosity=2).run(unittest.TestSuite(cases))
    return stream.getvalue()


def core() -> list[unittest.TestCase]:
    return [CoreTest(f"test_{letter}") for letter in "abcdefgh"]


def test_every_result_is_read_with_its_reason() -> None:
    report = selftest.parse_unittest(output(*core()))
    assert {case.name: (case.outcome, case.text) for case in report.cases} == {
        "test_a": ("passed", ""),
        "test_b": ("failed", "AssertionError: the layout is another one"),
        "test_c": ("skipped", "it's no GPU"),
        "test_d": ("passed", ""),
        "test_e": ("failed", "AssertionError: 1 == 1"),
        "test_f": ("passed", ""),
        "test_g": ("failed", "OSError: libx.so: cannot open"),
        "test_h": ("passed", ""),
    }


def test_a_class_that_cannot_be_set_up_has_failed() -> None:
    said = output(CoreTest("test_a"), BrokenTest("test_never"))
    report = selftest.parse_unittest(said)
    assert [(case.name, case.outcome, case.text) for case in report.cases] == [
        ("test_a", "passed", ""),
        ("setUpClass", "failed", "ValueError: no folder"),
    ]


def test_an_unexpected_success_has_failed() -> None:
    said = "test_x (m.core_test.T.test_x) ... unexpected success\n\n" + "-" * 70 + "\nRan 1 test in 0.0s\n"
    (case,) = selftest.parse_unittest(said).cases
    assert (case.group, case.outcome, case.text) == ("core", "failed", "... unexpected success")


@pytest.mark.parametrize("lines", range(3, 30, 4))
def test_output_that_breaks_off_is_no_result(lines: int) -> None:
    broken = "\n".join(output(*core()).splitlines()[:lines])
    with pytest.raises(CheckError, match="without saying how many ran"):
        selftest.parse_unittest(broken)


def test_tests_that_are_not_listed_are_no_result() -> None:
    with pytest.raises(CheckError, match="say that 31 ran, and list 0"):
        selftest.parse_unittest("-" * 70 + "\nRan 31 tests in 1.5s\n\nOK\n")


@pytest.mark.parametrize("ran", [7, 8])
def test_skipped_tests_are_counted_or_not(ran: int) -> None:
    """Python 3.12.1 does not, others do."""
    said = re.sub(r"Ran \d tests", f"Ran {ran} tests", output(*core()))
    assert len(selftest.parse_unittest(said).cases) == 8
    with pytest.raises(CheckError, match="say that 6 ran, and list 8"):
        selftest.parse_unittest(said.replace(f"Ran {ran}", "Ran 6"))


def test_it_becomes_a_report_like_our_own() -> None:
    report = selftest.parse_unittest(output(*core()))
    again = selftest.read(selftest.write(report))
    assert again.counts == {"passed": 4, "failed": 3, "skipped": 1}
    assert [case.text for case in again.cases] == [case.text for case in report.cases]


def test_properties_survive_writing() -> None:
    report = selftest.Report(
        cases=(selftest.Case(group="core", name="x<y>", outcome="passed", text="", seconds=1.5),),
        properties={"rocm": "7.1", "python": sys.version},
    )
    assert selftest.read(selftest.write(report)) == report
