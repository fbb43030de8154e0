"""A store over HTTP on this machine: installers read what this process may read, or has not written yet."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote, urlsplit

from core import console
from core.errors import FatalError
from core.serving import answering
from core.stores import headers_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from core.stores import Store


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any, store: Store, pages: Mapping[str, bytes]) -> None:  # noqa: ANN401 - the base class's
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
def served_store(store: Store, pages: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """Serve a store's keys on a free port of the loopback interface, read with this process's rights.

    Args:
        store: The store; a key that ends in a slash is its ``index.html``.
        pages: Key to bytes of pages that take the place of the store's own.

    Yields:
        Its address, without a slash at the end.
    """
    with answering(partial(_Handler, store=store, pages=pages or {})) as address:
        yield address
