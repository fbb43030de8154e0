"""HTTP: the one way to request an address, read a page, and download a file."""

from __future__ import annotations

import base64
import hashlib
import io
import ssl
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from core import files
from core.console import transfer
from core.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPResponse
    from pathlib import Path

_SECONDS = 60
_PARTIAL_CONTENT = 206
_MIRROR = "Try again, or name a mirror."


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an address answered: its page, or why there is none; status 0 if it did not answer at all."""

    text: str | None = None
    status: int = 0
    problem: str = ""


def has_secret(url: str) -> bool:
    """Return whether an address carries a user name or password, which no installer may be given."""
    return "@" in urlsplit(url).netloc


def without_secret(url: str) -> str:
    """Return an address as it may be shown."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def open_url(url: str, *, cert: str = "", **headers: str) -> HTTPResponse:
    """Request an HTTP address, with the user name and password that it may carry.

    Raises:
        OSError: It cannot be reached, or answers with an error (`urllib.error.HTTPError`).
        HTTPException: The answer breaks off.
        ValueError: It is not an HTTP address.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"}:
        raise ValueError(f"{url} is not an HTTP address")
    if has_secret(url):
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    request = urllib.request.Request(without_secret(url), headers=headers)  # noqa: S310 - HTTP, as seen above
    context = ssl.create_default_context(cafile=cert or None) if parts.scheme == "https" else None
    answer: HTTPResponse = urllib.request.urlopen(request, timeout=_SECONDS, context=context)  # noqa: S310 - the same
    return answer


@contextmanager
def reachable(url: str, *, hint: str = "Try again.") -> Iterator[None]:
    """Turn what `open_url` and its answer raise within into a `ServiceError`."""
    try:
        yield
    except (OSError, ValueError, HTTPException) as problem:
        reason = getattr(problem, "reason", problem)
        raise ServiceError(f"{without_secret(url)} could not be read: {reason}.", hint=hint) from problem


def fetch(url: str, *, cert: str = "") -> Answer:
    """Request a page, not a cached copy of it; no answer is an answer, too."""
    try:
        with open_url(url, cert=cert, **{"Cache-Control": "no-cache", "Accept": "text/html"}) as answer:
            return Answer(text=answer.read().decode("utf-8", "replace"), status=answer.status)
    except urllib.error.HTTPError as problem:
        with problem:
            return Answer(status=problem.code, problem=f"it answers {problem.code} {problem.reason}")
    except (OSError, ValueError, HTTPException) as problem:
        return Answer(problem=f"it cannot be reached ({getattr(problem, 'reason', problem)})")


def digest_of(url: str, *, cert: str = "") -> str:
    """Return the hex SHA-256 of a file, which is read for it.

    Raises:
        ServiceError: The address does not answer.
    """
    with reachable(url), open_url(url, cert=cert) as answer:
        return hashlib.file_digest(answer, "sha256").hexdigest()


def download(url: str, path: Path, *, sha256: str) -> None:
    """Download a file; it appears under its name only if it has the digest.

    A file with the digest that is there already is left alone.

    Raises:
        ServiceError: The address does not answer, or answers with other bytes.
    """
    if path.is_file() and files.sha256(path) == sha256:
        return
    with reachable(url, hint=_MIRROR):
        answer = open_url(url)
    size, found = int(answer.headers.get("Content-Length") or 0), hashlib.sha256()
    with answer, files.atomic(path) as out, transfer("fetch", files=1, size=size) as shown:
        # apart from errors of the disk
        while chunk := _chunk(answer, url):
            out.write(chunk)
            found.update(chunk)
            shown.advance(len(chunk))
        if found.hexdigest() != sha256:
            raise ServiceError(
                f"{url} has SHA-256 {found.hexdigest()}, and the data says {sha256}.",
                hint="Try again. If it stays so, the file is another one: do not use it.",
            )


def _chunk(answer: HTTPResponse, url: str) -> bytes:
    with reachable(url, hint=_MIRROR):
        return answer.read(files.CHUNK)


class RemoteFile(io.RawIOBase):
    """A remote file that is read where it is wanted; whole, if its server does not support ranges."""

    def __init__(self, url: str, cert: str) -> None:
        """Find out its size."""
        self._url, self._cert, self._at = url, cert, 0
        with open_url(url, cert=cert, Range="bytes=0-0") as answer:
            self._whole = None if answer.status == _PARTIAL_CONTENT else bytes(answer.read())
            said = str(answer.headers.get("Content-Range", "")).rpartition("/")[2]
            self._size = len(self._whole) if self._whole is not None else int(said)

    def seekable(self) -> bool:
        """Return true, as the base class does not."""
        return True

    def readable(self) -> bool:
        """Return true, as the base class does not."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read what comes next."""
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        if self._whole is not None:
            data = self._whole[self._at : end]
        else:
            with open_url(self._url, cert=self._cert, Range=f"bytes={self._at}-{end - 1}") as answer:
                data = bytes(answer.read())
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
