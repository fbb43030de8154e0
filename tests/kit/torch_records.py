"""Records of tests, as their stages leave them."""

from typing import Any

from core.run.records import Record
from tests.kit.group_cells import group_cell

TOTALS = {
    "tests": 5,
    "existing": 5,
    "failures": 1,
    "errors": 1,
    "skipped": 1,
    "unexplained": 0,
}
REPORT = {
    "key": "17-linux/reports/gfx94X-dcgpu/torch-nightly-cp312.xml",
    "sha256": "a" * 64,
}


def record_of_test(
    *,
    inputs: dict[str, Any] | None = None,
    details: dict[str, Any] | None = None,
    run_id: str = "17",
    started: str = "2026-11-20T12:00:00+00:00",
    stage: str = "test_torch",
) -> Record:
    """Return the record of a test, with other inputs or details where they matter."""
    usual_inputs: dict[str, Any] = {
        "files": {"torch-2.whl": "a" * 64},
        "installed": True,
        "gpu": ["gfx942"],
    }
    usual_details: dict[str, Any] = {"tests": TOTALS, "report": REPORT}
    return Record(
        stage=stage,
        run_id=run_id,
        platform="linux",
        cell=group_cell(torch_ref="nightly", python_tag="cp312"),
        started=started,
        seconds=1,
        inputs=usual_inputs | (inputs or {}),
        details=usual_details | (details or {}),
    )
