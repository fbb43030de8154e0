import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.junit import Case
from pytorch_build.test import file_run, plugin
from pytorch_build.test.file_run import FileRun, Setting, Stall, log_name, of_file, of_script, run_file
from pytorch_build.test.shards import Part
from pytorch_build.test.upstream_tests import LimitsTable, TestFile

FILE = "test/test_it.py"
BEGAN = plugin.Line(kind="session")
PASSES = "def test_one():\n    assert True\n"


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    """Return a tree without tests, and an environment as a run gives it."""
    tree = tmp_path / "tree"
    (tree / "test").mkdir(parents=True)
    (tree / "pytest.ini").write_text("[pytest]\naddopts = --capture=sys\n")
    return Setting(
        python=Path(sys.executable),
        tree=tree,
        env=process.inherited(PYTHONPATH=str(plugin.TARGET), PYTEST_ADDOPTS=None),
        folder=tmp_path / "work",
        logs=tmp_path / "logs",
        limits=LimitsTable(test_seconds=60, file_seconds=120, restarts=3, log_megabytes=16),
    )


def run(setting: Setting, text: str, *, part: Part | None = None, **changes: Any) -> FileRun:
    (setting.tree / FILE).write_text(text)
    return run_file(TestFile(file=FILE, **changes), setting, part=part)


def limited(setting: Setting, **changes: Any) -> Setting:
    return replace(setting, limits=setting.limits.model_copy(update=changes))


def outcomes(made: FileRun) -> dict[str, str]:
    return {case.test.removeprefix(f"{FILE}::"): case.outcome for case in made.cases}


def gone(pid: int) -> bool:
    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


processes = pytest.mark.processes


@processes
def test_a_file_is_run_and_every_test_is_told(setting: Setting) -> None:
    text = "import pytest\n" + PASSES
    text += "def test_two():\n    print('what was printed')\n    assert 1 == 2\n"
    text += "@pytest.mark.skip(reason='no time')\ndef test_three(): pass\n"
    made = run(setting, text)
    assert outcomes(made) == {"test_one": "passed", "test_two": "failed", "test_three": "skipped"}
    failed = next(case for case in made.cases if case.failing)
    assert failed.line == "assert 1 == 2"
    assert "test_it.py:6" in failed.text
    assert made.processes == 1
    assert made.collected == tuple(f"{FILE}::test_{name}" for name in ("one", "two", "three"))
    assert made.log is not None
    assert "what was printed" in made.log.read_text()


@processes
@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import os; os._exit(0)", "status 0"),
        ("import os; os._exit(1)", "status 1"),
    ],
)
def test_a_crash_costs_one_test_and_the_rest_goes_on(setting: Setting, deed: str, words: str) -> None:
    text = f"{PASSES}def test_dies():\n    {deed}\ndef test_three(): pass\ndef test_four(): assert False\n"
    made = run(setting, text)
    expected = {"test_one": "passed", "test_dies": "crashed", "test_three": "passed", "test_four": "failed"}
    assert outcomes(made) == expected
    died = next(case for case in made.cases if case.outcome == "crashed")
    assert words in died.line
    assert "did not run" not in died.line
    assert made.processes == 2
    assert len(made.collected) == 4


@processes
def test_going_on_has_an_end(setting: Setting) -> None:
    text = "import os, pytest\n@pytest.mark.parametrize('n', range(9))\ndef test_dies(n): os._exit(0)\n"
    made = run(limited(setting, restarts=2), text)
    assert made.processes == 3
    assert list(outcomes(made).values()) == ["crashed"] * 3
    assert made.cases[-1].line.endswith("6 tests after it did not run")
    assert len(made.collected) == 9


@processes
@pytest.mark.parametrize(
    ("text", "changes", "found"),
    [
        (f"import os; os._exit(0)\n{PASSES}", {}, {FILE: "crashed"}),
        (f"import os; os.abort()\n{PASSES}", {}, {FILE: "crashed"}),
        (
            f"import atexit, os\natexit.register(os._exit, 7)\n{PASSES}",
            {},
            {"test_one": "passed", FILE: "crashed"},
        ),
        ("import nowhere\n", {}, {FILE: "error"}),
        ("x = 1\n", {}, {FILE: "error"}),
        (PASSES, {"expression": "nothing"}, {}),
    ],
)
def test_a_file_fails_as_a_whole(
    setting: Setting, text: str, changes: dict[str, Any], found: dict[str, str]
) -> None:
    made = run(replace(setting, **changes), text)
    assert outcomes(made) == found
    assert made.processes == 1


@processes
def test_pytest_stops_a_test_at_its_limit_and_the_file_goes_on(setting: Setting) -> None:
    text = "import time\ndef test_sleeps():\n    time.sleep(60)\n" + PASSES
    made = run(limited(setting, test_seconds=1), text)
    assert outcomes(made) == {"test_sleeps": "timeout", "test_one": "passed"}
    assert made.processes == 1


@processes
def test_a_hung_test_is_stopped_with_its_stack(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_run, "_SECOND_CHANCE", 1.0)
    # a child in its own session, which must not outlive the file either
    text = "import pathlib, signal, subprocess, sys, time\n"
    text += "def test_hangs():\n"
    text += "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'],"
    text += " start_new_session=True)\n"
    text += "    pathlib.Path('pid').write_text(str(child.pid))\n"
    text += "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n    time.sleep(60)\n" + PASSES
    made = run(limited(setting, test_seconds=1), text)
    assert outcomes(made) == {"test_hangs": "timeout", "test_one": "passed"}
    hung = made.cases[0]
    assert f"{FILE}::test_hangs did not end within 2.0 s" in hung.line
    assert "Fatal Python error: Aborted" in hung.text
    assert "in test_hangs" in hung.text
    assert gone(int((setting.tree / "test" / "pid").read_text()))


@processes
def test_a_file_has_a_limit_too(setting: Setting) -> None:
    text = "import time\ntime.sleep(60)\n" + PASSES
    made = run(limited(setting, file_seconds=2), text)
    assert outcomes(made) == {FILE: "timeout"}
    text = "import time\ndef test_long(): time.sleep(60)\n" + PASSES
    made = run(limited(setting, file_seconds=12), text)
    assert outcomes(made) == {"test_long": "timeout"}
    assert "1 tests after it did not run" in made.cases[0].line


@processes
def test_output_of_any_size_goes_to_the_log_up_to_a_limit(setting: Setting) -> None:
    text = "import os\ndef test_talks():\n    for _ in range(1600): os.write(2, b'x' * 65536)\n" + PASSES
    made = run(limited(setting, log_megabytes=200), text)
    assert outcomes(made) == {"test_talks": "passed", "test_one": "passed"}
    assert made.log is not None
    assert made.log.stat().st_size > 100_000_000
    made.log.unlink()
    text = "import os\ndef test_talks():\n    while True: os.write(2, b'x' * 65536)\n" + PASSES
    made = run(limited(setting, log_megabytes=1), text)
    assert outcomes(made) == {"test_talks": "error", "test_one": "passed"}
    assert "wrote more than 1.0 MiB" in made.cases[0].line
    assert len(made.cases[0].text) < 20_000


@processes
def test_rules_skip_and_retry_what_they_name_and_nothing_else(setting: Setting) -> None:
    text = "import pathlib\ndef test_flaky():\n"
    text += "    seen = pathlib.Path('seen')\n    if not seen.exists():\n"
    text += "        seen.write_text('')\n        assert False, 'the first time'\n"
    text += "def test_bad(): assert False\ndef test_bad_too(): assert False\n"
    text += "def test_always():\n    with pathlib.Path('times').open('a') as times:\n"
    text += "        times.write('x')\n    assert False\n"
    rules = (
        plugin.PlannedRule(name="a.skip", action="skip", reason="It fails.", tests=(f"{FILE}::test_bad",)),
        plugin.PlannedRule(
            name="a.retry", action="retry", reason="Flaky.", retries=1, tests=(f"{FILE}::test_flaky",)
        ),
        plugin.PlannedRule(
            name="a.more", action="retry", reason="Bad.", retries=2, patterns={"*": ".*::test_(always|worse)"}
        ),
    )
    made = run(replace(setting, rules=rules), text)
    found = {"test_bad": "skipped", "test_flaky": "flaky", "test_bad_too": "failed", "test_always": "failed"}
    assert outcomes(made) == found
    assert made.matched == {"a.skip", "a.retry", "a.more"}
    flaky = next(case for case in made.cases if case.outcome == "flaky")
    assert (flaky.attempts, flaky.line) == (2, "AssertionError: the first time")
    assert flaky.rule == "a.retry: Flaky."
    always = next(case for case in made.cases if case.test.endswith("test_always"))
    assert (always.attempts, always.rule) == (3, "a.more: Bad.")
    assert (setting.tree / "test" / "times").read_text() == "xxx"
    assert {case.attempts for case in made.cases if case not in (flaky, always)} == {1}


@processes
@pytest.mark.parametrize(
    ("words", "ran"),
    [
        (("-vkone",), 1),
        (("--deselect", f"{FILE}::test_one"), 1),
        (("-o", "python_functions=test_o*"), 1),
        # another's tests take no place of those that did not run, and set-up alone is no run
        (("-k", "one or fill", "test_fill.py"), 1),
        (("--setup-only",), 0),
        (("--tb=short", "-x"), 2),
    ],
)
def test_what_exists_is_known_whatever_is_chosen(setting: Setting, words: tuple[str, ...], ran: int) -> None:
    (setting.tree / "test" / "test_fill.py").write_text("def test_fill(): pass\n")
    made = run(replace(setting, arguments=words), f"{PASSES}def test_two(): pass\n")
    passed = [case for case in made.cases if case.outcome == "passed"]
    assert (made.whole, len(passed)) == (2, ran)
    # a variable that selects is seen, too
    env = {**setting.env, "PYTEST_ADDOPTS": "-k one"}
    made = run(replace(setting, env=env), f"{PASSES}def test_two(): pass\n")
    assert (made.whole, len(made.cases)) == (2, 1)


@processes
@pytest.mark.parametrize(("status", "outcome"), [(0, "passed"), (2, "failed")])
def test_a_program_of_the_tree_is_run_without_pytest(setting: Setting, status: int, outcome: str) -> None:
    (setting.tree / "tools").mkdir()
    (setting.tree / "tools" / "x.py").write_text(f"print('it spoke')\nraise SystemExit({status})\n")
    made = run_file(TestFile(file="tools/x.py", runner="script"), setting)
    assert [(case.test, case.outcome) for case in made.cases] == [("tools/x.py", outcome)]
    assert (made.collected, made.processes) == ((), 1)
    assert made.log is not None
    assert "it spoke" in made.log.read_text()


@processes
def test_shards_of_a_file_share_its_tests_without_loss(setting: Setting) -> None:
    text = "".join(
        f"class Test{name}:\n    def test_a(self): pass\n    def test_b(self): pass\n" for name in "XY"
    )
    mine = Part(file=FILE, keep=(FILE,), drop=(f"{FILE}::TestX",))
    other = Part(file=FILE, keep=(f"{FILE}::TestX",), drop=(FILE,))
    made = [run(setting, text, part=part) for part in (mine, other)]
    expected = [["TestY::test_a", "TestY::test_b"], ["TestX::test_a", "TestX::test_b"]]
    assert [list(outcomes(one)) for one in made] == expected
    assert [one.whole for one in made] == [4, 4]
    assert [len(one.collected) for one in made] == [2, 2]
    nothing = Part(file=FILE, keep=(f"{FILE}::TestZ",), drop=(FILE,))
    empty = run(setting, text, part=nothing)
    assert (empty.cases, empty.whole, empty.processes) == ((), 4, 0)
    # a file that cannot be collected fails in each shard
    made = [run(setting, "import nowhere\n", part=mine)]
    assert outcomes(made[0]) == {FILE: "error"}
    assert "nowhere" in made[0].cases[0].line


@processes
def test_side_by_side_a_crash_is_found_by_going_on_one_by_one(setting: Setting) -> None:
    text = "import os, time, pytest\n"
    text += "@pytest.mark.parametrize('n', range(6))\ndef test_ok(n): time.sleep(0.05)\n"
    text += "def test_hangs():\n    import signal\n"
    text += "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n    time.sleep(60)\n"
    running_limit = limited(replace(setting, workers=2), file_seconds=60, test_seconds=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_run, "_SECOND_CHANCE", 1.0)
        made = run(running_limit, text, parallel=True)
    found = outcomes(made)
    assert found.pop("test_hangs") == "timeout"
    assert set(found.values()) == {"passed"}
    assert len(found) == 6
    assert FILE not in found


@processes
def test_a_worker_that_dies_is_told_by_its_test(setting: Setting) -> None:
    text = PASSES + "import os\ndef test_dies(): os._exit(3)\ndef test_three(): pass\n"
    made = run(replace(setting, workers=2), text, parallel=True)
    found = outcomes(made)
    # pytest-xdist, seldom, never ends after a worker died; then the file's limit is told, too
    assert found.pop(FILE, "timeout") == "timeout"
    assert found == {"test_one": "passed", "test_dies": "crashed", "test_three": "passed"}


RUNNER = """
import subprocess, sys
assert sys.argv[1:4] == ["--verbose", "--keep-going", "--inductor"], sys.argv
name = sys.argv[sys.argv.index("--include") + 1]
rest = [sys.executable, "-m", "pytest", "-x", "--reruns=2", name + ".py"]
if subprocess.call(rest):
    sys.exit(subprocess.call(rest))
"""


@processes
def test_upstreams_runner_neither_stops_nor_retries_and_its_failures_are_told(setting: Setting) -> None:
    (setting.tree / "test" / "run_test.py").write_text(RUNNER)
    text = "import pathlib\ndef test_flaky():\n"
    text += "    seen = pathlib.Path('seen')\n    if not seen.exists():\n"
    text += "        seen.write_text('')\n        assert False, 'the first time'\n" + PASSES
    made = run(setting, text, runner="run_test", arguments=("--inductor",))
    assert outcomes(made) == {"test_flaky": "failed", "test_one": "passed"}
    # one that says nothing has failed
    (setting.tree / "test" / "run_test.py").write_text("print('no such test')\n")
    assert outcomes(run(setting, PASSES, runner="run_test")) == {FILE: "crashed"}


def test_a_test_that_hangs_is_named_from_a_growing_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    stall = Stall(lambda: [path for path in [journal] if path.is_file()], 0.05)
    assert stall() == ""
    lines = [{"kind": "start", "test": "a"}, {"kind": "test", "test": "a", "outcome": "passed"}]
    lines += [{"kind": "start", "test": "b"}]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "te')
    assert stall() == ""
    time.sleep(0.1)
    assert stall().startswith("b did not end within")
    # a retried test has its time again
    with journal.open("a") as stream:
        stream.write('st", "test": "b", "outcome": "rerun"}\n')
    assert stall() == ""


def test_results_name_the_architecture_where_there_are_several() -> None:
    made = FileRun(
        file=FILE,
        cases=(
            Case(test=f"{FILE}::test_x", file=FILE, outcome="passed"),
            Case(test=FILE, file=FILE, outcome="error"),
            Case(test="TestX::test_y", file=FILE, outcome="error"),
        ),
        collected=(f"{FILE}::test_x",),
    )
    named = made.on("gfx942")
    expected = [f"{FILE}@gfx942::test_x", f"{FILE}@gfx942", "TestX::test_y@gfx942"]
    assert [case.test for case in named.cases] == expected
    assert named.collected == (f"{FILE}@gfx942::test_x",)
    assert {case.file for case in named.cases} == {named.file}
    assert log_name("test/dynamo/test_misc.py") == "dynamo.test_misc"


def result(name: str, outcome: Any = "passed", message: str = "", attempt: int = 1) -> plugin.Line:
    return plugin.Line(
        kind="test",
        test=f"{FILE}::{name}",
        outcome=outcome,
        seconds=1.0,
        attempt=attempt,
        rule="",
        message=message,
    )


def session(*results: plugin.Line, exit_status: int | None = 0, **facts: Any) -> plugin.Session:
    end = None if exit_status is None else plugin.Line(kind="end", exit=exit_status)
    started = facts.pop("started", tuple(dict.fromkeys(one.test for one in results)))
    return plugin.Session(began=BEGAN, results=results, started=started, end=end, **facts)


def named(found: Sequence[Case]) -> dict[str, str]:
    return {one.test.rpartition("::")[2]: one.outcome for one in found}


def put(returncode: int, sessions: Sequence[plugin.Session], **facts: Any) -> tuple[Case, ...]:
    return of_file(FILE, process.Ended(returncode=returncode, seconds=9.0, **facts), sessions, "the end")


@pytest.mark.parametrize(
    ("ended", "output", "outcome", "line"),
    [
        (process.Ended(returncode=0), "All checks passed\n", "passed", ""),
        (process.Ended(returncode=1), "Traceback\nVerifyError: no ROCm\n", "failed", "VerifyError: no ROCm"),
        (process.Ended(returncode=3), "", "failed", "it ended with status 3"),
        (process.Ended(returncode=-11), "", "crashed", "the interpreter died of signal SIGSEGV"),
        (process.Ended(returncode=-999), "", "crashed", "the interpreter died of signal 999"),
        (process.Ended(returncode=-9, late=True, seconds=5), "", "timeout", "killed after 5 s"),
    ],
)
def test_a_programs_status_is_its_result(ended: process.Ended, output: str, outcome: str, line: str) -> None:
    case = of_script("tools/x.py", ended, output)
    assert (case.test, case.file, case.outcome, case.line) == ("tools/x.py", "tools/x.py", outcome, line)


@pytest.mark.parametrize(
    ("returncode", "sessions", "outcome", "words"),
    [
        (0, [], "crashed", "status 0 before pytest did"),
        (1, [], "error", "pytest did not begin (status 1): the end"),
        (4, [], "error", "refused its arguments"),
        (-6, [], "crashed", "SIGABRT"),
        (-11, [session(result("x"))], "crashed", "SIGSEGV"),
        (134, [session(result("x"))], "crashed", "status 134 after the last test"),
        (3, [session(result("x"), exit_status=3)], "error", "internal error"),
        (1, [session(result("x"), exit_status=1)], "error", "named none of 1 tests"),
        (5, [session(exit_status=5)], "error", "no test ran"),
        (0, [session()], "error", "no test ran"),
    ],
)
def test_a_file_that_failed_as_a_whole(
    returncode: int, sessions: Sequence[plugin.Session], outcome: str, words: str
) -> None:
    found = put(returncode, sessions)
    whole = found[-1]
    assert (whole.test, whole.outcome) == (FILE, outcome)
    assert words in whole.line


def test_a_file_that_skips_itself_is_skipped_as_a_whole() -> None:
    skipped = plugin.Line(kind="collect", file=FILE, outcome="skipped", message="no GPU")
    assert named(put(5, [session(exit_status=5, uncollected=(skipped,))])) == {FILE: "skipped"}
