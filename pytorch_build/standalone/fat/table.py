"""The data: what ROCm's libraries open by name, and which files they read."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from core.data import Model, load_toml
from core.families import families
from pytorch_build.check.device_code import is_asked_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TABLE = Path(__file__).with_name("bundle.toml")
# MIOpen's databases carry a processor's name with its number of compute units: gfx90a6e, gfx942130.
_TARGET = re.compile(r"gfx(?:[0-9]+(?:-[0-9]+)?-generic|[0-9a-f]{3,})")


class Row(Model):
    """What libraries need besides the ones that they are linked to."""

    names: tuple[str, ...]
    opens: tuple[str, ...] = ()
    data: tuple[str, ...] = ()


class System(Model):
    """Patterns of library names that a machine has, besides what the checks' policy says."""

    linux: tuple[str, ...]


class Table(Model):
    """The whole table."""

    label: str
    system: System
    library: tuple[Row, ...]


@cache
def load_table() -> Table:
    """Read the table beside this module."""
    return load_toml(TABLE, Table)


def rows_of(table: Table, name: str) -> Sequence[Row]:
    """Give the rows that hold for a library, by its file name."""
    lower = name.lower()
    return [row for row in table.library if any(fnmatchcase(lower, one.lower()) for one in row.names)]


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a library's name is among shell patterns, in any letter case."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


@cache
def path_pattern(glob: str) -> re.Pattern[str]:
    """Compile a path pattern: ``**/`` is any folders, ``**`` anything, ``*`` stays in one folder."""
    parts = re.split(r"(\*\*/|\*\*|\*)", glob)
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    return re.compile("".join(meaning.get(part, re.escape(part)) for part in parts))


def wanted_for(path: str, targets: Sequence[str]) -> bool:
    """Whether a data file serves one of the chosen GPU targets, by the targets that its path names."""
    if not targets:
        return True
    named = {_processor(found) for found in _TARGET.findall(path)}
    return not named or any(is_asked_for(one, targets) for one in named)


def _processor(word: str) -> str:
    if word.endswith("-generic"):
        return word
    known = (name for name, one in families().items() if one.targets == (name,) and word.startswith(name))
    return max(known, key=len, default=word)
