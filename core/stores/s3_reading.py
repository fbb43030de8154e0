"""Reading an object over connections that break: what is missing is asked for again, and nothing else is."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, BinaryIO

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from core import files
from core.errors import ServiceError, StoreError
from core.stores.s3_errors import LOST, code_of, explained

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from _typeshed import WriteableBuffer
    from botocore.response import StreamingBody

    from core.stores.s3_client import Connection

_BUFFER = 1 << 20
# what is lost of what came, where a connection breaks
_STEP = 1 << 18
# a stream that gains nothing this often has broken off
_TRIES = 8


class ObjectStream(io.RawIOBase):
    """An object's bytes from an offset on; a broken connection is followed by another one."""

    def __init__(
        self,
        connection: Connection,
        place: Mapping[str, Any],
        url: str,
        key: str,
        *,
        start: int = 0,
        etag: str = "",
    ) -> None:
        """Open an object."""
        super().__init__()
        self._connection, self._place = connection, dict(place)
        self._url, self._key = url, key
        self.position, self.etag, self.metadata = start, etag.strip('"'), dict[str, str]()
        self.size = -1
        self._body: StreamingBody | None = None
        self._ask()

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read what comes next; nothing only at the end of the object."""
        view = memoryview(buffer).cast("B")
        if self.position >= self.size or not len(view):
            return 0
        for _ in range(_TRIES):
            try:
                count = self._next(view)
            except (BotoCoreError, HTTPError, OSError):
                count = 0
            if count:
                self.position += count
                return count
            self._drop()
        raise ServiceError(
            f"{self._url}/{self._key}: reading broke off at byte {self.position} of {self.size}.",
            hint="Run the same command again.",
        )

    def readall(self) -> bytes:
        """Read what is left."""
        found = bytearray()
        buffer = memoryview(bytearray(_BUFFER))
        while count := self.readinto(buffer):
            found += buffer[:count]
        return bytes(found)

    def _next(self, view: memoryview) -> int:
        body = self._body or self._ask()
        data = body.read(min(len(view), _STEP, self.size - self.position))
        view[: len(data)] = data
        return len(data)

    def _ask(self) -> StreamingBody:
        asked: dict[str, Any] = {"IfMatch": f'"{self.etag}"'} if self.etag else {}
        if self.position:
            asked["Range"] = f"bytes={self.position}-"
        with explained(self._url, key=self._key, identity=self._connection.identity):
            try:
                answer = self._connection.client.get_object(**self._place, **asked)
            except ClientError as problem:
                if self.etag and code_of(problem) in LOST:
                    raise self._replaced() from problem
                raise
        body, etag = answer["Body"], answer["ETag"].strip('"')
        if self.etag not in {"", etag}:
            body.close()
            raise self._replaced()
        # the status says nothing: some servers answer for a part with 200
        part = answer.get("ContentRange", "")
        start = int(part.removeprefix("bytes ").partition("-")[0]) if part else 0
        if start != self.position:
            body.read(self.position - start)
        self._body, self.etag, self.metadata = body, etag, answer["Metadata"]
        self.size = start + answer["ContentLength"]
        return body

    def _replaced(self) -> StoreError:
        return StoreError(
            f"{self._url}/{self._key} was replaced while it was read.", hint="Run the same command again."
        )

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def close(self) -> None:
        """Close the connection that is left."""
        if not self.closed:
            self._drop()
        super().close()


def buffered(stream: ObjectStream) -> BinaryIO:
    """Give a stream that small reads do not slow down."""
    return io.BufferedReader(stream, _BUFFER)


def fetch(stream: ObjectStream, part: Path) -> str:
    """Add what a stream still has to a file that holds what comes before it."""
    digest = hashlib.sha256()
    with stream, part.open("r+b" if stream.position else "wb") as file:
        while file.tell() < stream.position:
            digest.update(data := file.read(min(files.CHUNK, stream.position - file.tell())))
            if not data:
                raise StoreError(f"{part} became shorter while it was read.")
        file.truncate()
        buffer = memoryview(bytearray(_BUFFER))
        while count := stream.readinto(buffer):
            file.write(buffer[:count])
            digest.update(buffer[:count])
    return digest.hexdigest()
