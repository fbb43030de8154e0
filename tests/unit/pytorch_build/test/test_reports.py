from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from core.cell import GroupCell
from core.errors import CheckError, MissingInputError
from core.run import RunOutputs, records
from core.run.records import FileRecord, Record
from core.stores import Store
from core.stores.directory import DirectoryStore
from pytorch_build.test import junit, reports
from pytorch_build.test.junit import Document, Outcome, read
from pytorch_build.test.record import why_out_of_date
from pytorch_build.test.results import CellResults, Report, ReportOrigin, merge_reports
from pytorch_build.test.shards import Shard
from tests.kit.builds import LocalRun
from tests.kit.group_cells import group_cell
from tests.kit.runs import run_outputs
from tests.kit.torch_results import case_of

GROUP = "gfx94X-dcgpu"
ORIGIN = ReportOrigin(
    stage="test_torch", torch_ref="nightly", python="cp312", gpu_family="gfx942", run_id="17"
)
CELL = GroupCell(torch_ref="nightly", python="3.12", gpu_family="gfx942")
OUTPUTS = run_outputs("17")
WHEELS = {"torch-2.10-cp312.whl": "a" * 64}
FIRST_HALF = Shard(index=1, count=2)
SECOND_HALF = Shard(index=2, count=2)


def document_of(*outcomes: Outcome, name: str = "x") -> Document:
    """Return the document of tests with these outcomes."""
    return Document(
        cases=tuple(
            case_of(f"t.py::{name}{index}", outcome=outcome) for index, outcome in enumerate(outcomes)
        )
    )


def report_of_half(shard: Shard, outcome: Outcome = "passed") -> Report:
    """Return the report of a half, with one test."""
    return Report(origin=ORIGIN, document=document_of(outcome, name=f"{shard.index}-"), shard=shard)


def merge_halves(first: Outcome = "passed", second: Outcome = "passed") -> CellResults:
    """Return the results of both halves, with one test each."""
    (cell_results,) = merge_reports([report_of_half(FIRST_HALF, first), report_of_half(SECOND_HALF, second)])
    return cell_results


def record_of_half(shard: Shard, **inputs: Any) -> Record:
    """Return the record of a half."""
    return Record(
        stage=reports.stage_name(ORIGIN, shard),
        run_id="17",
        platform="linux",
        cell=CELL,
        started=f"2026-01-01T00:00:0{shard.index}+00:00",
        seconds=10,
        inputs={
            "files": WHEELS,
            "arguments": [],
            "installed": True,
            "gpu": ["gfx942"],
            "shard": str(shard),
            **inputs,
        },
        input_digest=f"{shard.index}" * 64,
    )


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def record_of_whole(store: Store, cell_results: CellResults, *half_records: Record) -> Record:
    """Return the record that is made of those of the halves."""
    return reports.record_of_shards(
        half_records, cell_results, store=store, outputs=OUTPUTS, artifact_group="gfx942"
    )


def test_a_report_is_filed_with_its_totals(store: DirectoryStore) -> None:
    document = document_of("passed", "crashed", "xfailed", "flaky", "failed")
    report = Report(origin=ORIGIN, document=document, shard=Shard(index=2, count=6))

    details = reports.put_report(store, OUTPUTS, "gfx942", report)

    key = "17-linux/reports/gfx942/torch-nightly-cp312-2-of-6.xml"
    assert details["tests"] == {"tests": 5, "failures": 1, "errors": 1, "skipped": 1}
    assert details["outcomes"] == {"passed": 1, "xfailed": 1, "flaky": 1, "failed": 1, "crashed": 1}
    assert details["report"] == {"key": key, "sha256": store.digest(key)}
    assert read(store.read(key)).properties["shard"] == "2/6"


def test_the_record_of_the_whole_has_what_a_promotion_reads(store: DirectoryStore) -> None:
    halves = (record_of_half(SECOND_HALF), record_of_half(FIRST_HALF))

    record = record_of_whole(store, merge_halves(), *halves)

    assert record.stage == "test_torch"
    assert record.status == "ok"
    assert record.cell == CELL
    assert record.inputs["files"] == WHEELS
    assert record.inputs["arguments"] == []
    assert record.inputs["gpu"] == [["gfx942"], ["gfx942"]]


def test_the_record_of_the_whole_has_the_totals_of_both_halves(store: DirectoryStore) -> None:
    halves = (record_of_half(FIRST_HALF), record_of_half(SECOND_HALF))

    record = record_of_whole(store, merge_halves(), *halves)

    assert record.seconds == 20
    assert record.details["tests"] == {"tests": 2, "failures": 0, "errors": 0, "skipped": 0}
    assert records.parse(records.serialize(record), where="a test") == record


def test_the_report_of_the_whole_has_the_tests_of_both_halves(store: DirectoryStore) -> None:
    halves = (record_of_half(FIRST_HALF), record_of_half(SECOND_HALF))

    record = record_of_whole(store, merge_halves("passed", "flaky"), *halves)

    document = read(store.read(record.details["report"]["key"]))
    assert document.properties[reports.SHARD_COUNT_OF_TOTAL] == "2"
    assert [case.outcome for case in document.cases] == ["passed", "flaky"]


def test_a_half_without_a_gpu_leaves_the_whole_without(store: DirectoryStore) -> None:
    halves = (record_of_half(FIRST_HALF), record_of_half(SECOND_HALF, gpu=[]))

    assert record_of_whole(store, merge_halves(), *halves).inputs["gpu"] == []


@pytest.mark.parametrize(
    ("half_records", "problem"),
    [
        pytest.param(
            [
                record_of_half(FIRST_HALF),
                record_of_half(SECOND_HALF, files={"torch-2.10-cp312.whl": "b" * 64}),
            ],
            "differ in files",
            id="other wheels",
        ),
        pytest.param(
            [record_of_half(FIRST_HALF), record_of_half(SECOND_HALF, arguments=["--other-gpu"])],
            "differ in arguments",
            id="other arguments",
        ),
        pytest.param(
            [record_of_half(FIRST_HALF), record_of_half(SECOND_HALF, selection=["-k", "x"])],
            "differ in selection",
            id="other selection",
        ),
        pytest.param(
            [record_of_half(FIRST_HALF), record_of_half(SECOND_HALF, installed=False)],
            "differ in installed",
            id="filled environment",
        ),
        pytest.param(
            [record_of_half(FIRST_HALF), record_of_half(SECOND_HALF, config="inductor")],
            "differ in config",
            id="other configuration",
        ),
        pytest.param([record_of_half(FIRST_HALF)], "test_torch-2-of-2", id="no record"),
        pytest.param(
            [record_of_half(FIRST_HALF, files={}), record_of_half(SECOND_HALF, files={})],
            "no wheels",
            id="no wheels",
        ),
    ],
)
def test_halves_that_tested_something_else_are_no_whole(
    store: DirectoryStore, half_records: list[Record], problem: str
) -> None:
    with pytest.raises(CheckError, match=problem):
        record_of_whole(store, merge_halves(), *half_records)


def test_a_failure_of_a_half_is_a_failure_of_the_whole(store: DirectoryStore) -> None:
    record = record_of_whole(store, merge_halves("passed", "failed"), record_of_half(FIRST_HALF))

    assert record.status == "failed"
    assert record.exit_code == CheckError.exit_code
    assert "t.py::2-0" in record.error


def test_a_half_is_judged_by_itself() -> None:
    reports.require_passed(report_of_half(FIRST_HALF))

    with pytest.raises(CheckError, match="1 of 1"):
        reports.require_passed(report_of_half(FIRST_HALF, "failed"))


def test_results_that_passed_have_no_reason_against_them() -> None:
    assert reports.why_not([merge_halves("passed", "flaky")]) == ""


@pytest.mark.parametrize(
    ("found_reports", "names"),
    [
        pytest.param([], ["no result"], id="no report"),
        pytest.param(
            [Report(origin=ORIGIN, document=document_of("failed"))],
            ["1 of 1 failed", "t.py::x0 failed"],
            id="failure",
        ),
        pytest.param([report_of_half(FIRST_HALF)], ["shard 2/2"], id="missing half"),
    ],
)
def test_results_that_did_not_pass_say_why(found_reports: Sequence[Report], names: list[str]) -> None:
    reason = reports.why_not(merge_reports(found_reports))

    for name in names:
        assert name in reason


# Reports and records of a run, in which the same tests ran in several numbers of shards.

OTHER_ORIGINS = (
    ReportOrigin(stage="test_torch", torch_ref="nightly", python="cp313"),
    ReportOrigin(stage="test_smoke"),
)


@dataclass(frozen=True, kw_only=True)
class ShardedRun:
    """A run's outputs in a store, whose tests all pass."""

    store: Store
    outputs: RunOutputs

    def put(self, origin: ReportOrigin, shard: Shard) -> None:
        """Leave what a shard leaves; a single one is the whole."""
        report = Report(
            origin=origin, document=document_of("passed"), shard=shard if shard.count > 1 else None
        )
        reports.put_report(self.store, self.outputs, "cpu", report)
        stage = reports.stage_name(origin, shard)
        cell = group_cell(torch_ref=origin.torch_ref, python_tag=origin.python)
        record = record_of_half(FIRST_HALF).model_copy(update={"stage": stage, "cell": cell})
        records.write(self.store, self.outputs, "cpu", record)

    def names(self, prefix: str) -> list[str]:
        """Return the names of reports or records of the torch ref."""
        keys = [stored.key for stored in self.store.list(prefix)]
        return [key.rpartition("/")[2].partition(".")[0] for key in keys if "nightly-cp312" in key]

    def has(self, name: str) -> bool:
        """Return whether there is a record."""
        return records.read(self.store, self.outputs, "cpu", name) is not None


@pytest.fixture
def sharded_run(store: DirectoryStore, request: pytest.FixtureRequest) -> ShardedRun:
    """Return a run (parameter: its id) whose tests ran as a whole, and then in three and two shards."""
    run = ShardedRun(store=store, outputs=run_outputs(request.param))
    for origin in (*OTHER_ORIGINS, ORIGIN):
        run.put(origin, Shard())
    run.put(ORIGIN, Shard(index=1, count=3))
    run.put(ORIGIN, FIRST_HALF)
    return run


@pytest.mark.parametrize("sharded_run", ["local"], indirect=True)
def test_another_number_of_local_shards_replaces_the_last(sharded_run: ShardedRun) -> None:
    outputs = sharded_run.outputs

    assert sharded_run.names(outputs.reports_prefix("cpu")) == ["torch-nightly-cp312-1-of-2"]
    assert sharded_run.names(outputs.manifests_prefix("cpu")) == ["test_torch-1-of-2-nightly-cp312"]


@pytest.mark.parametrize("sharded_run", ["local"], indirect=True)
def test_a_local_whole_replaces_its_shards(sharded_run: ShardedRun) -> None:
    sharded_run.put(ORIGIN, Shard())

    assert sharded_run.has("test_torch-nightly-cp312")
    assert not sharded_run.has("test_torch-1-of-2-nightly-cp312")


@pytest.mark.parametrize("sharded_run", ["17"], indirect=True)
def test_other_runs_keep_every_number_of_shards(sharded_run: ShardedRun) -> None:
    outputs = sharded_run.outputs

    assert len(sharded_run.names(outputs.reports_prefix("cpu"))) == 3
    assert len(sharded_run.names(outputs.manifests_prefix("cpu"))) == 3


@pytest.mark.parametrize("sharded_run", ["local", "17"], indirect=True)
def test_shards_replace_nothing_of_other_tests(sharded_run: ShardedRun) -> None:
    assert sharded_run.has("test_torch-nightly-cp313")
    assert sharded_run.has("test_smoke")


# Reports of a run, with what its records know.

SAMPLE = ReportOrigin(
    stage="test_torch", torch_ref="sample", python="cp312", gpu_family=GROUP, run_id="local"
)
SAMPLE_CELL: dict[str, Any] = {"torch_ref": "sample", "python": "cp312", "gpu_family": GROUP}


def put_report(run: LocalRun, report: Report) -> dict[str, Any]:
    """File a report in the local run; return the details of its record."""
    return dict(reports.put_report(run.store, run.common().outputs, GROUP, report))


def put_results(run: LocalRun, stage: str, *outcomes: Outcome, shard: Shard | None = None) -> str:
    """Leave the report and the record of tests; return the report's key."""
    name = str(shard.index) if shard else "x"
    origin = replace(SAMPLE, stage=stage)
    details = put_report(run, Report(origin=origin, document=document_of(*outcomes, name=name), shard=shard))
    run.record(reports.stage_name(origin, shard), group=GROUP, details=details, **SAMPLE_CELL)
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
    found_reports = reports.read_reports(run.store, outputs, GROUP, all_records)
    return reports.check_records(
        merge_reports(found_reports), all_records, store=run.store, outputs=outputs, artifact_group=GROUP
    )


def test_a_run_without_reports_is_a_missing_input(run: LocalRun) -> None:
    run.store.put_bytes(f"local-linux/reports/{GROUP}/findings.json", b"{}")

    with pytest.raises(MissingInputError):
        reports.tested_groups(run.common())


def test_a_run_has_the_results_of_each_test(run: LocalRun) -> None:
    put_results(run, "test_smoke", "passed")
    put_results(run, "test_torch", "passed", shard=FIRST_HALF)
    put_results(run, "test_torch", "passed", shard=SECOND_HALF)

    smoke, torch = gather(run)

    assert reports.tested_groups(run.common()) == [GROUP]
    assert smoke.origin.stage == "test_smoke"
    assert smoke.passed
    assert torch.origin.stage == "test_torch"
    assert torch.shards == 2
    assert torch.passed


def test_a_run_has_the_results_of_each_configuration(run: LocalRun) -> None:
    put_results(run, "test_torch", "passed")
    origin = replace(SAMPLE, config="inductor")
    details = put_report(run, Report(origin=origin, document=document_of("passed")))
    inputs = {"config": "inductor"}
    run.record(reports.stage_name(origin), group=GROUP, details=details, inputs=inputs, **SAMPLE_CELL)

    results = {cell_results.origin.config: cell_results.passed for cell_results in gather(run)}

    assert results == {"": True, "inductor": True}


def test_a_report_that_says_nothing_of_itself_is_known_by_its_record(run: LocalRun) -> None:
    key = put_results(run, "test_smoke", "passed")
    run.store.put_bytes(key, junit.write(document_of("passed")))

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
        run.store.put_bytes(key, junit.write(document))

    (cell_results,) = gather(run)

    assert cell_results.problems == (f"test_smoke: its report smoke-sample-cp312.xml {problem}",)


def test_a_failure_after_a_pass_is_a_problem(run: LocalRun) -> None:
    put_results(run, "test_smoke", "passed")
    put_failure(run, "test_smoke", "no GPU.")

    (cell_results,) = gather(run)

    assert cell_results.problems == ("test_smoke failed: no GPU.",)


def test_a_failure_without_a_report_is_a_problem(run: LocalRun) -> None:
    put_failure(run, "test_torch", "no wheel.")

    (cell_results,) = gather(run)

    assert cell_results.problems == ("test_torch failed: no wheel.",)
    assert not cell_results.passed


def test_a_failure_that_the_results_show_is_told_once(run: LocalRun) -> None:
    put_results(run, "test_smoke", "passed")
    origin = replace(SAMPLE, stage="test_smoke")
    put_report(run, Report(origin=origin, document=document_of("passed", "failed")))
    put_failure(run, "test_smoke", "1 of 2 failed.")

    (cell_results,) = gather(run)

    assert cell_results.problems == ()
    assert len(cell_results.failing) == 1


def test_a_shard_that_was_interrupted_is_missing(run: LocalRun) -> None:
    put_results(run, "test_torch", "passed", shard=FIRST_HALF)
    put_failure(run, "test_torch-2-of-2", "interrupted")

    (cell_results,) = gather(run)

    assert cell_results.problems == ("no report of shard 2/2",)


# Reports of a folder.


def test_a_folder_without_reports_is_a_missing_input(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")

    with pytest.raises(MissingInputError):
        reports.reports_in_folder(tmp_path)


def write_report(path: Path, *outcomes: Outcome) -> None:
    """Write a report that says nothing of itself."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(junit.write(document_of(*outcomes)))


def test_reports_of_a_folder_are_attempts(tmp_path: Path) -> None:
    write_report(tmp_path / "a" / "1.xml", "failed")
    write_report(tmp_path / "a" / "2.xml", "passed")

    (cell_results,) = merge_reports(reports.reports_in_folder(tmp_path))

    assert cell_results.origin.folder == "a"
    assert cell_results.counts["flaky"] == 1
    assert cell_results.passed


def test_a_torn_report_of_a_folder_is_a_problem(tmp_path: Path) -> None:
    write_report(tmp_path / "b" / "1.xml", "passed")
    (tmp_path / "b" / "torn.xml").write_bytes(b"<testsuites><testsuite>")

    (cell_results,) = merge_reports(reports.reports_in_folder(tmp_path))

    assert not cell_results.passed
    assert cell_results.problems[0].startswith("b/torn.xml: ")


def test_an_expected_report_that_is_missing_is_a_problem() -> None:
    (torch,) = merge_reports([Report(origin=SAMPLE, document=document_of("passed"))])

    first, second = reports.require_expected([torch], ["torch-sample-cp312", "smoke-sample-cp312"])

    assert first == torch
    assert second.origin.folder == "smoke-sample-cp312"
    assert not second.passed


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
