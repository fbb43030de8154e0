"""The one door for processes: argument lists, echoed, with explicit folder and environment.

The tool's own environment is never changed, but for PATH in a look; a child gets the mapping it is given, by
default what environment.toml allows upstream's code. `supervise` runs one under limits, and ends it with
everything it started, whatever happens. Its output goes to a file and never through this process, so that its
size does not matter.
"""

import os
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

from core import console, files
from core.console import Step
from core.errors import ProcessError, fatal

_TAIL_LINES = 40
_GRACE_SECONDS, _ABORT_SECONDS = 10.0, 5.0
_SHORTEST_LOOK, _LONGEST_LOOK = 0.02, 0.5
# marks a process and all it starts, also what leaves its group or outlives it
_COOKIE = "SUPERVISED_BY"
_SHOWN_WORDS = 4
# of the stage that is at work
_LOG: ContextVar[Path | None] = ContextVar("log", default=None)


@dataclass(frozen=True, kw_only=True)
class Completed:
    """What a captured process left; its output is decoded as UTF-8."""

    returncode: int
    stdout: str
    stderr: str


def handed_on(**changes: str | None) -> dict[str, str]:
    """Return what upstream's code gets of this process's environment, with `changes` as in `inherited`."""
    from core.environment import allowed  # no part of the server

    return {name: value for name, value in (allowed(os.environ) | changes).items() if value is not None}


def inherited(**changes: str | None) -> dict[str, str]:
    """Copy all of this process's environment, rights included, for the tool's own programs (nox, git).

    `changes` come on top; ``None`` takes a variable out.
    """
    return {name: value for name, value in (os.environ | changes).items() if value is not None}


def byte_code(folder: Path) -> dict[str, str | None]:
    """Return changes that keep byte code out of trees and in a folder, for several processes of one task."""
    return {"PYTHONDONTWRITEBYTECODE": None, "PYTHONPYCACHEPREFIX": str(folder)}


def which(program: str, *, path: str | None = None) -> Path | None:
    """Find a program on `path` (default: this process's PATH)."""
    found = shutil.which(program, path=path)
    return Path(found) if found else None


@contextmanager
def logged(log: Path) -> Iterator[None]:
    """Write what `run`'s processes of this thread say inside into a log; the outermost one counts."""
    if _LOG.get():
        yield
        return
    log.unlink(missing_ok=True)
    before = _LOG.set(log)
    try:
        yield
    finally:
        _LOG.reset(before)


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    hint: str = "",
    quiet: bool = False,
) -> None:
    """Run a process whose output people follow, announcing the command unless it is `quiet`.

    Its environment is `handed_on` by default; its output, both streams together, is written to `log`
    (default: the stage's), and where there is none, printed by itself. `hint` is the next action if it fails;
    the log's first error goes with it.
    """
    words = [str(word) for word in argv]
    said = f"+ {shlex.join(words)}" + (f"  (in {cwd})" if cwd else "")
    log = log or _LOG.get()
    start = log.stat().st_size if log and log.is_file() else 0
    title, at_work = _name([Path(words[0]).name, *words[1:]]), console.STEP.get()
    with nullcontext(at_work) if at_work else console.group(title, fold=log is not None) as step:
        step.hear(said)
        if console.echoes() or (console.mode() == "plain" and not quiet):
            console.detail(said)
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            process = _start(words, cwd, env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            returncode, tail = _tee(process, log, step, said)
        else:
            with console.covered():
                process, tail = _start(words, cwd, env), ""
                with _attended(process):
                    returncode = process.wait()
        if returncode != 0:
            ended = f"{_name(words)} ended with {status(returncode)}."
            problem = ProcessError(ended, hint=hint, returncode=returncode, output=tail)
            if log:
                from core.causes import in_log  # no part of the server

                problem.log, problem.cause = log, in_log(log, start=start, folder=cwd or Path(), end=ended)
            raise problem


def capture(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    check: bool = True,
    timeout: float | None = None,
) -> Completed:
    """Run a process for its output, silently unless it fails or takes more than `timeout` seconds."""
    words = [str(word) for word in argv]
    source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
    process = _start(words, cwd, env, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        with _attended(process):
            out, err = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        raise ProcessError(f"{_name(words)} did not end within {timeout:.0f} s.") from None
    if check and process.returncode != 0:
        last = "\n".join((err or out).strip().splitlines()[-_TAIL_LINES:])
        raise ProcessError(
            f"{shlex.join(words)} ended with {status(process.returncode)}" + (f":\n{last}" if last else "."),
            returncode=process.returncode,
            output=last,
        )
    return Completed(returncode=process.returncode, stdout=out, stderr=err)


class Child:
    """A process in a group of its own, whose output goes straight into a file.

    A group of its own, because a terminal's Ctrl-C and a limit must reach what it starts, too.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; return its exit status, or None where it still runs after `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(max(seconds, 0.0))
        return None

    def signal(self, number: int) -> None:
        """Send a signal to every process of the group that is left."""
        if os.name == "posix":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
        elif self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End every process of the group at once."""
        self.signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
        self._process.wait()


def start(argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str], output: Path) -> Child:
    """Start a process in a group of its own; its output, both streams together, is added to a file."""
    words = [str(word) for word in argv]
    _program(words[0], env)  # before the file is made
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as stream:
        return Child(_start(words, cwd, env, stdout=stream, stderr=subprocess.STDOUT, session=True))


def status(returncode: int) -> str:
    """Write an exit status for people: ``status 1``, ``signal SIGSEGV``."""
    if returncode < 0:
        names = {int(one): one.name for one in signal.Signals}
        return f"signal {names.get(-returncode, -returncode)}"
    return f"status {returncode}"


def _program(name: str, env: Mapping[str, str] | None) -> str:
    program = shutil.which(name, path=env.get("PATH") if env is not None else None)
    if program is None:
        raise ProcessError(f"{name} is not installed or not on the PATH.", hint=f"Install {name}.")
    return program


def _start(
    words: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | None = None,
    session: bool = False,
) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            [_program(words[0], env), *words[1:]],
            cwd=cwd,
            env=dict(env) if env is not None else handed_on(),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            encoding="utf-8",
            errors="replace",
            start_new_session=session,
        )
    except OSError as problem:
        raise ProcessError(
            f"{words[0]} could not be started in {cwd or '.'}: {problem.strerror}."
        ) from problem


@contextmanager
def _attended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Stop a child where what waits for it fails, or is interrupted."""
    try:
        yield
    except BaseException as problem:
        _stop(process)
        if isinstance(problem, KeyboardInterrupt):
            raise fatal(problem) from None
        raise


def _tee(process: subprocess.Popen[str], log: Path, step: Step, said: str) -> tuple[int, str]:
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    lines = cast("IO[str]", process.stdout)
    with files.writing(log), _attended(process), lines, log.open("a", encoding="utf-8") as stream:
        stream.write(f"{console.mask(said)}\n")
        for line in lines:
            stream.write(line)
            tail.append(line.rstrip("\n"))
            step.hear(tail[-1])
            if console.echoes():
                console.say(tail[-1])
        return process.wait(), "\n".join(tail)


def _stop(process: subprocess.Popen[str]) -> None:
    """Let a child clean up after Ctrl-C, then end it."""
    process.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _name(words: Sequence[str]) -> str:
    return shlex.join(words[:_SHOWN_WORDS]) + (" …" if len(words) > _SHOWN_WORDS else "")


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
        return self.stopped or f"ended with {status(self.returncode)}"


def supervise(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    seconds: float,
    log_bytes: int = 1 << 30,
    stalled: Callable[[], str] = str,
) -> Ended:
    """Run a process to its end, or to a limit of time or output; its output is added to `log`.

    `stalled` is called again and again: a sentence stops the process, "" lets it run. One that is stopped is
    first sent ``SIGABRT``: Python's faulthandler then writes the stacks of all threads.
    """
    cookie = uuid.uuid4().hex
    started = time.monotonic()
    child = start(argv, cwd=cwd, env={**env, _COOKIE: cookie}, output=log)
    try:
        ended = _watched(child, log, seconds, log_bytes, stalled)
    except KeyboardInterrupt as problem:
        child.signal(signal.SIGINT)
        child.wait(_GRACE_SECONDS)
        raise fatal(problem) from None
    finally:
        # what its group still holds, and what left the group
        child.kill()
        _end_strays(cookie)
    return replace(ended, seconds=time.monotonic() - started)


def _watched(child: Child, log: Path, seconds: float, log_bytes: int, stalled: Callable[[], str]) -> Ended:
    end, look = time.monotonic() + seconds, _SHORTEST_LOOK
    begun = log.stat().st_size if log.is_file() else 0
    while True:
        returncode = child.wait(min(look, max(end - time.monotonic(), 0.0)))
        if returncode is not None:
            return Ended(returncode=returncode)
        look = min(look * 1.5, _LONGEST_LOOK)
        late = f"did not end within {console.duration(seconds)}" if time.monotonic() >= end else ""
        late = late or stalled()
        if late:
            return Ended(returncode=_stopped(child), stopped=late, late=True)
        if log.stat().st_size - begun > log_bytes:
            return Ended(returncode=_stopped(child), stopped=f"wrote more than {console.size(log_bytes)}")


def _stopped(child: Child) -> int:
    """Let it write its stacks, and end it."""
    child.signal(signal.SIGABRT if os.name == "posix" else signal.SIGTERM)
    returncode = child.wait(_ABORT_SECONDS)
    return -int(signal.SIGABRT) if returncode is None else returncode


def _end_strays(cookie: str) -> None:
    """End what a process started and left behind; where the kernel shows no environments, nothing."""
    wanted = f"{_COOKIE}={cookie}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                name = (folder / "comm").read_text(encoding="utf-8").strip()
                console.warn(f"{name} (process {folder.name}) was left running and is stopped.")
                os.kill(int(folder.name), signal.SIGKILL if os.name == "posix" else signal.SIGTERM)


def tail(log: Path, *, lines: int = 20, limit: int = 1 << 16) -> str:
    """Return the last lines of a log, whatever its size; "" where there is none."""
    if not log.is_file():
        return ""
    with log.open("rb") as stream:
        stream.seek(max(log.stat().st_size - limit, 0))
        text = stream.read().decode("utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])
