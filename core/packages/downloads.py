"""Files from elsewhere, by address and digest."""

from __future__ import annotations

import hashlib
import urllib.request
from contextlib import contextmanager
from http.client import HTTPException
from typing import TYPE_CHECKING

from core import files
from core.cli.progress import transfer
from core.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPResponse
    from pathlib import Path

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
