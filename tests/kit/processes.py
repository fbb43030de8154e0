"""Processes for tests: children that start others, what is left of them, and Ctrl-C."""

import _thread
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# What a child waits for its end, in seconds; no test waits as long.
LONG = 60

SYNCHRONIZE = 0x100000  # of <winnt.h>: a right to wait for a process

# A child that starts another one, and writes its id into a file.
PARENT = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep({long})"], start_new_session={apart})
pathlib.Path({pid_file!r}).write_text(str(child.pid))
time.sleep({seconds})
"""


def parent_code(pid_file: Path, *, seconds: float, is_apart: bool = False) -> str:
    """Return the code of a child that starts another one, in a session of its own if that is apart."""
    return PARENT.format(long=LONG, apart=is_apart, pid_file=str(pid_file), seconds=seconds)


def python(code: str) -> list[str]:
    """Return the command that runs code in another Python."""
    return [sys.executable, "-c", code]


@contextmanager
def ctrl_c_when(happens: Callable[[], object]) -> Iterator[None]:
    """Press Ctrl-C as soon as something happens, while the block runs."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    ending = threading.Event()

    def press() -> None:
        while not happens() and not ending.wait(0.02):
            pass
        if not ending.is_set():
            _interrupt(main_thread)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def _interrupt(thread_id: int) -> None:
    if sys.platform == "win32":
        # The event of a console, which reaches every program in it, is no signal for one of them.
        _thread.interrupt_main()
    else:
        signal.pthread_kill(thread_id, signal.SIGINT)


def holds_text(path: Path, text: str = "") -> bool:
    """Return whether a file is there and holds a text (default: anything)."""
    if not path.is_file():
        return False
    content = path.read_text(encoding="utf-8")
    return text in content if text else bool(content)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that ended and that nobody has asked about does not."""
    if sys.platform == "win32":
        return _runs_on_windows(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _runs_on_windows(pid: int) -> bool:
    kernel: Any = getattr(ctypes, "WinDLL")("kernel32")  # noqa: B009 - of Windows alone
    process = kernel.OpenProcess(SYNCHRONIZE, 0, pid)
    if not process:
        return False
    has_ended = kernel.WaitForSingleObject(process, 0) == 0
    kernel.CloseHandle(process)
    return not has_ended


def ends_soon(pid: int) -> bool:
    """Return whether a process ends within the time that the system takes to end one."""
    end = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_alive(pid)
