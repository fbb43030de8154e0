"""Where a file and its run are: in a store, or behind an address; and fetching the file."""

from __future__ import annotations

import re
import ssl
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from core import files
from core.console import transfer
from core.errors import MissingInputError, ServiceError, UsageError
from core.stores.directory import DirectoryStore
from core.stores.location import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from http.client import HTTPResponse

    from core.cli.options import Common
    from core.stores import Store

_WEB, _BUCKET, _FILE = ("https://", "http://"), "s3://", "file://"
_IN_RUN = re.compile(r"(?P<run>.+)/python/(?P<group>[^/]+)/[^/]+")
# what a server answers for an object that is not there; a bucket that may not be listed forbids
_ABSENT = frozenset({403, 404, 410})
_TIMEOUT = 60.0
_CHUNK = 1 << 20
_MOST = 64 << 20


class RunPlace(Protocol):
    """A run's outputs, by path below its prefix."""

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        ...

    def read(self, path: str) -> bytes | None:
        """Read a small file; None where there is none."""
        ...

    def paths(self, folder: str) -> Sequence[str] | None:
        """List files at every depth of a folder; None where listing is not possible."""
        ...


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run in a store."""

    store: Store
    prefix: str

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        return f"{self.store.url}/{self.prefix}"

    def read(self, path: str) -> bytes | None:
        """Read a small file; None where there is none."""
        key = f"{self.prefix}/{path}"
        return self.store.read(key) if self.store.find(key) else None

    def paths(self, folder: str) -> Sequence[str]:
        """List files at every depth of a folder."""
        return [one.key.removeprefix(f"{self.prefix}/") for one in self.store.list(f"{self.prefix}/{folder}")]


@dataclass(frozen=True, kw_only=True)
class ServedRun:
    """A run behind an address, which serves files and no listings."""

    url: str
    cert: str = ""

    def read(self, path: str) -> bytes | None:
        """Read a small file; None where there is none."""
        with _answer(f"{self.url}/{quote(path)}", cert=self.cert) as answer:
            content = answer.read(_MOST + 1) if answer else None
        if content is not None and len(content) > _MOST:
            raise ServiceError(f"{self.url}/{path} is larger than any such file can be.")
        return content

    def paths(self, folder: str) -> None:
        """Return None: a server lists nothing."""


@dataclass(frozen=True, kw_only=True)
class Located:
    """A file, and the run that it is compared with."""

    path: Path
    run: RunPlace
    group: str


def locate(file: str, common: Common, folder: Path, *, named: bool, cert: str = "") -> Located:
    """Find a file and its run; one from elsewhere is fetched.

    A file that lies in a run's outputs is of that run. For any other, and where the run is named, it is the
    run of the options.
    """
    if file.startswith(_WEB):
        path, run, group = _served(file, folder, cert)
    elif file.startswith(_BUCKET):
        path, run, group = _stored(file, folder, common)
    else:
        path, run, group = _here(file)
    if named or run is None:
        run = StoredRun(store=common.open_for_reading(), prefix=common.outputs.prefix)
        group = common.artifact_group
    return Located(path=path, run=run, group=group)


def _served(url: str, folder: Path, cert: str) -> tuple[Path, RunPlace | None, str]:
    parts = urlsplit(url)
    name = PurePosixPath(unquote(parts.path)).name
    if not name:
        raise UsageError(f"{url} is not the address of a file.", hint="Give the wheel's own address.")
    path = folder / name
    with _answer(url, cert=cert) as answer:
        if answer is None:
            raise MissingInputError(f"There is no {url}.", hint="See whether + is written %2B in it.")
        size, came = int(answer.headers.get("Content-Length") or 0), 0
        with transfer("fetch", files=1, size=size) as shown, files.atomic(path) as out:
            while chunk := answer.read(_CHUNK):
                out.write(chunk)
                came += len(chunk)
                shown.advance(len(chunk))
        if size and came != size:
            raise ServiceError(f"{url} broke off after {came} of {size} bytes.", hint="Try again.")
    found = _IN_RUN.fullmatch(unquote(parts.path))
    if found is None:
        return path, None, ""
    base = urlunsplit(parts._replace(path=quote(found["run"]), query="", fragment=""))
    return path, ServedRun(url=base, cert=cert), found["group"]


def _stored(uri: str, folder: Path, common: Common) -> tuple[Path, RunPlace | None, str]:
    bucket, _, key = uri.removeprefix(_BUCKET).partition("/")
    if not key:
        raise UsageError(f"{uri} is not the address of a file.", hint="Write it as s3://BUCKET/KEY.")
    store = open_store(f"{_BUCKET}{bucket}", root=common.root)
    path, found = store.fetch(key, folder), _IN_RUN.fullmatch(key)
    if found is None:
        return path, None, ""
    return path, StoredRun(store=store, prefix=found["run"]), found["group"]


def _here(file: str) -> tuple[Path, RunPlace | None, str]:
    path = Path(
        urllib.request.url2pathname(urlsplit(file).path) if file.startswith(_FILE) else file
    ).absolute()
    if not path.is_file():
        raise MissingInputError(f"There is no file {path}.", hint="Give a wheel, or its address.")
    found = _IN_RUN.fullmatch(path.as_posix())
    run = Path(found["run"]) if found else None
    if found is None or run is None or not (run / "manifests").is_dir():
        return path, None, ""
    return path, StoredRun(store=DirectoryStore(run.parent), prefix=run.name), found["group"]


@contextmanager
def _answer(url: str, *, cert: str) -> Iterator[HTTPResponse | None]:
    """Request an address; None where it has nothing."""
    context = ssl.create_default_context(cafile=cert or None) if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT, context=context) as answer:  # noqa: S310 - http(s), by who calls
            yield answer
    except urllib.error.HTTPError as problem:
        with problem:
            if problem.code not in _ABSENT:
                raise ServiceError(f"{url} answers {problem.code} {problem.reason}.") from problem
        yield None
    except (OSError, ValueError, HTTPException) as problem:
        reason = getattr(problem, "reason", problem)
        raise ServiceError(f"{url} cannot be reached: {reason}.", hint="Try again later.") from problem
