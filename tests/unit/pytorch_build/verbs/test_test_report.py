import json
from pathlib import Path
from typing import Any

import pytest

from ci.promote import runs
from core import junit
from core.cli import main
from core.junit import Case, Document, Suite
from core.run import records
from pytorch_build.__main__ import VERBS
from pytorch_build.test import reports, shards
from pytorch_build.test.results import EXISTING, MAY_SKIP, Origin, Report

GROUP = "cpu"
MIX = {
    "ok": ("passed", ""),
    "wrong": ("failed", "assert 1 == 2"),
    "broken": ("error", "RuntimeError: set-up"),
    "skipped": ("skipped", "no GPU"),
    "known": ("xfailed", "known"),
    "flaky": ("failed", "assert False"),
}


def door(*words: object) -> int:
    return main("pytorch_build", "", VERBS, [str(word) for word in ("test-report", *words)])


def case(name: str, outcome: Any, line: str = "") -> Case:
    return Case(test=f"test_mix.py::test_{name}", outcome=outcome, line=line, file="test_mix.py")


def test_a_mix_of_reports_against_the_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = tmp_path / "reports"
    first = junit.write(Document(cases=tuple(case(name, *facts) for name, facts in MIX.items())))
    written = {
        "mix/1.xml": first,
        "mix/2.xml": junit.write(Document(cases=(case("flaky", "passed"),))),
        "torn/1.xml": first[:-40],
        "empty/1.xml": b"",
        "crashed/1.xml": junit.write(Document(cases=(case("dies", "crashed"), case("hangs", "timeout")))),
    }
    for name, content in written.items():
        (reports / name).parent.mkdir(parents=True, exist_ok=True)
        (reports / name).write_bytes(content)
    step = tmp_path / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    options = ("--summary", tmp_path / "s.md", "--json", tmp_path / "s.json")
    assert door("--input-dir", reports, *options) == 9
    data = json.loads((tmp_path / "s.json").read_text())
    assert not data["passed"]
    found = {one["stage"]: one for one in data["tests"]}
    outcomes = ("passed", "failed", "error", "skipped", "xfailed", "flaky")
    assert {name: count for name, count in found["mix"]["totals"].items() if count} == dict.fromkeys(
        outcomes, 1
    )
    assert found["mix"]["problems"] == []
    assert {one["test"]: one["line"] for one in found["mix"]["failures"]} == {
        "test_mix.py::test_wrong": "assert 1 == 2",
        "test_mix.py::test_broken": "RuntimeError: set-up",
    }
    assert [one["test"] for one in found["mix"]["flaky"]] == ["test_mix.py::test_flaky"]
    assert {one["outcome"] for one in found["crashed"]["failures"]} == {"crashed", "timeout"}
    assert len(found["torn"]["problems"]) == len(found["empty"]["problems"]) == 1
    # 2 of the mix, the same 2 and the unlucky attempt of the torn one, 2 that took the interpreter along
    assert sum(len(one["failures"]) for one in data["tests"]) in range(4, 8)
    told = capsys.readouterr().err
    assert "test_mix.py::test_wrong failed: assert 1 == 2" in told
    assert "torn" in told
    text = (tmp_path / "s.md").read_text()
    assert text.startswith("### Tests in reports: 1 crashed, 1 timeout, ")
    assert step.read_text().strip() == text.strip()


def shard(run: Any, at: int, *cases: Case, status: str = "ok") -> None:
    """Leave what a shard of test_torch leaves in a run."""
    origin = Origin(stage="test_torch", torch_ref="sample", python="cp312", gpu_family=GROUP, run_id="17")
    part = shards.Shard(index=at, count=2)
    outputs = run.common(run_id="17").outputs
    suites = {one.file: Suite(properties={EXISTING: "1"}) for one in cases}
    document = Document(cases=cases, suites=suites, properties={MAY_SKIP: "50"})
    report = Report(origin=origin, document=document, shard=part, plan="p")
    details = dict(reports.put_report(run.store, outputs, GROUP, report))
    made = run.record("x", group=GROUP, run_id="17", torch_ref="sample", python="cp312", gpu_family=GROUP)
    run.store.delete(outputs.record_key(GROUP, made.name))
    inputs = {"files": {"torch.whl": "a" * 64}, "arguments": [], "installed": True, "config": "default"}
    said = {"stage": reports.stage_name(origin, part), "status": status, "inputs": inputs, "details": details}
    records.write(run.store, outputs, GROUP, made.model_copy(update=said))


def good(name: str, seconds: float = 1.5) -> Case:
    return Case(test=f"test/{name}.py::T::x", outcome="passed", seconds=seconds, file=f"test/{name}.py")


def judged(run: Any) -> dict[str, tuple[str, str]]:
    group = runs.read_group(run.store, run.common(run_id="17").outputs, GROUP)
    return {one.evidence.stage: (one.outcome, one.why) for one in group.tests}


def test_shards_make_the_gates_record(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard(run, 1, good("test_a"))
    assert door("--run-id", 17, "--store", run.store.url) == 9
    assert "no report of shard 2/2" in capsys.readouterr().err
    outputs = run.common(run_id="17").outputs
    failed = records.read(run.store, outputs, GROUP, "test_torch-sample-cp312.failed")
    assert failed is not None
    assert judged(run)["test_torch"][0] == "failed"
    shard(run, 2, good("test_b"))
    before = [one.key for one in run.store.list("17-linux")]
    assert door("--run-id", 17, "--store", run.store.url, "--dry-run") == 0
    assert [one.key for one in run.store.list("17-linux")] == before
    options = ("--run-id", 17, "--store", run.store.url, "--expect", "torch-sample-cp312")
    assert door(*options, "--record-durations", "--json", tmp_path / "d.json") == 0
    record = records.read(run.store, outputs, GROUP, "test_torch-sample-cp312")
    assert record is not None
    assert record.inputs["files"] == {"torch.whl": "a" * 64}
    clean = dict.fromkeys(("failures", "errors", "skipped", "unexplained"), 0)
    assert record.details["tests"] == {**clean, "tests": 2, "existing": 2}
    assert records.read(run.store, outputs, GROUP, "test_torch-sample-cp312.failed") is None
    kept = json.loads(run.store.read(f"17-linux/reports/{GROUP}/test-report.json"))
    assert kept["passed"]
    known = shards.for_run(run.store, run.common(run_id="18").outputs, GROUP, "default")
    expected = {"test/test_a.py": 1.5, "test/test_b.py": 1.5}
    assert {name: one.seconds for name, one in known.files.items()} == expected
    # again: the same verdict, from the shards and not from what was made of them
    assert door(*options) == 0
    assert judged(run)["test_torch"] == ("passed", "")


@pytest.mark.parametrize(("words", "code"), [(("--run-id", 99), 4), (("--input-dir", "/nowhere/at/all"), 4)])
def test_nothing_to_report_is_an_error(run: Any, words: tuple[object, ...], code: int) -> None:
    assert door("--store", run.store.url, *words) == code


def test_another_platforms_part_of_a_run_is_judged_by_this_machine(run: Any) -> None:
    shard(run, 1, good("test_a"))
    shard(run, 2, good("test_b"))
    there = run.store.root / "17-windows"
    (run.store.root / "17-linux").rename(there)
    for path in there.rglob("*.json"):
        text = path.read_text(encoding="utf-8").replace('"platform": "linux"', '"platform": "windows"')
        path.write_text(text.replace("17-linux/", "17-windows/"), encoding="utf-8")
    options = ("--run-id", 17, "--store", run.store.url)
    assert door(*options) == 4
    assert door(*options, "--platform", "windows") == 0
    kept = json.loads((there / "reports" / GROUP / "test-report.json").read_text(encoding="utf-8"))
    assert kept["passed"]
    assert (there / "manifests" / GROUP / "test_torch-sample-cp312.json").is_file()
    assert not (run.store.root / "17-linux").exists()
