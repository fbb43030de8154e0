"""Taking stale rules out of a skip file, line by line, so that comments and order stay. Pure.

The new text is parsed again and must say what the old one says, less what was to go: a file that is
laid out in a way that this module does not follow is left to its owner.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from typing import TYPE_CHECKING, Any

from core.data import parse_toml
from core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

_HEADER = re.compile(r"""^\s*\[\s*rules\s*\.\s*(?:"([^"]+)"|'([^']+)'|([\w-]+))\s*\]\s*(?:\#.*)?$""")
_LIST_ENTRY = re.compile(r"""^\s*(?:"(?P<basic>[^"\\]*)"|'(?P<literal>[^']*)')\s*,\s*(?:\#.*)?$""")


def pruned(text: str, rules: Collection[str], tests: Mapping[str, Collection[str]], *, where: Path) -> str:
    """Take rules and single tests out of a file.

    A rule goes with the comment directly above it.
    """
    lines = text.splitlines(keepends=True)
    starts = [(number, _name(line)) for number, line in enumerate(lines) if _HEADER.match(line)]
    first = [_with_comment(lines, number) for number, _ in starts]
    kept = lines[: first[0]] if starts else lines
    for index, (_, name) in enumerate(starts):
        block = lines[first[index] : first[index + 1] if index + 1 < len(starts) else len(lines)]
        if name in rules:
            kept += _comments_after(block)
        else:
            kept += [line for line in block if not _names(line, tests.get(name, ()))]
    result = "".join(kept).rstrip("\n") + "\n" if kept else ""
    wanted = _less(parse_toml(text, where=where), rules, tests)
    if not wanted.get("rules"):
        return ""
    if _parsed(result) != wanted:
        gone = ", ".join((*sorted(rules), *(one for listed in tests.values() for one in listed)))
        raise DataError(
            f"{where} is laid out so that it cannot be pruned line by line.",
            hint="Write each rule as a [rules.NAME] table and each test on a line of its own, "
            f"or remove by hand: {gone}.",
        )
    return result


def _name(line: str) -> str:
    match = _HEADER.match(line)
    return next((group for group in match.groups() if group), "") if match else ""


def _with_comment(lines: list[str], number: int) -> int:
    """Give the line where a table begins, with the comment directly above it.

    A comment at the top of a file is the file's, when the blank line after it says so.
    """
    while number > 0 and lines[number - 1].lstrip().startswith("#"):
        number -= 1
    return number


def _comments_after(block: list[str]) -> list[str]:
    """Give the comments between a table and the next one's own: they are of the file."""
    end = max(
        number for number, line in enumerate(block) if line.strip() and not line.lstrip().startswith("#")
    )
    rest = block[end + 1 :]
    first = next((number for number, line in enumerate(rest) if line.strip()), len(rest))
    return rest[first:]


def _names(line: str, tests: Collection[str]) -> bool:
    match = _LIST_ENTRY.match(line)
    return bool(match) and (match["basic"] or match["literal"]) in tests if match else False


def _less(
    data: dict[str, Any], rules: Collection[str], tests: Mapping[str, Collection[str]]
) -> dict[str, Any]:
    """Take the same out of the parsed file."""
    left = {}
    for name, table in data.get("rules", {}).items():
        if name in rules:
            continue
        gone = tests.get(name, ())
        lists = {
            key: [one for one in table[key] if one not in gone]
            for key in ("tests", "patterns")
            if key in table
        }
        left[name] = {**table, **lists}
    return {**data, "rules": left}


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def diff(before: str, after: str, name: str) -> str:
    """Show the change as a unified diff."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(lines)
