"""The first error in a tool's log: where it is, what it says, and the lines around it.

`causes.toml` has a row for each form that tools write errors in. Logs are read line by line, and no
further than needed: up to the first line whose row has rank 1.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TextIO

from pydantic import Field

from core import console
from core.data import Model, data_file

_ROOT = Path(__file__).parents[1]

# Lines that are shown around an error.
_SHOWN_ABOVE = 2
_SHOWN_BELOW = 3
# How far above and below a line its file or message may stand.
_MOST_ABOVE = 8
_MOST_BELOW = 40
# Characters of a message, of one that goes on in other lines, of a line that is shown, of one that is
# read.
_MESSAGE_LIMIT = 400
_SENTENCE_LIMIT = 280
_SHOWN_LIMIT = 160
_LINE_LIMIT = 1 << 16
_GOES_ON = re.compile(r"\s|$|Call Stack")


class Cause(Model):
    """The first error of a log."""

    tool: str = Field(description="Whose words they are: a row of core/causes.toml")
    file: str = Field("", description="Relative to the source tree or this repository, where it lies in one")
    line: int = Field(0, description="Line in the file; 0 for none")
    message: str
    meaning: str = Field("", description="What it means, where the words do not say so")
    around: tuple[str, ...] = Field((), description="Lines of the log: two before it, itself, three after it")

    @property
    def headline(self) -> str:
        """The error in a line, with its place."""
        headline = self.message
        if self.meaning:
            headline += f" ({self.meaning})"

        place = self._place
        if not place:
            return headline
        return f"{place}: {headline}"

    @property
    def _place(self) -> str:
        """The file and the line, as far as they are known."""
        parts: list[str] = []
        if self.file:
            parts.append(self.file)
        if self.line:
            parts.append(str(self.line))
        return ":".join(parts)

    def masked(self) -> Cause:
        """Take credentials out, for a record."""
        text = self.model_dump_json()
        masked_text = console.mask(text)
        return Cause.model_validate_json(masked_text)


class _ErrorPattern(Model):
    """A row of `causes.toml`: a form that tools write errors in."""

    tool: str
    rank: int = Field(ge=1, description="1 for a cause itself; more for what reports that something failed")
    pattern: re.Pattern[str]
    above: re.Pattern[str] | None = Field(None, description="A line that must stand close above")
    below: re.Pattern[str] | None = Field(None, description="A line that may follow")
    caller: re.Pattern[str] | None = Field(None, description="A line that may follow and is of the tree")
    meaning: str = ""


class _ErrorPatterns(Model):
    worth: re.Pattern[str] = Field(description="What each line that a row could match holds")
    rows: tuple[_ErrorPattern, ...]


_error_patterns = data_file(Path(__file__).with_name("causes.toml"), _ErrorPatterns)


class _Error:
    """A line that has the form of an error, with what stands around it."""

    def __init__(
        self,
        row: _ErrorPattern,
        match: re.Match[str],
        lines_above: Sequence[str],
    ) -> None:
        self.row = row
        self._line = match.string
        self._lines_above = lines_above[-_SHOWN_ABOVE:]
        self._lines_below: list[str] = []
        # The groups of the patterns: file, line and message.
        match_above = _last_match(row.above, lines_above)
        self._pattern_groups = _groups(match_above)
        self._pattern_groups |= _groups(match)

    @property
    def needs_more(self) -> bool:
        """Whether lines that follow can be of use."""
        needed_lines = _SHOWN_BELOW
        if self.row.below is not None:
            needed_lines = _MOST_BELOW
        return len(self._lines_below) < needed_lines

    def follow(self, line: str) -> None:
        """Take a line that follows it."""
        self._lines_below.append(line)

    def cause(self) -> Cause:
        """Return the error with its place and its whole message."""
        if self.row.below is not None:
            self._read_below(self.row.below)
        if self.row.caller is not None:
            # A relative path is one of the tree already.
            file = self._pattern_groups["file"]
            if PurePosixPath(file).is_absolute() or PureWindowsPath(file).is_absolute():
                self._read_caller(self.row.caller)

        line_number = self._pattern_groups.get("line", "0")
        message = self._message.strip()
        return Cause(
            tool=self.row.tool,
            file=self._pattern_groups.get("file", ""),
            line=int(line_number),
            message=message[:_MESSAGE_LIMIT],
            meaning=self.row.meaning,
            around=self._lines_around(),
        )

    @property
    def _message(self) -> str:
        """The message that a pattern took from the log; else the whole line."""
        return self._pattern_groups.get("message", self._line)

    def _lines_around(self) -> tuple[str, ...]:
        """Return the line between those above and below it, each as it is shown."""
        lines = list(self._lines_above)
        lines.append(self._line)
        lines += self._lines_below[:_SHOWN_BELOW]
        return tuple(map(_shown, lines))

    def _read_below(self, pattern: re.Pattern[str]) -> None:
        """Take the place and message of a line that follows; a message may go on in indented lines."""
        # The second loop goes on where the first one has stopped.
        remaining_lines = iter(self._lines_below)
        for line in remaining_lines:
            if match := pattern.search(line):
                self._pattern_groups |= _groups(match)
                break

        indented_lines: list[str] = []
        for line in remaining_lines:
            is_indented = not line[:1].strip()
            if not is_indented:
                break
            indented_lines.append(line)

        if "message" in pattern.groupindex:
            message = " ".join([self._message, *indented_lines])
            words = message.split()
            sentence = " ".join(words)
            self._pattern_groups["message"] = sentence[:_SENTENCE_LIMIT]

    def _read_caller(self, pattern: re.Pattern[str]) -> None:
        """Take the place in the tree from the first frame that has one."""
        for line in self._lines_below:
            if not _GOES_ON.match(line):
                return
            if match := pattern.search(line):
                self._pattern_groups |= _groups(match)
                return


def first(lines: Iterable[str]) -> Cause | None:
    """Return the first error of the lowest rank; None where no row of `causes.toml` matches."""
    error: _Error | None = None
    is_followed = False
    lines_above = deque[str](maxlen=_MOST_ABOVE)

    for raw_line in lines:
        line = console.CONTROLS.sub("", raw_line).rstrip()
        if error is not None:
            if is_followed:
                error.follow(line)
                is_followed = error.needs_more
            # No later error can be of a lower rank.
            if error.row.rank == 1 and not is_followed:
                break

        better_error = _error_in(line, lines_above, error)
        if better_error is not None:
            error = better_error
            is_followed = True
        lines_above.append(line)

    if error is None:
        return None
    return error.cause()


def _error_in(
    line: str,
    lines_above: deque[str],
    known_error: _Error | None,
) -> _Error | None:
    """Return the error that a line is, if it says more than the one that is known."""
    # A shell shows its commands like that, and they may quote an error.
    is_command = line.startswith("+ ")
    if is_command:
        return None

    patterns = _error_patterns()
    if not patterns.worth.search(line):
        return None

    for row in patterns.rows:
        if known_error is not None and row.rank >= known_error.row.rank:
            continue
        match = row.pattern.search(line)
        if match is None:
            continue

        if row.above is not None and _last_match(row.above, lines_above) is None:
            continue
        return _Error(row, match, list(lines_above))
    return None


def in_log(
    log: Path,
    *,
    start: int = 0,
    folder: Path,
    ending: str = "",
) -> Cause | None:
    """Return the first error that a process wrote into a log after `start` bytes; `ending`: how it ended."""
    with log.open(encoding="utf-8", errors="replace") as stream:
        stream.seek(start)
        lines_of_log = _lines_of(stream, ending)
        cause = first(lines_of_log)
    if cause is None:
        return None

    # How the process ended is said beside the cause.
    lines = cause.around
    if ending:
        shown_ending = ending[:_SHOWN_LIMIT]
        lines = tuple(line for line in lines if not line.startswith(shown_ending))
    file = _shown_path(cause.file, folder)
    return cause.model_copy(update={"file": file, "around": lines})


def _lines_of(stream: TextIO, ending: str) -> Iterator[str]:
    """Yield the lines of a log, huge ones in parts, and how its process ended as the last one."""
    while line := stream.readline(_LINE_LIMIT):
        yield line
    yield ending


def _shown_path(file: str, folder: Path) -> str:
    """Return a path as people and annotations use it: relative to the tree, else to this repository."""
    if not file:
        return ""
    # Compilers of a build run in the tree or in its build folder.
    for base in (folder, folder / "build"):
        normal_path = os.path.normpath(base / file)
        path = Path(normal_path)
        if path.is_file():
            return _path_from_root(path, folder)
    return file


def _path_from_root(path: Path, folder: Path) -> str:
    """Return a path relative to the tree or this repository; one outside of both as it is."""
    for root in (folder, _ROOT):
        if path.is_relative_to(root):
            relative_path = path.relative_to(root)
            return relative_path.as_posix()
    return str(path)


def _shown(line: str) -> str:
    if len(line) <= _SHOWN_LIMIT:
        return line
    beginning = line[:_SHOWN_LIMIT]
    return f"{beginning}…"


def _last_match(pattern: re.Pattern[str] | None, lines: Sequence[str] | deque[str]) -> re.Match[str] | None:
    """Return the match of the last line that a pattern is found in."""
    if pattern is None:
        return None
    for line in reversed(lines):
        if match := pattern.search(line):
            return match
    return None


def _groups(match: re.Match[str] | None) -> dict[str, str]:
    """Return the named groups that have a text."""
    if match is None:
        return {}
    groups = match.groupdict()
    return {name: text for name, text in groups.items() if text}
