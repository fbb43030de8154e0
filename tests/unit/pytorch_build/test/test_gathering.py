from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from core import junit
from core.errors import MissingInputError, UsageError
from core.junit import Case, Document
from core.run import records
from pytorch_build.test import reports
from pytorch_build.test.reports import checked, in_folder, in_store, parse_expected, require_expected
from pytorch_build.test.results import Origin, Report, Tested, merged
from pytorch_build.test.shards import Shard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GROUP = "gfx94X-dcgpu"
ORIGIN = Origin(stage="test_torch", torch_ref="sample", python="cp312", gpu_family=GROUP, run_id="local")


def document(*outcomes: Any, name: str = "x") -> Document:
    cases = (Case(test=f"t.py::{name}{at}", outcome=one, file="t.py") for at, one in enumerate(outcomes))
    return Document(cases=tuple(cases))


def put(run: Any, stage: str, *outcomes: Any, shard: Shard | None = None, status: str = "ok") -> str:
    """Leave a report and its record in the run, as a stage does."""
    origin = Origin(stage=stage, torch_ref="sample", python="cp312", gpu_family=GROUP, run_id="local")
    name = str(shard.index) if shard else "x"
    report = Report(origin=origin, document=document(*outcomes, name=name), shard=shard)
    details = reports.put_report(run.store, run.common().outputs, GROUP, report)
    write(run, reports.stage_name(origin, shard), status, details=dict(details))
    return str(details["report"]["key"])


def write(run: Any, stage: str, status: str = "ok", **facts: Any) -> None:
    record = run.record("x", torch_ref="sample", python="cp312", gpu_family=GROUP)
    run.store.delete(run.common().outputs.record_key(GROUP, record.name))
    changed = record.model_copy(update={"stage": stage, "status": status, **facts})
    records.write(run.store, run.common().outputs, GROUP, changed)


def gathered(run: Any) -> Sequence[Tested]:
    outputs = run.common().outputs
    mine, found = in_store(run.store, outputs, GROUP)
    return checked(merged(mine), found, store=run.store, outputs=outputs, artifact_group=GROUP)


def test_a_run_that_passed(run: Any) -> None:
    put(run, "test_smoke", "passed")
    put(run, "test_torch", "passed", shard=Shard(index=1, count=2))
    put(run, "test_torch", "passed", shard=Shard(index=2, count=2))
    assert [(one.origin.stage, one.shards, one.passed) for one in gathered(run)] == [
        ("test_smoke", 1, True),
        ("test_torch", 2, True),
    ]
    assert reports.groups_of(run.common()) == [GROUP]


def test_a_report_that_says_nothing_of_itself_is_known_by_its_record(run: Any) -> None:
    key = put(run, "test_smoke", "passed")
    content = junit.write(document("passed", "failed"))
    run.store.put_bytes(key, content)
    (tested,) = gathered(run)
    assert tested.origin == Origin(**{**vars_of(ORIGIN), "stage": "test_smoke"})
    # and it is not the one that the record names
    assert tested.problems == ("the report smoke-sample-cp312.xml of test_smoke was replaced",)


def vars_of(origin: Origin) -> dict[str, str]:
    return dict(vars(origin))


def test_a_report_that_is_gone(run: Any) -> None:
    run.store.delete(put(run, "test_smoke", "passed"))
    (tested,) = gathered(run)
    assert tested.problems == ("the report smoke-sample-cp312.xml of test_smoke is gone",)


def test_a_stage_that_failed_without_a_report(run: Any) -> None:
    write(run, "test_smoke", "failed", error="torch cannot be installed.")
    (tested,) = gathered(run)
    assert not tested.passed
    assert tested.problems == ("test_smoke failed: torch cannot be installed.",)


def test_a_stage_that_failed_after_it_had_passed(run: Any) -> None:
    put(run, "test_smoke", "passed")
    write(run, "test_smoke", "failed", error="no GPU.")
    (tested,) = gathered(run)
    assert tested.problems == ("test_smoke failed: no GPU.",)


def test_failures_that_the_report_shows_are_told_once(run: Any) -> None:
    put(run, "test_smoke", "passed", "failed")
    write(run, "test_smoke", "failed", error="1 of 2 failed.")
    (tested,) = gathered(run)
    assert tested.problems == ()
    assert len(tested.failing) == 1


def test_a_shard_that_died_without_a_report(run: Any) -> None:
    put(run, "test_torch", "passed", shard=Shard(index=1, count=2))
    write(run, "test_torch-2-of-2", "failed", error="interrupted")
    (tested,) = gathered(run)
    assert tested.problems == ("no report of shard 2/2",)


def test_the_merged_report_is_not_counted_again(run: Any) -> None:
    put(run, "test_torch", "passed", shard=Shard(index=1, count=2))
    put(run, "test_torch", "passed", shard=Shard(index=2, count=2))
    merged_one = Document(cases=document("passed").cases, properties={reports.MERGED: "2"})
    details = reports.put_report(
        run.store, run.common().outputs, GROUP, Report(origin=ORIGIN, document=merged_one)
    )
    write(run, "test_torch", details={**details, reports.MERGED: 2})
    write(run, "test_torch", "failed", error="no report of shard 2/2", details={reports.MERGED: 2})
    (tested,) = gathered(run)
    assert (tested.passed, len(tested.cases), tested.shards) == (True, 2, 2)


def test_configurations_are_apart(run: Any) -> None:
    for config in ("default", "inductor"):
        origin = Origin(**{**vars_of(ORIGIN), "config": config})
        report = Report(origin=origin, document=document("passed"))
        details = reports.put_report(run.store, run.common().outputs, GROUP, report)
        write(run, reports.stage_name(origin), details=dict(details), inputs={"config": config})
    assert [(one.origin.config, one.passed) for one in gathered(run)] == [("", True), ("inductor", True)]


def test_a_run_without_tests_is_an_error(run: Any) -> None:
    run.store.put_bytes(f"local-linux/reports/{GROUP}/findings.json", b"{}")
    with pytest.raises(MissingInputError, match="no test reports"):
        reports.groups_of(run.common())


def test_a_folder_of_anybodys(tmp_path: Path) -> None:
    for name, outcomes in (("a/1.xml", ("failed",)), ("a/2.xml", ("passed",)), ("b/1.xml", ("passed",))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(junit.write(document(*outcomes)))
    (tmp_path / "b" / "torn.xml").write_bytes(b"<testsuites><testsuite>")
    first, second = merged(in_folder(tmp_path))
    # the second report of a folder is another attempt
    assert (first.origin.folder, first.counts["flaky"], first.passed) == ("a", 1, True)
    assert not second.passed
    assert second.problems[0].startswith("b/torn.xml: the report is cut off")


def test_a_folder_without_reports_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(MissingInputError, match="no JUnit reports"):
        in_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("smoke-nightly-cp312", ("smoke-nightly-cp312", 1)), ("torch-cp312=6", ("torch-cp312", 6))],
)
def test_expectations(text: str, expected: tuple[str, int]) -> None:
    assert parse_expected(text) == expected


@pytest.mark.parametrize("text", ["", "=6", "a=", "a=0", "a=x", "a=-1"])
def test_what_cannot_be_expected(text: str) -> None:
    with pytest.raises(UsageError, match="--expect"):
        parse_expected(text)


def test_what_was_expected_and_is_not_there() -> None:
    (there,) = merged([Report(origin=ORIGIN, document=document("passed"))])
    expected = [("torch-sample-cp312", 6), ("smoke-sample-cp312", 1)]
    first, second = require_expected([there], expected)
    assert first.problems == ("6 shards were expected, and 1 are reported",)
    assert (second.problems, second.origin.folder) == (("there is no report",), "smoke-sample-cp312")
    assert require_expected([there], [("torch-sample-cp312", 1)]) == (there,)
