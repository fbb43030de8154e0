"""A store in this process's memory, that can be stopped, watched and interrupted at every write."""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

import pytest

from core.errors import ConflictError, MissingInputError
from core.stores import Content, Outcome, Store, Stored, refuse_other_bytes, require_digest, whole

_LINK = re.compile(r'href="([^"#]+)#sha256=([0-9a-f]{64})"([^>]*)')


class KilledError(BaseException):
    """The process is gone: nothing catches it, and nothing works any more."""


@dataclass
class MemoryStore:
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

    def keeps_folder_pages(self, prefix: str) -> bool:  # noqa: ARG002 - everywhere
        return self.folder_pages

    def copy_of(self, **changes: object) -> MemoryStore:
        other = MemoryStore(objects=dict(self.objects), folder_pages=self.folder_pages)
        other.ignores_conditions = self.ignores_conditions
        for name, value in changes.items():
            setattr(other, name, value)
        return other

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        self._asked("list", prefix)
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        with self.lock:
            keys = sorted(key for key in self.objects if key.startswith(folder))
            return [self._stored(key) for key in keys if recursive or "/" not in key.removeprefix(folder)]

    def folders(self, prefix: str) -> Sequence[str]:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        below = (one.key.removeprefix(folder) for one in self.list(prefix))
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    def find(self, key: str) -> Stored | None:
        self._asked("find", key)
        with self.lock:
            return self._stored(key) if key in self.objects else None

    def digest(self, key: str) -> str:
        return hashlib.sha256(self.read(key)).hexdigest()

    def read(self, key: str) -> bytes:
        self._asked("read", key)
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
        absent: bool = False,  # noqa: ARG002 - a dictionary is looked at either way
    ) -> Outcome:
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
        absent: bool = False,  # noqa: ARG002 - a dictionary is looked at either way
    ) -> Outcome:
        # the condition is compared with what is there when the write arrives, not when it set off
        number, data = self._begun("put", key), whole(data)
        with self.lock:
            self._live()
            present = self.objects.get(key)
            if present == data:
                return "unchanged"
            if present is not None and not replace:
                raise refuse_other_bytes(key, self.url)
            etag = self._stored(key).etag if present is not None else ""
            lost = if_match is not None and etag != if_match
            if lost and not self.ignores_conditions:
                raise ConflictError(f"{key} was written by somebody else.")
            self.objects[key] = data
            if self.moments is not None:
                self.moments[key] = number
        self.after_write(number, key)
        return "written"

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str) -> Outcome:
        require_digest(source, source_key, sha256)
        return self.put_bytes(key, source.read(source_key), replace=False)

    def delete(self, key: str) -> None:
        number = self._begun("delete", key)
        with self.lock:
            self._live()
            self.objects.pop(key, None)
        self.after_write(number, key)

    def _asked(self, call: str, key: str) -> None:
        self._live()
        self.before(call, key)
        self.calls.append((call, key))

    def _begun(self, call: str, key: str) -> int:
        self._asked(call, key)
        with self.lock:
            self.writes += 1
            number = self.writes
        self.on_write(number, key)
        return number

    def _live(self) -> None:
        if self.dead:
            raise KilledError

    def _stored(self, key: str) -> Stored:
        data = self.objects[key]
        etag, modified = hashlib.md5(data).hexdigest(), (self.moments or {}).get(key, 0)  # noqa: S324
        return Stored(key=key, size=len(data), etag=etag, modified=modified)


def audit(store: MemoryStore, area: str = "v2") -> int:
    """Hold every page to its word: what it lists is there, whole, with its metadata.

    Returns:
        How many links there were.
    """
    with store.lock:
        objects = dict(store.objects)
    links = 0
    for key, page in objects.items():
        if not key.startswith(f"{area}/") or not key.endswith(".html"):
            continue
        folder = key.rpartition("/")[0]
        for href, sha256, rest in _LINK.findall(page.decode()):
            links += 1
            target = _joined(folder, unquote(href))
            assert target in objects, f"{key} lists {target}, which does not exist"
            assert hashlib.sha256(objects[target]).hexdigest() == sha256
            metadata = re.search(r'data-core-metadata="sha256=([0-9a-f]{64})"', rest)
            assert bool(metadata) == target.endswith(".whl")
            if metadata:
                sidecar = objects[f"{target}.metadata"]
                assert hashlib.sha256(sidecar).hexdigest() == metadata[1]
    return links


def _joined(folder: str, href: str) -> str:
    parts = folder.split("/")
    for part in href.removeprefix("./").split("/"):
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def killed_at(number: int, *, after: bool) -> Callable[[MemoryStore], None]:
    """Let a store die at its write of this number: before it, or right after."""

    def arm(store: MemoryStore) -> None:
        def die(now: int, _key: str) -> None:
            if now >= number:
                store.dead = True
                raise KilledError

        setattr(store, "after_write" if after else "on_write", die)

    return arm


def watched(store: MemoryStore, area: str) -> MemoryStore:
    """Return the same objects in a store whose pages are held to their word after every write."""
    again = store.copy_of()
    again.after_write = lambda _number, _key: audit(again, area)
    return again


def stopped_everywhere(
    start: MemoryStore, work: Callable[[MemoryStore], object], area: str, *, writes: int = 20, links: int = 8
) -> MemoryStore:
    """Stop work at each of its writes, run it again, and hold the end against an undisturbed one's."""
    undisturbed = start.copy_of()
    work(undisturbed)
    count = undisturbed.writes
    assert count >= writes
    assert audit(undisturbed, area) >= links
    for number in range(1, count + 1):
        for after in (False, True):
            store = start.copy_of()
            killed_at(number, after=after)(store)
            with pytest.raises(KilledError):
                work(store)
            audit(store, area)
            again = watched(store, area)
            work(again)
            assert again.objects == undisturbed.objects, (
                f"killed {'after' if after else 'before'} write {number}"
            )
    return undisturbed
