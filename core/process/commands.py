"""Commands that are run to their ends: with output for people, for a log, or for this program."""

import os
import queue
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from core import console, files, temporary
from core.console import Step
from core.errors import STOPPING, ProcessError, as_fatal_error
from core.process.tree import CREATION_FLAGS, STARTING, CommandTree
from core.process.variables import handed_on, output_variables
from core.shell import command_line

_TAIL_LINES = 40
_SHOWN_WORDS = 4

# Seconds that a command has to end after it was told to.
COMMAND_GRACE_SECONDS = 10.0
# Seconds that a session has: it stops its own commands first, and records that it was interrupted. nox waits
# less for it (noxfile.py), so that nox is not ended before its session.
SESSION_GRACE_SECONDS = 30.0

# Seconds between two looks whether this program is to stop.
_LOOK_SECONDS = 0.2
# Seconds in which what is left of an output arrives, once everything that the command started has ended.
_LAST_LINES_SECONDS = 2.0

# The log of the stage that is at work.
_LOG: ContextVar[Path | None] = ContextVar("log", default=None)


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
        line = f"+ {command_line(self.words)}"
        if self.cwd is None:
            return line
        return f"{line}  (in {self.cwd})"

    def start(
        self,
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        session: bool = False,
        is_long: bool = False,
    ) -> "Child":
        """Start it; a long one gets a folder for its temporary files that goes with this program."""
        executable = self.executable()
        tree = CommandTree()
        variables = handed_on() if self.env is None else dict(self.env)
        variables.update(tree.variables)
        variables.update(output_variables(variables))
        if is_long:
            variables.update(temporary.variables_of_commands(variables, os.environ))
        try:
            # Both at once: a child that nobody attends to is taken for one that a command has left.
            with STARTING:
                process = subprocess.Popen(
                    [executable, *self.words[1:]],
                    cwd=self.cwd,
                    env=variables,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=session,
                    creationflags=CREATION_FLAGS,
                )
                tree.attach(process.pid)
        except OSError as problem:
            program = self.words[0]
            folder = self.cwd or "."
            message = f"{program} could not be started in {folder}: {problem.strerror}."
            raise ProcessError(message) from problem
        return Child(process, tree)

    def executable(self) -> str:
        """Find its program on the PATH that it gets."""
        program = self.words[0]
        path = None if self.env is None else self.env.get("PATH")
        executable = shutil.which(program, path=path)
        if executable is None and Path(program).name != program:
            raise ProcessError(f"{program} is no program, or leads to none.", hint="Correct its path.")
        if executable is None:
            raise ProcessError(
                f"{program} is not installed or not on the PATH.",
                hint=f"Install {program}.",
            )
        return executable


def _words(argv: Sequence[str | Path]) -> list[str]:
    return [str(word) for word in argv]


def _first_words(words: Sequence[str]) -> str:
    name = command_line(words[:_SHOWN_WORDS])
    if len(words) > _SHOWN_WORDS:
        return f"{name} …"
    return name


class Child:
    """A process that runs, and everything that it starts."""

    def __init__(
        self,
        process: subprocess.Popen[str],
        tree: CommandTree,
    ) -> None:
        self._process = process
        self._tree = tree
        # What is started while this program stops, such as a question to a server, belongs to stopping.
        self._is_of_stopping = STOPPING.is_set()

    @property
    def output(self) -> IO[str]:
        """Where its output is read, if it was started with a pipe."""
        return cast("IO[str]", self._process.stdout)

    def write(self, text: str) -> None:
        """Give it all of its input, if it was started with a pipe."""
        stream = cast("IO[str]", self._process.stdin)
        # It may have ended without reading it.
        with suppress(BrokenPipeError), stream:
            stream.write(text)

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for its end; return its exit status, or None where it still runs after `seconds`.

        A thread that no signal reaches is interrupted here when this program is to stop.
        """
        end = float("inf") if seconds is None else time.monotonic() + max(seconds, 0.0)
        while not _wait_for(self._process, end - time.monotonic()):
            if time.monotonic() >= end:
                return None
            self.look_for_stop()
        return self._process.returncode

    def look_for_stop(self) -> None:
        """Interrupt a thread that no signal reaches, when this program is to stop."""
        hears_signals = threading.current_thread() is threading.main_thread()
        if STOPPING.is_set() and not hears_signals and not self._is_of_stopping:
            raise KeyboardInterrupt

    def signal(self, number: int) -> None:
        """Send a signal to it and to everything that it has started."""
        self._tree.signal(number)

    def kill(self) -> None:
        """End it and everything that it has started at once."""
        self._tree.kill()
        self._process.wait()
        self._tree.end_strays()

    def stop(self, grace_seconds: float) -> None:
        """Let it and everything that it has started clean up as after Ctrl-C, then end what still runs."""
        try:
            self.signal(signal.SIGINT)
            end = time.monotonic() + grace_seconds
            while not _wait_for(self._process, end - time.monotonic()) and time.monotonic() < end:
                pass
        finally:
            self.kill()

    def end_strays(self) -> None:
        """End what it has left running, now that it has ended, and name it."""
        for process_id, name in self._tree.end_strays().items():
            console.warn(f"{name} (process {process_id}) was left running and is stopped.")

    @contextmanager
    def attended(self, grace_seconds: float) -> Iterator[None]:
        """Stop it where what waits for it fails, or is interrupted."""
        try:
            yield
        except BaseException as problem:
            self.stop(grace_seconds)
            if isinstance(problem, KeyboardInterrupt):
                raise as_fatal_error(problem) from None
            raise


def _wait_for(process: subprocess.Popen[str], seconds: float) -> bool:
    """Return whether a process ends within some seconds, or before the next look whether to stop."""
    # Also the main thread looks: the system may give a signal to another one, which does not wake it.
    seconds = min(max(seconds, 0.0), _LOOK_SECONDS)
    if process.returncode is None and hasattr(os, "pidfd_open"):
        # Gone already, or more descriptors than this process may have: then it is asked again and again.
        with suppress(OSError):
            descriptor = os.pidfd_open(process.pid)
            try:
                select.select([descriptor], [], [], seconds)
            finally:
                os.close(descriptor)
            return process.poll() is not None

    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


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
    grace_seconds: float = COMMAND_GRACE_SECONDS,
) -> None:
    """Run a process whose output people follow, announcing it unless it is `quiet`.

    Its environment is `handed_on` by default; its output, both streams together, is written to `log`
    (default: the stage's), and where there is none, printed by itself. `hint` is the next action if it fails;
    the log's first error goes with it. It has ended when its process has: what that leaves running is ended,
    and named. When this program is to stop, the process has `grace_seconds` to do so.
    """
    command = _Command(
        words=_words(argv),
        cwd=cwd,
        env=env,
    )
    if log is None:
        log = _LOG.get()
    # What a log has from before does not belong to this process.
    log_start = length(log)

    with _step_for(command, has_log=log is not None) as step:
        _announce(command, step, quiet=quiet)
        if log is None:
            returncode = _run_printing(command, grace_seconds)
            tail_of_output = ""
        else:
            returncode, tail_of_output = _run_logging(command, log, step, grace_seconds)
    if returncode == 0:
        return

    ending = f"{command.name} ended with {status(returncode)}."
    problem = ProcessError(
        ending,
        hint=hint,
        returncode=returncode,
        output=tail_of_output,
    )
    if log is not None:
        from core.causes import in_log  # no part of the server

        folder = cwd or Path()
        problem.log = log
        problem.cause = in_log(
            log,
            start=log_start,
            folder=folder,
            ending=ending,
        )
    raise problem


def _announce(
    command: _Command,
    step: Step,
    *,
    quiet: bool,
) -> None:
    step.hear(command.line)
    is_loud = console.mode() == "plain" and not quiet
    if console.echoes() or is_loud:
        console.detail(command.line)


def length(log: Path | None) -> int:
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


def _run_printing(command: _Command, grace_seconds: float) -> int:
    with console.covered():
        child = command.start()
        with child.attended(grace_seconds):
            returncode = cast("int", child.wait())
        child.end_strays()
        return returncode


def _run_logging(
    command: _Command,
    log: Path,
    step: Step,
    grace_seconds: float,
) -> tuple[int, str]:
    """Return the exit status, and the last lines of the output, which goes into the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    last_lines: deque[str] = deque(maxlen=_TAIL_LINES)

    with files.writing(log), log.open("a", encoding="utf-8") as stream:
        shown_line = console.mask(command.line)
        stream.write(f"{shown_line}\n")
        child = command.start(
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            is_long=True,
        )
        with child.attended(grace_seconds):
            for line in _lines_of(child):
                stream.write(line)
                text = line.rstrip("\n")
                last_lines.append(text)
                step.hear(text)
                if console.echoes():
                    console.say(text)
            returncode = cast("int", child.wait())
        child.end_strays()

    tail_of_output = "\n".join(last_lines)
    return returncode, tail_of_output


def _lines_of(child: Child) -> Iterator[str]:
    """Yield the lines that a process writes until it ends, whoever holds its output after that."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        # Whoever closes it in the middle of a line that is read waits for that line.
        with child.output as output:
            for line in output:
                lines.put(line)
        lines.put(None)

    # A daemon: what holds the output may be out of our reach, and nobody waits for it then.
    threading.Thread(target=read, daemon=True).start()
    end_of_output = float("inf")
    while time.monotonic() < end_of_output:
        try:
            line = lines.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            child.look_for_stop()
            if end_of_output == float("inf") and child.wait(0) is not None:
                child.end_strays()
                end_of_output = time.monotonic() + _LAST_LINES_SECONDS
            continue

        if line is None:
            return
        yield line


def capture(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    check: bool = True,
    timeout: float | None = None,
    grace_seconds: float = COMMAND_GRACE_SECONDS,
) -> Completed:
    """Run a process for its output, silently unless it fails or takes more than `timeout` seconds."""
    command = _Command(
        words=_words(argv),
        cwd=cwd,
        env=env,
    )
    input_stream = subprocess.DEVNULL if stdin is None else subprocess.PIPE

    # Files and no pipes: a pipe does not end before the last process that holds it.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        child = command.start(
            stdin=input_stream,
            stdout=stdout,
            stderr=stderr,
        )
        with child.attended(grace_seconds):
            if stdin is not None:
                child.write(stdin)
            returncode = child.wait(timeout)
            if returncode is None:
                raise ProcessError(f"{command.name} did not end within {timeout:.0f} s.")
        child.end_strays()
        completed = Completed(
            returncode=returncode,
            stdout=_text_of(stdout),
            stderr=_text_of(stderr),
        )

    if check and completed.returncode != 0:
        raise _failure(command, completed)
    return completed


def _text_of(stream: IO[bytes]) -> str:
    stream.seek(0)
    text = stream.read().decode("utf-8", errors="replace")
    # As a pipe in text mode gives it.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _failure(command: _Command, completed: Completed) -> ProcessError:
    """Return the error of a captured process, with the last lines that it wrote."""
    # Most programs write to stderr why they fail, some to stdout alone.
    text = completed.stderr or completed.stdout
    lines = text.strip().splitlines()
    output = "\n".join(lines[-_TAIL_LINES:])

    # In full: nothing has announced this command.
    line = command_line(command.words)
    returncode = completed.returncode
    message = f"{line} ended with {status(returncode)}"
    message += f":\n{output}" if output else "."
    return ProcessError(
        message,
        returncode=returncode,
        output=output,
    )


def start(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str],
    output: Path,
) -> Child:
    """Start a process in a session of its own; its output, both streams together, is added to a file.

    A terminal's Ctrl-C reaches this program alone, which then ends the process in its own way.
    """
    command = _Command(
        words=_words(argv),
        cwd=cwd,
        env=env,
    )
    # Before the file is made: where there is no program, there is no output.
    command.executable()
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as stream:
        return command.start(
            stdout=stream,
            stderr=subprocess.STDOUT,
            session=True,
            is_long=True,
        )


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
