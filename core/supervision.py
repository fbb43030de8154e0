"""A process under limits: watched while it runs, stopped with everything it started, whatever happens.

Its output goes to a file and never through this process, so that its size does not matter. A process
that is stopped is first sent ``SIGABRT``: Python's faulthandler then writes the stacks of all threads.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, process
from core.errors import InterruptedStageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from core.process import Child

# marks a process and all it starts, also what leaves its group or outlives it
COOKIE = "SUPERVISED_BY"
_PROC = Path("/proc")
_SHORTEST_LOOK, _LONGEST_LOOK = 0.02, 0.5
_GRACE_SECONDS = 5.0
_CLEANUP_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a process may take: wall-clock seconds, and bytes of output."""

    seconds: float
    log_bytes: int = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended."""

    returncode: int
    stopped: str = ""
    late: bool = False
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """How it ended, in words."""
        return self.stopped or f"ended with {process.status(self.returncode)}"


def supervise(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    limits: Limits,
    stalled: Callable[[], str] = str,
) -> Ended:
    """Run a process to its end, or to a limit."""
    cookie = uuid.uuid4().hex
    started = time.monotonic()
    child = process.start(argv, cwd=cwd, env={**env, COOKIE: cookie}, output=log)
    try:
        ended = _watched(child, log, limits, stalled)
    except KeyboardInterrupt:
        child.signal(signal.SIGINT)
        child.wait(_CLEANUP_SECONDS)
        raise InterruptedStageError("Interrupted; run the same command again to go on.") from None
    finally:
        # what its group still holds, and what left the group
        child.kill()
        _end_strays(cookie)
    return replace(ended, seconds=time.monotonic() - started)


def _watched(child: Child, log: Path, limits: Limits, stalled: Callable[[], str]) -> Ended:
    end, look = time.monotonic() + limits.seconds, _SHORTEST_LOOK
    begun = log.stat().st_size if log.is_file() else 0
    while True:
        returncode = child.wait(min(look, max(end - time.monotonic(), 0.0)))
        if returncode is not None:
            return Ended(returncode=returncode)
        look = min(look * 1.5, _LONGEST_LOOK)
        late = f"did not end within {console.duration(limits.seconds)}" if time.monotonic() >= end else ""
        late = late or stalled()
        if late:
            return Ended(returncode=_stopped(child), stopped=late, late=True)
        if log.stat().st_size - begun > limits.log_bytes:
            return Ended(
                returncode=_stopped(child), stopped=f"wrote more than {console.size(limits.log_bytes)}"
            )


def _stopped(child: Child) -> int:
    """Let it tell its stacks, and end it."""
    child.signal(signal.SIGABRT if os.name == "posix" else signal.SIGTERM)
    returncode = child.wait(_GRACE_SECONDS)
    return -int(signal.SIGABRT) if returncode is None else returncode


def _end_strays(cookie: str) -> None:
    """End what a process started and left behind; where the kernel shows no environments, nothing."""
    strays = list(_strays(cookie, _PROC))
    for pid, name in strays:
        console.warn(f"{name} (process {pid}) was left running and is stopped.")
        try:
            os.kill(pid, signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
        except OSError:  # it ended by itself
            continue


def _strays(cookie: str, proc: Path) -> Iterator[tuple[int, str]]:
    wanted = f"{COOKIE}={cookie}".encode()
    for folder in proc.glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name), (folder / "comm").read_text(encoding="utf-8").strip()
        except OSError:  # somebody else's, or gone
            continue


def tail(log: Path, *, lines: int = 20, limit: int = 1 << 16) -> str:
    """Give the last lines of a log, whatever its size."""
    if not log.is_file():
        return ""
    with log.open("rb") as stream:
        stream.seek(max(log.stat().st_size - limit, 0))
        text = stream.read().decode("utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])
