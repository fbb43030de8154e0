"""The one printer: live lines on a terminal, folds in GitHub Actions, plain lines elsewhere.

Stages print through this module only, so that secrets are masked in one place and a
CI log and a terminal tell the same story. What tools say goes into logs; here it is shown as a step's
progress, unless all of it is echoed (``--verbose``, and GitHub's folds).
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cache, partial
from typing import Literal, TextIO

Mode = Literal["terminal", "github", "plain"]

# up to the last @ of the authority, because a password may hold one
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s\"<>]*@")
_SECRET_NAMES = re.compile(r"(?i)(secret|token|password|passwd|credential|access_key|api_key|private_key)")
_SHORTEST_SECRET = 6  # shorter values are words, which logs need
_KILOBYTE = 1024
_MINUTE, _DAY = 60, 24  # seconds, hours
# lines that GitHub's runner would take for commands: `::name::` at a line's start, `##[name]` anywhere
_COMMANDS = re.compile(r"(?m)^(\s*):(?=:)|##(?=\[)")
# above this GitHub shows nothing of a step's summary
SUMMARY_LIMIT = 1 << 20
_CUT = "\n\n… cut here: GitHub shows no summary beyond 1 MiB.\n\n"

_MASKED: list[str] = []
# colours, titles and links of terminals; other controls
CONTROLS = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]"
)
# ninja's done and total; the percentage of make, CMake and pytest
_PROGRESS = re.compile(r"^\[ *(\d{1,9})/(\d{1,9})\] |^\[ *(\d{1,3})%\] |\[ *(\d{1,3})%\]$")
_ENOUGH = 3  # commands that ended, to estimate from
_FIRST_BEAT, _BEAT, _LONGEST_BEAT = 30.0, 60.0, 300.0  # seconds
_TICK = 0.25
_WORTH_A_LINE = 1.0  # seconds
_WIDTH, _MOST_LINES = 80, 8  # of a terminal that names no width; of those at work


def mode() -> Mode:
    """Return how this process's output is read: by GitHub Actions, on a terminal, or as a plain log."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        return "github"
    return "terminal" if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else "plain"


@cache
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAMES.search(name) is not None


def _secrets() -> tuple[str, ...]:
    # Most variables have no such name: their values are left alone, as every printed line comes here.
    values = [os.environ.get(name, "") for name in os.environ if _is_secret_name(name)] + _MASKED
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


def say(text: str) -> None:
    """Print lines about what is going on."""
    # a space breaks what a text from elsewhere (a file name, a message) would command
    _write_raw(_COMMANDS.sub(r"\g<0> ", text) if mode() == "github" else text)


def _write_raw(text: str) -> None:
    SCREEN.write(mask(text))


def _style(text: str, code: str) -> str:
    # https://no-color.org and https://force-color.org
    wanted = os.environ.get("FORCE_COLOR") or ("1" if mode() == "terminal" else "0")
    return text if os.environ.get("NO_COLOR") or wanted == "0" else f"\033[{code}m{text}\033[0m"


def echoes() -> bool:
    """Whether what goes into a log is printed, too."""
    return SCREEN.verbose or mode() == "github"


def result(text: str) -> None:
    """Print the result of a command on standard output, for people and pipes."""
    SCREEN.write(mask(text), sys.stdout)


def _styled(code: str, text: str) -> None:
    say(_style(text, code))


# a line that most readers skip: an echoed command, a file touched; and what a stage ended with
detail = partial(_styled, "2")
done = partial(_styled, "32")


def echo(text: str) -> None:
    """Print a line where all is echoed; elsewhere others tell enough, and the step at work hears it."""
    if echoes():
        detail(text)
    elif step := STEP.get():
        step.hear(text)


def _marked(kind: str, style: str, text: str, *, title: str = "", file: str = "", line: int = 0) -> None:
    if mode() == "github":
        properties = {"title": title, "file": file, "line": str(line or "")}
        _write_raw(_command(kind, mask(text), properties))  # masked first: escapes change a secret's spelling
        return
    place = ":".join(part for part in (file, str(line or "")) if part)
    before = "".join(f"{part}: " for part in (place, title) if part and not text.startswith(part))
    say(f"{_style(f'{kind}:', style)} {before}{text}")


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


# what this thread is at
STEP: ContextVar[Step | None] = ContextVar("step", default=None)

# of the same work last time: when it would have begun now, its seconds, and how many commands ninja ran
_LAST: ContextVar[tuple[float, float, Sequence[int]]] = ContextVar("last")


@contextmanager
def as_last_time(seconds: float, commands: Sequence[int] = ()) -> Iterator[None]:
    """Estimate by what the same work took last time, unless ninja has another number of commands to run."""
    token = _LAST.set((time.monotonic(), seconds, commands))
    try:
        yield
    finally:
        _LAST.reset(token)


class Step:
    """What is at work: a live line on a terminal, now and then a line in a log."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.started = time.monotonic()
        self.beats = self.started + _FIRST_BEAT
        self.covered = 0  # by steps inside, and by programs that print for themselves
        self._last, self._heard = _LAST.get((0.0, 0.0, ())), ""
        self._begun = self._done = self._total = 0.0
        self._percent = False

    def hear(self, line: str) -> None:
        """Take a line of a tool's output."""
        self._heard = CONTROLS.sub("", line).strip() or self._heard
        if found := _PROGRESS.search(self._heard):
            self._heard = _PROGRESS.sub("", self._heard)
            done, total, *percent = found.groups()
            self._percent = not total
            self.reach(*map(int, (done, total) if total else (percent[0] or percent[1], 100)))

    def reach(self, done: float, total: float) -> None:
        """Take how much is done; less than before is the beginning of something else."""
        if not self._begun or done < self._done:
            self._begun = time.monotonic()
        self._done, self._total = done, total

    @property
    def left(self) -> float:
        """Seconds left: as last time, else by what is done; 0 where nothing tells."""
        now, (began, seconds, commands) = time.monotonic(), self._last
        alike = self._percent or not (self._total and commands)
        alike = alike or any(abs(self._total - one) <= one / 10 for one in commands)
        if alike and began + seconds > now:
            return began + seconds - now
        enough = _ENOUGH <= self._done < self._total
        return (now - self._begun) / self._done * (self._total - self._done) if enough else 0

    @property
    def reached(self) -> str:
        """How much is done; "" where nothing tells."""
        done, total = f"{self._done:.0f}", f"{self._total:.0f}"
        return f"{done}%" if self._percent else f"[{done}/{total}]" if self._total else ""

    @property
    def words(self) -> str:
        """Its title, how long it takes, how much is done, and what is left."""
        took, left = duration(time.monotonic() - self.started), self.left
        said = (self.title, took, self.reached, f"about {duration(left)} left" if left else "")
        return "  ".join(filter(None, said))

    def line(self, width: int) -> str:
        """Write it as a line of a terminal, with the last of what its tool said."""
        # other letters may be two columns wide
        heard = self._heard.encode("ascii", "replace").decode()
        return mask(f"{self.words}  {heard}")[:width]


class _Screen:
    """Where lines go: any thread writes whole ones, on a terminal above the live lines of what is at work.

    The cursor stays as it is, so that nothing has to be set right when the process is stopped.
    """

    def __init__(self) -> None:
        self.verbose = self.folded = False  # whether all is echoed; whether it stands in a fold
        self._lock = threading.RLock()
        self._steps: list[Step] = []
        self._drawn: list[str] = []
        self._ended = threading.Event()

    def write(self, text: str, stream: TextIO | None = None) -> None:
        """Write lines, to standard error unless a stream is given."""
        with self._lock:
            self._draw([])
            print(text, file=stream or sys.stderr, flush=True)
            self.refresh()

    def refresh(self) -> None:
        """Draw what is at work."""
        with self._lock:
            if self._steps and mode() == "terminal":
                width = _width() - 1
                shown = [one for one in self._steps if not one.covered][-_MOST_LINES:]
                self._draw([one.line(width) for one in shown])

    def beat(self) -> None:
        """Write how far a long step is, ever more rarely."""
        now = time.monotonic()
        for one in tuple(self._steps):
            if not one.covered and now >= one.beats:
                one.beats = now + min(max(_BEAT, (now - one.started) / 10), _LONGEST_BEAT)
                say(f"… {one.words}")

    def _draw(self, lines: list[str]) -> None:
        if lines != self._drawn:
            up = "\033[A" * (len(self._drawn) - 1)
            # to the line's begin, where the ^C of a user breaks no line
            sys.stderr.write((f"\r{up}\033[J" if self._drawn else "") + "\n".join(lines) + "\r" * bool(lines))
            sys.stderr.flush()
            self._drawn = lines

    @contextmanager
    def showing(self, step: Step) -> Iterator[None]:
        """Show a step while the block runs."""
        with self._lock:
            self._steps.append(step)
            if len(self._steps) == 1:
                self._ended = threading.Event()
                threading.Thread(target=self._tick, args=(self._ended,), name="screen", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._steps.remove(step)
                self.refresh()
                if not self._steps:
                    self._ended.set()
                    self._draw([])

    def _tick(self, ended: threading.Event) -> None:
        while not ended.wait(_TICK):
            self.refresh() if mode() == "terminal" else self.beat()


SCREEN = _Screen()


@contextmanager
def covered() -> Iterator[None]:
    """Leave the terminal to what prints for itself."""
    if step := STEP.get():
        step.covered += 1
        SCREEN.refresh()
    try:
        yield
    finally:
        if step:
            step.covered -= 1


@contextmanager
def group(title: str, step: Step | None = None, *, fold: bool = True) -> Iterator[Step]:
    """Show a step, and print how long it took; `fold` what is printed inside in GitHub Actions."""
    step = step or Step(title)
    folds = fold and mode() == "github" and not SCREEN.folded  # GitHub knows no folds in folds
    if folds:
        SCREEN.folded = True
        _write_raw(_command("group", mask(title)))
    elif echoes():
        say(_style(f"── {title}", "1;36"))
    ended = "failed after "
    try:
        with covered(), nullcontext() if echoes() else SCREEN.showing(step):
            token = STEP.set(step)
            try:
                yield step
            finally:
                STEP.reset(token)
        ended = ""
    finally:
        took = time.monotonic() - step.started
        said = f"{title}: {ended}{duration(took)}"
        if folds:
            _write_raw("::endgroup::")
            SCREEN.folded = False
        if ended or took >= _WORTH_A_LINE or echoes():
            say(said if folds else _style(f"── {said}", "2"))


def duration(seconds: float) -> str:
    """Write seconds for people: ``0.4 s``, ``48 s``, ``3 min 05 s``, ``2 h 05 min``, ``3 d 04 h``."""
    if seconds < 10:  # noqa: PLR2004 - below ten a digit after the point says something
        return f"{seconds:.1f} s"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), _MINUTE)
    hours = minutes // 60
    if hours < _DAY:
        return f"{hours} h {minutes % 60:02d} min" if hours else f"{minutes} min {rest:02d} s"
    return f"{hours // _DAY} d {hours % _DAY:02d} h"


def size(count: float) -> str:
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
    """Print a table, or where a terminal is too narrow, its cells; nothing that is copied is broken."""
    if not rows:
        return
    every = [[mask(str(cell)) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in every]
    width = _width() if mode() == "terminal" else 0
    if width and max(map(len, lines)) > width:
        lines = [line for row in every[1:] for line in _stacked(every[0], row, width)]
    elif width:
        lines[0] = _style(lines[0], "1")
    # written at once: every write looks for every secret
    say("\n".join([title, *lines] if title else lines))


def _width() -> int:
    """Return the columns of the terminal, wherever standard output goes."""
    said = os.environ.get("COLUMNS", "")
    with suppress(OSError):
        return int(said) if said.isdigit() else os.get_terminal_size(2).columns or _WIDTH
    return _WIDTH


def _stacked(columns: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """Write a row below its first cell, as many cells a line as fit; a long one stands on one of its own."""
    yield row[0]
    line = ""
    for name, cell in (one for one in zip(columns[1:], row[1:], strict=True) if one[1]):
        said = f"{name} {cell}".strip()
        if line and len(line) + len(said) + 2 > width:
            yield line
            line = ""
        if len(said) + 2 > width:  # the terminal breaks it, and what is copied has no name before it
            yield from (f"  {name}", cell)
        else:
            line = f"{line}  {said}"
    if line:
        yield line


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
