"""Programs that stop, or are killed, and what is left of what they had started: nothing."""

import os
import signal
import subprocess  # noqa: TID251 - to be stopped
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT
from core.process import linux
from tests.kit.processes import LONG, ends_soon, holds_text, is_alive, python

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's kernel what a process has started"),
]

# A command that starts a process and waits. The process is out of its group, its session and its environment.
COMMAND = """
import pathlib, subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep({long})"], start_new_session=True, env={environment}
)
pathlib.Path("pids.part").write_text(f"{{__import__('os').getpid()}} {{child.pid}}")
pathlib.Path("pids.part").rename("pids")
time.sleep({seconds})
"""

# A program as a front door is one. Tests that run under nohup hand on that they ignore SIGHUP.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.path.insert(0, {root!r})
from concurrent.futures import ThreadPoolExecutor
from core import process
from core.errors import FatalError, as_fatal_error

def run():
    process.run([sys.executable, "-c", {command!r}], env=process.inherited())

process.take_charge(grace_after_death=5, ends_with_parent=False)
try:
    with process.stopped_by_signals():
        {run}
except (FatalError, KeyboardInterrupt) as problem:
    sys.exit(as_fatal_error(problem).exit_code)
"""
IN_A_THREAD = "with ThreadPoolExecutor() as pool: pool.submit(run).result()"


def command(*, seconds: float, environment: str = "None") -> str:
    """Return a command's code; one that starts its child with `environment` {} leaves no mark upon it."""
    return COMMAND.format(long=LONG, seconds=seconds, environment=environment)


@contextmanager
def program(folder: Path, code: str, run: str = "run()") -> Iterator[subprocess.Popen[str]]:
    """Run a program that runs a command, until the command has started its child."""
    text = PROGRAM.format(root=str(ROOT), command=code, run=run)
    running = subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with running:
        while not holds_text(folder / "pids") and running.poll() is None:
            time.sleep(0.02)
        try:
            yield running
        finally:
            running.kill()


def pids_in(folder: Path) -> list[int]:
    """Return the ids of a command's process and of its child."""
    return [int(word) for word in (folder / "pids").read_text().split()]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("run", ["run()", IN_A_THREAD], ids=["alone", "in a thread"])
def test_a_stopped_program_leaves_nothing_running(tmp_path: Path, name: str, run: str) -> None:
    with program(tmp_path, command(seconds=LONG), run) as running:
        running.send_signal(signal.Signals[name])

        assert running.wait(timeout=LONG / 2) == 130

    assert not any(map(is_alive, pids_in(tmp_path)))


@pytest.mark.parametrize("is_group", [False, True], ids=["process", "group"])
def test_a_killed_program_leaves_nothing_running(tmp_path: Path, *, is_group: bool) -> None:
    with program(tmp_path, command(seconds=LONG)) as running:
        if is_group:
            os.killpg(running.pid, signal.SIGKILL)
        else:
            running.kill()
        running.wait()

        assert all(map(ends_soon, pids_in(tmp_path)))


@pytest.mark.parametrize("environment", ["None", "{}"], ids=["marked", "environment cleared"])
def test_a_program_ends_what_a_command_leaves_and_names_it(tmp_path: Path, environment: str) -> None:
    with program(tmp_path, command(seconds=0, environment=environment)) as running:
        printed = running.communicate(timeout=LONG / 2)[1]

        assert running.returncode == 0

    _command_id, child_id = pids_in(tmp_path)
    assert not is_alive(child_id)
    assert f"process {child_id}" in printed


def test_a_process_that_ends_right_behind_its_command_is_not_named(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '0.3'])"
    text = PROGRAM.format(root=str(ROOT), command=code, run="run()")

    completed = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert "left running" not in completed.stderr


def test_a_process_that_ends_as_soon_as_it_has_a_processor_is_not_named(tmp_path: Path) -> None:
    # It works for longer than the last processes of a command wait for anything.
    work = "import time\nend = time.monotonic() + 1.8\nwhile time.monotonic() < end: pass"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {work!r}])"
    text = PROGRAM.format(root=str(ROOT), command=code, run="run()")

    completed = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert "left running" not in completed.stderr


def test_a_program_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    text = PROGRAM.format(root=str(ROOT), command=command(seconds=LONG), run="run()")
    text = text.replace("ends_with_parent=False", "ends_with_parent=True")
    starter = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {text!r}])"
    with subprocess.Popen([sys.executable, "-c", starter], cwd=tmp_path) as running:
        while not holds_text(tmp_path / "pids"):
            time.sleep(0.02)
        running.kill()

    assert all(map(ends_soon, pids_in(tmp_path)))


def test_a_second_signal_of_the_same_stop_changes_nothing(tmp_path: Path) -> None:
    with program(tmp_path, command(seconds=LONG)) as running:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            running.send_signal(number)
        printed = running.communicate(timeout=LONG / 2)[1]

    assert running.returncode == 130
    assert "core/process" not in printed


def test_knows_a_process_that_has_ended() -> None:
    with subprocess.Popen(python("")) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

        assert not linux.is_running(child.pid)
        assert linux.is_running(os.getpid())


def test_a_command_belongs_to_all_that_have_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERVISED_BY", "outer.1")

    marks = process.capture(python("import os; print(os.environ['SUPERVISED_BY'])")).stdout

    assert marks.startswith("outer.1:")
