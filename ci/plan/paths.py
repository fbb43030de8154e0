"""What changed files mean: whether there is anything to build, and how closely it is tested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.plan.globs import matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci.plan.data import Paths

_WORKFLOWS = ".github/workflows/"
_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The files that an event changed."""

    files: Sequence[str] | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Relevance:
    """What the changed files come to."""

    builds: bool
    reason: str
    standard: str = ""


def relevance(changes: Changes, rules: Paths) -> Relevance:
    """Weigh the changed files."""
    if changes.files is None:
        return Relevance(builds=True, reason=changes.note or "the changed files are not looked at")
    if not changes.files:
        return Relevance(builds=False, reason="no file has changed")
    standard = next((_shown(one) for one in changes.files if matches(one, rules.standard)), "")
    first = next((one for one in changes.files if _builds(one, rules)), None)
    if first is not None:
        return Relevance(builds=True, reason=f"{_shown(first)} has changed", standard=standard)
    what = _shown(changes.files[0]) if len(changes.files) == 1 else f"{len(changes.files)} files"
    return Relevance(builds=False, reason=f"only {what} changed, which no build uses", standard=standard)


def _builds(path: str, rules: Paths) -> bool:
    if path.startswith(_WORKFLOWS):
        return matches(path.removeprefix(_WORKFLOWS), rules.workflows)
    return not matches(path, rules.skip)


def _shown(path: str) -> str:
    """Write a path that somebody else chose on one line of bounded length."""
    text = "".join(letter if letter.isprintable() else "?" for letter in path)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 2 :]}"
