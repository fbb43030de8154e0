"""How this process's output is read: as a plain log (the default of tests), on a terminal, or by GitHub."""

import sys
from typing import Literal

import pytest

Reader = Literal["plain", "terminal", "github"]


def set_reader(monkeypatch: pytest.MonkeyPatch, reader: Reader, *, columns: int = 200) -> None:
    """Let output be read like this. A test or fixture that sets a terminal has asked for `capsys` before."""
    if reader == "github":
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
    else:
        monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    if reader == "terminal":
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
    # The class, because each phase of a test captures into an object of its own.
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _stream: reader == "terminal", raising=False)
