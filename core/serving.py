"""A folder over HTTP on this machine, so that installers read an index as users do."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

from core.errors import MissingInputError
from core.stores.directory import DirectoryStore
from core.stores.overlay import holding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from core.outputs import RunOutputs
    from core.records import FileRecord
    from core.stores import Store


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: the installer tells what it fetches."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of the loopback interface.

    Yields:
        Its address, without a slash at the end.
    """
    with answering(partial(_Quiet, directory=str(folder))) as address:
        yield address


@contextmanager
def answering(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Let a handler answer on a free port of the loopback interface, each request in a thread of its own.

    Args:
        handler: Makes what answers one request; a class of `http.server`, or its partial.

    Yields:
        The server's address, without a slash at the end.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def flat_page(
    store: Store, outputs: RunOutputs, artifact_group: str, wanted: Sequence[FileRecord]
) -> Iterator[str]:
    """Give the address of a group's flat page, which must list what the records promise.

    Args:
        store: Where the run's outputs live; a folder is served while the address is used.
        outputs: The run.
        artifact_group: The group.
        wanted: The recorded files.

    Raises:
        MissingInputError: There is no page, or it lacks one of the files.
    """
    key = f"{outputs.python_prefix(artifact_group)}/index.html"
    hint = "Write the pages: nox -s index (with the same --run-id and --store)."
    store = holding(store, key)
    if store.find(key) is None:
        raise MissingInputError(f"{store.url}/{key} is not there.", hint=hint)
    page = store.read(key).decode()
    absent = [one.name for one in wanted if f">{one.name}</a>" not in page or one.sha256 not in page]
    if absent:
        raise MissingInputError(
            f"{store.url}/{key} does not list {', '.join(absent)} as recorded.", hint=hint
        )
    if isinstance(store, DirectoryStore):
        with served(store.root) as url:
            yield f"{url}/{key}"
    else:
        yield store.url_of(key)
