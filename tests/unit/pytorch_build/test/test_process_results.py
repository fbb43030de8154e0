import signal

import pytest

from core import process
from pytorch_build.test.junit.document import Case
from pytorch_build.test.plugin import EndedEvent, EventLog
from pytorch_build.test.process_results import EndedProcess, result_of_script, results_of_process

FILE = "test/test_it.py"


@pytest.mark.parametrize(
    ("ending", "output", "outcome", "line"),
    [
        pytest.param(process.Ending(returncode=0), "All checks passed\n", "passed", "", id="pass"),
        pytest.param(
            process.Ending(returncode=1),
            "Traceback\nVerifyError: no ROCm\n",
            "failed",
            "VerifyError: no ROCm",
            id="failure",
        ),
        pytest.param(process.Ending(returncode=3), "", "failed", "status 3", id="failure without a word"),
        pytest.param(process.Ending(returncode=-11), "", "crashed", "SIGSEGV", id="signal"),
        pytest.param(process.Ending(returncode=-999), "", "crashed", "signal 999", id="unknown signal"),
        pytest.param(
            process.Ending(returncode=-9, late=True, stopped="did not end within 5 s"),
            "",
            "timeout",
            "5 s",
            id="limit",
        ),
    ],
)
def test_a_programs_status_is_its_result(
    ending: process.Ending, output: str, outcome: str, line: str
) -> None:
    case = result_of_script("tools/x.py", ending, output)

    assert case.test == "tools/x.py"
    assert case.file == "tools/x.py"
    assert case.outcome == outcome
    assert case.line.endswith(line)


def log_with(*tests: str, running: str | None = None, unreached: tuple[str, ...] = ()) -> EventLog:
    """Return the events of a process whose tests passed, as far as it came."""
    event_log = EventLog()
    event_log.collected = tuple(f"{FILE}::{test}" for test in (*tests, *unreached))
    event_log.results = [EndedEvent(test=f"{FILE}::{test}", seconds=1.0) for test in tests]
    event_log.running = running
    return event_log


def cases_of(returncode: int, *event_logs: EventLog) -> tuple[Case, ...]:
    """Return the results of a process by its event logs."""
    run = EndedProcess(
        ending=process.Ending(returncode=returncode, seconds=9.0),
        ended_at=0.0,
        event_logs=event_logs,
        output="the end",
    )
    return results_of_process(FILE, run, test_timeout=60.0, may_be_empty=False).cases


@pytest.mark.parametrize(
    ("returncode", "processes", "outcome", "problem"),
    [
        pytest.param(0, [], "crashed", "status 0", id="no events"),
        pytest.param(1, [], "error", "status 1", id="no events, and a status"),
        pytest.param(4, [], "error", "arguments", id="refused arguments"),
        pytest.param(-signal.SIGABRT, [], "crashed", "SIGABRT", id="no events, and a signal"),
        pytest.param(-11, [log_with("x")], "crashed", "SIGSEGV", id="signal after the tests"),
        pytest.param(134, [log_with("x")], "crashed", "status 134", id="status after the tests"),
        pytest.param(3, [log_with("x")], "error", "internal error", id="error of pytest"),
        pytest.param(1, [log_with("x")], "error", "no test as failed", id="failure of no test"),
        pytest.param(0, [log_with("x", unreached=("y",))], "crashed", "status 0", id="tests not reached"),
        pytest.param(5, [log_with()], "error", "no test ran", id="no test"),
        pytest.param(0, [log_with()], "error", "no test ran", id="no test, and no status"),
        pytest.param(0, [log_with("x", "x")], "error", "more than once", id="two results"),
    ],
)
def test_a_status_that_no_test_explains_is_the_files(
    returncode: int, processes: list[EventLog], outcome: str, problem: str
) -> None:
    whole_file = cases_of(returncode, *processes)[-1]

    assert whole_file.test == FILE
    assert whole_file.outcome == outcome
    assert problem in whole_file.line


def test_a_test_that_started_and_did_not_end_is_the_one_that_crashed() -> None:
    cases = cases_of(0, log_with("x", running=f"{FILE}::y", unreached=("y", "z")))

    assert {case.test: case.outcome for case in cases} == {f"{FILE}::x": "passed", f"{FILE}::y": "crashed"}


def test_a_test_that_ran_for_its_time_did_not_crash() -> None:
    event_log = log_with(running=f"{FILE}::y")
    event_log.last_time = -60.0

    (case,) = cases_of(1, event_log)

    assert case.outcome == "timeout"


def test_a_file_that_skips_itself_is_skipped_as_a_whole() -> None:
    event_log = log_with()
    event_log.results = [EndedEvent(test=FILE, outcome="skipped", message="no GPU")]

    (case,) = cases_of(5, event_log)

    assert case.test == FILE
    assert case.outcome == "skipped"
    assert case.line == "no GPU"
