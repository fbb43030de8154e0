import pytest

from ci.plan.events import Changes
from ci.plan.outputs import show, summary, tables
from tests.unit.ci.plan.planning import planned, pull_request, push


def test_every_job_and_all_that_is_left_out_has_its_reason() -> None:
    made = planned("schedule", release_type="nightly")
    (_, decisions), (_, jobs), _ = tables(made)
    assert len(jobs) == len(made.cells)
    assert all(map(all, jobs))
    assert all(one.what and one.reason for one in made.left_out)
    assert decisions[4][:2] == ["promote", "yes"]


def test_a_summary_of_many_jobs_says_how_many_it_leaves_out() -> None:
    made = planned("schedule", release_type="nightly")
    said = summary(made)
    assert f"and {len(made.cells) - 300} more jobs" in said
    listed = said.partition("<details>")[0]
    assert listed.count("\n| build\\_") + listed.count("\n| test\\_") == 300


def test_what_others_wrote_steers_neither_summary_nor_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "x|<img src=y>\x1b[2J`$(id)`"
    made = planned("push", push(f"release/{hostile}"), changes=Changes(note=f"git said {hostile}"))
    said = summary(made)
    assert "<img" not in said.replace("\\<img", "")
    assert "x\\|\\<img src=y\\>" in said
    assert "\x1b" not in said
    show(made)
    assert "\x1b" not in capsys.readouterr().err


def test_notes_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    made = planned("pull_request", pull_request("build-pytorch"))
    show(made)
    assert capsys.readouterr().err.startswith("warning: plan: the label 'build-pytorch' means nothing to CI")
    assert summary(made).splitlines()[2].startswith("> ⚠️ the label")
