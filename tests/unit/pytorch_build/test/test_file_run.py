import json
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import junit, process
from core.junit import Case, Document
from pytorch_build.test import file_run, plugin
from pytorch_build.test.file_run import FileRun, Setting, Stall, log_name, of_file, of_script, run_file
from pytorch_build.test.shards import Part
from pytorch_build.test.upstream_tests import LimitsTable, TestFile
from tests.kit.repos import write_files
from tests.kit.torch_results import case_of

processes = pytest.mark.processes

FILE = "test/test_it.py"
PASSES = "def test_passes():\n    assert True\n"
TWO_PASS = f"{PASSES}def test_second(): pass\n"


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    """Return a tree without tests, and an environment as a run gives it."""
    write_files(tmp_path / "tree", {"pytest.ini": "[pytest]\naddopts = --capture=sys\n", FILE: ""})
    return Setting(
        python=Path(sys.executable),
        tree=tmp_path / "tree",
        env=process.inherited(PYTHONPATH=str(plugin.TARGET), PYTEST_ADDOPTS=None),
        folder=tmp_path / "work",
        logs=tmp_path / "logs",
        limits=LimitsTable(test_seconds=60, file_seconds=120, restarts=3, log_megabytes=16),
    )


@pytest.fixture
def short_second_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a test soon after its limit, which pytest itself could not enforce."""
    monkeypatch.setattr(file_run, "_SECOND_CHANCE", 1.0)


def run_text(setting: Setting, text: str, *, part: Part | None = None, **facts: Any) -> FileRun:
    """Run a test file of this text."""
    (setting.tree / FILE).write_text(text)
    return run_file(TestFile(file=FILE, **facts), setting, part=part)


def with_limits(setting: Setting, **changes: Any) -> Setting:
    """Return a setting with other limits."""
    return replace(setting, limits=setting.limits.model_copy(update=changes))


def outcomes_of(file: FileRun) -> dict[str, str]:
    """Return the outcomes of a file's tests, by their names; the file itself may have failed, too."""
    return {case.test.removeprefix(f"{FILE}::"): case.outcome for case in file.cases}


def case_named(file: FileRun, name: str) -> Case:
    """Return the result of a test."""
    (case,) = [case for case in file.cases if case.test == f"{FILE}::{name}"]
    return case


def log_of(file: FileRun) -> str:
    """Return what a file's processes printed."""
    assert file.log is not None
    return file.log.read_text()


MIXED = f"""\
import pytest
{PASSES}
def test_fails():
    print("text that it printed")
    assert 1 == 2
@pytest.mark.skip(reason="no time")
def test_skips(): pass
"""


@processes
def test_every_test_of_a_file_is_run(setting: Setting) -> None:
    file = run_text(setting, MIXED)

    failure = case_named(file, "test_fails")
    assert outcomes_of(file) == {"test_passes": "passed", "test_fails": "failed", "test_skips": "skipped"}
    assert failure.line == "assert 1 == 2"
    assert "test_it.py:7" in failure.text
    assert file.processes == 1
    assert file.collected == tuple(f"{FILE}::{name}" for name in outcomes_of(file))
    assert "text that it printed" in log_of(file)


@processes
@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        pytest.param("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV", id="signal"),
        pytest.param("import os; os._exit(0)", "status 0", id="exit that looks fine"),
        pytest.param("import os; os._exit(1)", "status 1", id="exit"),
    ],
)
def test_a_crash_costs_one_test(setting: Setting, statement: str, problem: str) -> None:
    crash = f"def test_dies():\n    {statement}\n"
    rest = "def test_third(): pass\ndef test_fails(): assert False\n"

    file = run_text(setting, f"{PASSES}{crash}{rest}")

    assert outcomes_of(file) == {
        "test_passes": "passed",
        "test_dies": "crashed",
        "test_third": "passed",
        "test_fails": "failed",
    }
    assert problem in case_named(file, "test_dies").line
    assert file.processes == 2
    assert len(file.collected) == 4


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


@processes
def test_texts_that_are_not_plain_cost_no_result(setting: Setting) -> None:
    # https://github.com/pytest-dev/pytest/issues/13750
    write_files(setting.tree / "test", {"conftest.py": ODD_IDS})

    file = run_text(setting, ODD_TEXTS)

    outcomes = outcomes_of(file)
    assert list(outcomes.values()).count("failed") == 10
    assert list(outcomes.values()).count("skipped") == 5
    assert list(outcomes.values()).count("passed") == 5
    assert outcomes["test_dies"] == "crashed"
    assert outcomes["test_last"] == "passed"
    assert len(outcomes) == 21
    assert max(map(len, outcomes)) < 1100
    assert case_named(file, "TestTexts::test_message[a]").line == r"ValueError: before\udc80after"
    report = junit.read(junit.write(Document(cases=file.cases)))
    assert [case.test for case in report.cases] == [case.test for case in file.cases]


@processes
def test_a_file_is_given_up_after_many_crashes(setting: Setting) -> None:
    text = "import os, pytest\n@pytest.mark.parametrize('n', range(9))\ndef test_dies(n): os._exit(0)\n"

    file = run_text(with_limits(setting, restarts=2), text)

    assert file.processes == 3
    assert list(outcomes_of(file).values()) == ["crashed"] * 3
    assert "6 tests after it did not run" in file.cases[-1].line
    assert len(file.collected) == 9


@processes
@pytest.mark.parametrize(
    ("text", "changes", "outcomes"),
    [
        pytest.param(f"import os; os._exit(0)\n{PASSES}", {}, {FILE: "crashed"}, id="exit at import"),
        pytest.param(f"import os; os.abort()\n{PASSES}", {}, {FILE: "crashed"}, id="abort at import"),
        pytest.param(
            f"import atexit, os\natexit.register(os._exit, 7)\n{PASSES}",
            {},
            {"test_passes": "passed", FILE: "crashed"},
            id="exit at the end",
        ),
        pytest.param("import nowhere\n", {}, {FILE: "error"}, id="failed import"),
        pytest.param("x = 1\n", {}, {FILE: "error"}, id="no test"),
        pytest.param(PASSES, {"expression": "nothing"}, {}, id="no test that is chosen"),
    ],
)
def test_a_file_may_fail_as_a_whole(
    setting: Setting, text: str, changes: dict[str, Any], outcomes: dict[str, str]
) -> None:
    file = run_text(replace(setting, **changes), text)

    assert outcomes_of(file) == outcomes
    assert file.processes == 1


@processes
def test_pytest_stops_a_test_at_its_limit(setting: Setting) -> None:
    text = f"import time\ndef test_sleeps():\n    time.sleep(60)\n{PASSES}"

    file = run_text(with_limits(setting, test_seconds=1), text)

    assert outcomes_of(file) == {"test_sleeps": "timeout", "test_passes": "passed"}
    assert file.processes == 1


# Pytest's own limit is a signal, which this test does not take. Its child is in a session of its own.
HANGS = """\
import pathlib, signal, subprocess, sys, time
def test_hangs():
    sleep = [sys.executable, "-c", "import time; time.sleep(99)"]
    child = subprocess.Popen(sleep, start_new_session=True)
    pathlib.Path("pid").write_text(str(child.pid))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(60)
"""


def has_ended(pid: int) -> bool:
    """Return whether a process ends, within ten seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(10_000))
    finally:
        os.close(descriptor)


@processes
@pytest.mark.usefixtures("short_second_chance")
def test_a_hung_test_is_stopped_with_its_stack_and_children(setting: Setting) -> None:
    file = run_text(with_limits(setting, test_seconds=1), HANGS + PASSES)

    hung = case_named(file, "test_hangs")
    assert outcomes_of(file) == {"test_hangs": "timeout", "test_passes": "passed"}
    assert f"{FILE}::test_hangs" in hung.line
    assert "2.0 s" in hung.line
    assert "in test_hangs" in hung.text
    assert has_ended(int((setting.tree / "test" / "pid").read_text()))


@processes
@pytest.mark.parametrize(
    ("text", "seconds", "outcomes"),
    [
        pytest.param(f"import time\ntime.sleep(60)\n{PASSES}", 2, {FILE: "timeout"}, id="at import"),
        pytest.param(
            f"import time\ndef test_long(): time.sleep(60)\n{PASSES}",
            12,
            {"test_long": "timeout"},
            id="in a test",
        ),
    ],
)
def test_a_file_is_stopped_at_its_limit(
    setting: Setting, text: str, seconds: int, outcomes: dict[str, str]
) -> None:
    file = run_text(with_limits(setting, file_seconds=seconds), text)

    assert outcomes_of(file) == outcomes
    assert ("1 tests after it did not run" in file.cases[0].line) == ("test_long" in outcomes)


@processes
def test_a_log_takes_much_output(setting: Setting) -> None:
    text = f"import os\ndef test_talks():\n    for _ in range(400): os.write(2, b'x' * 65536)\n{PASSES}"

    file = run_text(with_limits(setting, log_megabytes=200), text)

    assert outcomes_of(file) == {"test_talks": "passed", "test_passes": "passed"}
    assert file.log is not None
    assert file.log.stat().st_size > 400 * 65536


@processes
def test_a_test_that_writes_without_end_is_stopped(setting: Setting) -> None:
    text = f"import os\ndef test_talks():\n    while True: os.write(2, b'x' * 65536)\n{PASSES}"

    file = run_text(with_limits(setting, log_megabytes=1), text)

    talkative = case_named(file, "test_talks")
    assert outcomes_of(file) == {"test_talks": "error", "test_passes": "passed"}
    assert "1.0 MiB" in talkative.line
    assert len(talkative.text) < 20_000


# Fails where it runs for the first time.
FLAKY = """\
import pathlib
def test_flaky():
    marker = pathlib.Path("ran")
    if not marker.exists():
        marker.write_text("")
        assert False, "the first time"
"""
RULED_TESTS = f"""\
{FLAKY}
def test_bad(): assert False
def test_bad_too(): assert False
def test_always():
    with pathlib.Path("times").open("a") as times:
        times.write("x")
    assert False
"""
RULES = (
    plugin.PlannedRule(name="a.skip", action="skip", reason="It fails.", tests=(f"{FILE}::test_bad",)),
    plugin.PlannedRule(
        name="a.retry", action="retry", reason="Flaky.", retries=1, tests=(f"{FILE}::test_flaky",)
    ),
    plugin.PlannedRule(
        name="a.more",
        action="retry",
        reason="Bad.",
        retries=2,
        tests=("*::test_always", "*::test_worse"),
    ),
)


@processes
def test_rules_skip_and_retry_the_tests_that_they_name(setting: Setting) -> None:
    file = run_text(replace(setting, rules=RULES), RULED_TESTS)

    assert outcomes_of(file) == {
        "test_bad": "skipped",
        "test_flaky": "flaky",
        "test_bad_too": "failed",
        "test_always": "failed",
    }
    assert file.matched == {"a.skip", "a.retry", "a.more"}
    attempts = {case.test.removeprefix(f"{FILE}::"): case.attempts for case in file.cases}
    assert attempts == {"test_bad": 1, "test_flaky": 2, "test_bad_too": 1, "test_always": 3}
    assert (setting.tree / "test" / "times").read_text() == "xxx"
    assert case_named(file, "test_flaky").line == "AssertionError: the first time"
    assert case_named(file, "test_flaky").rule == "a.retry: Flaky."
    assert case_named(file, "test_always").rule == "a.more: Bad."


@processes
@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        pytest.param(("-vkpasses",), 1, id="expression"),
        pytest.param(("--deselect", f"{FILE}::test_passes"), 1, id="deselected test"),
        pytest.param(("-o", "python_functions=test_p*"), 1, id="setting"),
        # Another file's tests take no place of those that did not run.
        pytest.param(("-k", "passes or fill", "test_fill.py"), 1, id="another file"),
        pytest.param(("--setup-only",), 0, id="set-up alone"),
        pytest.param(("--tb=short", "-x"), 2, id="no choice"),
    ],
)
def test_the_number_of_tests_is_known_whatever_arguments_choose(
    setting: Setting, arguments: tuple[str, ...], passed: int
) -> None:
    write_files(setting.tree / "test", {"test_fill.py": "def test_fill(): pass\n"})

    file = run_text(replace(setting, arguments=arguments), TWO_PASS)

    assert file.whole == 2
    assert list(outcomes_of(file).values()).count("passed") == passed


@processes
def test_the_number_of_tests_is_known_whatever_variables_choose(setting: Setting) -> None:
    variables = {**setting.env, "PYTEST_ADDOPTS": "-k passes"}

    file = run_text(replace(setting, env=variables), TWO_PASS)

    assert file.whole == 2
    assert len(file.cases) == 1


@processes
@pytest.mark.parametrize(("status", "outcome"), [(0, "passed"), (2, "failed")])
def test_a_program_of_the_tree_is_run_without_pytest(setting: Setting, status: int, outcome: str) -> None:
    write_files(setting.tree, {"tools/x.py": f"print('a word')\nraise SystemExit({status})\n"})

    file = run_file(TestFile(file="tools/x.py", runner="script"), setting)

    (case,) = file.cases
    assert case.test == "tools/x.py"
    assert case.outcome == outcome
    assert file.collected == ()
    assert file.processes == 1
    assert "a word" in log_of(file)


TWO_CLASSES = "".join(
    f"class Test{name}:\n    def test_a(self): pass\n    def test_b(self): pass\n" for name in "XY"
)
ALL_BUT_X = Part(file=FILE, keep=(FILE,), drop=(f"{FILE}::TestX",))
X_ALONE = Part(file=FILE, keep=(f"{FILE}::TestX",), drop=(FILE,))
NOTHING = Part(file=FILE, keep=(f"{FILE}::TestZ",), drop=(FILE,))


@processes
@pytest.mark.parametrize(
    ("part", "names", "process_count"),
    [
        pytest.param(ALL_BUT_X, ["TestY::test_a", "TestY::test_b"], 1, id="a class dropped"),
        pytest.param(X_ALONE, ["TestX::test_a", "TestX::test_b"], 1, id="a class kept"),
        pytest.param(NOTHING, [], 0, id="nothing"),
    ],
)
def test_a_part_of_a_file_runs_its_tests_alone(
    setting: Setting, part: Part, names: list[str], process_count: int
) -> None:
    file = run_text(setting, TWO_CLASSES, part=part)

    assert list(outcomes_of(file)) == names
    assert len(file.collected) == len(names)
    assert file.whole == 4
    assert file.processes == process_count


@processes
def test_a_part_of_a_file_that_cannot_be_collected_fails(setting: Setting) -> None:
    file = run_text(setting, "import nowhere\n", part=ALL_BUT_X)

    assert outcomes_of(file) == {FILE: "error"}
    assert "nowhere" in file.cases[0].line


@processes
@pytest.mark.usefixtures("short_second_chance")
def test_a_hung_test_among_workers_is_found_one_by_one(setting: Setting) -> None:
    text = "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_passes(n): pass\n"
    side_by_side = with_limits(replace(setting, workers=2), file_seconds=60, test_seconds=2)

    file = run_text(side_by_side, text + HANGS, parallel=True)

    outcomes = outcomes_of(file)
    assert outcomes.pop("test_hangs") == "timeout"
    assert outcomes == {f"test_passes[{number}]": "passed" for number in range(6)}


@processes
def test_a_worker_that_dies_is_told_by_its_test(setting: Setting) -> None:
    text = f"{PASSES}import os\ndef test_dies(): os._exit(3)\ndef test_third(): pass\n"

    file = run_text(replace(setting, workers=2), text, parallel=True)

    outcomes = outcomes_of(file)
    # Seldom, pytest-xdist never ends after a worker died; then the file's limit is told, too.
    assert outcomes.pop(FILE, "timeout") == "timeout"
    assert outcomes == {"test_passes": "passed", "test_dies": "crashed", "test_third": "passed"}


# Upstream's runner stops at the first failure, retries, and runs a failed file again.
UPSTREAMS_RUNNER = """\
import subprocess, sys
assert sys.argv[1:4] == ["--verbose", "--keep-going", "--inductor"], sys.argv
name = sys.argv[sys.argv.index("--include") + 1]
command = [sys.executable, "-m", "pytest", "-x", "--reruns=2", name + ".py"]
if subprocess.call(command):
    sys.exit(subprocess.call(command))
"""


@processes
def test_upstreams_runner_neither_stops_nor_retries(setting: Setting) -> None:
    write_files(setting.tree / "test", {"run_test.py": UPSTREAMS_RUNNER})

    file = run_text(setting, FLAKY + PASSES, runner="run_test", arguments=("--inductor",))

    assert outcomes_of(file) == {"test_flaky": "failed", "test_passes": "passed"}


@processes
def test_upstreams_runner_that_runs_nothing_has_failed(setting: Setting) -> None:
    write_files(setting.tree / "test", {"run_test.py": "print('no such test')\n"})

    assert outcomes_of(run_text(setting, PASSES, runner="run_test")) == {FILE: "crashed"}


# Without processes: what journals and statuses mean.


class Clock:
    """The time that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def append_lines(journal: Path, *lines: dict[str, str], last_line: str = "") -> None:
    """Let a journal grow; `last_line` is one that is being written."""
    with journal.open("a") as stream:
        stream.write("".join(json.dumps(line) + "\n" for line in lines) + last_line)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return the journal of a test that has ended and of one that has begun."""
    path = tmp_path / "journal"
    append_lines(
        path,
        {"kind": "start", "test": "a"},
        {"kind": "test", "test": "a", "outcome": "passed"},
        {"kind": "start", "test": "b"},
        last_line='{"kind": "te',
    )
    return path


def test_a_test_that_hangs_is_named_after_its_limit(journal: Path, clock: Clock) -> None:
    stall = Stall(lambda: [journal], 10)
    assert stall() == ""

    clock.seconds = 11

    assert stall().startswith("b ")


def test_a_retried_test_has_its_time_again(journal: Path, clock: Clock) -> None:
    stall = Stall(lambda: [journal], 10)
    stall()

    clock.seconds = 11
    append_lines(journal, last_line='st", "test": "b", "outcome": "rerun"}\n')

    assert stall() == ""


def test_no_test_hangs_before_there_is_a_journal() -> None:
    assert Stall(list, 10)() == ""


def test_results_name_their_architecture() -> None:
    file = FileRun(
        file=FILE,
        cases=(
            case_of(f"{FILE}::test_x"),
            case_of(FILE, outcome="error"),
            case_of("TestX::test_y", outcome="error"),
        ),
        collected=(f"{FILE}::test_x",),
    )

    named = file.on("gfx942")

    tests = [case.test for case in named.cases]
    assert tests == [f"{FILE}@gfx942::test_x", f"{FILE}@gfx942", "TestX::test_y@gfx942"]
    assert named.collected == (f"{FILE}@gfx942::test_x",)
    assert {case.file for case in named.cases} == {named.file}


def test_a_log_is_named_after_its_file() -> None:
    assert log_name("test/dynamo/test_misc.py") == "dynamo.test_misc"


@pytest.mark.parametrize(
    ("ended", "output", "outcome", "line"),
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
        pytest.param(process.Ending(returncode=-9, late=True, seconds=5), "", "timeout", "5 s", id="limit"),
    ],
)
def test_a_programs_status_is_its_result(ended: process.Ending, output: str, outcome: str, line: str) -> None:
    case = of_script("tools/x.py", ended, output)

    assert case.test == "tools/x.py"
    assert case.file == "tools/x.py"
    assert case.outcome == outcome
    assert case.line.endswith(line)


def session_with(*tests: str, status: int = 0, uncollected: tuple[plugin.Line, ...] = ()) -> plugin.Session:
    """Return a session whose tests passed, with pytest's status."""
    results = tuple(plugin.Line(kind="test", test=f"{FILE}::{test}", seconds=1.0) for test in tests)
    return plugin.Session(
        began=plugin.Line(kind="session"),
        results=results,
        started=tuple(line.test for line in results),
        end=plugin.Line(kind="end", exit=status),
        uncollected=uncollected,
    )


def cases_of(returncode: int, sessions: Sequence[plugin.Session]) -> tuple[Case, ...]:
    """Return the results of a process and its journal."""
    ended = process.Ending(returncode=returncode, seconds=9.0)
    return of_file(FILE, ended, sessions, "the end")


@pytest.mark.parametrize(
    ("returncode", "sessions", "outcome", "problem"),
    [
        pytest.param(0, [], "crashed", "status 0", id="no session"),
        pytest.param(1, [], "error", "status 1", id="no session, and a status"),
        pytest.param(4, [], "error", "arguments", id="refused arguments"),
        pytest.param(-6, [], "crashed", "SIGABRT", id="no session, and a signal"),
        pytest.param(-11, [session_with("x")], "crashed", "SIGSEGV", id="signal after the tests"),
        pytest.param(134, [session_with("x")], "crashed", "status 134", id="status after the tests"),
        pytest.param(3, [session_with("x", status=3)], "error", "internal error", id="error of pytest"),
        pytest.param(1, [session_with("x", status=1)], "error", "none of 1 tests", id="failure of no test"),
        pytest.param(5, [session_with(status=5)], "error", "no test ran", id="no test"),
        pytest.param(0, [session_with()], "error", "no test ran", id="no test, and no status"),
    ],
)
def test_a_status_that_no_test_explains_is_the_files(
    returncode: int, sessions: Sequence[plugin.Session], outcome: str, problem: str
) -> None:
    whole_file = cases_of(returncode, sessions)[-1]

    assert whole_file.test == FILE
    assert whole_file.outcome == outcome
    assert problem in whole_file.line


def test_a_file_that_skips_itself_is_skipped_as_a_whole() -> None:
    skipped = plugin.Line(kind="collect", file=FILE, outcome="skipped", message="no GPU")

    (case,) = cases_of(5, [session_with(status=5, uncollected=(skipped,))])

    assert case.test == FILE
    assert case.outcome == "skipped"
