"""Test files that misbehave in every way that was seen or thought of, each run by the real pytest."""

import os
import select
from dataclasses import replace
from pathlib import Path

import pytest

from pytorch_build.test.file_run import FileSettings
from pytorch_build.test.junit.document import Document
from pytorch_build.test.junit.reader import read_junit
from pytorch_build.test.junit.writer import write_junit
from tests.kit.repos import write_files
from tests.kit.torch_test_files import (
    FILE,
    PASSES,
    case_named,
    existing_names,
    log_of,
    outcomes_of,
    run_settings,
    run_text,
    with_limits,
)

pytestmark = pytest.mark.processes


@pytest.fixture
def settings(tmp_path: Path) -> FileSettings:
    return run_settings(tmp_path)


# Each of these takes the interpreter down, and pytest runs again for the rest.
CRASHES = """
import ctypes, os, signal, sys, unittest
import pytest

def test_before(): pass
def test_aborts(): os.abort()
def test_reads_null(): ctypes.string_at(0)
def test_fails(): assert False
def test_exits_with_success(): os._exit(0)
def test_exits_with_the_status_of_failed_tests(): os._exit(1)
def test_exits_with_the_status_of_no_tests(): os._exit(5)
def test_is_killed(): os.kill(os.getpid(), signal.SIGKILL)

@pytest.fixture
def crashing_setup(): os.abort()
@pytest.fixture
def crashing_teardown():
    yield
    os.abort()

def test_crashes_in_setup(crashing_setup): pass
def test_crashes_in_teardown(crashing_teardown): pass

class TestCrashesInSetUpClass(unittest.TestCase):
    @classmethod
    def setUpClass(cls): os.abort()
    def test_first(self): pass
    def test_second(self): pass

def test_exits_with_the_status_of_an_internal_error(): os._exit(3)
def test_interrupts(): raise KeyboardInterrupt
def test_closes_its_output(): os.close(1)
def test_stops_pytest(): pytest.exit("enough", returncode=0)
def test_after(): pass
"""
CRASHED_TESTS = (
    "test_aborts",
    "test_reads_null",
    "test_exits_with_success",
    "test_exits_with_the_status_of_failed_tests",
    "test_exits_with_the_status_of_no_tests",
    "test_is_killed",
    "test_crashes_in_setup",
    "test_crashes_in_teardown",
    "TestCrashesInSetUpClass::test_first",
    "TestCrashesInSetUpClass::test_second",
    "test_exits_with_the_status_of_an_internal_error",
    "test_interrupts",
    "test_closes_its_output",
    "test_stops_pytest",
)


def test_a_crash_costs_one_test(settings: FileSettings) -> None:
    run = run_text(with_limits(settings, restarts=20), CRASHES)

    outcomes = outcomes_of(run)
    assert outcomes == {
        "test_before": "passed",
        **dict.fromkeys(CRASHED_TESTS, "crashed"),
        "test_fails": "failed",
        "test_after": "passed",
    }
    assert existing_names(run) == outcomes.keys()
    assert run.processes == len(CRASHED_TESTS) + 1
    assert "SIGABRT" in case_named(run, "test_aborts").line
    assert "SIGSEGV" in case_named(run, "test_reads_null").line
    assert "SIGKILL" in case_named(run, "test_is_killed").line
    assert "status 0" in case_named(run, "test_exits_with_success").line


# What a test does to its own process, and pytest goes on.
SURVIVORS = """
import os, subprocess, sys, time
import pytest

def test_forks_a_process_that_keeps_the_output():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)

def test_forks_a_process_that_returns():
    if os.fork() == 0:
        return

def test_leaves_a_process_behind():
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = subprocess.Popen(sleep, start_new_session=True)
    open(os.path.join(os.environ["LEFT"], "pid"), "w").write(str(child.pid))

def test_changes_the_folder(tmp_path): os.chdir(tmp_path)
def test_has_no_output(): sys.stdout = sys.stderr = None
def test_exits(): sys.exit(3)
def test_recurses(): test_recurses()
def test_raises_what_has_no_text():
    class Silent(Exception):
        def __str__(self): raise RuntimeError("no text")
    raise Silent
def test_last(): pass
"""


def has_ended(process_id: int) -> bool:
    """Return whether a process ends, within ten seconds."""
    try:
        descriptor = os.pidfd_open(process_id)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(10_000))
    finally:
        os.close(descriptor)


@pytest.mark.nightly
def test_tests_that_pytest_survives_lose_no_result(settings: FileSettings, tmp_path: Path) -> None:
    run = run_text(replace(settings, env={**settings.env, "LEFT": str(tmp_path)}), SURVIVORS)

    assert outcomes_of(run) == {
        "test_forks_a_process_that_keeps_the_output": "passed",
        "test_forks_a_process_that_returns": "passed",
        "test_leaves_a_process_behind": "passed",
        "test_changes_the_folder": "passed",
        "test_has_no_output": "passed",
        "test_exits": "failed",
        "test_recurses": "failed",
        "test_raises_what_has_no_text": "failed",
        "test_last": "passed",
    }
    assert run.processes == 1
    assert has_ended(int((tmp_path / "pid").read_text()))


ODD_TEXTS = r"""
import os, pytest

@pytest.mark.parametrize("text", ["\udc80", "\x00", "\x1b[31m", "\x07", "\ud83d"], ids="abcde")
class TestTexts:
    def test_message(self, text): raise ValueError("before" + text + "after")
    def test_reason(self, text): pytest.skip("before" + text + "after")
    def test_output(self, text): print("before" + text + "after"); assert False

LONG = "x" * 5000

@pytest.mark.parametrize("name", ["first\nsecond", LONG + "1", LONG + "2", "\udc80"])
def test_ids(request, name): pass

def test_dies(): os._exit(0)
def test_last(): pass
"""
# Ids as they are where a plugin makes them; pytest's own are escaped.
ODD_IDS = """
def pytest_collection_modifyitems(items):
    for item in items:
        if item.originalname == "test_ids":
            item._nodeid = "test_it.py::test_ids[" + item.callspec.params["name"] + "]"
"""


def test_texts_that_are_not_plain_cost_no_result(settings: FileSettings) -> None:
    # https://github.com/pytest-dev/pytest/issues/13750
    write_files(settings.tree / "test", {"conftest.py": ODD_IDS})

    run = run_text(settings, ODD_TEXTS)

    outcomes = outcomes_of(run)
    assert list(outcomes.values()).count("failed") == 10
    assert list(outcomes.values()).count("skipped") == 5
    assert list(outcomes.values()).count("passed") == 5
    assert outcomes["test_dies"] == "crashed"
    assert outcomes["test_last"] == "passed"
    assert len(outcomes) == 21
    assert max(map(len, outcomes)) < 1100
    assert case_named(run, "TestTexts::test_message[a]").line == r"ValueError: before\udc80after"
    report = read_junit(write_junit(Document(cases=run.cases)))
    assert [case.test for case in report.cases] == [case.test for case in run.cases]


@pytest.mark.nightly
def test_a_file_of_crashes_is_given_up(settings: FileSettings) -> None:
    text = "import os, pytest\n@pytest.mark.parametrize('n', range(15))\ndef test_dies(n): os._exit(0)\n"

    run = run_text(with_limits(settings, restarts=10), text)

    assert list(outcomes_of(run).values()) == ["crashed"] * 11
    # The comparison with what exists finds the others.
    assert len(existing_names(run)) == 15


# pytest's own limit is a signal, or a thread that needs the GIL.
HANGS = f"""
import ctypes, signal, time
{PASSES}
def test_sleeps(): time.sleep(60)
def test_blocks_the_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(60)
def test_holds_the_gil():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    ctypes.PyDLL(None).sleep(60)
def test_last(): pass
"""


def test_a_test_that_hangs_costs_one_test(settings: FileSettings) -> None:
    run = run_text(with_limits(settings, test_seconds=2), HANGS)

    assert outcomes_of(run) == {
        "test_passes": "passed",
        "test_sleeps": "timeout",
        "test_holds_the_gil": "timeout",
        "test_blocks_the_signal": "timeout",
        "test_last": "passed",
    }
    assert run.processes == 3
    assert "2.0 s" in case_named(run, "test_holds_the_gil").line
    assert "in test_holds_the_gil" in case_named(run, "test_holds_the_gil").text
    assert "in test_blocks_the_signal" in log_of(run)


STOPS = "def test_stops():\n    import os, signal\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
HANGS_AT_EXIT = "import atexit, time\natexit.register(time.sleep, 60)\n"
WAITS_FOR_A_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=[60]).start()\n"
UNINTERRUPTIBLE = """
import ctypes, signal
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
ctypes.PyDLL(None).sleep(60)
"""


@pytest.mark.parametrize(
    ("text", "outcomes"),
    [
        pytest.param(f"{STOPS}{PASSES}", {"test_stops": "timeout"}, id="SIGSTOP"),
        pytest.param(
            f"import time\ntime.sleep(60)\n{PASSES}",
            {FILE: "timeout"},
            marks=pytest.mark.nightly,
            id="sleep at import",
        ),
        pytest.param(f"{UNINTERRUPTIBLE}{PASSES}", {FILE: "timeout"}, id="deaf sleep at import"),
        pytest.param(
            f"{HANGS_AT_EXIT}{PASSES}", {"test_passes": "passed", FILE: "timeout"}, id="hang at exit"
        ),
        pytest.param(
            f"{WAITS_FOR_A_THREAD}{PASSES}",
            {"test_passes": "passed", FILE: "timeout"},
            marks=pytest.mark.nightly,
            id="thread that does not end",
        ),
    ],
)
def test_a_files_limit_ends_all_that_nothing_else_ends(
    settings: FileSettings, text: str, outcomes: dict[str, str]
) -> None:
    run = run_text(with_limits(settings, file_seconds=6), text)

    assert outcomes_of(run) == outcomes
    assert run.processes == 1


def test_a_file_is_stopped_at_its_limit_with_its_stack(settings: FileSettings) -> None:
    text = f"import time\ndef test_long(): time.sleep(60)\n{PASSES}"

    run = run_text(with_limits(settings, file_seconds=6), text)

    assert outcomes_of(run) == {"test_long": "timeout"}
    assert "6.0 s" in case_named(run, "test_long").line
    assert "in test_long" in case_named(run, "test_long").text


@pytest.mark.parametrize(
    ("text", "outcomes", "problem"),
    [
        pytest.param(f"import os; os._exit(0)\n{PASSES}", {FILE: "crashed"}, "status 0", id="exit at import"),
        pytest.param(f"import os; os.abort()\n{PASSES}", {FILE: "crashed"}, "SIGABRT", id="abort at import"),
        pytest.param(f"import sys; sys.exit(0)\n{PASSES}", {FILE: "error"}, "status 3", id="sys.exit"),
        pytest.param(
            f"import atexit, os\natexit.register(os._exit, 7)\n{PASSES}",
            {"test_passes": "passed", FILE: "crashed"},
            "status 7",
            marks=pytest.mark.nightly,
            id="exit at the end",
        ),
        pytest.param(
            f"import atexit, os\natexit.register(os.abort)\n{PASSES}",
            {"test_passes": "passed", FILE: "crashed"},
            "SIGABRT",
            marks=pytest.mark.nightly,
            id="abort at the end",
        ),
        pytest.param(
            "import nowhere\n", {FILE: "error"}, "nowhere", marks=pytest.mark.nightly, id="failed import"
        ),
        pytest.param("def test_(:\n", {FILE: "error"}, "SyntaxError", id="no Python"),
        pytest.param("x = 1\n", {FILE: "error"}, "no test", marks=pytest.mark.nightly, id="no test"),
        pytest.param(
            "import pytest\npytest.skip('not here', allow_module_level=True)\n",
            {FILE: "skipped"},
            "not here",
            marks=pytest.mark.nightly,
            id="skips itself",
        ),
    ],
)
def test_a_file_may_fail_as_a_whole(
    settings: FileSettings, text: str, outcomes: dict[str, str], problem: str
) -> None:
    run = run_text(settings, text)

    assert outcomes_of(run) == outcomes
    assert problem in run.cases[-1].line
    assert run.processes == 1


REPEATS = """
def pytest_runtest_protocol(item, nextitem):
    from _pytest.runner import runtestprotocol
    for _attempt in range(2):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        runtestprotocol(item, nextitem=nextitem)
    return True
"""
EXITS_BETWEEN_TESTS = """
import os
def pytest_runtest_logfinish(nodeid):
    if "test_passes" in nodeid:
        os._exit(0)
"""
BREAKS_PYTEST = """
def pytest_runtest_call(item):
    pass
def pytest_runtest_logstart(nodeid):
    if "test_passes" in nodeid:
        raise RuntimeError("a broken hook")
"""


@pytest.mark.parametrize(
    ("hooks", "outcomes"),
    [
        pytest.param(
            REPEATS,
            {"test_passes": "passed", "test_last": "passed", FILE: "error"},
            marks=pytest.mark.nightly,
            id="two results",
        ),
        pytest.param(
            EXITS_BETWEEN_TESTS,
            {"test_passes": "passed", "test_last": "passed", FILE: "crashed"},
            marks=pytest.mark.nightly,
            id="exit between tests",
        ),
        pytest.param(BREAKS_PYTEST, {"test_passes": "crashed", "test_last": "passed"}, id="internal error"),
    ],
)
def test_hooks_of_upstream_cost_no_result(
    settings: FileSettings, hooks: str, outcomes: dict[str, str]
) -> None:
    write_files(settings.tree / "test", {"conftest.py": hooks})

    run = run_text(settings, f"{PASSES}def test_last(): pass\n")

    assert outcomes_of(run) == outcomes


def test_a_log_takes_much_output(settings: FileSettings) -> None:
    text = f"import os\ndef test_talks():\n    for _ in range(400): os.write(2, b'x' * 65536)\n{PASSES}"

    run = run_text(with_limits(settings, log_megabytes=200), text)

    (log,) = run.logs
    assert outcomes_of(run) == {"test_talks": "passed", "test_passes": "passed"}
    assert log.stat().st_size > 400 * 65536


@pytest.mark.nightly
def test_a_test_that_writes_without_end_is_stopped(settings: FileSettings) -> None:
    text = f"import os\ndef test_talks():\n    while True: os.write(2, b'x' * 65536)\n{PASSES}"

    run = run_text(with_limits(settings, log_megabytes=1), text)

    talkative = case_named(run, "test_talks")
    assert outcomes_of(run) == {"test_talks": "error", "test_passes": "passed"}
    assert "1.0 MiB" in talkative.line
    assert len(talkative.text) < 20_000
