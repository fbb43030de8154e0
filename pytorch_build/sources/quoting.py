"""Names of files as git prints them for people: one a line, in ASCII, unusual ones quoted as in C.

Git reads names in this form, too (``--stdin``), so that any name of a file gets through, also one with a
line's end or one that is not UTF-8. Unquoted names are those of Python's file functions.
"""

import os
import re

_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_LETTERS = {byte: letter for letter, byte in _ESCAPES.items()}
_ESCAPE = re.compile(r'\\([0-7]{3}|[abtnvfr"\\])')
_FIRST_PRINTABLE = 0x20
_FIRST_UNPRINTABLE = 0x7F


def unquote(name: str) -> str:
    """Return the name of a file that git has printed."""
    if not name.startswith('"'):
        return name
    unescaped = _ESCAPE.sub(_unescape, name[1:-1])
    return os.fsdecode(unescaped.encode("latin-1"))


def _unescape(escape: re.Match[str]) -> str:
    text = escape[1]
    if text in _ESCAPES:
        return chr(_ESCAPES[text])
    return chr(int(text, 8))


def quote(name: str) -> str:
    """Return the name of a file as git takes it."""
    escaped = "".join(_escape(byte) for byte in os.fsencode(name))
    if escaped == name:
        return name
    return f'"{escaped}"'


def _escape(byte: int) -> str:
    if byte in _LETTERS:
        return f"\\{_LETTERS[byte]}"
    if byte < _FIRST_PRINTABLE or byte >= _FIRST_UNPRINTABLE:
        return f"\\{byte:03o}"
    return chr(byte)
