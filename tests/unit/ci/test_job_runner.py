"""Jobs on this machine: which run, in what order, by which calls, and what a person reads at the end."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ci.job_runner import NoxRunner, Outcome, run_all, show_outcomes
from ci.jobs import Job
from ci.pipeline import NoxCall
from core.errors import CheckError, DataError, FatalError, MissingInputError, ProcessError, UsageError
from tests.kit import machines
from tests.kit.machines import Answer, answer_processes


def make_job(name: str, *needs: str, **facts: Any) -> Job:
    """Return a job of one session, which is named after it."""
    call = NoxCall(sessions=(name,), options=())
    return Job(**{"name": name, "kind": "build_pytorch", "calls": (call,), "needs": needs, **facts})


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
    make_job("report", "test", starts_when="all ended"),
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
    assert outcomes["torch"].reason == "it broke\nbadly"
    assert outcomes["test"].reason == "torch failed"
    assert outcomes["other"].reason == "another job failed"


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
        make_job("last", "test", "more", starts_when="any ran"),
    )

    assert outcomes_of(jobs, Work(failing), keep_going=True)["last"].result == result


@pytest.mark.parametrize(
    ("failing", "reason"), [pytest.param("build_torch", "build_torch failed", id="build"), ("test", None)]
)
def test_nothing_is_promoted_whose_build_failed(failing: str, reason: str) -> None:
    promote = make_job("promote", "build_torch", "test", starts_when="all ended", must_pass=("build_torch",))
    jobs = (make_job("build_torch"), make_job("test", "build_torch"), promote)

    assert outcomes_of(jobs, Work(failing), keep_going=True)["promote"].reason == reason


@pytest.mark.parametrize(("failing", "result"), [(("one",), "ok"), (("one", "two"), "left out")])
def test_stages_what_has_passed_beside_what_failed(failing: tuple[str, ...], result: str) -> None:
    jobs = (make_job("one"), make_job("two"), make_job("stage", "one", "two", starts_when="any passed"))

    assert outcomes_of(jobs, Work(*failing), keep_going=True)["stage"].result == result


def test_as_many_jobs_run_at_a_time_as_allowed() -> None:
    # Nobody passes it alone.
    barrier = threading.Barrier(3, timeout=60)

    def work(_job: Job) -> None:
        barrier.wait()

    outcomes = run_all([make_job(name) for name in "abcdef"], work, at_once=3)

    assert {outcome.result for outcome in outcomes} == {"ok"}


def test_a_job_that_needs_what_is_not_there_is_an_error() -> None:
    with pytest.raises(DataError, match="torch"):
        run_all([make_job("torch", "absent")], Work())


def test_an_internal_error_is_not_a_failed_job() -> None:
    def work(_job: Job) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_all([make_job("torch")], work)


# What a person reads at the end


def failed_outcome(name: str, *, exit_code: int = ProcessError.exit_code) -> Outcome:
    return Outcome(name=name, result="failed", reason="it broke\nbadly", exit_code=exit_code)


LEFT_OUT = Outcome(name="test", result="left out", reason="another job failed")


def test_says_nothing_where_all_is_well() -> None:
    show_outcomes([Outcome(name="rocm", result="ok", seconds=3.0)])


def test_ends_with_what_failed_in_its_own_words() -> None:
    with pytest.raises(ProcessError) as raised:
        show_outcomes([failed_outcome("torch"), LEFT_OUT])

    assert raised.value.message.startswith("it broke\nbadly\n")
    assert "1 of 2 jobs failed: torch" in raised.value.message
    assert "continues" in raised.value.message


@pytest.mark.parametrize("error", [UsageError, MissingInputError])
def test_does_not_say_that_a_call_continues_which_has_to_be_corrected(error: type[FatalError]) -> None:
    with pytest.raises(ProcessError) as raised:
        show_outcomes([failed_outcome("torch", exit_code=error.exit_code)])

    assert "1 of 1 job failed: torch." in raised.value.message
    assert "continues" not in raised.value.message


def test_the_table_says_why_a_job_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ProcessError):
        show_outcomes([failed_outcome("torch"), LEFT_OUT])

    table = capsys.readouterr().err
    assert "another job failed" in table
    assert "it broke" not in table, "it stands in the error, once"


def test_ends_with_the_exit_code_of_the_job_that_failed_first() -> None:
    outcomes = [
        Outcome(name="rocm", result="ok"),
        failed_outcome("torch", exit_code=CheckError.exit_code),
        failed_outcome("test"),
    ]

    with pytest.raises(ProcessError) as raised:
        show_outcomes(outcomes)

    assert raised.value.exit_code == CheckError.exit_code


# The calls of a job


SAMPLE_JOB = Job(
    name="sample",
    kind="build_pytorch",
    calls=(
        NoxCall(sessions=("resolve", "checkout"), options=("--torch-ref=sample",)),
        NoxCall(sessions=("build_torch",), options=(), python="3.12"),
        NoxCall(sessions=("upload",), options=()),
    ),
)


def called_sessions(call: machines.Call) -> tuple[str, ...]:
    """Return the sessions that a call of nox names."""
    first = call.words.index("-s") + 1
    return tuple(word for word in call.words[first : call.words.index("--")] if word not in {"-P", "3.12"})


def test_makes_every_call_of_a_job_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = answer_processes(monkeypatch, lambda _call: Answer())

    NoxRunner(tmp_path, holds_output_back=True)(SAMPLE_JOB)

    assert [called_sessions(call) for call in calls] == [
        ("resolve", "checkout"),
        ("build_torch",),
        ("upload",),
    ]


def test_ends_a_job_at_the_first_call_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = answer_processes(
        monkeypatch, lambda call: Answer(status=int("build_torch" in called_sessions(call)))
    )

    with pytest.raises(ProcessError):
        NoxRunner(tmp_path, holds_output_back=True)(SAMPLE_JOB)

    assert [called_sessions(call) for call in calls] == [("resolve", "checkout"), ("build_torch",)]
