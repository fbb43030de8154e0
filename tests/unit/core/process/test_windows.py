"""Programs that stop, or are killed, on Windows, and what is left of what they had started: nothing."""

import subprocess  # noqa: TID251 - to be stopped
import sys
import time
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT
from core.errors import ProcessError
from tests.kit.processes import LONG, ends_soon, holds_text, parent_code, python

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "win32", reason="asks Windows' job objects"),
]

# A program that runs a command, which starts a child.
PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from core import process
process.take_charge(grace_after_death=5, ends_with_parent=False)
with process.stopped_by_signals():
    process.run([sys.executable, "-c", {command!r}], env=process.inherited())
"""


def test_a_supervised_command_that_is_late_ends_with_its_children(tmp_path: Path) -> None:
    ending = process.supervise(
        python(parent_code(tmp_path / "pid", seconds=LONG)),
        cwd=tmp_path,
        env=process.inherited(),
        log=tmp_path / "log",
        seconds=5,
    )

    assert ending.late
    assert ends_soon(int((tmp_path / "pid").read_text()))


def test_a_command_has_its_children_named_that_it_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process.capture(python(parent_code(tmp_path / "pid", seconds=0)))

    child_id = int((tmp_path / "pid").read_text())
    assert ends_soon(child_id)
    assert f"python.exe (process {child_id}) was left running" in capsys.readouterr().err


def test_a_program_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    command = parent_code(tmp_path / "pid", seconds=LONG)
    program = subprocess.Popen(python(PROGRAM.format(root=str(ROOT), command=command)), cwd=tmp_path)
    while not holds_text(tmp_path / "pid") and program.poll() is None:
        time.sleep(0.02)

    program.kill()
    program.wait()

    assert ends_soon(int((tmp_path / "pid").read_text()))


def test_a_program_that_fails_at_once_has_its_status() -> None:
    with pytest.raises(ProcessError) as raised:
        process.capture(python("raise SystemExit(7)"))

    assert raised.value.returncode == 7
