"""Numbers and names for people."""

from __future__ import annotations

import re

from core import console

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
# controls, marks of direction, what no encoding has: each changes how the text around it is read
_MISLEADING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff"
    "\ud800-\udfff]"
)


def spelt(text: str) -> str:
    r"""Spell out characters that nobody sees and that change what is read: ``\u202e``."""
    return _MISLEADING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def size(count: int) -> str:
    """Write a number of bytes: ``812 B``, ``1.4 MiB``."""
    return console.size(count)


def signed(count: int) -> str:
    """Write a change of bytes: ``+1.4 MiB``, ``-812 B``, ``0``."""
    if not count:
        return "0"
    return f"{'+' if count > 0 else '-'}{console.size(abs(count))}"


def duration(seconds: float) -> str:
    """Write seconds: ``0.4 s``, ``48 s``, ``3 min 05 s``, ``2 h 05 min``, ``3 d 04 h``."""
    whole = round(seconds)
    if whole < _HOUR:
        return console.duration(seconds)
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02d} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR:02d} h"


def counted(count: int, what: str) -> str:
    """Write a number of things: ``1 wheel``, ``2 wheels``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """Give what to sort a name by, so that 2.10 comes after 2.9."""
    parts = re.split(r"([0-9]{1,18})", text)
    return tuple((int(part), "") if at % 2 else (0, part) for at, part in enumerate(parts))
