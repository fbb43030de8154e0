"""The first error in a tool's log: where it is, what it says, and the lines around it.

`causes.toml` has a row for each form that tools write errors in. Logs are read line by line, and no
further than needed: up to the first line whose row has rank 1.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, takewhile
from pathlib import Path

from pydantic import Field

from core import console
from core.data import Model, data_file

_ROOT = Path(__file__).parents[1]
_ABOVE, _BELOW = 2, 3
_NEAR, _FAR = 8, 40  # how far above and below a line its file or message may stand
_LONGEST, _SENTENCE, _WIDE = 400, 280, 160
_READ = 1 << 16
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
        place = ":".join(part for part in (self.file, str(self.line or "")) if part)
        meaning = f" ({self.meaning})" if self.meaning else ""
        return f"{place}: {self.message}{meaning}" if place else f"{self.message}{meaning}"

    def masked(self) -> Cause:
        """Take credentials out, for a record."""
        return Cause.model_validate_json(console.mask(self.model_dump_json()))


class _Row(Model):
    tool: str
    rank: int = Field(ge=1, description="1 for a cause itself; more for what reports that something failed")
    pattern: re.Pattern[str]
    above: re.Pattern[str] | None = Field(None, description="A line that must stand close above")
    below: re.Pattern[str] | None = Field(None, description="A line that may follow")
    caller: re.Pattern[str] | None = Field(None, description="A line that may follow and is of the tree")
    meaning: str = ""


class _Rows(Model):
    worth: re.Pattern[str] = Field(description="What each line that a row could match holds")
    rows: tuple[_Row, ...]


_rows = data_file(Path(__file__).with_name("causes.toml"), _Rows)


class _Found:
    """A line that a row matches, with what stands around it."""

    def __init__(self, row: _Row, match: re.Match[str], before: Sequence[str]) -> None:
        self.row = row
        self._match = match
        self._above = before[-_ABOVE:]
        self._below: list[str] = []
        self._facts = {**_named(_last(row.above, before)), **_named(match)}

    def follow(self, line: str) -> bool:
        """Take a line that follows it; whether more can be of use."""
        self._below.append(line)
        return len(self._below) < (_FAR if self.row.below else _BELOW)

    def cause(self) -> Cause:
        """Put together what was found; a message may go on in indented lines."""
        text, facts = self._match.string, self._facts
        pattern, lines = self.row.below, self._below
        at = next((at for at, line in enumerate(lines) if pattern and pattern.search(line)), len(lines))
        facts |= _named(_last(pattern, lines[at : at + 1]))
        if self.row.caller and Path(facts["file"]).is_absolute():
            frames = map(self.row.caller.search, takewhile(_GOES_ON.match, lines))
            facts |= _named(next(filter(None, frames), None))
        if pattern and "message" in pattern.groupindex:
            more = takewhile(lambda line: not line[:1].strip(), lines[at + 1 :])
            facts["message"] = " ".join(" ".join([facts.get("message", text), *more]).split())[:_SENTENCE]
        around = (*self._above, text, *lines[:_BELOW])
        return Cause(
            tool=self.row.tool,
            file=facts.get("file", ""),
            line=int(facts.get("line", 0)),
            message=facts.get("message", text).strip()[:_LONGEST],
            meaning=self.row.meaning,
            around=tuple(one if len(one) <= _WIDE else f"{one[:_WIDE]}…" for one in around),
        )


def first(lines: Iterable[str]) -> Cause | None:
    """Find the first error; None where no row of `causes.toml` matches."""
    data, best, before = _rows(), None, deque[str](maxlen=_NEAR)
    following = False
    for raw in lines:
        line = console.CONTROLS.sub("", raw).rstrip()
        following = following and best is not None and best.follow(line)
        if best is not None and best.row.rank == 1 and not following:
            break
        if data.worth.search(line) and not line.startswith("+ "):  # a command
            for row in data.rows if best is None else (one for one in data.rows if one.rank < best.row.rank):
                if (match := row.pattern.search(line)) and (not row.above or _last(row.above, before)):
                    best, following = _Found(row, match, list(before)), True
                    break
        before.append(line)
    return best.cause() if best else None


def in_log(log: Path, *, start: int = 0, folder: Path, end: str = "") -> Cause | None:
    """Find the first error that a process wrote into a log, after `start` bytes; `end` is how it ended."""
    with log.open(encoding="utf-8", errors="replace") as stream:
        stream.seek(start)
        found = first(chain(iter(partial(stream.readline, _READ), ""), [end]))
    # how it ended is said beside the cause
    around = [line for line in found.around if not end or not line.startswith(end[:_WIDE])] if found else ()
    return found and found.model_copy(update={"file": _placed(found.file, folder), "around": (*around,)})


def _placed(file: str, folder: Path) -> str:
    """Write a path as people and annotations use it: relative to the tree, else to this repository."""
    if not file:
        return ""
    for base in (folder, folder / "build"):  # where compilers of a build run
        path = Path(os.path.normpath(base / file))
        if path.is_file():
            roots = [root for root in (folder, _ROOT) if path.is_relative_to(root)]
            return path.relative_to(roots[0]).as_posix() if roots else str(path)
    return file


def _last(pattern: re.Pattern[str] | None, lines: Sequence[str] | deque[str]) -> re.Match[str] | None:
    found = (pattern.search(line) for line in reversed(lines)) if pattern else ()
    return next((one for one in found if one), None)


def _named(match: re.Match[str] | None) -> dict[str, str]:
    return {name: value for name, value in match.groupdict().items() if value} if match else {}
