"""Commands as people type them into their shell: a POSIX shell, or cmd.exe on Windows.

PowerShell takes the same words as cmd.exe. Only a variable before a command is written for cmd.exe alone, as
PowerShell has another syntax for it.
"""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence

# Letters that mean themselves in cmd.exe and in PowerShell.
_PLAIN_WORD = re.compile(r"[\w.:/\\+=-]+")


def command_line(words: Sequence[str], *, variables: Mapping[str, str] | None = None) -> str:
    """Return a command, with variables of its own, as this platform's shell takes it."""
    if sys.platform == "win32":
        return windows_command_line(words, variables=variables)
    return posix_command_line(words, variables=variables)


def posix_command_line(words: Sequence[str], *, variables: Mapping[str, str] | None = None) -> str:
    """Return a command as a POSIX shell takes it."""
    # A name in quotes would be a program's.
    assignments = [f"{name}={shlex.quote(value)}" for name, value in (variables or {}).items()]
    return " ".join([*assignments, shlex.join(words)])


def windows_command_line(words: Sequence[str], *, variables: Mapping[str, str] | None = None) -> str:
    """Return a command as cmd.exe takes it; its variables stay set in that window."""
    assignments = [f'set "{name}={value}" && ' for name, value in (variables or {}).items()]
    quoted_words = [_quoted_for_windows(word) for word in words]
    return "".join(assignments) + " ".join(quoted_words)


def _quoted_for_windows(word: str) -> str:
    if _PLAIN_WORD.fullmatch(word):
        return word
    # As the C runtime reads it: backslashes stand for themselves, but for those before a quotation mark.
    escaped_quotes = re.sub(r'(\\*)"', r'\1\1\\"', word)
    escaped_end = re.sub(r"(\\+)$", r"\1\1", escaped_quotes)
    return f'"{escaped_end}"'
