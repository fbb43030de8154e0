import io
import re
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import process
from pytorch_build.test.junit import reader
from pytorch_build.test.junit.document import Document
from pytorch_build.test.junit.reader import read_junit, read_junit_file
from pytorch_build.test.junit.texts import TEXT_LIMIT
from pytorch_build.test.junit.writer import write_junit
from tests.kit.repos import write_files
from tests.kit.torch_results import case_of, suite_element
from tests.kit.windows import NO_PIPES, make_pipe

MEBIBYTE = 1 << 20

# As pytest writes reports.
REPORT = b"""<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" tests="2" failures="1"
errors="0" time="1.5" timestamp="2026-01-01T00:00:00">
<properties><property name="rocm" value="7.0"/></properties>
<testcase classname="test_a.TestA" name="test_x" time="0.5"/>
<testcase classname="test_a.TestA" name="test_y" time="1.0"><failure message="AssertionError: no">tb</failure>
<system-out>output</system-out></testcase></testsuite></testsuites>"""

# A passed, a failed and a skipped test.
CASES = '<testcase name="a"/><testcase name="b"><failure/></testcase><testcase name="c"><skipped/></testcase>'

BILLION_LAUGHS = b"""<?xml version="1.0"?>
<!DOCTYPE t [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>
<testsuite><testcase classname="&b;" name="x"/></testsuite>"""
EXTERNAL_ENTITY = b"""<!DOCTYPE t [<!ENTITY a SYSTEM "file:///etc/passwd">]>
<testsuite><testcase name="&a;"/></testsuite>"""


# Reports that cannot be believed


@pytest.mark.parametrize(
    ("content", "mentioned"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"\n \n", "XML", id="blank"),
        pytest.param(b"not xml", "XML", id="text"),
        pytest.param(b"<html></html>", "<html>", id="a page"),
        pytest.param(b"<testsuites></testsuites>", "no test", id="no suite"),
        pytest.param(suite_element("", 'tests="0"'), "no test", id="no test"),
        pytest.param(suite_element("", 'tests="7"'), "7 tests", id="no test of 7"),
        pytest.param(
            suite_element('<testcase name="a"/>', 'tests="1" failures="3"'), "3 failures", id="no failure"
        ),
        pytest.param(BILLION_LAUGHS, "document type", id="billion laughs"),
        pytest.param(EXTERNAL_ENTITY, "document type", id="external entity"),
        pytest.param(REPORT.replace(b"output", b"\xff\xfe"), "XML", id="no UTF-8"),
        pytest.param(REPORT.replace(b"output", b"\x00"), "XML", id="null byte"),
        pytest.param(REPORT.replace(b"utf-8", b"klingon"), "XML", id="unknown encoding"),
        pytest.param(REPORT.replace(b"utf-8", b"rot13"), "XML", id="not an encoding of XML"),
        pytest.param(suite_element("<a>" * 100 + "</a>" * 100), "nested", id="nested"),
        pytest.param(REPORT + b"<testsuites/>", "XML", id="two roots"),
    ],
)
def test_tells_why_a_report_cannot_be_believed(content: bytes, mentioned: str) -> None:
    (problem,) = read_junit(content).problems

    assert mentioned in problem


@given(st.integers(0, len(REPORT) - 1))
def test_no_report_that_was_cut_off_passes(length: int) -> None:
    document = read_junit(REPORT[:length])

    assert len(document.problems) == 1
    assert len(document.cases) <= 2


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_reads_any_bytes_without_an_exception(content: bytes) -> None:
    assert read_junit(content).problems
    read_junit(suite_element("<testcase name='a'><failure>") + content)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_reads_other_encodings(encoding: str) -> None:
    text = REPORT.decode().replace("output", "é").replace("test_x", "test_é").replace("utf-8", encoding)

    document = read_junit(text.encode(encoding))

    assert document.problems == ()
    assert document.cases[0].test == "test_a.py::TestA::test_é"


def test_a_report_that_is_missing_is_a_problem(tmp_path: Path) -> None:
    (problem,) = read_junit_file(tmp_path / "none.xml").problems

    assert "none.xml cannot be read" in problem


@pytest.mark.parametrize(
    "create", [Path.mkdir, pytest.param(make_pipe, marks=NO_PIPES)], ids=["folder", "pipe"]
)
def test_opens_regular_files_alone(tmp_path: Path, create: Callable[[Path], None]) -> None:
    path = tmp_path / "report.xml"
    create(path)

    (problem,) = read_junit_file(path).problems

    assert "report.xml is no regular file" in problem


def test_values_that_are_no_numbers_count_nothing() -> None:
    times = ("nan", "-1", "inf", "x")
    cases = "".join(f'<testcase name="{time}" time="{time}"/>' for time in times)

    document = read_junit(suite_element(cases, 'tests="4" time="1,234.5" failures="-3"'))

    assert [result.seconds for result in document.cases] == [0, 0, 0, 0]
    assert [total.seconds for total in document.suites.values()] == [1234.5]
    assert document.problems == ()


# Limits


def test_reads_huge_outputs_in_the_memory_of_one() -> None:
    output = "x" * (4 * MEBIBYTE)
    elements = f'<failure message="m">{output}</failure><system-out>{output}</system-out>'
    cases = [f'<testcase name="{number}">{elements}</testcase>' for number in range(10)]
    content = suite_element("".join(cases))
    del output, elements, cases

    tracemalloc.start()
    document = read_junit(io.BytesIO(content))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert document.problems == ()
    assert len(document.cases) == 10
    assert max(len(result.text) for result in document.cases) < TEXT_LIMIT + 100
    assert peak < 20 * MEBIBYTE


def test_reads_no_more_tests_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_CASES", 3)

    cases = "".join(f'<testcase name="{name}"/>' for name in "abcde")

    document = read_junit(suite_element(cases))

    assert "3 tests" in document.problems[0]
    assert len(document.cases) == 3


def test_reads_no_more_bytes_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_BYTES", 64)

    assert "larger" in read_junit(REPORT).problems[0]


def test_refuses_a_file_by_its_size_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    with path.open("wb") as stream:
        stream.truncate(reader.MAX_BYTES + 1)

    (problem,) = read_junit_file(path).problems

    assert "report.xml is refused: it is larger than 256 MiB" in problem


def test_reads_a_huge_attribute_no_further_than_its_limit() -> None:
    content = suite_element(f'<testcase name="{"x" * (100 * MEBIBYTE)}"/>')

    tracemalloc.start()
    (problem,) = read_junit(io.BytesIO(content)).problems
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert "16 MiB" in problem
    assert peak < 4 * reader.MAX_TAG_BYTES


# Counts


@pytest.mark.parametrize(
    "wrap",
    [
        lambda counts: suite_element(CASES, counts),
        lambda counts: f"<testsuites {counts}>{suite_element(CASES).decode()}</testsuites>".encode(),
    ],
    ids=["suite", "document"],
)
@pytest.mark.parametrize(
    ("counts", "mentioned"),
    [
        ('tests="3" failures="1" errors="0" skipped="1"', []),
        # What ctest has switched off is counted by itself; older writers leave counts out.
        ('tests="3" failures="1" skipped="0" disabled="1"', []),
        ("", []),
        ('tests="100"', ["100 tests and names 3"]),
        ('tests="2"', ["2 tests and names 3"]),
        ('tests="many" failures="-1"', ["many tests and names 3", "-1 failures and names 1"]),
        ('tests="3" failures="2"', ["2 failures and names 1"]),
        ('tests="3" failures="0" errors="1"', ["0 failures and names 1", "1 errors and names none"]),
        ('tests="3" failures="1" skipped="90"', ["90 skipped and names 1"]),
    ],
)
def test_notices_counts_that_do_not_add_up(wrap: Any, counts: str, mentioned: list[str]) -> None:
    document = read_junit(wrap(counts))

    assert len(document.cases) == 3
    assert len(document.problems) == len(mentioned)
    for problem, difference in zip(document.problems, mentioned, strict=True):
        assert difference in problem


def test_notices_a_suite_that_is_cut_out() -> None:
    first = case_of("a.py::test")
    second = case_of("b.py::test")
    content = write_junit(Document(cases=(first, second)))

    without_second = re.sub(rb'<testsuite name="b.py".*</testsuite>', b"", content)

    assert read_junit(content).problems == ()
    (problem,) = read_junit(without_second).problems
    assert "2 tests and names 1" in problem


# Reports of pytest itself

MIXED_TESTS = Path(__file__).with_name("recorded").joinpath("mixed-tests.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=["xunit1", "xunit2"])
def pytest_report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report that pytest writes about tests of every outcome."""
    folder = tmp_path_factory.mktemp(request.param)
    write_files(folder, {"test_mix.py": MIXED_TESTS, "sub/test_coll.py": "import nowhere\n"})
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--junitxml=out.xml"]
    options += ["-o", f"junit_family={request.param}", "-o", "junit_logging=all"]

    command = [sys.executable, "-m", "pytest", *options, "."]
    process.capture(command, cwd=folder, env=process.inherited(), check=False)
    return folder / "out.xml"


@pytest.mark.processes
def test_reads_a_report_of_pytest(pytest_report: Path) -> None:
    document = read_junit_file(pytest_report)

    results = {result.test: (result.outcome, result.line) for result in document.cases}
    in_file = {name: result for name, result in results.items() if name.startswith("test_mix.py::")}
    assert document.problems == ()
    assert in_file == {
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


@pytest.mark.processes
def test_reads_a_collection_error_of_pytest(pytest_report: Path) -> None:
    document = read_junit_file(pytest_report)

    (result,) = [result for result in document.cases if not result.test.startswith("test_mix.py::")]
    # Only the older format knows the file.
    assert result.test in {"sub/test_coll.py", "sub.test_coll"}
    assert result.outcome == "error"
    assert result.line == "ModuleNotFoundError: No module named 'nowhere'"


@pytest.mark.processes
def test_notices_a_test_that_is_cut_out_of_a_report_of_pytest(pytest_report: Path) -> None:
    content = pytest_report.read_text(encoding="utf-8")
    skipped = r'<testcase [^>]*name="test_skip".*?</testcase>'

    shortened, count = re.subn(skipped, "", content, flags=re.DOTALL)

    (problem,) = read_junit(shortened.encode()).problems
    assert count == 1
    assert "2 skipped and names 1" in problem
