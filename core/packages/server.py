"""A folder over HTTP on this machine, so that installers read an index as users do."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from threading import Thread
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast
from urllib.parse import unquote, urlsplit

from core import console
from core.errors import FatalError, ServiceError
from core.http import open_url, without_secret
from core.stores import Stored, headers_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from http.client import HTTPResponse
    from pathlib import Path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: the installer tells what it fetches."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of the loopback interface."""
    with answering(partial(_Quiet, directory=str(folder))) as address:
        yield address


@contextmanager
def answering(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Let a handler answer on a free port of the loopback interface, each request in a thread of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Readable(Protocol):
    """What is served of a store."""

    def find(self, key: str) -> Stored | None:
        """Look one object up."""
        ...

    def open(self, key: str) -> BinaryIO:
        """Open an object for reading it once."""
        ...


class RemoteFiles:
    """Files behind addresses with a password, which this process keeps to itself."""

    def __init__(self, urls: Mapping[str, str], *, cert: str) -> None:
        self._urls = urls
        self._cert = cert

    def find(self, key: str) -> Stored | None:
        """Look a file up by its name."""
        if key not in self._urls:
            return None
        with self._opened(key) as answer:
            return Stored(key=key, size=int(answer.headers["Content-Length"]), etag="", modified=0)

    def open(self, key: str) -> BinaryIO:
        """Open a file by its name."""
        return cast("BinaryIO", self._opened(key))

    def _opened(self, key: str) -> HTTPResponse:
        try:
            return open_url(self._urls[key], cert=self._cert)
        except (OSError, HTTPException) as problem:
            raise ServiceError(
                f"{without_secret(self._urls[key])} could not be read: {problem}."
            ) from problem


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any, store: Readable, pages: Mapping[str, bytes]) -> None:  # noqa: ANN401 - the base class's
        self._store = store
        self._pages = pages
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer with an object's bytes."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer with what is known of an object."""
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: the installer tells what it fetches."""

    def _answer(self, *, with_body: bool) -> None:
        key = unquote(urlsplit(self.path).path).lstrip("/")
        key += "index.html" if key.endswith("/") else ""
        try:
            size = self._size(key)
            if size is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", headers_for(key).content_type)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if with_body:
                with self._opened(key) as stream:
                    shutil.copyfileobj(stream, self.wfile)
        except FatalError as problem:
            # what was promised cannot be kept: the client sees that the answer broke off
            console.error(problem.message)
            self.close_connection = True
        except ConnectionError:
            self.close_connection = True

    def _size(self, key: str) -> int | None:
        if key in self._pages:
            return len(self._pages[key])
        with suppress(FatalError):  # a path that is no key is not there
            found = self._store.find(key)
            return found.size if found else None
        return None

    def _opened(self, key: str) -> BinaryIO:
        return BytesIO(self._pages[key]) if key in self._pages else self._store.open(key)


@contextmanager
def served_store(store: Readable, pages: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """Serve a store's keys on a free port of the loopback interface, read with this process's rights."""
    with answering(partial(_Handler, store=store, pages=pages or {})) as address:
        yield address
