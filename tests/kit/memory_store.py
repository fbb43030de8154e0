"""A store in this process's memory, which a test can stop, watch and interrupt at every call and write."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from core.errors import ConflictError, MissingInputError
from core.stores import Content, PutResult, Store, Stored, join_content, refuse_other_bytes, require_digest


class KilledError(BaseException):
    """The process is gone: nothing catches it, and nothing works any more."""


@dataclass
class MemoryStore:
    """A store whose objects are a dictionary.

    `before` gets the kind and the key of each call, `on_write` and `after_write` the number and the key of
    each write; what they raise ends it. A store that is `dead` raises KilledError at every call.
    `ignores_conditions` is what some servers do with ``If-Match``. `moments` keeps the number of the write
    that made each object, as its modification time.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    moments: dict[str, int] | None = None
    ignores_conditions: bool = False
    folder_pages: bool = True
    calls: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[str, str], object] = lambda _call, _key: None
    lock: threading.RLock = field(default_factory=threading.RLock)
    writes: int = 0
    on_write: Callable[[int, str], object] = lambda _number, _key: None
    after_write: Callable[[int, str], object] = lambda _number, _key: None
    dead: bool = False

    url = "memory"

    def url_of(self, key: str) -> str:
        return key

    def keeps_folder_pages(self, prefix: str) -> bool:  # noqa: ARG002 - the same everywhere
        return self.folder_pages

    def copy_of(self, **changes: object) -> MemoryStore:
        other = MemoryStore(objects=dict(self.objects), folder_pages=self.folder_pages)
        other.ignores_conditions = self.ignores_conditions
        for name, value in changes.items():
            setattr(other, name, value)
        return other

    def keys_of_calls(self, call_name: str) -> tuple[str, ...]:
        """Return the keys of the calls of a name, as "read", in their order."""
        return tuple(key for name, key in self.calls if name == call_name)

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        self._note_call("list", prefix)
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        with self.lock:
            keys = sorted(key for key in self.objects if key.startswith(folder))
            return [self._stored(key) for key in keys if recursive or "/" not in key.removeprefix(folder)]

    def folders(self, prefix: str) -> Sequence[str]:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        names = [stored_object.key.removeprefix(folder) for stored_object in self.list(prefix)]
        return sorted({name.partition("/")[0] for name in names if "/" in name})

    def find(self, key: str) -> Stored | None:
        self._note_call("find", key)
        with self.lock:
            return self._stored(key) if key in self.objects else None

    def digest(self, key: str) -> str:
        return hashlib.sha256(self.read(key)).hexdigest()

    def read(self, key: str) -> bytes:
        self._note_call("read", key)
        with self.lock:
            if key not in self.objects:
                raise MissingInputError(f"{key} is not there.")
            return self.objects[key]

    def open(self, key: str) -> BinaryIO:
        return io.BytesIO(self.read(key))

    def fetch(self, key: str, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / key.rpartition("/")[2]
        path.write_bytes(self.read(key))
        return path

    def put_file(
        self,
        key: str,
        source: Path,
        *,
        sha256: str,
        replace: bool,
        is_known_absent: bool = False,  # noqa: ARG002 - a dictionary is looked at either way
    ) -> PutResult:
        data = source.read_bytes()
        assert hashlib.sha256(data).hexdigest() == sha256
        return self.put_bytes(key, data, replace=replace)

    def put_bytes(
        self,
        key: str,
        data: Content,
        *,
        if_match: str | None = None,
        replace: bool = True,
        is_known_absent: bool = False,  # noqa: ARG002 - a dictionary is looked at either way
    ) -> PutResult:
        # the condition is compared with what is there when the write arrives, not when it set off
        number = self._begin_write("put", key)
        content = join_content(data)
        with self.lock:
            self._require_alive()
            present = self.objects.get(key)
            if present == content:
                return PutResult("unchanged", self._stored(key).etag)
            if present is not None and not replace:
                raise refuse_other_bytes(key, self.url)

            etag = self._stored(key).etag if present is not None else ""
            is_met = if_match is None or etag == if_match
            if not is_met and not self.ignores_conditions:
                raise ConflictError(f"{key} was written by somebody else.")

            self.objects[key] = content
            if self.moments is not None:
                self.moments[key] = number
            etag = self._stored(key).etag
        self.after_write(number, key)
        return PutResult("written", etag)

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str) -> PutResult:
        require_digest(source, source_key, source.digest(source_key), sha256)
        return self.put_bytes(key, source.read(source_key), replace=False)

    def delete(self, key: str) -> None:
        number = self._begin_write("delete", key)
        with self.lock:
            self._require_alive()
            self.objects.pop(key, None)
        self.after_write(number, key)

    def _note_call(self, call: str, key: str) -> None:
        self._require_alive()
        self.before(call, key)
        self.calls.append((call, key))

    def _begin_write(self, call: str, key: str) -> int:
        self._note_call(call, key)
        with self.lock:
            self.writes += 1
            number = self.writes
        self.on_write(number, key)
        return number

    def _require_alive(self) -> None:
        if self.dead:
            raise KilledError

    def _stored(self, key: str) -> Stored:
        data = self.objects[key]
        etag = hashlib.md5(data).hexdigest()  # noqa: S324 - as servers do
        modified = (self.moments or {}).get(key, 0)
        return Stored(key=key, size=len(data), etag=etag, modified=modified)
