"""What a process has started on Linux, whatever became of it: found by the kernel's lists and by a mark.

Three things keep a tree together. A process that is a *subreaper* becomes the parent of what its children
leave behind, so that nothing that it started gets out of sight. A *mark* in the environment says which
command a process belongs to, also where several run at a time. And a *watcher*, which is this file as a
program, waits for the end of the process that started it; it ends what carries that one's mark, so that not
even SIGKILL leaves anything running.

It imports only Python's own modules, as the watcher runs without any other.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

# A list, as a session that a flow has started belongs to the session's command and to the flow's.
MARK = "SUPERVISED_BY"
_SEPARATOR = ":"
# The mark of watchers, which end by themselves, after all that they watch.
_WATCHER_MARK = "watcher"

# Seconds in which the last processes of a command may end after it without being named: on a busy machine a
# program ends before those that it has told to end. Processes at work have the longer time: they may be at
# their end and wait for a processor, as those by which uv compiles to byte code.
_SETTLING_SECONDS = 1.0
_SETTLING_SECONDS_AT_WORK = 5.0
# Seconds that what was left running has to end by itself, and in which the kernel ends what is killed.
STRAY_GRACE_SECONDS = 5.0
_KILL_SECONDS = 10.0
_PAUSE_SECONDS = 0.02

# Of <linux/prctl.h>, which Python has no names for.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class _Charge:
    """What this process knows of its own tree."""

    def __init__(self) -> None:
        self.tree_mark = uuid.uuid4().hex
        self.numbers = itertools.count(1)
        # Children that somebody here waits for.
        self.attended_ids: set[int] = set()
        self.is_subreaper = False
        # Whether every child of this process is a command's, or was left by one.
        self.is_whole_program = False
        # Seconds that commands have after this process has died; None starts no watcher.
        self.grace_after_death: float | None = None
        self.watcher_lifeline: int | None = None


_CHARGE = _Charge()

# How a command's process is started: there are flags on Windows alone.
CREATION_FLAGS = 0

# Held while a command is started, until its process is known here.
STARTING = threading.Lock()


def take_charge(*, grace_after_death: float, ends_with_parent: bool) -> None:
    """Let everything that this program starts end with it, even where it is killed.

    What it started then has `grace_after_death` seconds. Where it `ends_with_parent`, the end of the process
    that started it is a SIGTERM for it.
    """
    _CHARGE.is_whole_program = True
    _CHARGE.grace_after_death = grace_after_death
    if ends_with_parent:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class CommandTree:
    """Everything that one command starts."""

    def __init__(self) -> None:
        self._mark = f"{_CHARGE.tree_mark}.{next(_CHARGE.numbers)}"
        self._process_id: int | None = None
        _prepare()

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that mark what the command starts."""
        marks = [os.environ.get(MARK, ""), self._mark]
        return {MARK: _SEPARATOR.join(mark for mark in marks if mark)}

    def attach(self, process_id: int) -> None:
        """Take the command's process for the root of the tree, from its start on."""
        self._process_id = process_id
        _CHARGE.attended_ids.add(process_id)

    def signal(self, number: int) -> None:
        """Send a signal to every process of the tree."""
        for process_id in self._members():
            _send(process_id, number)

    def kill(self) -> None:
        """End every process of the tree at once."""
        _end(self._members, grace_seconds=0.0)

    def end_strays(self) -> Mapping[int, str]:
        """End what the command's process, which has ended, left running; return its names by process id."""
        if self._process_id is not None:
            _CHARGE.attended_ids.discard(self._process_id)
        strays = self._settled_strays()
        if not strays:
            return {}

        members = _with_descendants(strays)
        names = {process_id: name_of(process_id) for process_id in sorted(members)}
        _end(lambda: {*_carriers(self._mark), *_with_descendants(strays)}, grace_seconds=STRAY_GRACE_SECONDS)
        for process_id in strays:
            _reap(process_id)
        return names

    def _settled_strays(self) -> list[int]:
        """Return what the command has left after the time in which its last processes end by themselves."""
        command_ended = time.monotonic()
        # Where nothing was left, this is all that is asked: one short list of the kernel's.
        while strays := self._strays():
            are_at_work = all(map(_is_at_work, strays))
            settling_seconds = _SETTLING_SECONDS_AT_WORK if are_at_work else _SETTLING_SECONDS
            if time.monotonic() >= command_ended + settling_seconds:
                return strays
            time.sleep(_PAUSE_SECONDS)
        return []

    def _strays(self) -> list[int]:
        return [process_id for process_id in _unattended_children() if self._has_left(process_id)]

    def _has_left(self, process_id: int) -> bool:
        if not is_running(process_id):
            # Its command, which is this one or another, cannot wait for it any more.
            if _CHARGE.is_whole_program:
                _reap(process_id)
            return False

        marks = marks_of(process_id)
        if self._mark in marks:
            return True
        if marks == [_WATCHER_MARK]:
            return False
        # A process may clear its environment. It is a command's all the same, and no other one is at work.
        is_marked = any(mark.startswith(_CHARGE.tree_mark) for mark in marks)
        return _CHARGE.is_whole_program and not is_marked and not _CHARGE.attended_ids

    def _members(self) -> set[int]:
        roots = [] if self._process_id is None else [self._process_id]
        return {*_carriers(self._mark), *_with_descendants(roots)}


def _prepare() -> None:
    """Become the parent of what children leave behind, and start the watcher, once."""
    if not _CHARGE.is_subreaper:
        _CHARGE.is_subreaper = True
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if _CHARGE.grace_after_death is not None and _CHARGE.watcher_lifeline is None:
        _start_watcher(_CHARGE.grace_after_death)


def _start_watcher(grace_seconds: float) -> None:
    """Start a process that ends this one's tree when this one has ended, however that was."""
    # The end of the pipe that is written to is this process's alone: it closes when this process dies.
    reading_end, _CHARGE.watcher_lifeline = os.pipe()
    nowhere = os.open(os.devnull, os.O_RDWR)
    command = [sys.executable, "-I", "-S", __file__, _CHARGE.tree_mark, str(grace_seconds)]
    streams = [(os.POSIX_SPAWN_DUP2, reading_end, 0)]
    streams += [(os.POSIX_SPAWN_DUP2, nowhere, stream) for stream in (1, 2)]
    # A session of its own, which no signal to a terminal or to a group reaches; nothing of our environment.
    os.posix_spawn(
        sys.executable,
        command,
        {MARK: _WATCHER_MARK},
        file_actions=streams,
        setsid=True,
    )
    os.close(reading_end)
    os.close(nowhere)


def children_of(process_id: int) -> set[int]:
    """Return the ids of a process's children, those that others left it among them."""
    child_ids: set[int] = set()
    for path in Path(f"/proc/{process_id}/task").glob("*/children"):
        # The process, or one of its threads, may have ended.
        with suppress(OSError):
            child_ids.update(map(int, path.read_text(encoding="ascii").split()))
    return child_ids


def _unattended_children() -> set[int]:
    with STARTING:
        return children_of(os.getpid()) - _CHARGE.attended_ids


def _with_descendants(process_ids: list[int]) -> set[int]:
    members: set[int] = set()
    waiting = list(process_ids)
    while waiting:
        process_id = waiting.pop()
        is_watcher = marks_of(process_id) == [_WATCHER_MARK]
        if process_id not in members and is_running(process_id) and not is_watcher:
            members.add(process_id)
            waiting.extend(children_of(process_id))
    return members


def _carriers(mark: str) -> set[int]:
    """Return the processes that a mark, or one of its commands' marks, is upon."""
    carrier_ids: set[int] = set()
    for path in Path("/proc").glob("[0-9]*"):
        process_id = int(path.name)
        marks = marks_of(process_id)
        if any(f"{carried}.".startswith(f"{mark}.") for carried in marks) and is_running(process_id):
            carrier_ids.add(process_id)
    return carrier_ids


def marks_of(process_id: int) -> list[str]:
    """Return the marks that a process carries; none of one that is gone, or another user's."""
    try:
        environment = Path(f"/proc/{process_id}/environ").read_bytes()
    except OSError:
        return []
    start = f"{MARK}=".encode()
    for variable in environment.split(b"\0"):
        if variable.startswith(start):
            marks = variable.removeprefix(start).decode("ascii", errors="replace")
            return marks.split(_SEPARATOR)
    return []


def is_running(process_id: int) -> bool:
    """Return whether a process runs; one that has ended and is waited for by nobody does not."""
    return _stat(process_id)[:1] not in ([], ["Z"], ["X"])


def _is_at_work(process_id: int) -> bool:
    """Return whether a process computes, or waits for a processor or a disk."""
    return _stat(process_id)[:1] in (["R"], ["D"])


def _parent_of(process_id: int) -> int:
    fields = _stat(process_id)
    return int(fields[1]) if fields else 0


def _stat(process_id: int) -> list[str]:
    """Return state, parent and so on of a process; nothing of one that is gone."""
    try:
        line = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # A name may hold spaces and parentheses.
    return line.rpartition(")")[2].split()


def name_of(process_id: int) -> str:
    """Return the name of a process's program, at most 15 characters of it; ``?`` of one that is gone."""
    try:
        return Path(f"/proc/{process_id}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "?"


def _end(members: Callable[[], set[int]], *, grace_seconds: float) -> None:
    """End processes: with SIGTERM those that none of the others has started, after a grace all with SIGKILL.

    They are looked for again and again, as a process may start another one while it is ended.
    """
    deadline = time.monotonic() + grace_seconds
    told_ids: set[int] = set()
    while process_ids := members():
        if time.monotonic() >= deadline + _KILL_SECONDS:
            # What does not even go by SIGKILL waits for a device or a file system.
            return

        if time.monotonic() >= deadline:
            for process_id in process_ids:
                _send(process_id, signal.SIGKILL)
        for process_id in process_ids - told_ids:
            if _parent_of(process_id) not in process_ids:
                told_ids.add(process_id)
                _send(process_id, signal.SIGTERM)
        time.sleep(_PAUSE_SECONDS)


def _send(process_id: int, number: int) -> None:
    # It may be gone, or another user's by now.
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process_id, number)


def _reap(process_id: int) -> None:
    """Take notice of the end of a child that nobody waits for."""
    with suppress(ChildProcessError):
        os.waitpid(process_id, os.WNOHANG)


def watch(tree_mark: str, grace_seconds: float) -> None:
    """Wait for the end of the process that started this one, and end what that one has left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # No folder stays in use for its sake.
    os.chdir("/")
    os.read(0, 1)
    _end(lambda: _carriers(tree_mark), grace_seconds=grace_seconds)


if __name__ == "__main__":
    watch(sys.argv[1], float(sys.argv[2]))
