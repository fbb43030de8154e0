"""Servers on the loopback interface: of a store's keys, of pages, and of files behind a password."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from core import console
from core.errors import FatalError
from core.http import open_url
from core.stores import Store, Stored, headers_for


class RemoteFiles:
    """Files by name behind addresses with a password, which this process keeps to itself."""

    def __init__(self, urls: Mapping[str, str], *, cert: str | None) -> None:
        """Request nothing yet."""
        self._urls = urls
        self._cert = cert

    def find(self, key: str) -> Stored | None:
        """Look a file up."""
        url = self._urls.get(key)
        if url is None:
            return None
        with open_url(url, cert=self._cert) as response:
            size = int(response.headers["Content-Length"])
        return Stored(key=key, size=size, etag="", modified=0)

    @contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        """Open a file."""
        url = self._urls[key]
        with open_url(url, cert=self._cert) as response:
            yield cast("BinaryIO", response)


class _FileHandler(BaseHTTPRequestHandler):
    """Answers with pages, and with the files of a store."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any, store: Store | RemoteFiles, pages: Mapping[str, bytes]) -> None:  # noqa: ANN401 - the base class's
        self._store = store
        self._pages = pages
        super().__init__(*arguments)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing: the installer shows what it fetches."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        key = unquote(path).lstrip("/")
        if key.endswith("/"):
            key += "index.html"
        try:
            self._answer(key)
        except FatalError as problem:
            # What was promised cannot be kept: the client sees that the answer broke off.
            console.error(problem.message)
            self.close_connection = True
        except ConnectionError:
            self.close_connection = True

    do_HEAD = do_GET  # noqa: N815 - the base class's name

    def _answer(self, key: str) -> None:
        size = self._size(key)
        if size is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return

        content_type = headers_for(key)["ContentType"]
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command == "GET":
            self._send_content(key)

    def _send_content(self, key: str) -> None:
        page = self._pages.get(key)
        if page is not None:
            self.wfile.write(page)
            return
        with self._store.open(key) as stream:
            shutil.copyfileobj(stream, self.wfile)

    def _size(self, key: str) -> int | None:
        """Return the size of a page or a file; None where there is neither."""
        page = self._pages.get(key)
        if page is not None:
            return len(page)

        try:
            stored = self._store.find(key)
        except FatalError:  # an invalid key does not exist
            return None
        if stored is None:
            return None
        return stored.size


@contextmanager
def served_store(store: Store | RemoteFiles, pages: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """Serve a store's keys, with `pages` before its own, to this machine with this process's rights."""
    handler = partial(_FileHandler, store=store, pages=pages or {})
    with answering(handler) as address:
        yield address


@contextmanager
def answering(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Let a handler answer on a free port of the loopback interface, each request in a thread of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    poll_seconds = 0.05
    thread = Thread(target=server.serve_forever, args=(poll_seconds,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
