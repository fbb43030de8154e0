"""How a front door tells of an error: to its reader, to the flow that called it, and to a job's summary."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core import console
from core.cli.options import FAILURE_FILE, environment
from core.cli.sessions import command_again
from core.errors import FatalError, ProcessError, error_with_cause

if TYPE_CHECKING:
    from collections.abc import Sequence

_LAST_LINES = 15  # of a tool, where nothing that it says is known for an error


@dataclass(frozen=True, kw_only=True)
class FailureNote:
    """What a front door leaves in FAILURE_FILE for the flow that called it: how it failed, in its words."""

    exit_code: int
    message: str

    @classmethod
    def read(cls, path: Path) -> FailureNote | None:
        """Return the note in a file; None where a session failed before its front door began."""
        if not path.is_file():
            return None
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        """Write the note, where that is possible: the error itself is what counts."""
        with suppress(OSError):
            path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def tell(error: FatalError) -> None:
    """Print an error; that of a tool ends in its own words, the command that does the step again, its log.

    If FAILURE_FILE is set, the caller prints it, once.
    """
    tool_error = error_with_cause(error)
    details = [] if tool_error is None else _tool_details(tool_error)

    note_path = environment().get(FAILURE_FILE)
    if note_path:
        message = "\n".join([str(error), *details])
        note = FailureNote(exit_code=error.exit_code, message=console.mask(message))
        note.write(Path(note_path))
        # Only an annotation of GitHub names file and line.
        if console.mode() != "github":
            return

    if tool_error is None:
        console.error(str(error))
        return

    _print_tool_error(error, tool_error, details)
    # Indented, so that nothing in it is taken for Markdown.
    code = "\n    ".join([str(error), *details])
    session_call = command_again().partition(" -- ")[0]
    console.summary(f"### Failed: {session_call}\n\n    {code}")


def _tool_details(tool_error: FatalError) -> Sequence[str]:
    """Return what is told of a tool's error besides its message."""
    details: list[str] = []
    if tool_error.cause is not None:
        details.append(tool_error.cause.headline)
        details += [f"  | {line}" for line in tool_error.cause.around]
    elif isinstance(tool_error, ProcessError) and not console.echoes():
        lines = tool_error.output.splitlines()
        details += [f"  | {line}" for line in lines[-_LAST_LINES:]]

    details.append(f"again: {command_again()}")
    if tool_error.log is not None:
        folder = f"{Path.cwd()}/"
        log = str(tool_error.log).removeprefix(folder)
        details.append(f"log:   {log}")
    return details


def _print_tool_error(error: FatalError, tool_error: FatalError, details: Sequence[str]) -> None:
    cause = tool_error.cause
    if cause is None:
        console.error(str(error))
        console.say("\n".join(details))
        return

    # The tool's first error is the error; how the tool ended is said before.
    console.say(str(error))
    console.error(details[0], file=cause.file, line=cause.line)
    console.say("\n".join(details[1:]))
