"""The one error family. Each class has an exit code of its own; only front doors exit.

A message is up to three sentences: what was wrong, where, and the next action.
`core.cli.main` prints it and ends the process with the class's code.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.causes import Cause

# set once the process was told to stop: its children are, too, and how they end is no error of theirs
STOPPING = threading.Event()


class FatalError(Exception):
    """An error that ends a stage with one clear message."""

    # That of the class; a flow ends with that of the step that failed.
    exit_code: int = 1

    def __init_subclass__(cls, *, exit_code: int) -> None:
        cls.exit_code = exit_code

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.cause: Cause | None = None  # the first error of the tool that failed
        self.log: Path | None = None
        self.details: Mapping[str, Any] = {}  # what the record of the failure says besides

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        return f"{self.message}\n{self.hint}"


class UsageError(FatalError, exit_code=2):
    """A command line, environment variable or label that is not valid."""


class DataError(FatalError, exit_code=3):
    """A data file (refs, families, matrix, record, lock) that breaks its schema."""


class MissingInputError(FatalError, exit_code=4):
    """An input that a stage needs and cannot fetch by itself. Finding nothing to work on is one of these."""


class ProcessError(FatalError, exit_code=5):
    """A process that could not be started, or that ended with a status other than zero."""

    def __init__(
        self, message: str, *, hint: str = "", returncode: int | None = None, output: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.returncode = returncode
        self.output = output


class SourceError(FatalError, exit_code=6):
    """A source tree, commit, ref or pin that is not what the source lock says."""


class RocmError(FatalError, exit_code=7):
    """A ROCm installation that is absent, incomplete or of another version or family."""


class BuildError(FatalError, exit_code=8):
    """A build that made no wheel, several, or not the one that the source lock promises."""


class CheckError(FatalError, exit_code=9):
    """Checks or tests that ran and found errors."""


class WheelError(FatalError, exit_code=10):
    """A wheel or sdist file whose name, metadata or RECORD is broken."""


class StoreError(FatalError, exit_code=11):
    """A store that refused: a key that exists with other bytes, a listing that failed."""


class ArtifactError(FatalError, exit_code=12):
    """A ROCm artifact that is malformed, hostile, incomplete or in conflict with another."""


class EnvironmentSetupError(FatalError, exit_code=13):
    """A target environment that cannot be made or whose packages cannot be installed."""


class ConflictError(StoreError, exit_code=14):
    """A conditional write that lost to another writer: list again, then write again."""


class ServiceError(FatalError, exit_code=15):
    """A service, such as GitHub's API, that cannot be reached, refuses, or gives an unexpected answer."""


class ProvenanceError(FatalError, exit_code=16):
    """A file, its record and its statement that contradict each other."""


class MachineError(FatalError, exit_code=17):
    """A full disk, a file without permission, or a path that this machine cannot read or write."""


_OTHER_RIGHTS = "Change its rights, or name another folder."
_ERROR_ACCESS_DENIED = 5  # of <winerror.h>: rights, or a DLL that a program has loaded
_ERROR_SHARING_VIOLATION = 32
# MAX_PATH of <windef.h>; folders must leave room for a name of 8.3 letters.
_LONGEST_WINDOWS_FOLDER = 260 - 12
_REMEDIES = {
    errno.ENOSPC: "Free space on the disk.",
    errno.EDQUOT: "Free space: the quota on this disk is used up.",
    errno.EACCES: _OTHER_RIGHTS,
    errno.EPERM: _OTHER_RIGHTS,
    errno.EROFS: "Its file system is read-only: name a folder on another one.",
    errno.ENAMETOOLONG: "Use a folder with a shorter path.",
    errno.ENOTDIR: "A part of its path is a file: take that away, or name another folder.",
    errno.ELOOP: "Its symbolic links lead in a circle: correct them.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
    errno.ENFILE: "Too many files are open on this machine: end other programs.",
}


def remedy(problem: OSError) -> str:
    """Return what to do where the machine refuses a file; "" where the reason alone does not tell."""
    if sys.platform == "win32":
        windows_remedy = remedy_on_windows(problem, getattr(problem, "winerror", None))
        if windows_remedy is not None:
            return windows_remedy
    if problem.errno is None:
        return ""
    return _REMEDIES.get(problem.errno, "")


def remedy_on_windows(problem: OSError, number: int | None) -> str | None:
    """Return what to do about an error of Windows, by its number; None where it is as elsewhere."""
    if number == _ERROR_SHARING_VIOLATION:
        return "Another program has it open: end that one, and run the same command again."
    if number == _ERROR_ACCESS_DENIED:
        return (
            f"{_OTHER_RIGHTS} Of a DLL or program in use: end what runs it, and run the same command again."
        )

    # Windows says of such a path that it does not exist.
    lengths = [len(str(name)) for name in (problem.filename, problem.filename2) if name is not None]
    is_too_long = max(lengths, default=0) >= _LONGEST_WINDOWS_FOLDER
    if is_too_long and problem.errno in {errno.ENOENT, errno.EINVAL, errno.ENAMETOOLONG}:
        return (
            "Its path is longer than Windows allows by default (260 characters): use a folder with a shorter "
            "path, or set LongPathsEnabled in the registry."
        )
    return None


# What is said of a file that is not as it has to be; other files may be.
REFUSALS = (DataError, MissingInputError, WheelError, ArtifactError, MachineError)


def raise_refusals(refusals: Sequence[FatalError]) -> None:
    """Raise what is wrong with several files as one error, which names each and is of the first's class."""
    if not refusals:
        return
    first = refusals[0]
    if len(refusals) == 1:
        raise first
    messages = "".join(f"\n  {refusal.message}" for refusal in refusals)
    raise type(first)(f"{len(refusals)} files are refused:{messages}", hint=first.hint) from first


class InterruptedStageError(FatalError, exit_code=130):
    """A stage that the user or the machine stopped (Ctrl-C, SIGTERM, a closed terminal)."""


def require_not_stopped() -> None:
    """End what works beside the thread that was interrupted, at the next piece of its work."""
    if STOPPING.is_set():
        raise as_fatal_error(KeyboardInterrupt())


def as_fatal_error(problem: BaseException) -> FatalError:
    """Return our error for whatever ends a stage; what a machine refuses is no fault of the code."""
    if isinstance(problem, KeyboardInterrupt) or STOPPING.is_set():
        return InterruptedStageError("Interrupted; run the same command again to continue.")
    if isinstance(problem, FatalError):
        return problem
    if isinstance(problem, ModuleNotFoundError) and _is_of_others(problem.name):
        return EnvironmentSetupError(
            f"{sys.executable} has no module {problem.name}, which this tool needs.",
            hint="Activate the tool's environment, as `. .venv/bin/activate` does, or install what it has: "
            "pip install -r requirements.txt",
        )

    words = _words_of_machine_error(problem)
    if words is not None:
        hint = "--debug shows where it was met."
        if isinstance(problem, OSError):
            hint = f"{remedy(problem)} {hint}".lstrip()
        return MachineError(f"{words}.", hint=hint)
    return FatalError(
        f"{type(problem).__name__}: {problem}",
        hint="An internal error: run the command with --debug and report it.",
    )


def _words_of_machine_error(problem: BaseException) -> str | None:
    """Return what the machine could not read or write; None where something else is wrong."""
    match problem:
        case OSError():
            return _words_of_os_error(problem)
        case UnicodeEncodeError() | UnicodeDecodeError():
            # Enough of what is around the fault to find it in a file.
            start = max(0, problem.start - 60)
            end = problem.end + 20
            excerpt = problem.object[start:end]
            return f"{excerpt!a} is not text in UTF-8: {problem.reason}"
        case RecursionError():
            return "Folders or documents are nested too deeply"
        case _:
            return None


def _words_of_os_error(problem: OSError) -> str:
    # Renaming a file has two.
    file_names = [problem.filename, problem.filename2]
    shown_names = [str(name) for name in file_names if name is not None]
    subject = " -> ".join(shown_names) or type(problem).__name__
    reason = problem.strerror or problem
    return f"{subject}: {reason}"


def _is_of_others(module_name: str | None) -> bool:
    """Return whether a module is a third party's, and not missing from the checkout."""
    if module_name is None:
        return False
    checkout = Path(__file__).parents[1]
    package, _dot, _submodule = module_name.partition(".")
    return not (checkout / package).exists()


def error_with_cause(problem: BaseException | None) -> FatalError | None:
    """Return the error that a tool's own error is known of: this one, or one that it was raised from."""
    if problem is None:
        return None
    if isinstance(problem, FatalError) and (problem.cause or problem.log):
        return problem
    return error_with_cause(problem.__cause__)


def nearest(name: str, known_names: Iterable[str]) -> str:
    """Return ``Did you mean 'nightly'?`` for a name that is close to a known one, else a list of those."""
    names = sorted(set(known_names))
    close_names = _close_names(name, names)
    if close_names:
        suggestions = " or ".join(map(repr, close_names))
        return f"Did you mean {suggestions}?"
    if not names:
        return "None is known."
    listed_names = ", ".join(names)
    return f"Known: {listed_names}."


def _close_names(name: str, known_names: Sequence[str]) -> Sequence[str]:
    """Return the names that somebody may mean who writes a name."""
    lower_name = name.lower()
    too_short = 3  # letters, which begin too many names
    if len(name) > too_short:
        longer_names = [candidate for candidate in known_names if candidate.lower().startswith(lower_name)]
        if longer_names:
            return longer_names[:3]

    similar_names = get_close_matches(name, known_names, n=1)
    if similar_names:
        return similar_names

    # Letters that changed places.
    letters = sorted(lower_name)
    return [candidate for candidate in known_names if sorted(candidate.lower()) == letters]
