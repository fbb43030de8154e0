"""A folder over HTTP on this machine, as users read an index."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from typing import TYPE_CHECKING

from core.http import answering

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Quiet(BaseHTTPRequestHandler):
    """Prints nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing."""


class Folder(Quiet, SimpleHTTPRequestHandler):
    """Answers from a folder."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of the loopback interface."""
    with answering(partial(Folder, directory=str(folder))) as address:
        yield address
