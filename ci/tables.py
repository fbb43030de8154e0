"""Tables about a plan or a run, with texts of any origin: for a terminal, and for a job's summary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from core import console
from core.run import job_files

# Controls, marks of direction, what no encoding has: each changes how the text around it is read.
_MISLEADING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff"
    "\ud800-\udfff]"
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; one without rows is not shown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def readable_rows(self) -> Sequence[Sequence[str]]:
        """The rows, each text on one line and without what misleads."""
        return [tuple(map(one_line, row)) for row in self.rows]

    def show(self, *, is_result: bool = False) -> None:
        """Print it: as what the command tells, or as the command's result."""
        console.table(self.columns, self.readable_rows, title=self.title, is_result=is_result)

    def markdown(self, *, most_rows: int | None = None) -> str:
        """Return it as Markdown, or only its first rows."""
        rows = [tuple(map(job_files.text, row)) for row in self.readable_rows[:most_rows]]
        return job_files.table(self.columns, rows)


def one_line(text: str) -> str:
    """Return a text of any origin on one line, without what misleads."""
    return spelt(" ".join(text.split()))


def spelt(text: str) -> str:
    r"""Spell out invisible characters that change what is read: ``\u202e``."""
    return _MISLEADING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
