"""A folder over HTTP on this machine, as users read an index."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path

from core.http_server import answering


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


class RefusingServer(Quiet):
    """Answers every request with 403, as a bucket does for what may not be read."""

    def do_GET(self) -> None:
        """Refuse."""
        self.send_error(403)
