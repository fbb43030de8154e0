"""Flows: which jobs run, in what order, and what a person reads at the end."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ci import flow
from ci.flow import Outcome, planned, release_words, run_all, show
from ci.jobs import PLAN_FILE, Call, Job, Target
from core.errors import CheckError, MissingInputError, ProcessError, UsageError
from core.run.plan import Plan

FAMILY = "gfx94X-dcgpu"
PULL_REQUEST = (
    "--event=pull_request",
    "--label=build:pytorch",
    "--torch-ref=sample",
    f"--gpu-family={FAMILY}",
)


def make_job(name: str, *needs: str, **facts: Any) -> Job:
    """Return a job of one session, which is named after it, as its stage is."""
    return Job(**{"name": name, "stage": name, "calls": (Call(sessions=(name,)),), "needs": needs, **facts})


class Work:
    """Runs jobs by noting them; those that are named fail."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.names: list[str] = []

    def __call__(self, job: Job) -> None:
        self.names.append(job.name)
        if job.name in self.failing:
            raise ProcessError("it broke\nbadly", returncode=1)


CHAIN = (
    make_job("rocm"),
    make_job("torch", "rocm"),
    make_job("test", "torch"),
    make_job("other"),
    make_job("report", "test", tolerant=True),
)


def outcomes_of(jobs: Sequence[Job], work: Work, *, keep_going: bool = False) -> dict[str, Outcome]:
    return {outcome.name: outcome for outcome in run_all(jobs, work, keep_going=keep_going)}


# Which jobs run


def test_jobs_run_after_those_that_they_need() -> None:
    work = Work()

    run_all(CHAIN, work)

    assert work.names == ["rocm", "torch", "test", "other", "report"]


def test_a_failure_stops_everything_but_the_report() -> None:
    work = Work("torch")

    outcomes = outcomes_of(CHAIN, work)

    assert work.names == ["rocm", "torch", "report"]
    assert outcomes["torch"].why == "it broke\nbadly"
    assert outcomes["test"].why == "torch failed"
    assert outcomes["other"].why == "another job failed"


def test_keeps_going_with_what_does_not_depend_on_a_failure() -> None:
    outcomes = outcomes_of(CHAIN, Work("torch"), keep_going=True)

    assert outcomes["test"].result == "left out"
    assert outcomes["other"].result == "ok"


@pytest.mark.parametrize(
    ("failing", "result"), [("torch", "left out"), ("test", "ok"), ("other", "ok"), ("", "ok")]
)
def test_a_job_that_wants_results_runs_where_there_are_some(failing: str, result: str) -> None:
    jobs = (
        make_job("torch"),
        make_job("test", "torch"),
        make_job("more", "torch"),
        make_job("other"),
        make_job("last", "test", "more", tolerant=True, wants_results=True),
    )

    assert outcomes_of(jobs, Work(failing), keep_going=True)["last"].result == result


@pytest.mark.parametrize(
    ("failing", "reason"), [pytest.param("build_torch", "build_torch failed", id="build"), ("test", "")]
)
def test_nothing_is_promoted_whose_build_failed(failing: str, reason: str) -> None:
    promote = make_job("promote", "build_torch", "test", tolerant=True, stage="promote")
    jobs = (make_job("build_torch"), make_job("test", "build_torch"), promote)

    assert outcomes_of(jobs, Work(failing), keep_going=True)["promote"].why == reason


def test_as_many_jobs_run_at_a_time_as_allowed() -> None:
    # Nobody passes it alone.
    barrier = threading.Barrier(3, timeout=60)

    def work(_job: Job) -> None:
        barrier.wait()

    outcomes = run_all([make_job(name) for name in "abcdef"], work, at_once=3)

    assert {outcome.result for outcome in outcomes} == {"ok"}


def test_a_fault_of_the_tool_is_not_a_failed_job() -> None:
    def work(_job: Job) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_all([make_job("torch")], work)


# What a person reads at the end


def failed_outcome(name: str, *, exit_code: int = ProcessError.exit_code) -> Outcome:
    return Outcome(name=name, result="failed", why="it broke\nbadly", exit_code=exit_code)


def test_says_nothing_where_all_is_well() -> None:
    show([Outcome(name="rocm", result="ok", seconds=3.0)])


def test_ends_with_what_failed_in_its_own_words() -> None:
    with pytest.raises(ProcessError) as raised:
        show([failed_outcome("torch"), Outcome(name="test", result="left out", why="torch failed")])

    assert "1 of 2 jobs failed: torch" in raised.value.message
    assert raised.value.message.endswith("it broke\nbadly")


def test_the_table_says_why_a_job_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ProcessError):
        show([failed_outcome("torch"), Outcome(name="test", result="left out", why="torch failed")])

    table = capsys.readouterr().err
    assert "torch failed" in table
    assert "it broke" not in table, "it stands in the error, once"


def test_ends_with_the_exit_code_of_the_step_that_failed_first() -> None:
    outcomes = [
        Outcome(name="rocm", result="ok"),
        failed_outcome("torch", exit_code=CheckError.exit_code),
        failed_outcome("test"),
    ]

    with pytest.raises(ProcessError) as raised:
        show(outcomes)

    assert raised.value.exit_code == CheckError.exit_code


# Plans


@pytest.fixture
def jobs_run(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Return a list to which each job is added in the place of running; the plan stays as it is."""
    jobs: list[Job] = []

    def runner(_root: Path, *, together: bool) -> Callable[[Job], None]:
        assert together in {True, False}
        return jobs.append

    monkeypatch.setattr(flow, "runner", runner)
    monkeypatch.setattr(flow, "_runs", bool)
    return jobs


def test_a_plan_is_written_resolved_and_run(jobs_run: list[Job], tmp_path: Path) -> None:
    flow.run_plan(PULL_REQUEST, Target(), root=tmp_path)

    assert Plan.read(tmp_path / PLAN_FILE).build_pytorch.value
    assert [job.stage for job in jobs_run] == [
        "setup",
        "build_rocm",
        "test_rocm",
        "build_pytorch",
        "test_pytorch",
        "test_report",
        "summary",
    ]


def test_a_plan_without_jobs_is_a_failure(jobs_run: list[Job], tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        flow.run_plan(["--event=pull_request", "--changed=docs/x.md"], Target(), root=tmp_path)

    assert jobs_run == []


def test_a_plan_that_cannot_be_resolved_ends_the_flow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    work = Work("resolve")
    monkeypatch.setattr(flow, "runner", lambda *_arguments, **_options: work)
    monkeypatch.setattr(flow, "_runs", bool)

    with pytest.raises(ProcessError, match="resolve"):
        flow.run_plan(PULL_REQUEST, Target(), root=tmp_path)

    assert work.names == ["resolve"]


# Releases


def test_a_final_release_is_promoted_and_not_built() -> None:
    with pytest.raises(UsageError) as raised:
        release_words("release", "", "", "")

    assert "invoke promote" in raised.value.hint


def test_a_release_type_that_is_misspelt_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as raised:
        release_words("nigthly", "", "", "")

    assert "'nightly'" in raised.value.hint


def test_a_rehearsal_promotes_the_sample_on_any_machine() -> None:
    plan = planned(release_words("rehearsal", "", "", ""), Target())

    assert plan.promote.value
    assert {cell.gpu_family for cell in plan.cells} == {"cpu"}
    assert {cell.torch_ref for cell in plan.cells} == {"sample"}


def test_a_rehearsal_may_name_the_sample() -> None:
    assert "--input=pytorch_git_refs=sample" in release_words("rehearsal", "", "sample", "")


def test_a_rehearsal_refuses_every_other_ref() -> None:
    with pytest.raises(UsageError, match="nightly"):
        release_words("rehearsal", "", "sample, nightly", "")
