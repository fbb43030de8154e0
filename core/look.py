"""A look at a session from a flow's process: its own code decides, and ends where its work would begin.

What it prints is held back until it is known that there is nothing to do; the session says it all otherwise.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from core import console

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# the environment that the session would have
_SESSION: ContextVar[Mapping[str, str] | None] = ContextVar("session", default=None)


class WorkLeft(BaseException):
    """The end of a look at a session that has work; no error, so that nothing handles it as one."""


def environment(own: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of the session that is looked at, else this process's `own`."""
    found = _SESSION.get()
    return own if found is None else found


def work() -> None:
    """Begin work, which in a look is left to the session."""
    if _SESSION.get() is not None:
        raise WorkLeft


@contextmanager
def at(session: Mapping[str, str]) -> Iterator[None]:
    """Only look while the block runs, in the environment of a session."""
    token = _SESSION.set(session)
    try:
        with console.SCREEN.holding():
            yield
    finally:
        _SESSION.reset(token)
