from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from core import process, supervision
from core.errors import InterruptedStageError, ProcessError
from core.supervision import Limits, supervise, tail

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

# a child that starts another one and tells its id
PARENT = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session={apart})
pathlib.Path({told!r}).write_text(str(child.pid))
time.sleep({seconds})
"""


def run(tmp_path: Path, code: str, **changes: Any) -> supervision.Ended:
    options: dict[str, Any] = {"limits": Limits(seconds=30), **changes}
    return supervise(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=process.inherited(),
        log=tmp_path / "logs" / "log",
        **options,
    )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = f"/proc/{pid}/stat"
    try:
        with open(stat, encoding="utf-8") as stream:  # noqa: PTH123 - no path of the test's
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_output_goes_to_the_log_and_the_status_is_told(tmp_path: Path) -> None:
    code = "import sys; print('said'); print('complained', file=sys.stderr); sys.exit(3)"
    ended = run(tmp_path, code)
    assert (ended.returncode, ended.stopped, ended.words) == (3, "", "ended with status 3")
    assert tail(tmp_path / "logs" / "log").splitlines() in (["said", "complained"], ["complained", "said"])
    assert run(tmp_path, "print('again')").returncode == 0
    assert "said" in tail(tmp_path / "logs" / "log")


def test_a_signal_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (ended.returncode, ended.words) == (-signal.SIGSEGV, "ended with signal SIGSEGV")


def test_a_hanging_process_says_where_and_is_stopped_with_what_it_started(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = "import faulthandler; faulthandler.enable()\n" + PARENT.format(
        apart=False, told=str(told), seconds=60
    )
    started = time.monotonic()
    ended = run(tmp_path, code, limits=Limits(seconds=2))
    assert ended.stopped == "did not end within 2.0 s"
    assert time.monotonic() - started < 20
    assert "Fatal Python error: Aborted" in tail(tmp_path / "logs" / "log", lines=50)
    assert gone(int(told.read_text()))


def test_what_ignores_every_signal_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_GRACE_SECONDS", 0.2)
    code = "import signal, time; signal.signal(signal.SIGABRT, signal.SIG_IGN); time.sleep(60)"
    ended = run(tmp_path, code, limits=Limits(seconds=1))
    assert ended.stopped
    assert ended.seconds < 20


@pytest.mark.parametrize("apart", ["False", "True"])
def test_what_a_process_leaves_behind_is_ended(
    tmp_path: Path, apart: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "pid"
    ended = run(tmp_path, PARENT.format(apart=apart, told=str(told), seconds=0))
    assert ended.returncode == 0
    pid = int(told.read_text())
    assert gone(pid)
    assert f"process {pid}" in capsys.readouterr().err or apart == "False"


def test_too_much_output_stops_it(tmp_path: Path) -> None:
    code = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    ended = run(tmp_path, code, limits=Limits(seconds=60, log_bytes=1 << 20))
    assert ended.stopped == "wrote more than 1.0 MiB"
    assert ended.seconds < 30


def test_a_watcher_can_stop_it(tmp_path: Path) -> None:
    asked = iter(["", "", "test_x has run for 5 s"])
    ended = run(tmp_path, "import time; time.sleep(60)", stalled=lambda: next(asked))
    assert ended.words == "test_x has run for 5 s"
    assert ended.returncode == -signal.SIGABRT


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    told = tmp_path / "pid"

    def interrupt() -> None:
        end = time.monotonic() + 20
        while not (told.is_file() and told.read_text()) and time.monotonic() < end:
            time.sleep(0.02)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(InterruptedStageError):
        run(tmp_path, PARENT.format(apart=True, told=str(told), seconds=60))
    thread.join()
    assert gone(int(told.read_text()))


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="no-such-program is not installed"):
        supervise(["no-such-program"], cwd=tmp_path, env={}, log=tmp_path / "log", limits=Limits(seconds=1))


def test_a_logs_tail_is_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)) + b"\xff")
    assert tail(log, lines=2) == "line 99999\n\N{REPLACEMENT CHARACTER}"
