"""The one door for processes: argument lists, echoed, with explicit folder and environment.

The tool's own environment is never changed; a child gets the mapping it is given.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core import console
from core.errors import FatalError, InterruptedStageError, ProcessError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_TAIL_LINES = 40
_GRACE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Completed:
    """What a captured process left.

    Attributes:
        returncode: Its exit status.
        stdout: Its standard output, decoded as UTF-8.
        stderr: Its standard error, decoded as UTF-8.
    """

    returncode: int
    stdout: str
    stderr: str


def inherited(**changes: str | None) -> dict[str, str]:
    """Copy this process's environment with `changes`; ``None`` takes a variable out."""
    env = dict(os.environ)
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def which(program: str, *, path: str | None = None) -> Path | None:
    """Find a program on `path` (default: this process's PATH)."""
    from pathlib import Path

    found = shutil.which(program, path=path)
    return Path(found) if found else None


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    hint: str = "",
) -> None:
    """Run a process whose output people follow, echoing the command first."""
    words = [str(word) for word in argv]
    console.detail(f"+ {shlex.join(words)}" + (f"  (in {cwd})" if cwd else ""))
    if log is None:
        returncode = _wait(_start(words, cwd, env, capture=False))
        tail = ""
    else:
        returncode, tail = _tee(words, cwd, env, log)
    if returncode != 0:
        where = f" Its output is in {log}." if log else ""
        raise ProcessError(
            f"{_name(words)} ended with {status(returncode)}.{where}",
            hint=hint,
            returncode=returncode,
            output=tail,
        )


def capture(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    check: bool = True,
    timeout: float | None = None,
    hint: str = "",
) -> Completed:
    """Run a process for its output, silently unless it fails."""
    words = [str(word) for word in argv]
    process = _start(words, cwd, env, capture=True, stdin=stdin is not None)
    try:
        out, err = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        _stop(process)
        raise ProcessError(f"{_name(words)} did not end within {timeout:.0f} s.", hint=hint) from None
    except KeyboardInterrupt:
        _stop(process)
        raise InterruptedStageError(f"{_name(words)} was interrupted.") from None
    if check and process.returncode != 0:
        said = _last_lines(err or out)
        raise ProcessError(
            f"{shlex.join(words)} ended with {status(process.returncode)}" + (f":\n{said}" if said else "."),
            hint=hint,
            returncode=process.returncode,
            output=said,
        )
    return Completed(returncode=process.returncode, stdout=out, stderr=err)


class Child:
    """A process in a group of its own, whose output goes straight into a file.

    A group of its own, because a terminal's Ctrl-C and a limit must reach what it starts, too.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its id, which is the group's."""
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; its exit status, or None where it still runs after `seconds`."""
        try:
            return self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        """Send a signal to every process of the group that is left."""
        if os.name == "posix":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
        elif self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End every process of the group at once."""
        self.signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
        self._process.wait()


def start(argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str], output: Path) -> Child:
    """Start a process in a group of its own; its output, stdout and stderr together, is added to a file."""
    words = [str(word) for word in argv]
    program = _program(words[0], env)
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as stream:
        try:
            child = subprocess.Popen(
                [program, *words[1:]],
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as problem:
            raise _not_started(words[0], cwd, problem) from problem
    return Child(child)


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


def _not_started(name: str, cwd: Path | None, problem: OSError) -> ProcessError:
    return ProcessError(f"{name} could not be started in {cwd or '.'}: {problem.strerror}.")


def _start(
    words: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    *,
    capture: bool,
    stdin: bool = False,
    merge: bool = False,
) -> subprocess.Popen[str]:
    program = _program(words[0], env)
    pipe = subprocess.PIPE if capture else None
    try:
        return subprocess.Popen(
            [program, *words[1:]],
            cwd=cwd,
            env=dict(env) if env is not None else None,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT if merge else pipe,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as problem:
        raise _not_started(words[0], cwd, problem) from problem


def _wait(process: subprocess.Popen[str]) -> int:
    try:
        return process.wait()
    except KeyboardInterrupt:
        _stop(process)
        raise InterruptedStageError("Interrupted; run the same command again to go on.") from None


def _tee(words: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None, log: Path) -> tuple[int, str]:
    log.parent.mkdir(parents=True, exist_ok=True)
    process = _start(words, cwd, env, capture=True, merge=True)
    if process.stdout is None:
        raise ProcessError(f"{words[0]} gave no output stream.")
    tail: list[str] = []
    try:
        with process.stdout as lines, log.open("a", encoding="utf-8") as stream:
            for line in lines:
                stream.write(line)
                console.say(line.rstrip("\n"))
                tail = [*tail[-_TAIL_LINES + 1 :], line.rstrip("\n")]
    except KeyboardInterrupt:
        _stop(process)
        raise InterruptedStageError("Interrupted; run the same command again to go on.") from None
    except OSError as problem:
        _stop(process)
        raise FatalError(
            f"{log} could not be written: {problem.strerror or problem}.",
            hint="Free space or change the folder.",
        ) from problem
    return _wait(process), "\n".join(tail)


def _stop(process: subprocess.Popen[str]) -> None:
    """Give a child time to clean up after Ctrl-C, then end it."""
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
    return shlex.join(words[:4]) + (" …" if len(words) > 4 else "")  # noqa: PLR2004 - enough to know it


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])
