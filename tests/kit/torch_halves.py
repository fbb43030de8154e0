"""Reports and records of tests of torch that ran in two shards."""

from typing import Any

from core.cell import GroupCell
from core.run.records import Record
from pytorch_build.test.cell_results import CellResults, merge_reports
from pytorch_build.test.junit.document import Outcome
from pytorch_build.test.report import Report, ReportOrigin
from pytorch_build.test.shards import Shard
from tests.kit.torch_results import document_of

ORIGIN = ReportOrigin(
    stage="test_torch", torch_ref="nightly", python="cp312", gpu_family="gfx942", run_id="17"
)
CELL = GroupCell(torch_ref="nightly", python="3.12", gpu_family="gfx942")
WHEELS = {"torch-2.10-cp312.whl": "a" * 64}
FIRST_HALF = Shard(index=1, count=2)
SECOND_HALF = Shard(index=2, count=2)


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
        stage=ORIGIN.stage_name(shard),
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
