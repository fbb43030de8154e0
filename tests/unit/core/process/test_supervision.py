import signal
from pathlib import Path

import pytest

from core import process
from core.errors import InterruptedStageError
from core.process import supervise, tail
from tests.kit.processes import LONG, ctrl_c_when, ends_soon, holds_text, parent_code, python
from tests.kit.windows import not_on_windows

processes = pytest.mark.processes


def run_supervised(
    folder: Path,
    code: str,
    *,
    seconds: float = 30,
    log_bytes: int = 1 << 30,
) -> process.Ending:
    """Supervise a Python; its log is ``log`` in the folder."""
    return supervise(
        python(code),
        cwd=folder,
        env=process.inherited(),
        log=folder / "log",
        seconds=seconds,
        log_bytes=log_bytes,
    )


@processes
def test_tells_how_a_supervised_process_ended(tmp_path: Path) -> None:
    ending = run_supervised(tmp_path, "raise SystemExit(3)")

    assert ending.returncode == 3
    assert ending.stopped is None
    assert ending.words == "ended with status 3"


@processes
def test_adds_the_output_of_supervised_processes_to_a_log(tmp_path: Path) -> None:
    run_supervised(tmp_path, "import sys; print('out', flush=True); print('err', file=sys.stderr)")

    run_supervised(tmp_path, "print('second')")

    assert tail(tmp_path / "log").splitlines() == ["out", "err", "second"]


@processes
def test_stops_a_process_at_its_time_limit(tmp_path: Path) -> None:
    ending = run_supervised(tmp_path, f"import time; time.sleep({LONG})", seconds=0.5)

    assert ending.stopped == "did not end within 0.5 s"
    assert ending.late
    assert ending.seconds < LONG


# What a process writes to be stopped for, when it is prepared.
TOO_MUCH = f"; print('x' * 1000, flush=True); import time; time.sleep({LONG})"


@processes
@not_on_windows("Windows has no signal at which a process could write its stacks")
def test_a_stopped_process_says_where_it_was(tmp_path: Path) -> None:
    ending = run_supervised(tmp_path, f"import faulthandler; faulthandler.enable(){TOO_MUCH}", log_bytes=100)

    assert ending.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in tail(tmp_path / "log", lines=50)


@processes
def test_a_stopped_process_takes_its_children_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    run_supervised(tmp_path, parent_code(pid_file, seconds=0) + TOO_MUCH.lstrip("; "), log_bytes=100)

    assert ends_soon(int(pid_file.read_text()))


@processes
def test_kills_a_process_that_ignores_signals(tmp_path: Path) -> None:
    code = f"import signal; signal.signal(signal.SIGABRT, signal.SIG_IGN){TOO_MUCH}"

    ending = run_supervised(tmp_path, code, log_bytes=100)

    assert ending.stopped is not None
    assert ending.seconds < LONG


@processes
@pytest.mark.parametrize("is_apart", [False, True], ids=["same group", "own session"])
def test_ends_what_a_process_leaves_behind(tmp_path: Path, *, is_apart: bool) -> None:
    pid_file = tmp_path / "pid"

    ending = run_supervised(tmp_path, parent_code(pid_file, seconds=0, is_apart=is_apart))

    assert ending.returncode == 0
    assert ends_soon(int(pid_file.read_text()))


@processes
def test_tells_of_a_process_that_left_its_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pid_file = tmp_path / "pid"

    run_supervised(tmp_path, parent_code(pid_file, seconds=0, is_apart=True))

    assert f"process {pid_file.read_text()}" in capsys.readouterr().err


@processes
def test_stops_a_process_that_writes_too_much(tmp_path: Path) -> None:
    code = "import sys\nwhile True: sys.stdout.write('x' * 65536)"

    ending = run_supervised(tmp_path, code, seconds=LONG, log_bytes=1 << 20)

    assert ending.stopped == "wrote more than 1.0 MiB"
    assert ending.seconds < LONG


@processes
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    with pytest.raises(InterruptedStageError), ctrl_c_when(lambda: holds_text(pid_file)):
        run_supervised(tmp_path, parent_code(pid_file, seconds=LONG, is_apart=True))

    assert ends_soon(int(pid_file.read_text()))
