"""Runs the jobs of a flow on this machine: each after those that it needs, several at a time if wanted."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from core import console, process, temporary
from core.cli.failures import FailureNote
from core.cli.options import FAILURE_FILE
from core.errors import DataError, FatalError, MissingInputError, ProcessError, UsageError
from core.parallel import wait_for_futures
from core.shell import command_line

if TYPE_CHECKING:
    from ci.jobs import Job
    from ci.pipeline import NoxCall

_MOST_NAMES = 4  # of jobs in one line
_CODES_OF_WRONG_CALLS = (UsageError.exit_code, MissingInputError.exit_code)
_ROWS_WITHOUT_TABLE = 2  # a ref and its page, of which nobody needs a table


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one job ended."""

    name: str
    result: Literal["ok", "failed", "left out"]
    reason: str | None = None  # why it failed or was left out
    seconds: float = 0.0
    exit_code: int = 0


def run_all(
    jobs: Sequence[Job], work: Callable[[Job], None], *, at_once: int = 1, keep_going: bool = False
) -> Sequence[Outcome]:
    """Run every job after those that it needs, the first ones first."""
    waiting = list(jobs)
    running: dict[Future[None], tuple[Job, float]] = {}
    outcomes: dict[str, Outcome] = {}

    with ThreadPoolExecutor(max_workers=at_once) as pool:
        while waiting or running:
            job = _next_ready_job(waiting, outcomes)
            if job is not None and len(running) < at_once:
                waiting.remove(job)
                reason = _reason_to_leave_out(job, outcomes, keep_going=keep_going)
                if reason is None:
                    running[pool.submit(work, job)] = (job, time.monotonic())
                else:
                    outcomes[job.name] = Outcome(name=job.name, result="left out", reason=reason)
                continue

            if not running:
                names = ", ".join(job.name for job in waiting)
                raise DataError(f"No job can run: {names} need jobs that the flow does not have.")
            for future in wait_for_futures(running, return_when=FIRST_COMPLETED):
                job, started = running.pop(future)
                outcomes[job.name] = _outcome_of(job, future, time.monotonic() - started)

    return [outcomes[job.name] for job in jobs]


def _next_ready_job(waiting: Sequence[Job], outcomes: Mapping[str, Outcome]) -> Job | None:
    for job in waiting:
        if all(name in outcomes for name in job.needs):
            return job
    return None


def _reason_to_leave_out(job: Job, outcomes: Mapping[str, Outcome], *, keep_going: bool) -> str | None:
    """Return why a job does not run; None where it does."""
    for name in job.must_pass:
        if outcomes[name].result != "ok":
            return f"{name} {outcomes[name].result}"

    needed_outcomes = [outcomes[name] for name in job.needs]
    reason = _unmet_condition(job, needed_outcomes)
    if reason is not None:
        return reason

    # What reports on a failure runs all the same.
    is_report = job.starts_when in {"all ended", "any ran"}
    if keep_going or is_report:
        return None
    has_failure = any(outcome.result == "failed" for outcome in outcomes.values())
    return "another job failed" if has_failure else None


def _unmet_condition(job: Job, needed_outcomes: Sequence[Outcome]) -> str | None:
    """Return what a job lacks of the jobs that it needs; None where it may start."""
    results = [outcome.result for outcome in needed_outcomes]
    if job.starts_when == "any ran" and "ok" not in results and "failed" not in results:
        return "nothing has run that it needs"
    if job.starts_when == "any passed" and "ok" not in results:
        return "nothing has passed that it needs"
    if job.starts_when == "all passed":
        for outcome in needed_outcomes:
            if outcome.result != "ok":
                return f"{outcome.name} {outcome.result}"
    return None


def _outcome_of(job: Job, future: Future[None], seconds: float) -> Outcome:
    try:
        future.result()
    except FatalError as problem:
        return Outcome(
            name=job.name,
            result="failed",
            reason=problem.message,
            seconds=seconds,
            exit_code=problem.exit_code,
        )
    return Outcome(name=job.name, result="ok", seconds=seconds)


class NoxRunner:
    """Runs a job by its calls of nox, in order.

    After a failure the run's page is written, but what it says of the run, earlier work too, is not printed.
    """

    def __init__(self, root: Path, *, holds_output_back: bool = False) -> None:
        """Run nox in a folder. Jobs that run together print what they say at their ends."""
        self._root = root
        self._holds_output_back = holds_output_back
        self._has_failure = False

    def __call__(self, job: Job) -> None:
        """Run one job.

        Raises:
            FatalError: One of its calls failed, in the words of the session.
        """
        with temporary.folder("job") as folder:
            note_file = folder / "failure.json"
            environment = self._environment(note_file)
            for call in job.calls:
                if not self._has_passed(job, call, environment):
                    self._has_failure = True
                    raise failure_of(call, FailureNote.read(note_file))

    def _environment(self, note_file: Path) -> Mapping[str, str]:
        # With a matrix in the environment the noxfile has cells in the place of these sessions.
        changes = {"MATRIX": None, FAILURE_FILE: str(note_file)}
        if console.echoes():
            changes["VERBOSE_OUTPUT"] = "1"
        return process.inherited(**changes)

    def _has_passed(self, job: Job, call: NoxCall, environment: Mapping[str, str]) -> bool:
        command = [sys.executable, "-m", "nox", "--no-error-on-external-run", *call.words]
        is_page_of_failure = self._has_failure and job.kind == "summary"
        is_captured = self._holds_output_back or is_page_of_failure

        # The sessions of nox have folds of their own.
        with console.group(_title(job, call), fold=is_captured):
            if not is_captured:
                with suppress(ProcessError):
                    process.run(
                        command,
                        cwd=self._root,
                        env=environment,
                        quiet=True,
                        grace_seconds=process.SESSION_GRACE_SECONDS,
                    )
                    return True
                return False

            completed = process.capture(
                command,
                cwd=self._root,
                env=environment,
                check=False,
                grace_seconds=process.SESSION_GRACE_SECONDS,
            )
            output = (completed.stdout + completed.stderr).rstrip()
            if is_page_of_failure:
                # Where nothing was recorded there is no page. What failed is told at the end.
                lines = [line for line in output.splitlines() if line.startswith("page ")]
                console.say("\n".join(lines))
                return True
            console.say(output)
            return completed.returncode == 0


def _title(job: Job, call: NoxCall) -> str:
    first_session = call.sessions[0]
    sessions = first_session
    if len(call.sessions) > 1:
        sessions = f"{first_session} … {call.sessions[-1]}"
    if job.name == first_session:
        return sessions
    return f"{job.name}: {sessions}"


def failure_of(call: NoxCall, note: FailureNote | None) -> FatalError:
    """Return the error of a session that failed, in its own words and with its own exit code."""
    if note is None:
        return ProcessError(
            "A session failed before its stage began. What nox said stands above.\n"
            f"again: {command_line(['nox', *call.words])}",
            returncode=1,
        )

    # On GitHub the session has annotated its words itself.
    message = "" if console.mode() == "github" else note.message
    error = ProcessError(message, returncode=1)
    error.exit_code = note.exit_code
    return error


def show_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print the table that a flow ends with, and fail if a job did."""
    has_left_out = any(outcome.result == "left out" for outcome in outcomes)
    if has_left_out or len(outcomes) > _ROWS_WITHOUT_TABLE:
        rows = [_row(outcome) for outcome in outcomes]
        console.table(("job", "result", "time", "why"), rows, title="Jobs")

    failures = [outcome for outcome in outcomes if outcome.result == "failed"]
    if not failures:
        return

    reasons: list[str] = []
    for outcome in failures:
        # Several jobs may fail for one reason.
        if outcome.reason and outcome.reason not in reasons:
            reasons.append(outcome.reason)
    names = ", ".join(outcome.name for outcome in failures)
    summary = f"{len(failures)} of {console.counted(len(outcomes), 'job')} failed: {names}."
    # A call that was wrong has to be corrected, and what is missing made: the same one would fail again.
    if all(outcome.exit_code not in _CODES_OF_WRONG_CALLS for outcome in failures):
        summary += " The same command continues from there."
    error = ProcessError("\n".join([*reasons, summary]), returncode=1)
    error.exit_code = failures[0].exit_code
    raise error


def _row(outcome: Outcome) -> tuple[str, str, str, str]:
    # The reasons of failures stand in the error that follows the table.
    reason = outcome.reason if outcome.result == "left out" else None
    return outcome.name, outcome.result, console.duration(outcome.seconds), reason or ""


def print_jobs(jobs: Sequence[Job]) -> None:
    """Print jobs as calls of nox."""
    for job in jobs:
        console.say(f"{job.name}{_words_of_needs(job)}")
        for call in job.calls:
            console.result(command_line(["nox", *call.words]))


def _words_of_needs(job: Job) -> str:
    """Return which jobs a job waits for; of many, how many they are."""
    if not job.needs:
        return ""
    if len(job.needs) > _MOST_NAMES:
        return f"  (after {len(job.needs)} jobs above)"
    return f"  (after {'; '.join(job.needs)})"
