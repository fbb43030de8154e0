"""The page as one HTML file that needs nothing else: no network, no script to be read, no trust in names.

Everything that comes from records is escaped by the template engine, and characters that change how
text is read (controls, marks of direction) are spelt out. A content security policy allows this file's
own style and script, by digest, and nothing more.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ci.report.names import anchor, cell_text, commit_url, natural_key
from ci.report.text import amount_words, change_words, count_changes, elapsed_words, signed_size
from ci.report.time_line import read_moment
from ci.tables import spelt
from core import console

if TYPE_CHECKING:
    from ci.report.history import CellPoint, History
    from ci.report.model import CellProgress, RunPage, TimeLine
    from ci.report.names import NaturalKey

    # Each row has a cell for every artifact group, or None.
    RefAndPython: TypeAlias = tuple[str, str]
    Matrix: TypeAlias = Mapping[RefAndPython, Sequence[CellProgress | None]]

TEMPLATES = Path(__file__).with_name("templates")
# An option of a command, at its start or behind a blank.
_OPTION = re.compile(r"(?<![^ ])--?[a-z][a-z-]*")
_GLYPHS: Mapping[str, str] = {
    "passed": "✓",
    "ok": "✓",
    "untested": "○",
    "incomplete": "◐",
    "missing": "·",
    "interrupted": "‖",
    "unreadable": "?",
    "failed": "✗",
}


def render(page: RunPage) -> str:
    """Return the page. The same model gives the same bytes."""
    script = _read_own("page.js")
    return _render(
        "page.html",
        _read_own("page.css"),
        page=page,
        script=script,
        script_digest=_digest(script),
        families=_artifact_groups(page.cells),
        matrix=make_matrix(page.cells),
        cells={cell.name: cell for cell in page.cells},
        groups={group.name: group for group in page.groups},
        results={tests.stage_and_cell: tests for tests in page.tests.runs},
    )


def render_history(history: History) -> str:
    """Return the page over runs, in the style of a run's own."""
    style = _read_own("page.css") + _read_own("history.css")
    return _render("history.html", style, history=history)


def _render(template: str, style: Markup, **values: object) -> str:
    engine = _engine()
    html = engine.get_template(template).render(style=style, style_digest=_digest(style), **values)
    return f"{html.strip()}\n"


def make_matrix(cells: Sequence[CellProgress]) -> Matrix:
    """Lay cells out: a row a ref and Python, a column an artifact group."""
    cells_by_row: dict[RefAndPython, dict[str, CellProgress]] = defaultdict(dict)
    for cell in cells:
        group_cell = cell.name
        row_key = (group_cell.torch_ref or "", group_cell.python_tag or "")
        cells_by_row[row_key][group_cell.artifact_group or ""] = cell

    artifact_groups = _artifact_groups(cells)
    matrix: dict[RefAndPython, Sequence[CellProgress | None]] = {}
    for row_key in sorted(cells_by_row, key=_natural_keys):
        cells_of_row = cells_by_row[row_key]
        matrix[row_key] = [cells_of_row.get(artifact_group) for artifact_group in artifact_groups]
    return matrix


def _natural_keys(row_key: RefAndPython) -> tuple[NaturalKey, NaturalKey]:
    torch_ref, python_tag = row_key
    return natural_key(torch_ref), natural_key(python_tag)


def _artifact_groups(cells: Sequence[CellProgress]) -> Sequence[str]:
    artifact_groups = {cell.name.artifact_group or "" for cell in cells}
    return sorted(sorted(artifact_groups), key=natural_key)


def _read_own(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704 - a file of ours


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


# --- What the templates call


@cache
def _engine() -> Environment:
    engine = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    engine.filters |= {
        "cell_text": cell_text,
        "anchor": anchor,
        "size": _size,
        "moment": _moment,
        "took": elapsed_words,
        "part": _part_of_line,
        "duration": console.duration,
        "signed": signed_size,
        "quoted": shlex.quote,
        "whole_options": _keep_options_whole,
    }
    engine.globals |= {
        "glyph": _GLYPHS.__getitem__,
        "series": _series,
        "changed": count_changes,
        "commit_url": commit_url,
        "counted": console.counted,
        "amount": amount_words,
        "called": change_words,
    }
    return engine


def _finalize(value: object) -> str:
    """Pass markup of our own; in the rest, spell out what would change how it is read."""
    if isinstance(value, Markup):
        return value
    return spelt(str(value))


def _keep_options_whole(command: Markup) -> Markup:
    """Return a command in whose options no line breaks: browsers break after each of their hyphens."""
    # As plain text: parts of markup would be escaped once more where they are joined.
    html = _OPTION.sub(r"<span>\g<0></span>", str(command))
    return Markup(html)  # noqa: S704 - it was escaped before


def _size(count: float) -> str:
    return console.size(int(count))


def _moment(started: str) -> tuple[str, str]:
    """Return a record's moment exactly and for people; "" for what is none."""
    moment = read_moment(started)
    if moment is None:
        return "", ""
    text = f"{moment:%d %b %Y, %H:%M} UTC"
    return moment.isoformat(), text.lstrip("0")


def _part_of_line(seconds: float, time_line: TimeLine) -> str:
    percent = round(seconds / time_line.length * 100, 2)
    return f"{percent}%"


def _series(points: Sequence[CellPoint | None], name: str) -> Sequence[float | None]:
    """Return one value of a cell in each run; None where it is in none."""
    return [getattr(point, name, None) for point in points]
