"""The one printer: live lines on a terminal, folds in GitHub Actions, plain lines elsewhere.

Stages print through this module only, so that secrets are masked in one place and a
CI log and a terminal tell the same story. What tools say goes into logs; here it is shown as a step's
progress, unless all of it is echoed (``--verbose``, and GitHub's folds).

Progress is drawn by this module itself: the tool's dependencies have no library for it, and one would have to
show several steps at once, each with the last words of its tool, masked, and an estimate of its own.
"""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cache
from typing import Literal, TextIO

Mode = Literal["terminal", "github", "plain"]

# Up to the last @ of the authority, because a password may hold one.
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s\"<>]*@")
_SECRET_NAMES = re.compile(r"(?i)(secret|token|password|passwd|credential|access_key|api_key|private_key)")
_SHORTEST_SECRET = 6  # shorter values are words, which logs need
# Lines that GitHub's runner would take for commands: `::name::` at a line's start, `##[name]` anywhere.
_WORKFLOW_COMMANDS = re.compile(r"(?m)^(\s*):(?=:)|##(?=\[)")
# Colours, titles and links of terminals; other controls.
CONTROLS = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]"
)
# What a terminal obeys, what turns the direction of writing, and what no stream can encode.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Only colours and weights: nothing that moves, hides or clears. Tools' lines have them, too.
_COLOURS = re.compile(r"(\x1b\[(?:(?:[0-4]|2[2-4]|3[0-79]|9[0-7])(?:;|(?=m)))*m)")

# How GitHub's commands write characters that end a line, or a property's value.
_ESCAPES: Mapping[str, str] = {
    "%": "%25",
    "\r": "%0D",
    "\n": "%0A",
}
_ESCAPES_OF_VALUES: Mapping[str, str] = {
    **_ESCAPES,
    ":": "%3A",
    ",": "%2C",
}

# Above this GitHub shows nothing of a step's summary.
SUMMARY_LIMIT = 1 << 20
_CUT = "\n\n… cut here: GitHub shows no summary beyond 1 MiB.\n\n"

# ninja's done and total; the percentage of make, CMake and pytest.
_COMMAND_PROGRESS = re.compile(r"^\[ *(?P<done>\d{1,9})/(?P<total>\d{1,9})\] ")
_PERCENTAGE = re.compile(r"^\[ *(?P<first>\d{1,3})%\] |\[ *(?P<last>\d{1,3})%\]$")
_ENOUGH_COMMANDS = 3  # that ended, to estimate from

# Seconds: when a long step is first told of, how often then, and how rarely at most.
_FIRST_REPORT = 30.0
_SHORTEST_PAUSE = 60.0
_LONGEST_PAUSE = 300.0
_REDRAWING = 0.25
_WORTH_A_LINE = 1.0

_STANDARD_ERROR = 2
_DEFAULT_WIDTH = 80
_MOST_LIVE_LINES = 8
_MINUTE = 60
_DAY = 24  # hours
_KILOBYTE = 1024

_SECRETS_OF_THE_RUN: list[str] = []


def mode() -> Mode:
    """Return how this process's output is read: by GitHub Actions, on a terminal, or as a plain log."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        return "github"
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return "terminal"
    return "plain"


def echoes() -> bool:
    """Return whether what goes into a log is printed, too."""
    return SCREEN.verbose or mode() == "github"


def accept_every_letter() -> None:
    """Let nothing that is printed be refused by its stream; programs call this when they begin.

    Windows gives a pipe or a file the letters of one language alone. Who reads it there (nox, a flow, GitHub)
    takes it for UTF-8, unless PYTHONIOENCODING says otherwise.
    """
    is_utf8_expected = sys.platform == "win32" and "PYTHONIOENCODING" not in os.environ
    for stream in (sys.stdout, sys.stderr):
        # There is none in a program without a console.
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if is_utf8_expected:
            stream.reconfigure(encoding="utf-8")
        stream.reconfigure(errors="backslashreplace")


# Secrets


def mask(text: str) -> str:
    """Take credentials out of a text: those in URLs, and values of secret-named variables."""
    return _without_secrets(text, _secrets())


def _without_secrets(text: str, secrets: Sequence[str]) -> str:
    masked_text = _URL_CREDENTIALS.sub("***@", text)
    for secret in secrets:
        masked_text = masked_text.replace(secret, "***")
    return masked_text


def _secrets() -> Sequence[str]:
    """Return what is masked, the longest first: taking out a part of one would leave its rest to be read."""
    values = list(_SECRETS_OF_THE_RUN)
    # Most variables have no such name. Their values are left alone, as every printed line comes here.
    values += [value for name, value in os.environ.items() if _is_secret_name(name)]

    parts: set[str] = set()
    for value in values:
        # A key of several lines is read and printed line by line.
        parts.update([value, *value.splitlines()])
    long_parts = [part for part in parts if len(part) >= _SHORTEST_SECRET]
    return sorted(long_parts, key=lambda part: (-len(part), part))


@cache
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAMES.search(name) is not None


def add_mask(value: str) -> None:
    """Take a secret that stands in no variable out of everything printed from now on, by GitHub, too."""
    _SECRETS_OF_THE_RUN.append(value)
    if mode() != "github":
        return

    # The runner reads line by line.
    parts = dict.fromkeys([value, *value.splitlines()])
    for part in parts:
        if part.strip():
            # To the runner as it is, which masks this very line.
            print(_workflow_command("add-mask", part), file=sys.stderr, flush=True)


# Lines


def printable(text: str) -> str:
    """Return a text with its controls spelled out: names of foreign files may not command a terminal.

    Line feeds and tabs stay, and colours where the reader sees them as such.
    """
    if _UNSAFE.search(text) is None:
        return text
    if mode() == "plain" and not _has_colours():
        return _UNSAFE.sub(_spelled, text)

    # What stands between colours; the pattern's group keeps those.
    parts = _COLOURS.split(text)
    parts[::2] = [_UNSAFE.sub(_spelled, part) for part in parts[::2]]
    return "".join(parts)


def _spelled(control: re.Match[str]) -> str:
    return control[0].encode("unicode_escape").decode()


def say(text: str) -> None:
    """Print lines about what is going on."""
    if mode() == "github":
        # A space breaks what a text from elsewhere (a file name, a message) would command.
        text = _WORKFLOW_COMMANDS.sub(r"\g<0> ", text)
    _print(text)


def _print(text: str) -> None:
    SCREEN.write(mask(text), sys.stderr)


def result(text: str) -> None:
    """Print the result of a command on standard output, for people and pipes."""
    SCREEN.write(mask(text), sys.stdout)


def detail(text: str) -> None:
    """Print a line that most readers skip: an echoed command, a file touched."""
    say(_coloured(text, "2"))


def done(text: str) -> None:
    """Print what a stage ended with."""
    say(_coloured(text, "32"))


def echo(text: str) -> None:
    """Print a line where all is echoed; elsewhere others tell enough, and the step at work hears it."""
    step = STEP.get()
    if echoes():
        detail(text)
    elif step is not None:
        step.hear(text)


def _coloured(text: str, code: str) -> str:
    if not _has_colours():
        return text
    return f"\033[{code}m{text}\033[0m"


def _has_colours() -> bool:
    # https://no-color.org and https://force-color.org
    if os.environ.get("NO_COLOR"):
        return False
    forced_colours = os.environ.get("FORCE_COLOR")
    if forced_colours:
        return forced_colours != "0"
    return mode() == "terminal"


# Annotations


def warn(text: str, *, title: str = "", file: str = "", line: int = 0) -> None:
    """Print a warning; for GitHub, an annotation of a file."""
    _annotate("warning", "33", text, title=title, file=file, line=line)


def error(text: str, *, title: str = "", file: str = "", line: int = 0) -> None:
    """Print an error; for GitHub, an annotation of a file."""
    _annotate("error", "1;31", text, title=title, file=file, line=line)


def notice(text: str, *, title: str = "", file: str = "", line: int = 0) -> None:
    """Print what should not be missed; for GitHub, an annotation of a file."""
    _annotate("notice", "36", text, title=title, file=file, line=line)


def _annotate(kind: str, colour: str, text: str, *, title: str, file: str, line: int) -> None:
    line_number = str(line or "")
    if mode() == "github":
        properties = {"title": title, "file": file, "line": line_number}
        # Masked first: escapes change a secret's spelling.
        _print(_workflow_command(kind, mask(text), properties))
        return

    place = f"{file}:{line_number}" if file and line_number else file
    parts = [_coloured(f"{kind}:", colour)]
    for label in (place, title):
        is_repeated = text.startswith(label)
        if label and not is_repeated:
            parts.append(f"{label}:")
    parts.append(text)
    say(" ".join(parts))


def _workflow_command(name: str, text: str, properties: Mapping[str, str] | None = None) -> str:
    """Return a workflow command, which is one line whatever its parts hold.

    https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    """
    assignments: list[str] = []
    for key, value in (properties or {}).items():
        if value:
            masked_value = mask(value)
            escaped_value = _escape(masked_value, _ESCAPES_OF_VALUES)
            assignments.append(f"{key}={escaped_value}")

    command = name
    if assignments:
        command += " " + ",".join(assignments)
    escaped_text = _escape(text, _ESCAPES)
    return f"::{command}::{escaped_text}"


def _escape(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(letter, letter) for letter in text)


# Steps at work


# What this thread is at.
STEP: ContextVar[Step | None] = ContextVar("step", default=None)
# How many seconds the same work took last time.
_SECONDS_LAST_TIME: ContextVar[float | None] = ContextVar("seconds last time", default=None)


@contextmanager
def as_last_time(seconds: float | None) -> Iterator[None]:
    """Estimate when steps end by what the same work took last time, until their tools count."""
    token = _SECONDS_LAST_TIME.set(seconds)
    try:
        yield
    finally:
        _SECONDS_LAST_TIME.reset(token)


class Step:
    """What is at work: a live line on a terminal, now and then a line in a log."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.started = time.monotonic()
        self.next_report = self.started + _FIRST_REPORT
        # By how many steps inside, and programs that print for themselves.
        self.covers = 0
        self._seconds_last_time = _SECONDS_LAST_TIME.get()
        self._last_line = ""
        self._progress_since: float | None = None
        # Commands, per cents or bytes, and since when they were counted.
        self._done_count = 0.0
        self._total_count = 0.0
        self._is_percentage = False

    def hear(self, line: str) -> None:
        """Take a line of a tool's output, which may say how far it is."""
        line = CONTROLS.sub("", line).strip()
        if not line:
            return
        self._last_line = line
        if match := _COMMAND_PROGRESS.search(line):
            self._last_line = _COMMAND_PROGRESS.sub("", line)
            self._is_percentage = False
            done_count = int(match["done"])
            total_count = int(match["total"])
            self.reach(done_count, total_count)
        elif match := _PERCENTAGE.search(line):
            self._last_line = _PERCENTAGE.sub("", line)
            self._is_percentage = True
            percentage = int(match["first"] or match["last"])
            self.reach(percentage, 100)

    def reach(self, done_count: float, total_count: float) -> None:
        """Take how much is done; less than before is the beginning of something else."""
        if self._progress_since is None or done_count < self._done_count:
            self._progress_since = time.monotonic()
        self._done_count = done_count
        self._total_count = total_count

    @property
    def seconds_left(self) -> float | None:
        """Seconds left, by what is counted, else as last time; None where nothing tells."""
        now = time.monotonic()
        if not self._total_count and self._seconds_last_time is not None:
            seconds_left = self.started + self._seconds_last_time - now
            return seconds_left if seconds_left > 0 else None

        is_enough_known = _ENOUGH_COMMANDS <= self._done_count < self._total_count
        if self._progress_since is None or not is_enough_known:
            return None
        seconds_each = (now - self._progress_since) / self._done_count
        remaining_count = self._total_count - self._done_count
        return seconds_each * remaining_count

    @property
    def progress(self) -> str:
        """How much is done; "" where nothing tells."""
        if self._is_percentage:
            return f"{self._done_count:.0f}%"
        if not self._total_count:
            return ""
        return f"[{self._done_count:.0f}/{self._total_count:.0f}]"

    @property
    def words(self) -> str:
        """Its title, how long it takes, how much is done, and what is left."""
        seconds = time.monotonic() - self.started
        parts = [self.title, duration(seconds)]
        if self.progress:
            parts.append(self.progress)
        seconds_left = self.seconds_left
        if seconds_left is not None:
            parts.append(f"about {duration(seconds_left)} left")
        return "  ".join(parts)

    def line(self, width: int) -> str:
        """Return a line for a terminal, with the last words of the step's tool."""
        # Other letters may be two columns wide.
        last_line = self._last_line.encode("ascii", "replace").decode()
        return mask(f"{self.words}  {last_line}")[:width]


def _discard_output_of(stream: TextIO) -> None:
    """Let what is written to a stream get lost from now on: its reader, such as `head`, has gone.

    The work goes on: who looks at its first lines does not end a build.
    """
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, stream.fileno())
    os.close(null_device)


class _Screen:
    """Where lines go: any thread writes whole ones, on a terminal above the live lines of what is at work.

    The cursor stays as it is, so that nothing has to be set right when the process is stopped.
    """

    def __init__(self) -> None:
        self.verbose = False  # all is echoed
        self.is_folded = False  # a fold of GitHub is open
        self._lock = threading.RLock()
        self._steps: list[Step] = []
        self._live_lines: list[str] = []
        self._stop = threading.Event()

    def write(self, text: str, stream: TextIO) -> None:
        """Write lines."""
        with self._lock:
            self._draw([])
            try:
                print(printable(text), file=stream, flush=True)
            except BrokenPipeError:
                _discard_output_of(stream)
            self.refresh()

    def refresh(self) -> None:
        """Draw what is at work."""
        with self._lock:
            if not self._steps or mode() != "terminal":
                return
            width = _terminal_width() - 1
            uncovered_steps = [step for step in self._steps if step.covers == 0]
            shown_steps = uncovered_steps[-_MOST_LIVE_LINES:]
            lines = [step.line(width) for step in shown_steps]
            self._draw(lines)

    def report_long_steps(self) -> None:
        """Write how far a long step is, ever more rarely."""
        now = time.monotonic()
        for step in tuple(self._steps):
            if step.covers == 0 and now >= step.next_report:
                tenth_of_its_time = (now - step.started) / 10
                pause = min(max(_SHORTEST_PAUSE, tenth_of_its_time), _LONGEST_PAUSE)
                step.next_report = now + pause
                say(f"… {step.words}")

    def _draw(self, lines: list[str]) -> None:
        """Replace the live lines."""
        if lines == self._live_lines:
            return
        if self._live_lines:
            up = "\033[A" * (len(self._live_lines) - 1)
            sys.stderr.write(f"\r{up}\033[J")
        if lines:
            # Back to the line's beginning, where the ^C of a user breaks no line.
            sys.stderr.write("\n".join(lines) + "\r")
        sys.stderr.flush()
        self._live_lines = lines

    @contextmanager
    def showing(self, step: Step) -> Iterator[None]:
        """Show a step while the block runs."""
        with self._lock:
            self._steps.append(step)
            if len(self._steps) == 1:
                self._stop = threading.Event()
                ticker = threading.Thread(target=self._tick, args=[self._stop], name="screen", daemon=True)
                ticker.start()
        try:
            yield
        finally:
            with self._lock:
                self._steps.remove(step)
                self.refresh()
                if not self._steps:
                    self._stop.set()
                    self._draw([])

    def _tick(self, stop: threading.Event) -> None:
        while not stop.wait(_REDRAWING):
            if mode() == "terminal":
                self.refresh()
            else:
                self.report_long_steps()


SCREEN = _Screen()


@contextmanager
def covered() -> Iterator[None]:
    """Leave the terminal to what prints for itself."""
    step = STEP.get()
    if step is None:
        yield
        return

    step.covers += 1
    SCREEN.refresh()
    try:
        yield
    finally:
        step.covers -= 1


@contextmanager
def group(title: str, step: Step | None = None, *, fold: bool = True) -> Iterator[Step]:
    """Show a step, and print how long it took; `fold` what is printed inside in GitHub Actions."""
    step = step or Step(title)
    # GitHub knows no folds in folds.
    is_fold = fold and mode() == "github" and not SCREEN.is_folded
    _print_beginning(title, is_fold=is_fold)

    outcome = "failed after "
    try:
        with covered(), nullcontext() if echoes() else SCREEN.showing(step):
            token = STEP.set(step)
            try:
                yield step
            finally:
                STEP.reset(token)
        outcome = ""
    except KeyboardInterrupt:
        outcome = "interrupted after "
        raise
    finally:
        seconds = time.monotonic() - step.started
        sentence = f"{title}: {outcome}{duration(seconds)}"
        if is_fold:
            _print("::endgroup::")
            SCREEN.is_folded = False
            say(sentence)
        elif outcome or seconds >= _WORTH_A_LINE or echoes():
            detail(f"── {sentence}")


def _print_beginning(title: str, *, is_fold: bool) -> None:
    if is_fold:
        SCREEN.is_folded = True
        _print(_workflow_command("group", mask(title)))
    elif echoes():
        say(_coloured(f"── {title}", "1;36"))


# Numbers


def duration(seconds: float) -> str:
    """Write seconds for people: ``0.4 s``, ``48 s``, ``3 min 05 s``, ``2 h 05 min``, ``3 d 04 h``."""
    if seconds < 10:  # noqa: PLR2004 - below ten a digit after the point says something
        return f"{seconds:.1f} s"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"

    minutes, remaining_seconds = divmod(int(seconds), _MINUTE)
    if minutes < _MINUTE:
        return f"{minutes} min {remaining_seconds:02d} s"
    hours, remaining_minutes = divmod(minutes, _MINUTE)
    if hours < _DAY:
        return f"{hours} h {remaining_minutes:02d} min"
    days, remaining_hours = divmod(hours, _DAY)
    return f"{days} d {remaining_hours:02d} h"


def size(count: float) -> str:
    """Write a number of bytes for people: ``812 B``, ``1.4 MiB``."""
    if count < _KILOBYTE:
        return f"{int(count)} B"
    number = count / _KILOBYTE
    for unit in ("KiB", "MiB"):
        if number < _KILOBYTE:
            return f"{number:.1f} {unit}"
        number /= _KILOBYTE
    return f"{number:.1f} GiB"


def counted(count: int, noun: str) -> str:
    """Write a number of things: ``1 file``, ``2 files``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"


# Tables and summaries


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", is_result: bool = False
) -> None:
    """Print a table, or where a terminal is too narrow, its cells; nothing that is copied is broken.

    Args:
        columns: The head of each column.
        rows: The cells of each row; without rows nothing is printed.
        title: What stands above the table.
        is_result: Whether it is the command's result, for standard output, where a pipe has no width.
    """
    if not rows:
        return
    secrets = _secrets()
    masked_rows = [_masked_cells(row, secrets) for row in (columns, *rows)]
    lines = _aligned(masked_rows)
    is_piped = is_result and not sys.stdout.isatty()
    if mode() == "terminal" and not is_piped:
        width = _terminal_width()
        if max(map(len, lines)) > width:
            lines = _stacked_rows(masked_rows, width)
        else:
            lines[0] = _coloured(lines[0], "1")
    if title:
        lines.insert(0, title)
    # Printed at once: every write looks for every secret.
    print_lines = result if is_result else say
    print_lines("\n".join(lines))


def _masked_cells(row: Sequence[str], secrets: Sequence[str]) -> list[str]:
    return [_without_secrets(str(cell), secrets) for cell in row]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, in which columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = map(str.ljust, row, widths)
        lines.append("  ".join(cells).rstrip())
    return lines


def _stacked_rows(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    lines: list[str] = []
    for row in rows[1:]:
        lines += _stacked(rows[0], row, width)
    return lines


def _stacked(columns: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """Write a row below its first cell, as many cells a line as fit; a long one stands on one of its own."""
    yield row[0]
    line = ""
    for name, cell in zip(columns[1:], row[1:], strict=True):
        if not cell:
            continue
        named_cell = f"{name} {cell}".strip()
        cell_width = len(named_cell) + 2
        if line and len(line) + cell_width > width:
            yield line
            line = ""
        if cell_width > width:
            # The terminal breaks it, and what is copied has no name before it.
            yield f"  {name}"
            yield cell
        else:
            line = f"{line}  {named_cell}"
    if line:
        yield line


def _terminal_width() -> int:
    """Return the columns of the terminal, wherever standard output goes."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit():
        return int(columns)
    with suppress(OSError):
        return os.get_terminal_size(_STANDARD_ERROR).columns or _DEFAULT_WIDTH
    return _DEFAULT_WIDTH


def summary(markdown: str) -> None:
    """Append Markdown to the GitHub job summary, up to what GitHub shows; elsewhere do nothing."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return

    content = f"{printable(mask(markdown)).rstrip()}\n\n".encode()
    with open(path, "ab") as stream:  # noqa: PTH123 - appended to, not owned
        room = SUMMARY_LIMIT - stream.tell() - len(_CUT.encode())
        if len(content) <= room:
            stream.write(content)
        elif room >= 0:
            whole_lines = content[:room].rpartition(b"\n")[0]
            stream.write(whole_lines + _CUT.encode())
