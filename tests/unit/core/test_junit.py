import io
import re
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import junit, process
from pytorch_build.test.results import last_attempt


def case(outcome: Any = "passed", test: str = "test_a.py::test_x", **facts: Any) -> junit.Case:
    return junit.Case(test=test, outcome=outcome, file="test_a.py", **facts)


def test_every_outcome_is_written_and_read_again() -> None:
    cases = tuple(
        case(
            outcome,
            f"test_a.py::TestA::test_{at}[é|`<b>`]",
            seconds=at / 4,
            line="" if outcome == "passed" else f"why <{at}> & so",
            text="" if outcome == "passed" else f"why <{at}>\nand more ]]>",
            attempts=2 if outcome in {"flaky", "failed"} else 1,
            rule="nn.slow: Now <and> then." if outcome == "flaky" else "",
        )
        for at, outcome in enumerate(junit.OUTCOMES)
    )
    document = junit.Document(
        cases=cases,
        suites={"test_a.py": junit.Suite(seconds=9.5, properties={"whole": "8"})},
        properties={"shard": "2/6", "torch_ref": "release/2.10"},
        problems=("it ended early",),
        timestamp="2026-01-02T03:04:05+00:00",
    )
    assert junit.read(junit.write(document)) == document


@pytest.mark.parametrize(
    ("message", "text", "line"),
    [
        ("AssertionError: no\n  more", "", "AssertionError: no"),
        ("\x1b[31mAssertionError\x1b[0m: no", "", "AssertionError: no"),
        ("collection failure", "    import x\nE   ModuleNotFoundError: x", "ModuleNotFoundError: x"),
        ('failed on setup with "E"', "E       RuntimeError: set-up\nE   y", "RuntimeError: set-up"),
        ("", "Traceback (most recent call last):\n  File\nValueError: v\n\n", "ValueError: v"),
        ("failed on teardown with x", "", "failed on teardown with x"),
        ("", "", ""),
        ("x" * 9999, "", "x" * 300),
    ],
)
def test_the_line_that_matters(message: str, text: str, line: str) -> None:
    assert junit.first_line(message, text) == line


@pytest.mark.parametrize(
    ("outcomes", "outcome"),
    [
        (("passed",), "passed"),
        (("failed", "passed"), "flaky"),
        (("crashed", "passed"), "flaky"),
        (("failed", "error", "passed"), "flaky"),
        (("passed", "failed"), "failed"),
        (("failed", "timeout"), "timeout"),
        (("failed", "skipped"), "failed"),
        (("skipped", "skipped"), "skipped"),
        (("passed", "skipped"), "skipped"),
    ],
)
def test_attempts_make_one_result(outcomes: Sequence[Any], outcome: str) -> None:
    made = last_attempt([case(one, line=one, seconds=1) for one in outcomes])
    assert (made.outcome, made.attempts, made.seconds) == (outcome, len(outcomes), len(outcomes))
    if outcome == "flaky":
        assert made.line == outcomes[0]


def test_counts_name_every_outcome() -> None:
    assert junit.counts([case(), case("failed"), case()]) == dict.fromkeys(junit.OUTCOMES, 0) | {
        "passed": 2,
        "failed": 1,
    }
    assert {one for one in junit.OUTCOMES if case(one).failing} == junit.FAILING


def test_long_texts_keep_both_ends() -> None:
    half = junit.TEXT_LIMIT // 2
    assert junit.cut("a" * 2 * half) == "a" * 2 * half
    assert (
        junit.cut("a" * half + "c" * 90 + "b" * half)
        == f"{'a' * half}\n… 90 characters left out …\n{'b' * half}"
    )


GOOD = b"""<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" tests="2" failures="1"
errors="0" time="1.5" timestamp="2026-01-01T00:00:00">
<properties><property name="rocm" value="7.0"/></properties>
<testcase classname="test_a.TestA" name="test_x" time="0.5"/>
<testcase classname="test_a.TestA" name="test_y" time="1.0"><failure message="AssertionError: no">tb</failure>
<system-out>said</system-out></testcase></testsuite></testsuites>"""
LAUGHS = b"""<?xml version="1.0"?><!DOCTYPE t [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>
<testsuite><testcase classname="&b;" name="x"/></testsuite>"""
OUTSIDE = (
    b"""<!DOCTYPE t [<!ENTITY a SYSTEM "file:///etc/passwd">]><testsuite><testcase name="&a;"/></testsuite>"""
)


def suite(inside: str, attributes: str = "") -> bytes:
    return f"<testsuite {attributes}>{inside}</testsuite>".encode()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"\n \n", "not valid XML"),
        (b"not xml", "not valid XML"),
        (b"<html></html>", "not a JUnit report but <html>"),
        (b"<testsuites></testsuites>", "holds no test"),
        (suite("", 'tests="0"'), "holds no test"),
        (suite("", 'tests="7"'), "counts 7 tests and names none"),
        (suite('<testcase name="a"/>', 'tests="1" failures="3"'), "counts 3 failures and names none"),
        (LAUGHS, "declares a document type"),
        (OUTSIDE, "declares a document type"),
        (GOOD.replace(b"said", b"\xff\xfe"), "not valid XML"),
        (GOOD.replace(b"said", b"\x00"), "not valid XML"),
        (GOOD.replace(b"utf-8", b"klingon"), "not valid XML"),
        (GOOD.replace(b"utf-8", b"rot13"), "not valid XML"),
        (suite("<a>" * 100 + "</a>" * 100), "nested more than"),
        (GOOD + b"<testsuites/>", "not valid XML"),
    ],
)
def test_what_cannot_be_believed_is_told(content: bytes, problem: str) -> None:
    problems = junit.read(content).problems
    assert len(problems) == 1
    assert problem in problems[0]


@given(st.integers(0, len(GOOD) - 1))
def test_no_report_that_was_cut_off_passes(length: int) -> None:
    document = junit.read(GOOD[:length])
    assert len(document.problems) == 1
    assert len(document.cases) <= 2


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_nothing_that_is_given_breaks_the_reader(content: bytes) -> None:
    assert junit.read(content).problems
    junit.read(suite("<testcase name='a'><failure>") + content)


def test_other_encodings_are_read() -> None:
    text = GOOD.decode().replace("said", "é").replace("test_x", "test_é")
    for encoding in ("utf-16", "latin-1"):
        document = junit.read(text.replace("utf-8", encoding).encode(encoding))
        assert document.problems == ()
        assert document.cases[0].test == "test_a.py::TestA::test_é"


def test_a_huge_output_takes_no_memory() -> None:
    # one line without an end is the worst that an output can be
    output = "x" * (40 << 20)
    inside = f'<testcase name="a"><failure message="m">{output}</failure><system-out>{output}</system-out>'
    content = suite(f"{inside}</testcase>")
    del output, inside
    tracemalloc.start()
    document = junit.read(io.BytesIO(content))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert document.problems == ()
    assert len(document.cases[0].text) < junit.TEXT_LIMIT + 100
    assert "characters left out" in document.cases[0].text
    assert peak < 64 << 20


def test_limits_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(junit, "MAX_CASES", 3)
    document = junit.read(suite("".join(f'<testcase name="{at}"/>' for at in range(5))))
    assert "more than 3 tests" in document.problems[0]
    assert len(document.cases) == 3
    monkeypatch.setattr(junit, "MAX_BYTES", 64)
    assert "larger than" in junit.read(GOOD).problems[0]


def test_values_that_are_no_numbers_count_nothing() -> None:
    inside = "".join(
        f'<testcase name="t{at}" time="{said}"/>' for at, said in enumerate(("nan", "-1", "inf", "x"))
    )
    document = junit.read(suite(inside, 'tests="4" time="1,234.5" failures="-3"'))
    assert [one.seconds for one in document.cases] == [0, 0, 0, 0]
    assert next(iter(document.suites.values())).seconds == 1234.5
    assert document.problems == ()


CASES = '<testcase name="a"/><testcase name="b"><failure/></testcase><testcase name="c"><skipped/></testcase>'


@pytest.mark.parametrize(
    ("stated", "problems"),
    [
        ('tests="3" failures="1" errors="0" skipped="1"', ()),
        # what ctest has switched off is counted by itself; older writers leave counts out
        ('tests="3" failures="1" skipped="0" disabled="1"', ()),
        ("", ()),
        ('tests="100"', ("the report counts 100 tests and names 3",)),
        ('tests="2"', ("the report counts 2 tests and names 3",)),
        ('tests="many" failures="-1"', ("counts many tests and names 3", "counts -1 failures and names 1")),
        ('tests="3" failures="2"', ("the report counts 2 failures and names 1",)),
        ('tests="3" failures="0" errors="1"', ("0 failures and names 1", "1 errors and names none")),
        ('tests="3" failures="1" skipped="90"', ("the report counts 90 skipped and names 1",)),
    ],
)
def test_counts_of_a_report_add_up(stated: str, problems: Sequence[str]) -> None:
    for xml in (suite(CASES, stated), f"<testsuites {stated}>{suite(CASES).decode()}</testsuites>".encode()):
        found = junit.read(xml)
        assert len(found.cases) == 3
        assert len(found.problems) == len(problems)
        assert all(one in said for one, said in zip(problems, found.problems, strict=True))


def test_a_whole_suite_that_is_cut_out_is_missed() -> None:
    cases = tuple(replace(case(test=f"{name}.py::test"), file=f"{name}.py") for name in "ab")
    whole = junit.write(junit.Document(cases=cases))
    less = re.sub(rb'<testsuite name="b.py".*</testsuite>', b"", whole)
    assert junit.read(whole).problems == ()
    assert junit.read(less).problems == ("the report counts 2 tests and names 1",)


@pytest.mark.parametrize(
    ("element", "outcome"),
    [
        ('<error type="crashed" message="signal 11"/>', "crashed"),
        ('<error type="timeout" message="600 s"/>', "timeout"),
        ("<failure message=\"worker 'gw0' crashed while running 't.py::t'\"/>", "crashed"),
        ('<failure message="Failed: Timeout (&gt;1.0s) from pytest-timeout."/>', "timeout"),
        ('<skipped type="pytest.xfail" message="known"/>', "xfailed"),
        ('<skipped message="no GPU"/>', "skipped"),
        ('<rerun message="first"/>', "flaky"),
        ('<flakyFailure message="first"/>', "flaky"),
        ('<properties><property name="attempts" value="3"/></properties>', "flaky"),
        ('<rerun message="first"/><failure message="second"/>', "failed"),
        ('<failure message="call"/><error message="teardown"/>', "failed"),
    ],
)
def test_outcomes_by_what_others_write(element: str, outcome: str) -> None:
    document = junit.read(suite(f'<testcase classname="t" name="t">{element}</testcase>'))
    assert [one.outcome for one in document.cases] == [outcome]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"classname": "test_nn.TestNN", "name": "test_a"}, "test_nn.py::TestNN::test_a"),
        ({"classname": "dynamo.test_misc.TestA", "name": "t"}, "dynamo/test_misc.py::TestA::t"),
        ({"classname": "test_nn", "name": "t[a.b]"}, "test_nn.py::t[a.b]"),
        ({"classname": "a.checks.TestA", "name": "t", "file": "a/checks.py"}, "a/checks.py::TestA::t"),
        # inherited: the file is where the function stands, which is not the test's
        ({"classname": "test_a.TestA", "name": "t", "file": "lib/common.py"}, "test_a.py::TestA::t"),
        ({"classname": "rocm_sdk.core", "name": "files are there"}, "rocm_sdk.core::files are there"),
        ({"classname": "", "name": "a.test_b", "file": "a/test_b.py"}, "a/test_b.py"),
        ({"classname": "", "name": "test_b", "file": "test_b.py"}, "test_b.py"),
        ({"name": "alone"}, "alone"),
        ({}, "?"),
    ],
)
def test_node_ids(attributes: dict[str, str], expected: str) -> None:
    assert junit.node_id(attributes) == expected


def test_long_names_stay_different() -> None:
    names = [f"{'x' * 5000}{at}" for at in range(2)]
    document = junit.read(suite("".join(f'<testcase name="{name}"/>' for name in names)))
    assert len({one.test for one in document.cases}) == 2
    assert all(len(one.test) < 2100 for one in document.cases)


def test_an_absent_report_is_a_problem(tmp_path: Path) -> None:
    assert "cannot be read" in junit.read_file(tmp_path / "none.xml").problems[0]
    assert "cannot be read" in junit.read_file(tmp_path).problems[0]


MIXED = Path(__file__).with_name("recorded").joinpath("mixed-tests.txt").read_text()


@pytest.mark.processes
@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_what_real_pytest_writes(tmp_path: Path, family: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "test_mix.py").write_text(MIXED)
    (tmp_path / "sub" / "test_coll.py").write_text("import nowhere\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    argv += ["-o", f"junit_family={family}", "-o", "junit_logging=all", "--junitxml=out.xml", "."]
    process.capture(argv, cwd=tmp_path, env=process.inherited(), check=False)
    document = junit.read_file(tmp_path / "out.xml")
    assert document.problems == ()
    found = {one.test: (one.outcome, one.line) for one in document.cases}
    collected = "sub/test_coll.py" if family == "xunit1" else "sub.test_coll"
    assert found.pop(collected) == ("error", "ModuleNotFoundError: No module named 'nowhere'")
    assert found == {
        "test_mix.py::test_ok": ("passed", ""),
        "test_mix.py::test_bad": ("failed", "AssertionError: first"),
        "test_mix.py::test_err": ("error", "RuntimeError: set-up"),
        "test_mix.py::test_late": ("error", "RuntimeError: clean-up"),
        "test_mix.py::test_both": ("failed", "assert 0"),
        "test_mix.py::test_skip": ("skipped", "why"),
        "test_mix.py::test_xf": ("xfailed", "known"),
        "test_mix.py::test_xs": ("failed", "[XPASS(strict)] known"),
        "test_mix.py::TestU::test_out": ("passed", ""),
        "test_mix.py::test_p[a|b]": ("passed", ""),
        "test_mix.py::test_p[`<b>`]": ("passed", ""),
        "test_mix.py::test_p[\\xe9]": ("passed", ""),
        "test_mix.py::test_p[\\x1b[31m]": ("passed", ""),
    }
    assert junit.counts(document.cases)["failed"] == 3
    # pytest's own counts add up until cases are cut out
    whole = (tmp_path / "out.xml").read_text()
    less = re.sub(r'<testcase [^>]*name="test_skip".*?</testcase>', "", whole, flags=re.DOTALL)
    assert less != whole
    assert junit.read(less.encode()).problems == ("the report counts 2 skipped and names 1",)
