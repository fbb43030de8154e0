from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from core.run import records
from core.run.records import FileRecord, Record
from pytorch_build.test.cell_results import CellResults, merge_reports
from pytorch_build.test.junit.document import Document, Outcome
from pytorch_build.test.junit.writer import write_junit
from pytorch_build.test.record import TestDetails
from pytorch_build.test.record_validity import (
    check_records,
    why_impossible,
    why_incomplete,
    why_out_of_date,
)
from pytorch_build.test.report import Report, ReportOrigin
from pytorch_build.test.shards import Shard
from pytorch_build.test.stored_reports import find_tested_groups, put_report, read_reports_of_group
from tests.kit.builds import LocalRun
from tests.kit.torch_halves import FIRST_HALF, SECOND_HALF, record_of_half
from tests.kit.torch_records import record_of_test
from tests.kit.torch_results import document_of

GROUP = "gfx94X-dcgpu"
NOW = datetime(2026, 11, 21, tzinfo=UTC)


# Whether a record can be true, and is of all tests.


def why_not_of_run(record: Record, *, artifact_group: str = "gfx94X-dcgpu") -> str:
    """Return why a record cannot be of a test of run 17."""
    return why_impossible(record, run_id="17", artifact_group=artifact_group, targets=("gfx942",), now=NOW)


def test_believes_a_record_of_the_run_and_family() -> None:
    assert why_not_of_run(record_of_test()) == ""


def test_believes_a_test_of_the_cpu_without_a_gpu() -> None:
    assert why_not_of_run(record_of_test(inputs={"gpu": []}), artifact_group="cpu") == ""


@pytest.mark.parametrize(
    ("record", "field"),
    [
        pytest.param(record_of_test(run_id="18"), "run_id", id="another run"),
        pytest.param(record_of_test(started="9999-01-01T00:00:00+00:00"), "started", id="year 9999"),
        pytest.param(record_of_test(started="2026-11-23T00:00:00+00:00"), "started", id="two days ahead"),
        pytest.param(record_of_test(started="yesterday"), "started", id="words"),
        pytest.param(record_of_test(inputs={"gpu": ["gfx1151"]}), "inputs.gpu", id="another family"),
        pytest.param(
            record_of_test(inputs={"gpu": [["gfx942"], ["sm_90"]]}), "inputs.gpu", id="another vendor"
        ),
        pytest.param(record_of_test(inputs={"gpu": ""}), "inputs.gpu", id="no GPU"),
        pytest.param(record_of_test(inputs={"gpu": None}), "inputs.gpu", id="unknown GPU"),
    ],
)
def test_names_the_field_that_cannot_be(record: Record, field: str) -> None:
    assert f"'{field}'" in why_not_of_run(record)


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({}, "which tests exist"),
        ({"tests": {"tests": 5}}, "which tests exist"),
        ({"tests": {"tests": 1, "existing": 91}}, "1 of 91"),
        ({"tests": {"tests": 9, "existing": 9}, "left_out": "2 files"}, "2 files"),
        ({"tests": {"tests": 9, "existing": 9, "unexplained": 3}}, "3 of 9"),
    ],
)
def test_says_why_a_test_is_not_whole(details: dict[str, Any], reason: str) -> None:
    assert reason in why_incomplete(TestDetails.model_validate(details))


def test_a_whole_test_has_no_reason_against_it() -> None:
    details = TestDetails.model_validate({"tests": {"tests": 9, "existing": 9}})

    assert why_incomplete(details) == ""


# Reports of a run, with what its records know.

SAMPLE = ReportOrigin(
    stage="test_torch", torch_ref="sample", python="cp312", gpu_family=GROUP, run_id="local"
)
SAMPLE_CELL: dict[str, Any] = {"torch_ref": "sample", "python": "cp312", "gpu_family": GROUP}


def leave_report(run: LocalRun, report: Report) -> dict[str, Any]:
    """File a report in the local run; return the details of its record."""
    return dict(put_report(run.store, run.common().outputs, GROUP, report))


def put_results(run: LocalRun, stage: str, *outcomes: Outcome, shard: Shard | None = None) -> str:
    """Leave the report and the record of tests; return the report's key."""
    name = str(shard.index) if shard else "x"
    origin = replace(SAMPLE, stage=stage)
    report = Report(origin=origin, document=document_of(*outcomes, name=name), shard=shard)
    details = leave_report(run, report)
    run.record(origin.stage_name(shard), group=GROUP, details=details, **SAMPLE_CELL)
    return str(details["report"]["key"])


def put_failure(run: LocalRun, stage: str, error: str) -> None:
    """Leave the record of tests that failed, beside the last success's."""
    success = run.record("x", group=GROUP, **SAMPLE_CELL)
    run.store.delete(run.common().outputs.record_key(GROUP, success.name))
    failure = success.model_copy(update={"stage": stage, "status": "failed", "error": error})
    records.write(run.store, run.common().outputs, GROUP, failure)


def gather(run: LocalRun) -> Sequence[CellResults]:
    """Return the results of the local run."""
    outputs = run.common().outputs
    all_records = records.read_all(run.store, outputs, GROUP)
    found_reports = read_reports_of_group(run.store, outputs, GROUP, all_records)
    return check_records(
        merge_reports(found_reports), all_records, store=run.store, outputs=outputs, artifact_group=GROUP
    )


def test_a_run_has_the_results_of_each_test(run: LocalRun) -> None:
    put_results(run, "test_smoke", "passed")
    put_results(run, "test_torch", "passed", shard=FIRST_HALF)
    put_results(run, "test_torch", "passed", shard=SECOND_HALF)

    smoke, torch = gather(run)

    assert find_tested_groups(run.common()) == [GROUP]
    assert smoke.origin.stage == "test_smoke"
    assert smoke.passed
    assert torch.origin.stage == "test_torch"
    assert torch.shard_count == 2
    assert torch.passed


def test_a_run_has_the_results_of_each_configuration(run: LocalRun) -> None:
    put_results(run, "test_torch", "passed")
    origin = replace(SAMPLE, config="inductor")
    details = leave_report(run, Report(origin=origin, document=document_of("passed")))
    inputs = {"config": "inductor"}
    run.record(origin.stage_name(), group=GROUP, details=details, inputs=inputs, **SAMPLE_CELL)

    results = {cell_results.origin.config: cell_results.passed for cell_results in gather(run)}

    assert results == {"": True, "inductor": True}


def test_a_report_that_says_nothing_of_itself_is_known_by_its_record(run: LocalRun) -> None:
    key = put_results(run, "test_smoke", "passed")
    run.store.put_bytes(key, write_junit(document_of("passed")))

    (cell_results,) = gather(run)

    assert cell_results.origin == replace(SAMPLE, stage="test_smoke")


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        pytest.param(document_of("passed", "failed"), "was replaced", id="replaced"),
        pytest.param(None, "is gone", id="gone"),
    ],
)
def test_another_report_than_its_record_names_is_a_problem(
    run: LocalRun, document: Document | None, problem: str
) -> None:
    key = put_results(run, "test_smoke", "passed")
    if document is None:
        run.store.delete(key)
    else:
        run.store.put_bytes(key, write_junit(document))

    (cell_results,) = gather(run)

    assert cell_results.document.problems == (f"test_smoke: its report smoke-sample-cp312.xml {problem}",)


def test_a_failure_after_a_pass_is_a_problem(run: LocalRun) -> None:
    put_results(run, "test_smoke", "passed")
    put_failure(run, "test_smoke", "no GPU.")

    (cell_results,) = gather(run)

    assert cell_results.document.problems == ("test_smoke failed: no GPU.",)


def test_a_failure_without_a_report_is_a_problem(run: LocalRun) -> None:
    put_failure(run, "test_torch", "no wheel.")

    (cell_results,) = gather(run)

    assert cell_results.document.problems == ("test_torch failed: no wheel.",)
    assert not cell_results.passed


def test_a_failure_that_the_results_show_is_told_once(run: LocalRun) -> None:
    put_results(run, "test_smoke", "passed")
    origin = replace(SAMPLE, stage="test_smoke")
    leave_report(run, Report(origin=origin, document=document_of("passed", "failed")))
    put_failure(run, "test_smoke", "1 of 2 failed.")

    (cell_results,) = gather(run)

    assert cell_results.document.problems == ()
    assert len(cell_results.document.failing) == 1


def test_a_shard_that_was_interrupted_is_missing(run: LocalRun) -> None:
    put_results(run, "test_torch", "passed", shard=FIRST_HALF)
    put_failure(run, "test_torch-2-of-2", "interrupted")

    (cell_results,) = gather(run)

    assert cell_results.document.problems == ("no report of shard 2/2",)


# Whether results are about the bytes that a run has.

TESTED_FILES = {"torch-2.whl": "a" * 64, "rocm_sdk_core-7.whl": "d" * 64}


def built_record(run: LocalRun, stage: str, files: dict[str, str]) -> Record:
    """Return the record of a build, by its files' names and digests."""
    file_records = [
        FileRecord(name=name, size=1, sha256=digest, distribution=name.partition("-")[0])
        for name, digest in files.items()
    ]
    torch_ref = "" if stage == "build_rocm" else "nightly"
    record: Record = run.record(stage, *file_records, torch_ref=torch_ref, python="cp312")
    return record


@pytest.mark.parametrize(
    ("wheels", "rocm"),
    [
        pytest.param({"torch-2.whl": "a" * 64}, {}, id="ROCm of elsewhere"),
        pytest.param({"torch-2.whl": "a" * 64}, {"rocm_sdk_core-7.whl": "d" * 64}, id="the run's ROCm"),
    ],
)
def test_results_of_the_runs_bytes_are_up_to_date(
    run: LocalRun, wheels: dict[str, str], rocm: dict[str, str]
) -> None:
    record = record_of_half(FIRST_HALF, files=TESTED_FILES)
    builds = [built_record(run, "build_torch", wheels), built_record(run, "build_rocm", rocm)]

    assert why_out_of_date(record, [record, *builds]) == ""


@pytest.mark.parametrize(
    ("wheels", "rocm", "name"),
    [
        pytest.param({"torch-2.whl": "b" * 64}, {}, "torch-2.whl", id="rebuilt wheel"),
        pytest.param(
            {"torch-2.whl": "a" * 64, "triton-3.whl": "c" * 64}, {}, "triton-3.whl", id="untested wheel"
        ),
        pytest.param(
            {"torch-2.whl": "a" * 64},
            {"rocm_sdk_core-7.whl": "e" * 64},
            "rocm_sdk_core-7.whl",
            id="rebuilt ROCm",
        ),
        pytest.param(
            {"torch-2.whl": "a" * 64},
            {"rocm_sdk_core-8.whl": "d" * 64},
            "rocm_sdk_core-7.whl",
            id="another ROCm",
        ),
    ],
)
def test_results_of_other_bytes_are_out_of_date(
    run: LocalRun, wheels: dict[str, str], rocm: dict[str, str], name: str
) -> None:
    record = record_of_half(FIRST_HALF, files=TESTED_FILES)
    builds = [built_record(run, "build_torch", wheels), built_record(run, "build_rocm", rocm)]

    assert why_out_of_date(record, [record, *builds]).endswith(f" {name}")


def test_results_of_a_filled_environment_are_of_unknown_bytes() -> None:
    assert why_out_of_date(record_of_half(FIRST_HALF, installed=False), [])
