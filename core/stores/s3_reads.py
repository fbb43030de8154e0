"""Objects on their way from S3, over connections that break."""

from __future__ import annotations

import hashlib
import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from core import files
from core.errors import ServiceError, StoreError, require_not_stopped
from core.stores.s3_errors import REFUSED_CONDITIONS, code_of, explained

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from _typeshed import WriteableBuffer
    from botocore.response import StreamingBody

    from core.stores.s3_client import Connection

_BUFFER = 1 << 20
# A broken connection loses at most this much of what has arrived.
_STEP = 1 << 18
# A stream that gains nothing in so many attempts has broken off.
_ATTEMPTS = 8


class ObjectStream(io.RawIOBase):
    """An object's bytes from an offset on. After a broken connection it requests the missing ones.

    With `etag`, it reads only the object of that ETag; otherwise the one that it meets first, to its end.
    """

    def __init__(
        self,
        connection: Connection,
        place: Mapping[str, Any],
        *,
        store_url: str,
        key: str,
        start: int = 0,
        etag: str | None = None,
    ) -> None:
        """Open an object."""
        super().__init__()
        self._connection = connection
        self._place = place
        self._store_url = store_url
        self._key = key
        self.position = start
        self.etag = etag
        self.size = 0
        self.metadata: Mapping[str, str] = {}
        # Set before the request, which may fail: the stream is closed then, too.
        self._body: StreamingBody | None = None
        self._body = self._request()

    @property
    def _url(self) -> str:
        return f"{self._store_url}/{self._key}"

    def readable(self) -> bool:
        """Return true, as the base class does not."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read what comes next; nothing only at the end of the object."""
        view = memoryview(buffer).cast("B")
        remaining = self.size - self.position
        if remaining <= 0 or not len(view):
            return 0

        require_not_stopped()
        for _attempt in range(_ATTEMPTS):
            # botocore repeats requests, but not the reading of a body.
            with suppress(BotoCoreError, HTTPError, OSError):
                if self._body is None:
                    self._body = self._request()
                if data := self._body.read(min(len(view), _STEP, remaining)):
                    view[: len(data)] = data
                    self.position += len(data)
                    return len(data)
            self._drop_body()
        raise ServiceError(
            f"{self._url}: reading broke off at byte {self.position} of {self.size}.",
            hint="Run the same command again.",
        )

    def _request(self) -> StreamingBody:
        """Request the object from here on."""
        conditions: dict[str, Any] = {}
        if self.etag is not None:
            conditions["IfMatch"] = f'"{self.etag}"'
        if self.position:
            conditions["Range"] = f"bytes={self.position}-"
        with explained(self._store_url, key=self._key, identity=self._connection.identity):
            try:
                response = self._connection.client.get_object(**self._place, **conditions)
            except ClientError as problem:
                if self.etag is not None and code_of(problem) in REFUSED_CONDITIONS:
                    raise self._replaced() from problem
                raise

        body = response["Body"]
        etag = response["ETag"].strip('"')
        if self.etag not in {None, etag}:
            body.close()
            raise self._replaced()
        # The status says nothing: some servers answer for a part with 200, others ignore the range.
        content_range = response.get("ContentRange")
        start = 0
        if content_range:
            start = int(content_range.removeprefix("bytes ").partition("-")[0])
        if start != self.position:
            body.read(self.position - start)

        self.etag = etag
        self.metadata = response["Metadata"]
        self.size = start + response["ContentLength"]
        return body

    def _replaced(self) -> StoreError:
        return StoreError(f"{self._url} was replaced while it was read.", hint="Run the same command again.")

    def _drop_body(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def close(self) -> None:
        """Close the connection."""
        self._drop_body()
        super().close()


def buffered(stream: ObjectStream) -> BinaryIO:
    """Return a stream that small reads do not slow down."""
    return io.BufferedReader(stream, _BUFFER)


def append(stream: ObjectStream, path: Path) -> str:
    """Append the bytes of a stream to a file that holds those before it; return the SHA-256 of all."""
    digest = hashlib.sha256()
    with stream, path.open("r+b" if stream.position else "wb") as file:
        while (remaining := stream.position - file.tell()) > 0:
            data = file.read(min(files.CHUNK, remaining))
            if not data:
                raise StoreError(f"{path} became shorter while it was read.")
            digest.update(data)
        file.truncate()

        buffer = memoryview(bytearray(_BUFFER))
        while count := stream.readinto(buffer):
            file.write(buffer[:count])
            digest.update(buffer[:count])
    return digest.hexdigest()
