"""Patterns of paths and branches: ``*`` within one part, ``**`` over any number of parts."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PARTS = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
_MEANING = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@functools.cache
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    each = (
        "".join(_MEANING.get(part) or re.escape(part) for part in _PARTS.findall(one)) for one in patterns
    )
    return re.compile("|".join(f"(?:{one})" for one in each) or "(?!)", re.DOTALL)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Say whether a whole name matches one of the patterns."""
    return _compiled(tuple(patterns)).fullmatch(name) is not None
