import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.promote import facts
from core.errors import CheckError
from core.run import records
from core.run.records import Record
from pytorch_build.test import shards
from pytorch_build.test.junit.document import Case, Document, Suite
from pytorch_build.test.junit.writer import write_junit
from pytorch_build.test.report import EXISTING_TESTS, MAY_SKIP, Report, ReportOrigin
from pytorch_build.test.stored_reports import put_report
from tests.kit.builds import LocalRun
from tests.kit.front_doors import run_pytorch_build

GROUP = "cpu"
RECORD = "test_torch-sample-cp312"
WHEELS = {"torch.whl": "a" * 64}


# Reports of a folder, whatever wrote them.

MIXED_CASES = {
    "passes": ("passed", ""),
    "fails": ("failed", "assert 1 == 2"),
    "breaks": ("error", "RuntimeError: set-up"),
    "skips": ("skipped", "no GPU"),
    "fails_as_known": ("xfailed", "known"),
    "is_flaky": ("failed", "assert False"),
}


def case(name: str, outcome: Any, line: str = "") -> Case:
    """Return the result of a test."""
    return Case(test=f"test_mix.py::test_{name}", outcome=outcome, line=line, file="test_mix.py")


def write_document(*cases: Case) -> bytes:
    """Return a report with these results."""
    return write_junit(Document(cases=cases))


@pytest.fixture
def folder_reports(tmp_path: Path) -> Path:
    """Return a folder of reports: of each outcome, cut off, empty, and of tests that took Python along."""
    mixed_cases = [case(name, *facts) for name, facts in MIXED_CASES.items()]
    mixed = write_document(*mixed_cases)
    second_attempt = write_document(case("is_flaky", "passed"))
    crashes = write_document(case("dies", "crashed"), case("hangs", "timeout"))
    contents = {
        "mixed/1.xml": mixed,
        "mixed/2.xml": second_attempt,
        "torn/1.xml": mixed[:-40],
        "empty/1.xml": b"",
        "crashed/1.xml": crashes,
    }
    for name, content in contents.items():
        path = tmp_path / "reports" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "reports"


@pytest.fixture
def summary(folder_reports: Path, tmp_path: Path) -> Mapping[str, Any]:
    """Return the JSON summary of the folder, by the reports' folders."""
    path = tmp_path / "summary.json"
    assert run_pytorch_build("test-report", "--input-dir", folder_reports, "--json", path) == 9
    data = json.loads(path.read_text())
    assert not data["passed"]
    return {tested["stage"]: tested for tested in data["tests"]}


def test_counts_each_outcome_of_a_folder(summary: Mapping[str, Any]) -> None:
    mixed = summary["mixed"]

    outcomes = ("passed", "failed", "error", "skipped", "xfailed", "flaky")
    counts = {outcome: count for outcome, count in mixed["totals"].items() if count}
    assert counts == dict.fromkeys(outcomes, 1)
    assert mixed["problems"] == []


def test_tells_failures_with_their_messages(summary: Mapping[str, Any]) -> None:
    mixed = summary["mixed"]

    assert {failure["test"]: failure["line"] for failure in mixed["failures"]} == {
        "test_mix.py::test_fails": "assert 1 == 2",
        "test_mix.py::test_breaks": "RuntimeError: set-up",
    }
    assert [flaky["test"] for flaky in mixed["flaky"]] == ["test_mix.py::test_is_flaky"]
    assert {failure["outcome"] for failure in summary["crashed"]["failures"]} == {"crashed", "timeout"}


def test_tells_reports_that_cannot_be_read(summary: Mapping[str, Any]) -> None:
    assert len(summary["torn"]["problems"]) == 1
    assert len(summary["empty"]["problems"]) == 1
    assert summary["empty"]["failures"] == []


def test_writes_the_same_page_for_the_job_and_the_file(
    folder_reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "job.md"))

    run_pytorch_build("test-report", "--input-dir", folder_reports, "--summary", tmp_path / "page.md")

    page = (tmp_path / "page.md").read_text()
    assert page.startswith("### Tests in reports: 1 crashed, 1 timeout, ")
    assert (tmp_path / "job.md").read_text().strip() == page.strip()


def test_prints_the_failures_of_a_folder(folder_reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_pytorch_build("test-report", "--input-dir", folder_reports)

    printed = capsys.readouterr().err
    assert "test_mix.py::test_fails failed: assert 1 == 2" in printed
    assert "torn" in printed


# Shards of a run.


def write_shard(run: LocalRun, index: int) -> None:
    """Leave what a shard of two of test_torch leaves in run 17: one test, which passed."""
    origin = ReportOrigin(
        stage="test_torch", torch_ref="sample", python="cp312", gpu_family=GROUP, run_id="17"
    )
    shard = shards.Shard(index=index, count=2)
    file = f"test/test_{index}.py"
    case = Case(test=f"{file}::T::x", outcome="passed", seconds=1.5, file=file)
    document = Document(
        cases=(case,), suites={file: Suite(properties={EXISTING_TESTS: "1"})}, properties={MAY_SKIP: "50"}
    )
    report = Report(origin=origin, document=document, shard=shard)
    details = put_report(run.store, run.common(run_id="17").outputs, GROUP, report)

    inputs = {"files": WHEELS, "arguments": [], "installed": True, "config": "default"}
    cell = {"torch_ref": "sample", "python": "cp312", "gpu_family": GROUP}
    stage = origin.stage_name(shard)
    run.record(stage, group=GROUP, run_id="17", inputs=inputs, details=dict(details), **cell)


@pytest.fixture
def two_shards(run: LocalRun) -> LocalRun:
    """Return a run whose two shards passed."""
    write_shard(run, 1)
    write_shard(run, 2)
    return run


def report_run(run: LocalRun, *options: object) -> int:
    """Report the tests of run 17."""
    return run_pytorch_build("test-report", "--run-id", 17, "--store", run.store.url, *options)


def list_keys(run: LocalRun) -> list[str]:
    """Return all keys of run 17."""
    return [file.key for file in run.store.list("17-linux")]


def read_record(run: LocalRun, name: str = RECORD) -> Record | None:
    """Return a record of run 17; None where there is none."""
    return records.read(run.store, run.common(run_id="17").outputs, GROUP, name)


def promotion_outcomes(run: LocalRun) -> dict[str, str]:
    """Return what a promotion makes of the tests."""
    group = facts.read_group(run.store, run.common(run_id="17").outputs, GROUP)
    return {test.evidence.stage: test.outcome for test in group.tests}


def test_a_missing_shard_is_a_failure(run: LocalRun, capsys: pytest.CaptureFixture[str]) -> None:
    write_shard(run, 1)

    assert report_run(run) == CheckError.exit_code

    assert "2/2" in capsys.readouterr().err
    assert read_record(run, f"{RECORD}.failed") is not None
    assert promotion_outcomes(run)["test_torch"] == "failed"


def test_all_shards_make_the_record_of_the_whole(two_shards: LocalRun) -> None:
    assert report_run(two_shards, "--expect", "torch-sample-cp312") == 0

    record = read_record(two_shards)
    assert record is not None
    assert record.inputs["files"] == WHEELS
    assert record.details["tests"] == {
        "tests": 2,
        "existing": 2,
        "failures": 0,
        "errors": 0,
        "skipped": 0,
        "unexplained": 0,
    }
    assert promotion_outcomes(two_shards)["test_torch"] == "passed"


def test_all_shards_end_the_failure_of_a_missing_one(run: LocalRun) -> None:
    write_shard(run, 1)
    report_run(run)

    write_shard(run, 2)
    report_run(run)

    assert read_record(run, f"{RECORD}.failed") is None


def test_reports_again_from_the_shards_themselves(two_shards: LocalRun) -> None:
    report_run(two_shards)

    assert report_run(two_shards) == 0

    report = json.loads(two_shards.store.read(f"17-linux/reports/{GROUP}/test-report.json"))
    assert report["passed"]
    assert promotion_outcomes(two_shards)["test_torch"] == "passed"


def test_a_dry_run_writes_nothing(two_shards: LocalRun) -> None:
    keys = list_keys(two_shards)

    assert report_run(two_shards, "--dry-run") == 0

    assert list_keys(two_shards) == keys


def test_records_durations_for_later_runs(two_shards: LocalRun) -> None:
    assert report_run(two_shards, "--record-durations") == 0

    later_run = two_shards.common(run_id="18").outputs
    durations = shards.durations_for_run(two_shards.store, later_run, GROUP, "default")
    assert {name: file.seconds for name, file in durations.files.items()} == {
        "test/test_1.py": 1.5,
        "test/test_2.py": 1.5,
    }


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--run-id", 99), id="no such run"),
        pytest.param(("--input-dir", "/nowhere/at/all"), id="no such folder"),
    ],
)
def test_no_report_is_an_error(run: LocalRun, options: tuple[object, ...]) -> None:
    assert run_pytorch_build("test-report", "--store", run.store.url, *options) == 4


@pytest.fixture
def windows_run(two_shards: LocalRun) -> LocalRun:
    """Return a run whose two shards passed on Windows."""
    folder = two_shards.root / "out" / "17-windows"
    (two_shards.root / "out" / "17-linux").rename(folder)
    for path in folder.rglob("*.json"):
        text = path.read_text(encoding="utf-8").replace('"platform": "linux"', '"platform": "windows"')
        path.write_text(text.replace("17-linux/", "17-windows/"), encoding="utf-8")
    return two_shards


def test_a_run_of_another_platform_is_not_this_platforms(windows_run: LocalRun) -> None:
    assert report_run(windows_run) == 4


def test_reports_a_run_of_another_platform(windows_run: LocalRun) -> None:
    assert report_run(windows_run, "--platform", "windows") == 0

    folder = windows_run.root / "out" / "17-windows"
    report = json.loads((folder / "reports" / GROUP / "test-report.json").read_text(encoding="utf-8"))
    assert report["passed"]
    assert (folder / "manifests" / GROUP / f"{RECORD}.json").is_file()
    assert not (windows_run.root / "out" / "17-linux").exists()
