"""Markdown as pages of this project write it: tables, code, and the anchors of headings."""

import re
from collections.abc import Iterable, Sequence


class Table:
    """A table that is filled row by row."""

    def __init__(self, *columns: str) -> None:
        """Begin a table with its columns."""
        self.lines: list[str] = []
        self.add(*columns)
        self.add(*("---" for _ in columns))

    def add(self, *cells: str) -> None:
        """Add a row."""
        escaped_cells = [cell.replace("|", r"\|") for cell in cells]
        row = " | ".join(escaped_cells)
        self.lines.append(f"| {row} |")

    def __str__(self) -> str:
        return "\n".join(self.lines)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose rows are there already."""
    whole_table = Table(*columns)
    for row in rows:
        whole_table.add(*row)
    return whole_table.lines


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
    rest_of_text = text[1:].removesuffix(".")
    return f"{start}{rest_of_text}."
