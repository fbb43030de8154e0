"""A store in memory that behaves as told, and files in it whose bytes nobody needs."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ci.publish import index as indexing
from ci.publish.index import Indexed, Records, write_index
from core.errors import ConflictError, MissingInputError
from core.stores import Stored

if TYPE_CHECKING:
    from collections.abc import Callable


PREFIX, MANIFESTS = "run/python/g", "run/manifests/g"


@dataclass
class MemoryStore:
    """Objects in a dictionary; `careless` ignores conditions, `stern` refuses each that names an etag."""

    url: str = "memory"
    careless: bool = False
    stern: bool = False
    folders: bool = False
    objects: dict[str, tuple[bytes, str, float]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[str, str], None] = lambda _call, _key: None
    clock: float = 1_700_000_000
    lock: threading.RLock = field(default_factory=threading.RLock)

    def noted(self, call: str, key: str) -> None:
        self.before(call, key)
        self.calls.append((call, key))

    def keeps_folder_pages(self, prefix: str) -> bool:  # noqa: ARG002 - everywhere or nowhere
        return self.folders

    def list(self, prefix: str, *, recursive: bool = True) -> list[Stored]:
        self.noted("list", prefix)
        with self.lock:
            return [
                self._stored(key)
                for key in sorted(self.objects)
                if key.startswith(f"{prefix}/") and (recursive or "/" not in key[len(prefix) + 1 :])
            ]

    def find(self, key: str) -> Stored | None:
        self.noted("find", key)
        with self.lock:
            return self._stored(key) if key in self.objects else None

    def read(self, key: str) -> bytes:
        self.noted("read", key)
        with self.lock:
            if key not in self.objects:
                raise MissingInputError(f"{key} is not there.")
            return self.objects[key][0]

    def digest(self, key: str) -> str:
        return hashlib.sha256(self.read(key)).hexdigest()

    def put_bytes(self, key: str, data: bytes, *, if_match: str | None = None, **_how: Any) -> str:
        self.noted("put", key)
        with self.lock:
            present = self.objects.get(key)
            if present is not None and present[0] == data:
                return "unchanged"
            etag = present[1] if present else ""
            lost = if_match is not None and etag != if_match
            if (lost and not self.careless) or (self.stern and if_match):
                raise ConflictError(f"{key} was written by somebody else.")
            self.clock += 1
            self.objects[key] = (data, hashlib.md5(data).hexdigest(), self.clock)  # noqa: S324 - as S3 does
            return "written"

    def delete(self, key: str) -> None:
        self.noted("delete", key)
        with self.lock:
            self.objects.pop(key, None)

    def _stored(self, key: str) -> Stored:
        data, etag, modified = self.objects[key]
        return Stored(key=key, size=len(data), etag=etag, modified=modified)

    def pages(self) -> dict[str, bytes]:
        """Every page, by path."""
        return {
            key.removeprefix(f"{PREFIX}/"): data
            for key, (data, _, _) in self.objects.items()
            if indexing.is_page(key)
        }


def wheel_name(project: str, version: str) -> str:
    return f"{project}-{version}-py3-none-any.whl"


def publish(store: Any, *wheels: str, record: str = "", content: str = "") -> None:
    """Put wheels, then their sidecars, then the record that names them."""
    files = []
    for wheel in wheels:
        key, data, metadata = f"{PREFIX}/{wheel}", f"{wheel}{content}".encode(), f"Name: {wheel}\n".encode()
        store.put_bytes(key, data)
        store.put_bytes(f"{key}.metadata", metadata)
        facts = {"key": key, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        facts["metadata_sha256"] = hashlib.sha256(metadata).hexdigest()
        files.append({**facts, "requires_python": ">=3.11"})
    document = {"schema_version": 1, "status": "ok", "files": files}
    store.put_bytes(f"{MANIFESTS}/{record or wheels[0]}.json", json.dumps(document).encode())


def index(store: Any, **how: Any) -> Indexed:
    return write_index(store, PREFIX, Records(store=store, prefix=MANIFESTS), title="g", **how)


def anew(store: MemoryStore) -> dict[str, bytes]:
    """Return the pages that an index of the same files writes which remembers nothing."""
    other = MemoryStore(objects={k: v for k, v in store.objects.items() if not indexing.is_page(k)})
    index(other)
    return other.pages()
