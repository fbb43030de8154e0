"""A plan for people: as tables on a terminal, and as a summary."""

import pytest

from ci.plan.outputs import decision_table, job_table, show, show_origins, summary
from core.run.plan import Plan, RocmOrigin, RocmPackages
from tests.kit.planning import nightly_plan, plan_event, pull_request, push
from tests.kit.plans import make_job, make_plan

HOSTILE = "x|<img src=y>\x1b[2J`$(id)`"


def hostile_plan() -> Plan:
    return plan_event("push", push(f"release/{HOSTILE}"), files=None, changes_note=f"git said {HOSTILE}")


def test_every_job_has_its_reason() -> None:
    rows = job_table(nightly_plan()).rows

    assert len(rows) == len(nightly_plan().jobs)
    for row in rows:
        assert all(row)


def test_everything_that_is_left_out_has_its_reason() -> None:
    left_out = nightly_plan().left_out

    assert left_out
    for row in left_out:
        assert row.what
        assert row.reason


def test_a_release_is_promoted() -> None:
    rows = decision_table(nightly_plan()).rows

    promote_row = next(row for row in rows if row[0] == "promote")
    assert promote_row[1] == "yes"


def test_a_summary_lists_300_jobs_and_counts_the_others() -> None:
    jobs = [make_job("build_rocm", f"gfx{number}") for number in range(307)]

    markdown = summary(make_plan(*jobs))

    assert "7 more jobs" in markdown
    assert markdown.partition("<details>")[0].count("\n| build\\_") == 300


def test_names_of_others_become_no_markup_in_a_summary() -> None:
    markdown = summary(hostile_plan())

    assert "<img" not in markdown.replace("\\<img", "")
    assert "x\\|\\<img src=y\\>" in markdown
    assert "\x1b" not in markdown


def test_names_of_others_do_not_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(hostile_plan())

    assert "\x1b" not in capsys.readouterr().err


def test_origins_of_others_do_not_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    origin = RocmOrigin(platform="linux", artifact_group="gfx1151", run_id="17", reason=HOSTILE)
    rocm = RocmPackages(origins=(origin,))

    show_origins(hostile_plan().model_copy(update={"rocm": rocm}))

    messages = capsys.readouterr().err
    assert "gfx1151" in messages
    assert "\x1b" not in messages


def test_notes_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_event("pull_request", pull_request("build-pytorch"))

    show(plan)

    first_line = capsys.readouterr().err.splitlines()[0]
    assert first_line.startswith("warning: ")
    assert "'build-pytorch'" in first_line
    assert summary(plan).splitlines()[2].startswith("> ⚠️")
