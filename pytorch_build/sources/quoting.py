"""Names of files as git prints them for people: one a line, in ASCII, unusual ones quoted as in C.

Git reads names in this form, too (``--stdin``), so that any name of a file gets through, also one with a
line's end or one that is not UTF-8. Unquoted names are those of Python's file functions.
"""

import os
import re

# What follows a backslash, and the character that it stands for.
_CHARACTERS = {
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    '"': '"',
    "\\": "\\",
}
_LETTERS = {character: letter for letter, character in _CHARACTERS.items()}
_ESCAPE = re.compile(r'\\([0-7]{3}|[abtnvfr"\\])')
# Latin-1 has a character for each byte.
_ONE_BYTE = "latin-1"


def unquote(name: str) -> str:
    """Return a file's name from the quoted form in which git prints it."""
    if not name.startswith('"'):
        return name
    inner_text = name[1:-1]
    characters = _ESCAPE.sub(_unescape, inner_text)
    return os.fsdecode(characters.encode(_ONE_BYTE))


def _unescape(escape: re.Match[str]) -> str:
    """Return the character that an escape sequence of git stands for."""
    text = escape[1]
    if text in _CHARACTERS:
        return _CHARACTERS[text]
    return chr(int(text, 8))


def quote(name: str) -> str:
    """Return a file's name in the quoted form that git reads; itself where nothing has to be escaped."""
    characters = os.fsencode(name).decode(_ONE_BYTE)
    escaped_name = "".join(map(_escape, characters))
    if escaped_name == name:
        return name
    return f'"{escaped_name}"'


def _escape(character: str) -> str:
    """Return a character as git writes it between quotes."""
    if character in _LETTERS:
        letter = _LETTERS[character]
        return f"\\{letter}"
    if character.isascii() and character.isprintable():
        return character
    return f"\\{ord(character):03o}"
