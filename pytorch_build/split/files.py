"""Which files of a wheel serve some GPUs only, by the data beside this module."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from core.data import Model, load_toml
from core.families import parents, sub_family

if TYPE_CHECKING:
    from collections.abc import Iterable

TABLE = Path(__file__).with_name("files.toml")
_FAMILY = re.compile(r"gfx([0-9]+)xx")
_SUB_FAMILY = re.compile(r"gfx([0-9]+)([0-9a-f])x")


class Rule(Model):
    """One kind of files."""

    holds: str
    pattern: str


class _Table(Model):
    files: tuple[Rule, ...]


@cache
def _rules() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(rule.pattern) for rule in load_toml(TABLE, _Table).files)


def gpu_of(path: str, targets: Iterable[str]) -> str | None:
    """Say which wheel of device code a file belongs to."""
    for rule in _rules():
        found = rule.fullmatch(path)
        if found:
            return _named(found["gpu"], tuple(targets))
    return None


def _named(word: str, targets: tuple[str, ...]) -> str | None:
    group = ""
    if family := _FAMILY.fullmatch(word):
        group = f"gfx{family[1]}"
    elif found := _SUB_FAMILY.fullmatch(word):
        group = sub_family(found[1], found[2])
    if group:
        return group if any(group in parents(target) for target in targets) else None
    return max((target for target in targets if word.startswith(target)), key=len, default=None)
