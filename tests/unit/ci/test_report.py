from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ci import report
from core import records
from core.frontdoor import Verb, main
from core.records import Cell, FileRecord, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from core.options import Common
    from core.outputs import RunOutputs
    from core.stores import Store

VERBS = (Verb("report", "ci.report", "print"),)
WHEEL = FileRecord(
    name="torch-2.10.0-py3-none-any.whl",
    key="k",
    size=2048,
    sha256="ab" * 32,
    distribution="torch",
    version="2.10.0",
)
ROW = (WHEEL.name, "2.10.0", "2.0 KiB", "2.5", "abababababab")


def test_a_row_a_file_of_what_succeeded(record_of: Callable[..., Record]) -> None:
    failed = record_of(WHEEL, status="failed", exit_code=8, error="No.")
    assert report.rows([record_of(WHEEL, WHEEL), failed, record_of()]) == [ROW, ROW]


def test_the_summary_is_the_same_table(record_of: Callable[..., Record]) -> None:
    assert report.markdown("run 17, g", [record_of(WHEEL)]).splitlines() == [
        "### run 17, g",
        "",
        "| wheel | version | size | seconds | sha256 |",
        "|---|---|---|---|---|",
        f"| {WHEEL.name} | 2.10.0 | 2.0 KiB | 2.5 | abababababab |",
    ]


def test_one_refs_records_are_those_without_a_ref_too_in_the_order_of_the_run(
    record_of: Callable[..., Record],
) -> None:
    late = record_of(stage="build_torch", started="2026-01-01T00:00:02+00:00")
    rocm = record_of(stage="build_rocm", cell=Cell(), started="2026-01-01T00:00:01+00:00")
    other = record_of(stage="build_apex", cell=Cell(torch_ref="main"), started="2026-01-01T00:00:00+00:00")
    assert report.chosen([late, other, rocm], "nightly") == [rocm, late]
    assert report.chosen([late, other, rocm], "") == [other, rocm, late]


def test_the_verb_prints_tables_failures_and_paths(
    common: Common,
    store: Store,
    outputs: RunOutputs,
    publish: Callable[..., FileRecord],
    record_of: Callable[..., Record],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(common.root / "summary.md"))
    one = publish()
    records.write(
        store, outputs, "g", record_of(stage="build_apex", status="failed", exit_code=8, error="Two wheels.")
    )
    words = ["report", "--run-id", common.run_id, "--store", store.url]
    assert main("ci", "", VERBS, words) == 0
    said = capsys.readouterr().err
    assert one.sha256[:12] in said
    assert "build_apex failed: Two wheels." in said
    assert f"wheels   {store.url}/{outputs.python_prefix('g')}/\n" in said
    assert f"| {one.name} | {one.version} |" in (common.root / "summary.md").read_text()
    assert main("ci", "", VERBS, [*words, "--json"]) == 0
    printed = [Record.model_validate(value) for value in json.loads(capsys.readouterr().out)]
    assert {record.stage for record in printed} == {"build_apex", "build_torch_2.10.0+rocm7.1"}
