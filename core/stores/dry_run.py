"""A store that is read, and for which it is printed what would be written."""

from __future__ import annotations

import hashlib
import io
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from core import console, files
from core.status import Pending, Status, UpToDate
from core.stores import PutResult, Stored, join_content, refuse_other_bytes, require_digest
from core.stores.directory import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.stores import Content, Store


class PlannedObject(NamedTuple):
    """An object that would be there: its bytes, or its file; of a copy neither."""

    stored_object: Stored
    content: bytes | Path | None


@dataclass(frozen=True)
class DryRunStore:
    """Reads from a store, and prints what it would write there.

    What it would have written is there for later reads, so that one dry run plans all of a stage's steps.
    `name` is what messages call the store, if not by its own address.
    """

    store: Store
    name: str | None = None
    _planned_objects: dict[str, PlannedObject] = field(
        default_factory=dict,
        compare=False,
        repr=False,
    )
    _deleted_keys: set[str] = field(
        default_factory=set,
        compare=False,
        repr=False,
    )

    @classmethod
    def over_nothing(cls, name: str) -> DryRunStore:
        """Return a dry run on a bucket that cannot be read, and is taken to be empty."""
        return cls(DirectoryStore(Path("/nothing")), name=name)

    @property
    def status(self) -> Status:
        """Whether anything that was done on it would have changed the store."""
        changes = [f"{key} would be written" for key in sorted(self._planned_objects)]
        changes += [f"{key} would be deleted" for key in sorted(self._deleted_keys)]
        if not changes:
            return UpToDate()
        return Pending(reasons=tuple(changes))

    @property
    def url(self) -> str:
        """The address of the store that is read."""
        if self.name is None:
            return self.store.url
        return self.name

    def url_of(self, key: str) -> str:
        """Return a key's address in the store that is read."""
        return self.store.url_of(key)

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Return what holds for the store that is read; one that could not be read is a bucket."""
        return self.name is not None or self.store.keeps_folder_pages(prefix)

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List the objects of the store, and those that would be there."""
        listed_objects = self.store.list(prefix, recursive=recursive)
        objects = {stored_object.key: stored_object for stored_object in listed_objects}
        folder = _folder_of(prefix)
        for key, planned_object in self._planned_objects.items():
            if not key.startswith(folder):
                continue
            is_direct = "/" not in key.removeprefix(folder)
            if recursive or is_direct:
                objects[key] = planned_object.stored_object
        return [objects[key] for key in sorted(objects)]

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders of the store, and of those that would be there."""
        folder = _folder_of(prefix)
        names = {*self.store.folders(prefix)}
        for key in self._planned_objects:
            if not key.startswith(folder):
                continue
            name, slash, _path = key.removeprefix(folder).partition("/")
            if slash:
                names.add(name)
        return sorted(names)

    def find(self, key: str) -> Stored | None:
        """Look one object up."""
        planned_object = self._planned_objects.get(key)
        if planned_object is None:
            return self.store.find(key)
        return planned_object.stored_object

    def digest(self, key: str) -> str:
        """Return the digest of an object."""
        planned_object = self._planned_objects.get(key)
        if planned_object is None or planned_object.stored_object.sha256 is None:
            return self.store.digest(key)
        return planned_object.stored_object.sha256

    def read(self, key: str) -> bytes:
        """Read an object."""
        with self.open(key) as stream:
            return stream.read()

    def open(self, key: str) -> BinaryIO:
        """Open an object."""
        content = self._planned_content(key)
        if content is None:
            return self.store.open(key)
        if isinstance(content, bytes):
            return io.BytesIO(content)
        return content.open("rb")

    def fetch(self, key: str, folder: Path) -> Path:
        """Fetch an object."""
        content = self._planned_content(key)
        if content is None:
            return self.store.fetch(key, folder)
        if isinstance(content, Path):
            return content

        path = files.ensure_folder(folder) / PurePosixPath(key).name
        path.write_bytes(content)
        return path

    def _planned_content(self, key: str) -> bytes | Path | None:
        planned_object = self._planned_objects.get(key)
        if planned_object is None:
            return None
        return planned_object.content

    def put_file(
        self,
        key: str,
        source: Path,
        *,
        sha256: str,
        replace: bool,
        is_known_absent: bool = False,
    ) -> PutResult:
        """Print the write of a file; refuse what the store would refuse."""
        size = source.stat().st_size
        action = f"would write {self.url}/{key}  ({console.size(size)}, sha256 {sha256[:12]})"
        stored_object = _planned_stored_object(key, size, sha256)
        planned_object = PlannedObject(stored_object, source)
        return self._plan(planned_object, action, replace=replace, is_known_absent=is_known_absent)

    def put_bytes(
        self,
        key: str,
        data: Content,
        *,
        replace: bool = True,
        if_match: str | None = None,  # noqa: ARG002 - nobody else writes to a plan
        is_known_absent: bool = False,
    ) -> PutResult:
        """Print the write of a small object; refuse what the store would refuse."""
        content = join_content(data)
        size = len(content)
        action = f"would write {self.url}/{key}  ({console.size(size)})"
        sha256 = hashlib.sha256(content).hexdigest()
        stored_object = _planned_stored_object(key, size, sha256)
        planned_object = PlannedObject(stored_object, content)
        return self._plan(planned_object, action, replace=replace, is_known_absent=is_known_absent)

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str) -> PutResult:
        """Print a copy; refuse what the store would refuse."""
        require_digest(source, source_key, source.digest(source_key), sha256)
        source_object = source.find(source_key)
        size = 0
        if source_object is not None:
            size = source_object.size
        action = f"would copy {source.url}/{source_key} to {self.url}/{key}  (sha256 {sha256[:12]})"
        stored_object = _planned_stored_object(key, size, sha256)
        planned_object = PlannedObject(stored_object, None)
        return self._plan(planned_object, action, replace=False, is_known_absent=False)

    def delete(self, key: str) -> None:
        """Print the deletion of an object that is there."""
        is_planned = self._planned_objects.pop(key, None) is not None
        if is_planned or self.store.find(key) is not None:
            self._deleted_keys.add(key)
            console.say(f"would delete {self.url}/{key}")

    def _plan(
        self, planned_object: PlannedObject, action: str, *, replace: bool, is_known_absent: bool
    ) -> PutResult:
        new_object = planned_object.stored_object
        key = new_object.key
        stored_object = None if is_known_absent else self.find(key)
        if stored_object is not None:
            if self.digest(key) == new_object.sha256:
                return PutResult("unchanged", stored_object.etag)
            if not replace:
                raise refuse_other_bytes(key, self.url)

        self._planned_objects[key] = planned_object
        console.say(action)
        return PutResult("planned", new_object.etag)


def _folder_of(prefix: str) -> str:
    """Return how the keys below a prefix begin."""
    if not prefix:
        return ""
    return f"{prefix.rstrip('/')}/"


def _planned_stored_object(key: str, size: int, sha256: str) -> Stored:
    return Stored(
        key=key,
        size=size,
        etag=f"planned-{sha256[:16]}",
        modified=time.time(),
        sha256=sha256,
    )
