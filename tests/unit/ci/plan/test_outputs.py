"""A plan for people: as tables on a terminal, and as a summary."""

import pytest

from ci.plan.outputs import show, summary, tables
from core.run.plan import Plan
from tests.kit.planning import nightly_plan, plan_event, pull_request, push
from tests.kit.plans import make_job, make_plan

HOSTILE = "x|<img src=y>\x1b[2J`$(id)`"


def hostile_plan() -> Plan:
    return plan_event("push", push(f"release/{HOSTILE}"), files=None, changes_note=f"git said {HOSTILE}")


def test_every_job_has_its_reason() -> None:
    _, (_, jobs), _ = tables(nightly_plan())

    assert len(jobs) == len(nightly_plan().cells)
    for job in jobs:
        assert all(job)


def test_everything_that_is_left_out_has_its_reason() -> None:
    left_out = nightly_plan().left_out

    assert left_out
    for row in left_out:
        assert row.what
        assert row.reason


def test_a_release_is_promoted() -> None:
    (_, decisions), _, _ = tables(nightly_plan())

    assert [name for name, value, _ in decisions if value == "yes"][-1] == "promote"


def test_a_summary_lists_300_jobs_and_counts_the_others() -> None:
    cells = [make_job("build_rocm", f"gfx{number}") for number in range(307)]

    written = summary(make_plan(*cells))

    assert "7 more jobs" in written
    assert written.partition("<details>")[0].count("\n| build\\_") == 300


def test_names_of_others_become_no_markup_in_a_summary() -> None:
    written = summary(hostile_plan())

    assert "<img" not in written.replace("\\<img", "")
    assert "x\\|\\<img src=y\\>" in written
    assert "\x1b" not in written


def test_names_of_others_do_not_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(hostile_plan())

    assert "\x1b" not in capsys.readouterr().err


def test_notes_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_event("pull_request", pull_request("build-pytorch"))

    show(plan)

    first_line = capsys.readouterr().err.splitlines()[0]
    assert first_line.startswith("warning: ")
    assert "'build-pytorch'" in first_line
    assert summary(plan).splitlines()[2].startswith("> ⚠️")
