"""Markdown as pages of this project write it: tables, code, and the anchors of headings."""

import re
from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    rule = ["---"] * len(columns)
    return [_row(cells) for cells in (columns, rule, *rows)]


def table_text(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as one text."""
    return "\n".join(table(columns, rows))


def _row(cells: Sequence[str]) -> str:
    escaped_cells = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped_cells)} |"


def code(text: str) -> str:
    """Return a text that is shown as code."""
    return f"`{text}`"


def codes(texts: Iterable[str], separator: str = ", ") -> str:
    """Return several texts that are each shown as code."""
    return separator.join(map(code, texts))


def anchor(heading: str) -> str:
    """Return the name that a heading has in a page's address at GitHub."""
    name = re.sub(r"[^\w\- ]", "", heading.lower())
    return name.replace(" ", "-")


def sentence(text: str) -> str:
    """Return a text with a capital at its start and a period at its end."""
    start = text[:1].upper()
    return f"{start}{text[1:]}".removesuffix(".") + "."
