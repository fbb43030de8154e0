"""A job's outputs, variables, search path and summary on GitHub; on any other machine, plain lines.

The runner gives each step files to append to (https://docs.github.com/actions/reference/workflow-commands-for-github-actions).
Values come from outside (versions, file names, branch names), so none may end its own entry and
begin another one. Annotations, groups and masks are `core.console`'s.
"""

import io
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from core import console, files
from core.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The runner refuses these, or they would run code in every later step.
_RESERVED = re.compile(r"(?i)(GITHUB|RUNNER|ACTIONS)_.*|CI|NODE_OPTIONS|LD_PRELOAD|BASH_ENV")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|<>~$-])")


@dataclass(frozen=True, kw_only=True)
class JobFiles:
    """The files that a step of a job may append to; None for what this machine does not have."""

    outputs: Path | None = None
    variables: Path | None = None
    search_path: Path | None = None

    def set_output(self, name: str, value: str) -> None:
        """Pass a value of one or more lines to later steps and jobs."""
        _require_name(_NAME, name, "output")
        _append_value(self.outputs, name, value)

    def set_variable(self, name: str, value: str) -> None:
        """Set a variable of the job's later steps."""
        _require_name(_VARIABLE, name, "variable")
        if _RESERVED.fullmatch(name):
            raise UsageError(
                f"The variable {name} belongs to the runner.",
                hint="Use a name of its own.",
            )
        _append_value(self.variables, name, value)

    def add_path(self, folder: Path) -> None:
        """Put a folder before the search path of the job's later steps."""
        path = str(folder)
        # A second line would be a second folder.
        if len(path.splitlines()) != 1:
            raise UsageError(
                f"{path!r} cannot be put on the search path.",
                hint="Rename the folder.",
            )

        if self.search_path is None:
            console.say(f"PATH: {path}")
        else:
            _append(self.search_path, f"{path}\n")


def job_files(env: Mapping[str, str]) -> JobFiles:
    """Return the files that the runner named in the environment."""
    return JobFiles(
        outputs=_file(env, "GITHUB_OUTPUT"),
        variables=_file(env, "GITHUB_ENV"),
        search_path=_file(env, "GITHUB_PATH"),
    )


def _file(env: Mapping[str, str], variable: str) -> Path | None:
    path = env.get(variable)
    if not path:
        return None
    return Path(path)


def set_outputs(env: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Pass values to later steps and jobs, where this is a step of a job."""
    files_of_step = job_files(env)
    if files_of_step.outputs is None:
        return
    for name, value in values.items():
        files_of_step.set_output(name, value)


def text(value: str) -> str:
    """Write a text so that Markdown shows it as it is, in a table, too."""
    # A line feed would end the table's row.
    words = value.split()
    line = " ".join(words)
    return _MARKDOWN.sub(r"\\\1", line)


def link(label: str, url: str) -> str:
    """Write a link; the address must be quoted already."""
    shown_label = text(label)
    return f"[{shown_label}](<{url}>)"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table of Markdown cells (`text` or `link` made them)."""
    header = " | ".join(columns)
    rule = "|".join(["---"] * len(columns))
    lines = [header, rule]
    for cells in rows:
        line = " | ".join(cells)
        lines.append(line)
    return "\n".join(f"| {line} |" for line in lines)


def _require_name(pattern: re.Pattern[str], name: str, kind: str) -> None:
    if pattern.fullmatch(name):
        return
    raise UsageError(
        f"{name!r} is not a valid name of a job's {kind}.",
        hint="Use letters, digits and underscores.",
    )


def _append_value(file: Path | None, name: str, value: str) -> None:
    if file is None:
        console.say(f"{name}: {value}")
        return
    # Nobody who writes a value can know how it would have to end it.
    end = f"end-{secrets.token_hex(16)}"
    first_line = f"{name}<<{end}"
    _append(file, f"{first_line}\n{value}\n{end}\n")


def _append(file: Path, lines: str) -> None:
    content = lines.encode()
    with files.writing(file), file.open("a+b") as stream:
        # What wrote before this may have left its last line open.
        if not _ends_with_line_feed(stream):
            stream.write(b"\n")
        stream.write(content)


def _ends_with_line_feed(stream: BinaryIO) -> bool:
    """Return whether a file is empty or its last line has ended."""
    size = stream.seek(0, io.SEEK_END)
    if size == 0:
        return True
    stream.seek(-1, io.SEEK_END)
    return stream.read(1) == b"\n"
