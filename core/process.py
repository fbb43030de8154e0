"""The one door for processes: argument lists, echoed, with explicit folder and environment.

The tool's own environment is never changed, but for its PATH, which a front door rids of foreign programs.
A child gets the mapping it is given, by default what environment.toml allows upstream's code. `supervise`
runs one under limits, and ends it with everything it started, whatever happens. Its output goes to a file
and never through this process, so that its size does not matter.
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
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

from core import console, files
from core.console import Step
from core.errors import ProcessError, fatal
from core.host_path import remove_foreign_programs

_TAIL_LINES = 40
_SHOWN_WORDS = 4

# Seconds that a process has to end after it was told to, by Ctrl-C or to write its stacks.
_GRACE_SECONDS = 10.0
_ABORT_SECONDS = 5.0
# Seconds between two looks at a supervised process: short ones at first, as many processes are short.
_SHORTEST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_PAUSE_GROWTH = 1.5

# What this machine serves is behind no proxy, and most programs ask one for it unless they are told.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_THIS_MACHINE = "localhost,127.0.0.1,::1"

# Marks a process and all it starts, also what leaves its group or outlives it.
_COOKIE = "SUPERVISED_BY"

# Windows knows no signal but the one that ends a process at once.
_IS_POSIX = os.name == "posix"
if _IS_POSIX:
    _KILL = signal.SIGKILL
    _ABORT = signal.SIGABRT
    _INTERRUPT = signal.SIGINT
else:
    _KILL = signal.SIGTERM
    _ABORT = signal.SIGTERM
    _INTERRUPT = signal.SIGTERM

# The log of the stage that is at work.
_LOG: ContextVar[Path | None] = ContextVar("log", default=None)


# Environments


def handed_on(**changes: str | None) -> dict[str, str]:
    """Return what upstream's code gets of this process's environment, with `changes` as in `inherited`."""
    from core.environment import allowed  # no part of the server

    return _changed(allowed(os.environ), changes)


def inherited(**changes: str | None) -> dict[str, str]:
    """Copy all of this process's environment, rights included, for the tool's own programs (nox, git).

    `changes` come on top; ``None`` takes a variable out.
    """
    return _changed(os.environ, changes)


def _changed(env: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    variables = dict(env)
    variables.update(_direct_addresses(env))

    for name, value in changes.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    return variables


def _direct_addresses(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return variables by which what this machine serves is asked for directly, where there is a proxy."""
    if not _has_proxy(env):
        return {}

    # Programs read one spelling or the other, and a user may have set either.
    lists = [env.get("NO_PROXY", ""), env.get("no_proxy", "")]
    # An asterisk that stands alone is all addresses.
    if "*" in lists:
        return {}

    addresses: list[str] = []
    for address_list in (*lists, _THIS_MACHINE):
        if address_list and address_list not in addresses:
            addresses.append(address_list)
    joined_addresses = ",".join(addresses)
    return {"NO_PROXY": joined_addresses, "no_proxy": joined_addresses}


def _has_proxy(env: Mapping[str, str]) -> bool:
    return any(env.get(name) or env.get(name.lower()) for name in _PROXIES)


def use_trusted_programs() -> None:
    """Find programs from now on without the environments that builds and tests fill; front doors do so."""
    path = os.environ.get("PATH")
    if path is not None:
        os.environ["PATH"] = remove_foreign_programs(path)


def byte_code(folder: Path) -> dict[str, str | None]:
    """Return changes that keep byte code out of trees and in a folder, for several processes of one task."""
    return {"PYTHONDONTWRITEBYTECODE": None, "PYTHONPYCACHEPREFIX": str(folder)}


def which(program: str, *, path: str | None = None) -> Path | None:
    """Find a program on `path` (default: this process's PATH)."""
    executable = shutil.which(program, path=path)
    if executable is None:
        return None
    return Path(executable)


# Processes


@dataclass(frozen=True, kw_only=True)
class Completed:
    """What a captured process left; its output is decoded as UTF-8."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True, kw_only=True)
class _Command:
    """The words of a process, and where it runs; without `env` it gets what is `handed_on`."""

    words: Sequence[str]
    cwd: Path | None
    env: Mapping[str, str] | None

    @property
    def name(self) -> str:
        """Its first words, for messages."""
        return _first_words(self.words)

    @property
    def line(self) -> str:
        """It as a shell takes it, with its folder for the reader."""
        command_line = f"+ {shlex.join(self.words)}"
        if self.cwd is None:
            return command_line
        return f"{command_line}  (in {self.cwd})"

    def start(
        self,
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | None = None,
        session: bool = False,
    ) -> subprocess.Popen[str]:
        """Start it."""
        executable = self.executable()
        variables = handed_on() if self.env is None else dict(self.env)
        try:
            return subprocess.Popen(
                [executable, *self.words[1:]],
                cwd=self.cwd,
                env=variables,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                encoding="utf-8",
                errors="replace",
                start_new_session=session,
            )
        except OSError as problem:
            program = self.words[0]
            folder = self.cwd or "."
            message = f"{program} could not be started in {folder}: {problem.strerror}."
            raise ProcessError(message) from problem

    def executable(self) -> str:
        """Find its program on the PATH that it gets."""
        program = self.words[0]
        path = None if self.env is None else self.env.get("PATH")
        executable = shutil.which(program, path=path)
        if executable is None:
            raise ProcessError(
                f"{program} is not installed or not on the PATH.",
                hint=f"Install {program}.",
            )
        return executable


def _words(argv: Sequence[str | Path]) -> list[str]:
    return [str(word) for word in argv]


def _first_words(words: Sequence[str]) -> str:
    name = shlex.join(words[:_SHOWN_WORDS])
    if len(words) > _SHOWN_WORDS:
        return f"{name} …"
    return name


@contextmanager
def logged(log: Path) -> Iterator[None]:
    """Write what `run`'s processes of this thread say inside into a log; the outermost one counts."""
    if _LOG.get():
        yield
        return

    log.unlink(missing_ok=True)
    token = _LOG.set(log)
    try:
        yield
    finally:
        _LOG.reset(token)


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    hint: str = "",
    quiet: bool = False,
) -> None:
    """Run a process whose output people follow, announcing the command_line unless it is `quiet`.

    Its environment is `handed_on` by default; its output, both streams together, is written to `log`
    (default: the stage's), and where there is none, printed by itself. `hint` is the next action if it fails;
    the log's first error goes with it.
    """
    command = _Command(words=_words(argv), cwd=cwd, env=env)
    if log is None:
        log = _LOG.get()
    # What a log has from before does not belong to this process.
    log_start = _length(log)

    with _step_for(command, has_log=log is not None) as step:
        _announce(command, step, quiet=quiet)
        if log is None:
            returncode = _run_printing(command)
            tail_of_output = ""
        else:
            returncode, tail_of_output = _run_logging(command, log, step)
    if returncode == 0:
        return

    ending = f"{command.name} ended with {status(returncode)}."
    problem = ProcessError(ending, hint=hint, returncode=returncode, output=tail_of_output)
    if log is not None:
        from core.causes import in_log  # no part of the server

        folder = cwd or Path()
        problem.log = log
        problem.cause = in_log(log, start=log_start, folder=folder, ending=ending)
    raise problem


def _announce(command: _Command, step: Step, *, quiet: bool) -> None:
    step.hear(command.line)
    is_loud = console.mode() == "plain" and not quiet
    if console.echoes() or is_loud:
        console.detail(command.line)


def _length(log: Path | None) -> int:
    """Return the bytes that a log has so far."""
    if log is None or not log.is_file():
        return 0
    return log.stat().st_size


@contextmanager
def _step_for(command: _Command, *, has_log: bool) -> Iterator[Step]:
    """Yield the step that hears a process: the one at work, or one of the process's own."""
    step = console.STEP.get()
    if step is not None:
        yield step
        return

    # Without the folder of its program, which is long and says little.
    program, *arguments = command.words
    title = _first_words([Path(program).name, *arguments])
    with console.group(title, fold=has_log) as own_step:
        yield own_step


def _run_printing(command: _Command) -> int:
    with console.covered():
        process = command.start()
        with _attended(process):
            return process.wait()


def _run_logging(command: _Command, log: Path, step: Step) -> tuple[int, str]:
    """Return the exit status, and the last lines of the output, which goes into the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    process = command.start(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = cast("IO[str]", process.stdout)
    last_lines: deque[str] = deque(maxlen=_TAIL_LINES)

    with files.writing(log), _attended(process), output, log.open("a", encoding="utf-8") as stream:
        shown_line = console.mask(command.line)
        stream.write(f"{shown_line}\n")
        for line in output:
            stream.write(line)
            text = line.rstrip("\n")
            last_lines.append(text)
            step.hear(text)
            if console.echoes():
                console.say(text)
        returncode = process.wait()

    tail_of_output = "\n".join(last_lines)
    return returncode, tail_of_output


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
    command = _Command(words=_words(argv), cwd=cwd, env=env)
    input_stream = subprocess.DEVNULL if stdin is None else subprocess.PIPE
    process = command.start(stdin=input_stream, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        with _attended(process):
            stdout, stderr = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        message = f"{command.name} did not end within {timeout:.0f} s."
        raise ProcessError(message) from None

    completed = Completed(returncode=process.returncode, stdout=stdout, stderr=stderr)
    if check and completed.returncode != 0:
        raise _failure(command, completed)
    return completed


def _failure(command: _Command, completed: Completed) -> ProcessError:
    """Return the error of a captured process, with the last lines that it wrote."""
    # Most programs write to stderr why they fail, some to stdout alone.
    text = completed.stderr or completed.stdout
    lines = text.strip().splitlines()
    output = "\n".join(lines[-_TAIL_LINES:])

    # In full: nothing has announced this command.
    command_line = shlex.join(command.words)
    returncode = completed.returncode
    message = f"{command_line} ended with {status(returncode)}"
    message += f":\n{output}" if output else "."
    return ProcessError(message, returncode=returncode, output=output)


class Child:
    """A process in a group of its own, whose output goes straight into a file.

    A group of its own, because a terminal's Ctrl-C and a limit must reach what it starts, too.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; return its exit status, or None where it still runs after `seconds`."""
        timeout = max(seconds, 0.0)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        """Send a signal to every process of the group that is left."""
        if _IS_POSIX:
            # All may be gone, or be another user's by now.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
        elif self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End every process of the group at once."""
        self.signal(_KILL)
        self._process.wait()


def start(argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str], output: Path) -> Child:
    """Start a process in a group of its own; its output, both streams together, is added to a file."""
    command = _Command(words=_words(argv), cwd=cwd, env=env)
    # Before the file is made: where there is no program, there is no output.
    command.executable()
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as stream:
        process = command.start(stdout=stream, stderr=subprocess.STDOUT, session=True)
    return Child(process)


def status(returncode: int) -> str:
    """Write an exit status for people: ``status 1``, ``signal SIGSEGV``."""
    if returncode >= 0:
        return f"status {returncode}"

    number = -returncode
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal, which has no name
        return f"signal {number}"
    return f"signal {name}"


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


def _stop(process: subprocess.Popen[str]) -> None:
    """Let a child clean up after Ctrl-C, then end it."""
    process.send_signal(_INTERRUPT)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


# Supervision


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
    stalled: Callable[[], str] = str,
) -> Ending:
    """Run a process to its end, or to a limit of time or output; its output is added to `log`.

    `stalled` is called again and again: a sentence stops the process, "" lets it run. One that is stopped is
    first sent ``SIGABRT``: Python's faulthandler then writes the stacks of all threads.
    """
    cookie = uuid.uuid4().hex
    started = time.monotonic()
    end = started + seconds
    log_start = _length(log)
    child_env = {**env, _COOKIE: cookie}
    child = start(argv, cwd=cwd, env=child_env, output=log)

    def reason_to_stop() -> Ending | None:
        """Return how a process ends that has reached a limit."""
        if time.monotonic() >= end:
            limit = console.duration(seconds)
            return Ending(returncode=0, stopped=f"did not end within {limit}", late=True)

        sentence = stalled()
        if sentence:
            return Ending(returncode=0, stopped=sentence, late=True)

        written_bytes = _length(log) - log_start
        if written_bytes > log_bytes:
            limit = console.size(log_bytes)
            return Ending(returncode=0, stopped=f"wrote more than {limit}")
        return None

    try:
        ending = _watch(child, end, reason_to_stop)
    except KeyboardInterrupt as problem:
        child.signal(signal.SIGINT)
        child.wait(_GRACE_SECONDS)
        raise fatal(problem) from None
    finally:
        # What its group still holds, and what left the group.
        child.kill()
        _end_strays(cookie)

    elapsed_seconds = time.monotonic() - started
    return replace(ending, seconds=elapsed_seconds)


def _watch(child: Child, end: float, reason_to_stop: Callable[[], Ending | None]) -> Ending:
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
    """Let a process write its stacks, and end it; return its exit status."""
    child.signal(_ABORT)
    returncode = child.wait(_ABORT_SECONDS)
    if returncode is None:
        return -int(signal.SIGABRT)
    return returncode


def _end_strays(cookie: str) -> None:
    """End what a process started and left behind; where the kernel shows no environments, nothing."""
    mark = f"{_COOKIE}={cookie}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        # Another user's, or gone.
        with suppress(OSError):
            environ = (folder / "environ").read_bytes()
            if mark in environ.split(b"\0"):
                _end_stray(folder)


def _end_stray(folder: Path) -> None:
    """End the process of a folder in /proc, and name it."""
    name = (folder / "comm").read_text(encoding="utf-8").strip()
    console.warn(f"{name} (process {folder.name}) was left running and is stopped.")
    process_id = int(folder.name)
    os.kill(process_id, _KILL)


def tail(log: Path, *, lines: int = 20, limit: int = 1 << 16) -> str:
    """Return the last lines of a log, whatever its size; "" where there is none."""
    if not log.is_file():
        return ""

    start_of_tail = max(_length(log) - limit, 0)
    with log.open("rb") as stream:
        stream.seek(start_of_tail)
        content = stream.read()

    text = content.decode("utf-8", errors="replace")
    last_lines = text.splitlines()[-lines:]
    return "\n".join(last_lines)
