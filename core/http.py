"""What a wheel behind an address requires, without fetching it: its sidecar, else a few of its bytes."""

from __future__ import annotations

import base64
import hashlib
import io
import ssl
import urllib.error
import urllib.request
import zipfile
from contextlib import contextmanager
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from core import files
from core.cli.progress import transfer
from core.errors import ServiceError, WheelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPResponse
    from pathlib import Path


_SECONDS = 60
_AHEAD = 1 << 18  # the directory at a wheel's end and its METADATA beside it fit into one request


def has_secret(url: str) -> bool:
    """Say whether an address carries a user's name or password, which no installer may be given."""
    return "@" in urlsplit(url).netloc


def without_secret(url: str) -> str:
    """Return an address as it may be shown."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def open_url(url: str, *, cert: str = "", **headers: str) -> HTTPResponse:
    """Ask an address of HTTP, with the user's name and password that it may carry."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"}:
        raise ValueError(f"{url} is no address of HTTP")
    if has_secret(url):
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    request = urllib.request.Request(without_secret(url), headers=headers)  # noqa: S310 - HTTP, as seen above
    context = ssl.create_default_context(cafile=cert or None) if parts.scheme == "https" else None
    answer: HTTPResponse = urllib.request.urlopen(request, timeout=_SECONDS, context=context)  # noqa: S310 - the same
    return answer


def read_metadata(url: str, *, cert: str = "") -> bytes:
    """Read a remote wheel's METADATA: of its sidecar (PEP 658), else by ranges, else of the whole file."""
    shown = without_secret(url)
    try:
        with open_url(f"{url}.metadata", cert=cert) as answer:
            return bytes(answer.read())
    except (OSError, HTTPException):
        pass  # most indexes have none
    try:
        with zipfile.ZipFile(io.BufferedReader(_Ranges(url, cert), _AHEAD)) as archive:
            found = [
                one
                for one in archive.namelist()
                if one.count("/") == 1 and one.endswith(".dist-info/METADATA")
            ]
            if len(found) == 1:
                return archive.read(found[0])
    except (OSError, HTTPException) as problem:
        reason = getattr(problem, "reason", problem)
        raise ServiceError(f"{shown} could not be read: {reason}.", hint="Try again.") from problem
    except zipfile.BadZipFile as problem:
        raise WheelError(f"{shown} is no wheel: {problem}.") from problem
    raise WheelError(f"{shown} is no wheel: it has no METADATA.")


class _Ranges(io.RawIOBase):
    """A remote file that is read where it is asked for; whole, if its server knows no ranges."""

    def __init__(self, url: str, cert: str) -> None:
        self._url, self._cert, self._at = url, cert, 0
        with open_url(url, cert=cert, Range="bytes=0-0") as answer:
            partial = answer.status == 206  # noqa: PLR2004 - HTTP's Partial Content
            self._whole = None if partial else bytes(answer.read())
            said = str(answer.headers.get("Content-Range", "")).rpartition("/")[2]
            self._size = len(self._whole) if self._whole is not None else int(said)

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
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


_CHUNK = 1 << 20
_DOWNLOAD_SECONDS = 60


def download(url: str, path: Path, *, sha256: str) -> None:
    """Download a file; it appears under its name only if it has the digest.

    Args:
        url: Its address, of HTTP.
        path: Where it goes; a file with the digest that is there already is left alone.
        sha256: Its digest, hex.

    Raises:
        ServiceError: The address does not answer, or answers with other bytes.
    """
    if path.is_file() and files.sha256(path) == sha256:
        return
    if not url.startswith(("https://", "http://")):
        raise ServiceError(f"{url} is no address of HTTP.", hint="Correct the data, or the mirror.")
    with _answer(url) as answer, files.atomic(path) as out:
        size = int(answer.headers.get("Content-Length") or 0)
        with transfer("fetch", files=1, size=size) as shown:
            found = hashlib.sha256()
            while chunk := _read(answer, url):
                out.write(chunk)
                found.update(chunk)
                shown.advance(len(chunk))
        if found.hexdigest() != sha256:
            raise ServiceError(
                f"{url} has SHA-256 {found.hexdigest()}, and the data says {sha256}.",
                hint="Try again. If it stays so, the file is another one: do not use it.",
            )


@contextmanager
def _answer(url: str) -> Iterator[HTTPResponse]:
    try:
        answer = urllib.request.urlopen(url, timeout=_DOWNLOAD_SECONDS)  # noqa: S310 - HTTP, as the caller has seen
    except (OSError, ValueError, HTTPException) as problem:
        raise _broken(url, problem) from problem
    with answer:
        yield answer


def _read(answer: HTTPResponse, url: str) -> bytes:
    try:
        return answer.read(_CHUNK)
    except (OSError, HTTPException) as problem:
        raise _broken(url, problem) from problem


def _broken(url: str, problem: Exception) -> ServiceError:
    reason = getattr(problem, "reason", problem)
    return ServiceError(f"{url} could not be downloaded: {reason}.", hint="Try again, or name a mirror.")
