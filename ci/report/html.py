"""The page as one HTML file that needs nothing else: no network, no script to be read, no trust in names.

Everything that comes from records is escaped by the template engine, and characters that change how
text is read (controls, marks of direction) are spelt out. A content security policy allows this file's
own style and script, by digest, and nothing more.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ci.report import commit_url
from ci.report.cells import moment
from ci.report.model import anchor, cell_text
from ci.report.text import CHANGES, amount, changed, natural, signed, spelt, took
from core import console

if TYPE_CHECKING:
    from ci.report.compare import History
    from ci.report.model import Page, Progress

TEMPLATES = Path(__file__).with_name("templates")
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


def render(page: Page) -> str:
    """Return the page. The same model gives the same bytes."""
    script = _own("page.js")
    return _written(
        "page.html",
        _own("page.css"),
        page=page,
        script=script,
        script_digest=_digest(script),
        families=_artifact_groups(page.cells),
        matrix=matrix(page.cells),
        cells={cell.name: cell for cell in page.cells},
        groups={group.name: group for group in page.groups},
        results={run.place: run for run in page.tests.runs},
    )


def render_history(history: History) -> str:
    """Return the page over runs, in the style of a run's own."""
    return _written("history.html", _own("page.css") + _own("history.css"), history=history)


def _written(template: str, style: Markup, **values: object) -> str:
    text = _engine().get_template(template).render(style=style, style_digest=_digest(style), **values)
    return f"{text.strip()}\n"


def matrix(cells: Sequence[Progress]) -> Mapping[tuple[str, str], Sequence[Progress | None]]:
    """Lay cells out: a row a ref and Python, a column an artifact group."""
    by_row: dict[tuple[str, str], dict[str | None, Progress]] = {}
    for progress in cells:
        row = (progress.name.torch_ref or "", progress.name.python_tag or "")
        by_row.setdefault(row, {})[progress.name.artifact_group] = progress

    rows = sorted(by_row, key=lambda row: (natural(row[0]), natural(row[1])))
    columns = _artifact_groups(cells)
    return {row: [by_row[row].get(artifact_group) for artifact_group in columns] for row in rows}


def _artifact_groups(cells: Sequence[Progress]) -> list[str]:
    artifact_groups = {progress.name.artifact_group or "" for progress in cells}
    return sorted(artifact_groups, key=lambda name: (natural(name), name))


def _moment(started: str) -> tuple[str, str]:
    """Write a record's moment exactly and for people; "" for what is none."""
    found = moment(started)
    return (found.isoformat(), f"{found:%d %b %Y, %H:%M} UTC".lstrip("0")) if found else ("", "")


def _own(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704 - a file of ours


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _engine() -> Environment:
    engine = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # markup of our own passes; in the rest what would change how it is read is spelt out
        finalize=lambda value: value if isinstance(value, Markup) else spelt(str(value)),
    )
    engine.filters |= {
        "cell_text": cell_text,
        "anchor": anchor,
        "size": lambda count: console.size(int(count)),
        "moment": _moment,
        "took": took,
        "part": lambda seconds, line: f"{round(seconds / line.length * 100, 2)}%",
        "duration": console.duration,
        "signed": signed,
        "quoted": shlex.quote,
    }
    engine.globals |= {
        "glyph": _GLYPHS.__getitem__,
        "series": lambda points, name: [getattr(one, name, None) for one in points],
        "changed": changed,
        "commit_url": commit_url,
        "counted": console.counted,
        "amount": amount,
        "called": lambda kind: CHANGES.get(kind, kind),
    }
    return engine
