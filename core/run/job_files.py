"""A job's outputs, variables, search path and summary on GitHub; on any other machine, plain lines.

The runner gives each step files to append to (https://docs.github.com/actions/reference/workflow-commands-for-github-actions).
Values come from outside (versions, file names, branch names), so none may end its own entry and
begin another one. Annotations, groups and masks are `core.console`'s.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core import console, files
from core.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# the runner refuses these, or they would run code in every later step
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
        _require(_NAME, name, "output")
        self._entry(self.outputs, name, value)

    def set_variable(self, name: str, value: str) -> None:
        """Set a variable of the job's later steps."""
        _require(_VARIABLE, name, "variable")
        if _RESERVED.fullmatch(name):
            raise UsageError(f"The variable {name} belongs to the runner.", hint="Use a name of its own.")
        self._entry(self.variables, name, value)

    def add_path(self, folder: Path) -> None:
        """Put a folder before the search path of the job's later steps."""
        if len(str(folder).splitlines()) != 1:
            raise UsageError(f"{str(folder)!r} cannot be put on the search path.", hint="Rename the folder.")
        if self.search_path is None:
            console.say(f"PATH: {folder}")
        else:
            _append(self.search_path, f"{folder}\n")

    def _entry(self, file: Path | None, name: str, value: str) -> None:
        if file is None:
            console.say(f"{name}: {value}")
            return
        # nobody who writes a value can know where it would end
        end = f"end-{secrets.token_hex(16)}"
        _append(file, f"{name}<<{end}\n{value}\n{end}\n")


def job_files(env: Mapping[str, str]) -> JobFiles:
    """Return the files that the runner named in the environment."""
    return JobFiles(
        outputs=_file(env, "GITHUB_OUTPUT"),
        variables=_file(env, "GITHUB_ENV"),
        search_path=_file(env, "GITHUB_PATH"),
    )


def _file(env: Mapping[str, str], variable: str) -> Path | None:
    path = env.get(variable)
    return Path(path) if path else None


def set_outputs(env: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Pass values to later steps and jobs, where this is a step of a job."""
    step = job_files(env)
    if step.outputs is None:
        return
    for name, value in values.items():
        step.set_output(name, value)


def text(value: str) -> str:
    """Write a text so that Markdown shows it as it is, in a table, too."""
    return _MARKDOWN.sub(r"\\\1", " ".join(value.split()))


def link(label: str, url: str) -> str:
    """Write a link; the address must be quoted already."""
    return f"[{text(label)}](<{url}>)"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table of Markdown cells (`text` or `link` made them)."""
    lines = [" | ".join(columns), "|".join(["---"] * len(columns))]
    lines += [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _require(pattern: re.Pattern[str], name: str, kind: str) -> None:
    if not pattern.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name of a job's {kind}.", hint="Use letters, digits and underscores."
        )


def _append(file: Path, entry: str) -> None:
    with files.writing(file), file.open("a+b") as stream:
        if stream.tell():
            stream.seek(-1, 2)
            # What wrote before this may have left its last line open.
            if stream.read(1) != b"\n":
                stream.write(b"\n")
        stream.write(entry.encode())
