import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import junit
from core.errors import CheckError, MissingInputError
from core.junit import Case, Document, read
from core.run import RunOutputs, records
from core.stores.directory import DirectoryStore
from pytorch_build.test import reports
from pytorch_build.test.results import Origin, Report, Tested, merged
from pytorch_build.test.shards import Shard

ORIGIN = Origin(stage="test_torch", torch_ref="nightly", python="cp312", gpu_family="gfx942", run_id="17")
OUTPUTS = RunOutputs(run_id="17", platform="linux")
WHEELS = {"torch-2.10-cp312.whl": "a" * 64}
GROUP = "gfx94X-dcgpu"
SAMPLE = Origin(stage="test_torch", torch_ref="sample", python="cp312", gpu_family=GROUP, run_id="local")
HALVES = (Shard(index=1, count=2), Shard(index=2, count=2))


def document(*outcomes: Any, name: str = "x") -> Document:
    cases = (Case(test=f"t.py::{name}{at}", outcome=one, file="t.py") for at, one in enumerate(outcomes))
    return Document(cases=tuple(cases))


def half(at: int, outcome: Any = "passed", **facts: Any) -> Report:
    named = document(outcome, name=f"{at}-")
    return Report(origin=ORIGIN, document=named, shard=Shard(index=at, count=2), **facts)


def shards(*outcomes: Any) -> Tested:
    (tested,) = merged(half(at, outcome) for at, outcome in enumerate(outcomes, start=1))
    return tested


def shard_record(at: int, **inputs: Any) -> records.Record:
    given = {"files": WHEELS, "arguments": [], "installed": True, "gpu": ["gfx942"], "shard": f"{at}/2"}
    return records.Record(
        stage=reports.stage_name(ORIGIN, Shard(index=at, count=2)),
        run_id="17",
        platform="linux",
        cell=records.Cell(torch_ref="nightly", python="cp312", gpu_family="gfx942"),
        started=f"2026-01-01T00:00:0{at}+00:00",
        seconds=10,
        inputs=given | inputs,
        input_digest=f"{at}" * 64,
    )


@pytest.fixture
def store(tmp_path: Any) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def made(store: DirectoryStore, tested: Tested, *found: records.Record) -> records.Record:
    return reports.of_shards(found, tested, store=store, outputs=OUTPUTS, artifact_group="gfx942")


def test_a_report_is_filed_with_its_totals(store: DirectoryStore) -> None:
    cases = document("passed", "crashed", "xfailed", "flaky", "failed")
    report = Report(origin=ORIGIN, document=cases, shard=Shard(index=2, count=6))
    details = reports.put_report(store, OUTPUTS, "gfx942", report)
    assert details["tests"] == {"tests": 5, "failures": 1, "errors": 1, "skipped": 1}
    assert details["outcomes"] == {"passed": 1, "xfailed": 1, "flaky": 1, "failed": 1, "crashed": 1}
    key = details["report"]["key"]
    assert key == "17-linux/reports/gfx942/torch-nightly-cp312-2-of-6.xml"
    assert store.digest(key) == details["report"]["sha256"]
    assert read(store.read(key)).properties["shard"] == "2/6"


def test_the_record_of_all_shards_is_what_a_promotion_reads(store: DirectoryStore) -> None:
    record = made(store, shards("passed", "flaky"), shard_record(2), shard_record(1))
    assert (record.stage, record.status) == ("test_torch", "ok")
    assert record.cell == records.Cell(torch_ref="nightly", python="cp312", gpu_family="gfx942")
    assert (record.inputs["files"], record.inputs["arguments"]) == (WHEELS, [])
    assert record.inputs["gpu"] == [["gfx942"], ["gfx942"]]
    assert record.seconds == 20
    assert record.details["tests"] == {"tests": 2, "failures": 0, "errors": 0, "skipped": 0}
    filed = read(store.read(record.details["report"]["key"]))
    assert filed.properties[reports.MERGED] == "2"
    assert [one.outcome for one in filed.cases] == ["passed", "flaky"]
    # a record is what a store keeps
    assert records.parse(records.serialize(record), where="w") == record
    # a shard that had no GPU leaves the whole without
    assert (
        made(store, shards("passed", "passed"), shard_record(1), shard_record(2, gpu=[])).inputs["gpu"] == []
    )


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({}, {"files": {"torch-2.10-cp312.whl": "b" * 64}}, "differ in files"),
        ({}, {"arguments": ["-k", "x"]}, "differ in arguments"),
        ({}, {"installed": False}, "differ in installed"),
        ({}, None, "no record of success of test_torch-2-of-2"),
        ({"files": {}}, {"files": {}}, "name no wheels"),
    ],
)
def test_shards_that_tested_something_else_are_not_a_whole(
    store: DirectoryStore, first: dict[str, Any], second: dict[str, Any] | None, why: str
) -> None:
    found = [shard_record(1, **first), *([] if second is None else [shard_record(2, **second)])]
    with pytest.raises(CheckError, match=why):
        made(store, shards("passed", "passed"), *found)


def test_a_failure_is_recorded_as_one(store: DirectoryStore) -> None:
    record = made(store, shards("passed", "failed"), shard_record(1))
    assert (record.status, record.exit_code) == ("failed", CheckError.exit_code)
    assert "1 of 2 failed" in record.error
    assert "t.py::2-0 failed" in record.error
    # one shard is judged by itself
    assert reports.why_not([shards("passed", "flaky")]) == ""
    reports.require_passed(half(1))
    with pytest.raises(CheckError, match="1 of 1 failed"):
        reports.require_passed(half(1, "failed"))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([], "there is no result"),
        ([Report(origin=ORIGIN, document=document("failed"))], r"1 of 1 failed\.\n  t\.py::x0 failed"),
        ([half(1)], r"cannot be trusted.\n.*: no report of shard 2/2"),
    ],
)
def test_results_that_did_not_pass_say_why(found: Sequence[Report], why: str) -> None:
    assert re.search(why, reports.why_not(merged(found)))


@pytest.mark.parametrize(("run_id", "kept"), [("local", 1), ("17", 4)])
def test_other_counts_of_local_shards_replace_the_last(store: DirectoryStore, run_id: str, kept: int) -> None:
    outputs = RunOutputs(run_id=run_id, platform="linux")
    others = (Origin(stage="test_torch", torch_ref="nightly", python="cp313"), Origin(stage="test_smoke"))

    def put(origin: Origin, at: int, count: int) -> None:
        part = Shard(index=at, count=count) if count > 1 else None
        reports.put_report(
            store, outputs, "cpu", Report(origin=origin, document=document("passed"), shard=part)
        )
        cell = records.Cell(torch_ref=origin.torch_ref, python=origin.python)
        made = shard_record(1).model_copy(update={"stage": reports.stage_name(origin, part), "cell": cell})
        records.write(store, outputs, "cpu", made)

    for origin in (*others, ORIGIN):
        put(origin, 1, 1)
    for count in (3, 2):
        put(ORIGIN, 1, count)
    put(ORIGIN, 2, 2) if kept > 1 else None
    for prefix in (outputs.reports_prefix("cpu"), outputs.manifests_prefix("cpu")):
        mine = [key.key for key in store.list(prefix) if "nightly-cp312" in key.key]
        assert len(mine) == kept
        assert len(store.list(prefix)) == kept + len(others)
    put(ORIGIN, 1, 1)
    if run_id == "local":
        assert records.read(store, outputs, "cpu", "test_torch-nightly-cp312") is not None
        assert records.read(store, outputs, "cpu", "test_torch-1-of-2-nightly-cp312") is None


def filed(run: Any, report: Report) -> dict[str, Any]:
    return dict(reports.put_report(run.store, run.common().outputs, GROUP, report))


def put(run: Any, stage: str, *outcomes: Any, shard: Shard | None = None) -> str:
    origin = replace(SAMPLE, stage=stage)
    named = document(*outcomes, name=str(shard.index) if shard else "x")
    details = filed(run, Report(origin=origin, document=named, shard=shard))
    write(run, reports.stage_name(origin, shard), details=details)
    return str(details["report"]["key"])


def write(run: Any, stage: str, status: str = "ok", **facts: Any) -> None:
    record = run.record("x", torch_ref="sample", python="cp312", gpu_family=GROUP)
    run.store.delete(run.common().outputs.record_key(GROUP, record.name))
    changed = record.model_copy(update={"stage": stage, "status": status, **facts})
    records.write(run.store, run.common().outputs, GROUP, changed)


def gathered(run: Any) -> Sequence[Tested]:
    outputs = run.common().outputs
    found = records.read_all(run.store, outputs, GROUP)
    mine = reports.reports_of(run.store, outputs, GROUP, found)
    return reports.checked(merged(mine), found, store=run.store, outputs=outputs, artifact_group=GROUP)


def test_a_run_that_passed(run: Any) -> None:
    run.store.put_bytes(f"local-linux/reports/{GROUP}/findings.json", b"{}")
    with pytest.raises(MissingInputError, match="no test reports"):
        reports.groups_of(run.common())
    put(run, "test_smoke", "passed")
    for shard in HALVES:
        put(run, "test_torch", "passed", shard=shard)
    expected = [("test_smoke", 1, True), ("test_torch", 2, True)]
    assert [(one.origin.stage, one.shards, one.passed) for one in gathered(run)] == expected
    assert reports.groups_of(run.common()) == [GROUP]
    # configurations are apart
    origin = replace(SAMPLE, config="inductor")
    details = filed(run, Report(origin=origin, document=document("passed")))
    write(run, reports.stage_name(origin), details=details, inputs={"config": "inductor"})
    found = [(one.origin.config, one.passed) for one in gathered(run)]
    assert sorted(found) == [("", True), ("", True), ("inductor", True)]


def test_a_report_that_says_nothing_of_itself_is_known_by_its_record(run: Any) -> None:
    run.store.put_bytes(put(run, "test_smoke", "passed"), junit.write(document("passed", "failed")))
    (tested,) = gathered(run)
    assert tested.origin == replace(SAMPLE, stage="test_smoke")
    # and it is not the one that the record names
    assert tested.problems == ("test_smoke: its report smoke-sample-cp312.xml was replaced",)


def test_what_records_know_and_reports_do_not_is_a_problem(run: Any) -> None:
    key = put(run, "test_smoke", "passed")
    write(run, "test_smoke", "failed", error="no GPU.")  # after it had passed
    write(run, "test_torch", "failed", error="no wheel.")
    smoke, torch = gathered(run)
    assert smoke.problems == ("test_smoke failed: no GPU.",)
    assert (torch.problems, torch.passed) == (("test_torch failed: no wheel.",), False)
    put(run, "test_smoke", "passed")
    run.store.delete(key)
    assert gathered(run)[0].problems == ("test_smoke: its report smoke-sample-cp312.xml is gone",)


def test_failures_that_the_results_show_are_told_once(run: Any) -> None:
    # after it had passed, with another report
    put(run, "test_smoke", "passed")
    filed(run, Report(origin=replace(SAMPLE, stage="test_smoke"), document=document("passed", "failed")))
    write(run, "test_smoke", "failed", error="1 of 2 failed.")
    put(run, "test_torch", "passed", shard=HALVES[0])
    write(run, "test_torch-2-of-2", "failed", error="interrupted")
    smoke, torch = gathered(run)
    assert (smoke.problems, len(smoke.failing)) == ((), 1)
    assert torch.problems == ("no report of shard 2/2",)


def test_a_folder_of_any_reports(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(MissingInputError, match="no JUnit reports"):
        reports.in_folder(tmp_path)
    for name, outcomes in (("a/1.xml", ("failed",)), ("a/2.xml", ("passed",)), ("b/1.xml", ("passed",))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(junit.write(document(*outcomes)))
    (tmp_path / "b" / "torn.xml").write_bytes(b"<testsuites><testsuite>")
    first, second = merged(reports.in_folder(tmp_path))
    # the second report of a folder is another attempt
    assert (first.origin.folder, first.counts["flaky"], first.passed) == ("a", 1, True)
    assert not second.passed
    assert second.problems[0].startswith("b/torn.xml: the report is cut off")


def test_what_was_expected_and_is_missing_is_a_problem() -> None:
    (there,) = merged([Report(origin=SAMPLE, document=document("passed"))])
    first, second = reports.require_expected([there], ["torch-sample-cp312", "smoke-sample-cp312"])
    assert first == there
    assert (second.problems, second.origin.folder) == (("there is no report",), "smoke-sample-cp312")


@pytest.mark.parametrize(
    ("wheels", "rocm", "why"),
    [
        ({"torch-2.whl": "a" * 64}, {}, ""),
        ({"torch-2.whl": "b" * 64}, {}, "torch-2.whl"),
        ({"torch-2.whl": "a" * 64, "triton-3.whl": "c" * 64}, {}, "triton-3.whl"),
        ({"torch-2.whl": "a" * 64}, {"rocm_sdk_core-7.whl": "d" * 64}, ""),
        ({"torch-2.whl": "a" * 64}, {"rocm_sdk_core-7.whl": "e" * 64}, "rocm_sdk_core-7.whl"),
        ({"torch-2.whl": "a" * 64}, {"rocm_sdk_core-8.whl": "d" * 64}, "rocm_sdk_core-7.whl"),
    ],
)
def test_results_are_of_their_bytes(run: Any, wheels: dict[str, str], rocm: dict[str, str], why: str) -> None:
    def built(stage: str, files: dict[str, str]) -> records.Record:
        named = [
            records.FileRecord(name=name, size=1, sha256=digest, distribution=name.partition("-")[0])
            for name, digest in files.items()
        ]
        ref = "" if stage == "build_rocm" else "nightly"
        return run.record(stage, *named, torch_ref=ref, python="cp312")  # type: ignore[no-any-return]

    tested = {"torch-2.whl": "a" * 64, "rocm_sdk_core-7.whl": "d" * 64}
    record = shard_record(1, files=tested)
    said = reports.out_of_date(record, [record, built("build_torch", wheels), built("build_rocm", rocm)])
    assert said == (f"out of date: it ran on other bytes than the run has of {why}" if why else "")
    assert "held already" in reports.out_of_date(shard_record(1, installed=False), [])
