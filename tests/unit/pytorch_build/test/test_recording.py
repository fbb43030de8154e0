from __future__ import annotations

from typing import Any

import pytest

from core.errors import CheckError
from core.junit import Case, Document, read
from core.run import records
from core.run.outputs import RunOutputs
from core.run.records import Cell, Record
from core.stores.directory import DirectoryStore
from pytorch_build.test import reports
from pytorch_build.test.reports import (
    of_shards,
    put_report,
    require_passed,
    require_report_passed,
    stage_name,
)
from pytorch_build.test.results import Origin, Report, Tested, merged
from pytorch_build.test.shards import Shard

ORIGIN = Origin(stage="test_torch", torch_ref="nightly", python="cp312", gpu_family="gfx942", run_id="17")
OUTPUTS = RunOutputs(run_id="17", platform="linux")
WHEELS = {"torch-2.10-cp312.whl": "a" * 64}


def case(name: str = "x", outcome: Any = "passed", **facts: Any) -> Case:
    return Case(test=f"t.py::{name}", outcome=outcome, file="t.py", **facts)


def shard_record(at: int, **inputs: Any) -> Record:
    given = {
        "files": WHEELS,
        "arguments": [],
        "installed": True,
        "gpu": ["gfx942"],
        "shard": f"{at}/2",
    } | inputs
    return Record(
        stage=stage_name(ORIGIN, Shard(index=at, count=2)),
        run_id="17",
        platform="linux",
        cell=Cell(torch_ref="nightly", python="cp312", gpu_family="gfx942"),
        started=f"2026-01-01T00:00:0{at}+00:00",
        seconds=10,
        inputs=given,
        input_digest=f"{at}" * 64,
    )


def shards(*outcomes: Any) -> Tested:
    (tested,) = merged(
        Report(
            origin=ORIGIN,
            document=Document(cases=(case(f"x{at}", outcome),)),
            shard=Shard(index=at, count=len(outcomes)),
        )
        for at, outcome in enumerate(outcomes, start=1)
    )
    return tested


@pytest.fixture
def store(tmp_path: Any) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def made(store: DirectoryStore, tested: Tested, *found: Record) -> Record:
    return of_shards(found, tested, store=store, outputs=OUTPUTS, artifact_group="gfx942")


@pytest.mark.parametrize(
    ("config", "shard", "name"),
    [
        ("", None, "test_torch"),
        ("default", Shard(index=1, count=1), "test_torch"),
        ("default", Shard(index=2, count=6), "test_torch-2-of-6"),
        ("inductor", Shard(index=2, count=6), "test_torch_inductor-2-of-6"),
    ],
)
def test_only_all_shards_together_are_the_stage(config: str, shard: Shard | None, name: str) -> None:
    assert stage_name(Origin(stage="test_torch", config=config), shard) == name


def test_a_report_is_filed_with_its_totals(store: DirectoryStore) -> None:
    cases = (case("a"), case("b", "crashed"), case("c", "xfailed"), case("d", "flaky"), case("e", "failed"))
    report = Report(origin=ORIGIN, document=Document(cases=cases), shard=Shard(index=2, count=6), collected=5)
    details = put_report(store, OUTPUTS, "gfx942", report)
    assert details["tests"] == {"tests": 5, "failures": 1, "errors": 1, "skipped": 1}
    assert details["outcomes"] == {"passed": 1, "xfailed": 1, "flaky": 1, "failed": 1, "crashed": 1}
    key = details["report"]["key"]
    assert key == "17-linux/reports/gfx942/torch-nightly-cp312-2-of-6.xml"
    assert store.digest(key) == details["report"]["sha256"]
    assert read(store.read(key)).properties["shard"] == "2/6"


def test_the_record_of_all_shards_is_what_a_promotion_reads(store: DirectoryStore) -> None:
    record = made(store, shards("passed", "flaky"), shard_record(2), shard_record(1))
    assert (record.stage, record.status) == ("test_torch", "ok")
    assert record.cell == Cell(torch_ref="nightly", python="cp312", gpu_family="gfx942")
    assert record.inputs["files"] == WHEELS
    assert record.inputs["arguments"] == []
    assert record.inputs["gpu"] == [["gfx942"], ["gfx942"]]
    assert record.seconds == 20
    assert record.details["tests"] == {"tests": 2, "failures": 0, "errors": 0, "skipped": 0}
    document = read(store.read(record.details["report"]["key"]))
    assert document.properties[reports.MERGED] == "2"
    assert [one.outcome for one in document.cases] == ["passed", "flaky"]
    # a record is what a store keeps
    assert records.parse(records.serialize(record), where="w") == record


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"files": {"torch-2.10-cp312.whl": "b" * 64}}, "differ in files"),
        ({"arguments": ["-k", "x"]}, "differ in arguments"),
        ({"installed": False}, "differ in installed"),
    ],
)
def test_shards_that_tested_something_else_are_no_whole(
    store: DirectoryStore, second: dict[str, Any], why: str
) -> None:
    with pytest.raises(CheckError, match=why):
        made(store, shards("passed", "passed"), shard_record(1), shard_record(2, **second))


def test_a_shard_without_a_gpu_is_told_of(store: DirectoryStore) -> None:
    record = made(store, shards("passed", "passed"), shard_record(1), shard_record(2, gpu=[]))
    assert record.inputs["gpu"] == []


def test_shards_need_records_that_name_wheels(store: DirectoryStore) -> None:
    with pytest.raises(CheckError, match="no record of success of test_torch-2-of-2"):
        made(store, shards("passed", "passed"), shard_record(1))
    with pytest.raises(CheckError, match="name no wheels"):
        made(store, shards("passed", "passed"), shard_record(1, files={}), shard_record(2, files={}))


def test_a_failure_is_recorded_as_one(store: DirectoryStore) -> None:
    record = made(store, shards("passed", "failed"), shard_record(1))
    assert (record.status, record.exit_code) == ("failed", CheckError.exit_code)
    assert "1 of 2 failed" in record.error
    assert "t.py::x2 failed" in record.error


def test_results_that_did_not_pass_are_refused() -> None:
    with pytest.raises(CheckError, match="there is no result"):
        require_passed([])
    with pytest.raises(CheckError, match=r"1 of 1 failed\.\n  t\.py::x failed: no"):
        require_passed(
            merged([Report(origin=ORIGIN, document=Document(cases=(case(outcome="failed", line="no"),)))])
        )
    with pytest.raises(CheckError, match=r"cannot be trusted.\n.*: no report of shard 2/2"):
        require_passed(merged([one(1)]))
    require_passed([shards("passed", "flaky")])


def one(at: int) -> Report:
    return Report(origin=ORIGIN, document=Document(cases=(case(),)), shard=Shard(index=at, count=2))


def test_one_shard_is_judged_by_itself() -> None:
    require_report_passed(one(1))
    with pytest.raises(CheckError, match="2 tests were to run, and 1 are reported"):
        require_report_passed(
            Report(origin=ORIGIN, document=one(1).document, shard=one(1).shard, collected=2)
        )


@pytest.mark.parametrize(("run_id", "kept"), [("local", 1), ("17", 4)])
def test_another_number_of_shards_of_the_local_run_takes_the_place_of_the_last(
    store: DirectoryStore, run_id: str, kept: int
) -> None:
    outputs = RunOutputs(run_id=run_id, platform="linux")
    others = (Origin(stage="test_torch", torch_ref="nightly", python="cp313"), Origin(stage="test_smoke"))

    def put(origin: Origin, at: int, count: int) -> None:
        part = Shard(index=at, count=count) if count > 1 else None
        put_report(store, outputs, "cpu", Report(origin=origin, document=one(1).document, shard=part))
        cell = Cell(torch_ref=origin.torch_ref, python=origin.python)
        made = shard_record(1).model_copy(update={"stage": stage_name(origin, part), "cell": cell})
        records.write(store, outputs, "cpu", made)

    for origin in others:
        put(origin, 1, 1)
    put(ORIGIN, 1, 1)
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
