"""Commands that run under limits of time and output."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core import console
from core.process.commands import COMMAND_GRACE_SECONDS, Child, length, start, status

# Seconds that a process has to write its stacks.
_ABORT_SECONDS = 5.0
# Seconds between two looks at a supervised process: short ones at first, as many processes are short.
_SHORTEST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_PAUSE_GROWTH = 1.5

# Windows knows no signal but the one that ends a process at once.
_ABORT = signal.SIGABRT if os.name == "posix" else signal.SIGTERM


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a process ended; `stopped` says why it was stopped, if it was."""

    returncode: int
    stopped: str | None = None
    late: bool = False
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """How it ended, in words."""
        if self.stopped:
            return self.stopped
        return f"ended with {status(self.returncode)}"


def supervise(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    seconds: float,
    log_bytes: int = 1 << 30,
) -> Ending:
    """Run a process to its end, or to a limit of time or output; its output is added to `log`.

    One that is stopped is first sent ``SIGABRT``: Python's faulthandler then writes the stacks of all
    threads.
    """
    started = time.monotonic()
    end = started + seconds
    log_start = length(log)
    child = start(
        argv,
        cwd=cwd,
        env=env,
        output=log,
    )

    def reason_to_stop() -> Ending | None:
        """Return how a process ends that has reached a limit."""
        if time.monotonic() >= end:
            limit = console.duration(seconds)
            return Ending(
                returncode=0,
                stopped=f"did not end within {limit}",
                late=True,
            )

        written_bytes = length(log) - log_start
        if written_bytes > log_bytes:
            limit = console.size(log_bytes)
            return Ending(returncode=0, stopped=f"wrote more than {limit}")
        return None

    with child.attended(COMMAND_GRACE_SECONDS):
        ending = _watch(child, end, reason_to_stop)
    child.end_strays()

    elapsed_seconds = time.monotonic() - started
    return replace(ending, seconds=elapsed_seconds)


def _watch(
    child: Child,
    end: float,
    reason_to_stop: Callable[[], Ending | None],
) -> Ending:
    pause = _SHORTEST_PAUSE
    while True:
        remaining_seconds = end - time.monotonic()
        returncode = child.wait(min(pause, remaining_seconds))
        if returncode is not None:
            return Ending(returncode=returncode)

        ending = reason_to_stop()
        if ending is not None:
            returncode = _stop_with_stacks(child)
            return replace(ending, returncode=returncode)

        longer_pause = pause * _PAUSE_GROWTH
        pause = min(longer_pause, _LONGEST_PAUSE)


def _stop_with_stacks(child: Child) -> int:
    """Let a process write its stacks, and end it and all that it has started; return its exit status."""
    child.signal(_ABORT)
    returncode = child.wait(_ABORT_SECONDS)
    child.kill()
    if returncode is None:
        return -int(signal.SIGABRT)
    return returncode


def tail(
    log: Path,
    *,
    lines: int = 20,
    limit: int = 1 << 16,
) -> str:
    """Return the last lines of a log, whatever its size; "" where there is none."""
    if not log.is_file():
        return ""

    start_of_tail = max(length(log) - limit, 0)
    with log.open("rb") as stream:
        stream.seek(start_of_tail)
        content = stream.read()

    text = content.decode("utf-8", errors="replace")
    last_lines = text.splitlines()[-lines:]
    return "\n".join(last_lines)
