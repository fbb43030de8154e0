"""The one printer: rich on a terminal, folds in GitHub Actions, plain lines elsewhere.

Stages print through this module only, so that secrets are masked in one place and a
CI log and a terminal tell the same story.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.progress import Progress, TaskID


Mode = Literal["terminal", "github", "plain"]

# up to the last @ of the authority, because a password may hold one
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s\"<>]*@")
_SECRET_NAMES = re.compile(r"(?i)(secret|token|password|passwd|credential|access_key|api_key|private_key)")
_SHORTEST_SECRET = 6  # shorter values are words, which logs need
_KILOBYTE = 1024
_MINUTE = 60
# lines that GitHub's runner would take for commands: `::name::` at a line's start, `##[name]` anywhere
_COMMANDS = re.compile(r"(?m)^(\s*):(?=:)|##(?=\[)")
# above this GitHub shows nothing of a step's summary
SUMMARY_LIMIT = 1 << 20
_CUT = "\n\n… cut here: GitHub shows no summary beyond 1 MiB.\n\n"

_MASKED: list[str] = []


def mode() -> Mode:
    """Return how this process's output is read: by GitHub Actions, on a terminal, or as a plain log."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        return "github"
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return "terminal"
    return "plain"


def _secrets() -> tuple[str, ...]:
    values = [value for name, value in os.environ.items() if _SECRET_NAMES.search(name)] + _MASKED
    # a key of several lines is read and printed line by line
    parts = {
        part for value in values for part in (value, *value.splitlines()) if len(part) >= _SHORTEST_SECRET
    }
    # longest first: taking out a part of another secret would leave its rest to be read
    return tuple(sorted(parts, key=lambda part: (-len(part), part)))


def mask(text: str) -> str:
    """Take credentials out of a text: those in URLs, and values of secret-named variables."""
    text = _URL_CREDENTIALS.sub("***@", text)
    for secret in _secrets():
        text = text.replace(secret, "***")
    return text


def add_mask(value: str) -> None:
    """Take a secret that stands in no variable out of everything printed from now on, by GitHub, too."""
    for part in dict.fromkeys((value, *value.splitlines())):
        if mode() == "github" and part.strip():
            # to the runner as it is, which masks this very line
            print(_command("add-mask", part), file=sys.stderr, flush=True)
    _MASKED.append(value)


def _write(text: str) -> None:
    # a space breaks what a text from elsewhere (a file name, a message) would command
    _write_raw(_COMMANDS.sub(r"\g<0> ", text) if mode() == "github" else text)


def _write_raw(text: str) -> None:
    print(mask(text), file=sys.stderr, flush=True)


def _style(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if mode() == "terminal" and "NO_COLOR" not in os.environ else text


def result(text: str) -> None:
    """Print the result of a command on standard output, for people and pipes."""
    print(mask(text), flush=True)


def say(text: str) -> None:
    """Print one line about what is going on."""
    _write(text)


def detail(text: str) -> None:
    """Print a line that most readers skip: an echoed command, a file touched."""
    _write(_style(text, "2"))


def _marked(kind: str, style: str, text: str, *, title: str = "", file: str = "", line: int = 0) -> None:
    if mode() == "github":
        properties = {"title": title, "file": file, "line": str(line or "")}
        _write_raw(_command(kind, mask(text), properties))  # masked first: escapes change a secret's spelling
        return
    place = ":".join(part for part in (file, str(line or "")) if part)
    before = "".join(f"{part}: " for part in (place, title) if part and not text.startswith(part))
    _write(f"{_style(f'{kind}:', style)} {before}{text}")


# Lines that are marked for the reader, and annotations to GitHub.
warn = partial(_marked, "warning", "33")
error = partial(_marked, "error", "1;31")
notice = partial(_marked, "notice", "36")


def _command(name: str, text: str, properties: Mapping[str, str] | None = None) -> str:
    """Write a workflow command of one line, whatever its parts hold.

    https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    """
    given = {key: value for key, value in (properties or {}).items() if value}
    written = ",".join(
        f"{key}={_escaped(mask(value)).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in given.items()
    )
    return f"::{name}{f' {written}' if written else ''}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def done(text: str) -> None:
    """Print what a stage ended with."""
    _write(_style(text, "32"))


@contextmanager
def group(title: str) -> Iterator[None]:
    """Fold what is printed inside under `title` (GitHub Actions) and print how long it took."""
    started = time.monotonic()
    if mode() == "github":
        _write_raw(_command("group", mask(title)))
    else:
        _write(_style(f"── {title}", "1;36"))
    try:
        yield
    finally:
        elapsed = duration(time.monotonic() - started)
        if mode() == "github":
            _write_raw("::endgroup::")
            _write(f"{title}: {elapsed}")
        else:
            _write(_style(f"── {title}: {elapsed}", "2"))


def duration(seconds: float) -> str:
    """Write seconds for people: ``0.4 s``, ``48 s``, ``3 min 05 s``."""
    if seconds < 10:  # noqa: PLR2004 - below ten a digit after the point says something
        return f"{seconds:.1f} s"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // _MINUTE} min {int(seconds) % _MINUTE:02d} s"


def size(count: int) -> str:
    """Write a number of bytes for people: ``812 B``, ``1.4 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < _KILOBYTE:
            return f"{int(value)} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _KILOBYTE
    return f"{value:.1f} GiB"


def counted(count: int, what: str) -> str:
    """Write a number of things: ``1 file``, ``2 files``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print a table: fitted to a terminal's width, unwrapped in logs."""
    if not rows:
        return
    if mode() == "terminal":
        _rich_table(columns, rows, title)
        return
    every = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in every]
    # written at once: every write looks for every secret
    _write("\n".join([title, *lines] if title else lines))


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(
        title=escape(mask(title)) or None, title_justify="left", header_style="bold", pad_edge=False, box=None
    )
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(escape(mask(str(cell))) for cell in row))
    Console(stderr=True).print(drawn)


def summary(markdown: str) -> None:
    """Append Markdown to the GitHub job summary, up to what GitHub shows; elsewhere do nothing."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    with open(path, "ab") as stream:  # noqa: PTH123 - appended to, not owned
        room = SUMMARY_LIMIT - stream.tell() - len(_CUT.encode())
        data = f"{mask(markdown).rstrip()}\n\n".encode()
        if len(data) <= room:
            stream.write(data)
        elif room >= 0:
            whole_lines = data[:room].rpartition(b"\n")[0]
            stream.write(whole_lines + _CUT.encode())


class Transfer:
    """A transfer in progress, a line a file as logs want it; any thread may report to it."""

    def __init__(self, files: int) -> None:
        self._files = files
        self._done = 0

    def advance(self, count: int) -> None:
        """Report bytes that came; negative ones are to come again."""

    def finish(self, name: str, length: int, seconds: float) -> None:
        """Report a file that is done."""
        self._done += 1
        say(f"[{self._done}/{self._files}] {name}  {size(length)}  {duration(seconds)}")


class _Bar(Transfer):
    def __init__(self, progress: Progress, task: TaskID) -> None:
        super().__init__(0)
        self._progress = progress
        self._task = task

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def finish(self, name: str, length: int, seconds: float) -> None:  # noqa: ARG002 - the table will tell
        self._progress.update(self._task, file=name)


@contextmanager
def transfer(title: str, *, files: int, size: int) -> Iterator[Transfer]:
    """Show a transfer while it goes on."""
    if mode() != "terminal":
        with group(title):
            yield Transfer(files)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), Speed())
    last = TextColumn("{task.fields[file]}", markup=False, style="dim")
    with Progress(*columns, TimeRemainingColumn(), last, console=Console(stderr=True)) as shown:
        yield _Bar(shown, shown.add_task(title, total=size, file=""))
