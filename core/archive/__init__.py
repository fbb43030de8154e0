"""What goes into archives: bytes in memory, files, files with a few bytes changed, files made late."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from core.errors import MissingInputError

_LARGE_FILE = 1 << 20
"""From this size on a file is mapped instead of read."""
_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DeferredFile:
    """A file that is made when its turn comes, in any thread, and deleted afterwards; `size` is estimated."""

    size: int
    make: Callable[[], Path]


@dataclass(frozen=True, kw_only=True)
class EditedFile:
    """A file that is archived with new bytes at some offsets and a tail; on disk it stays as it is."""

    path: Path
    edits: tuple[tuple[int, bytes], ...] = ()
    tail: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file to write into an archive: its path in there, its bytes, and whether it gets mode 755."""

    name: str
    source: Path | bytes | DeferredFile | EditedFile
    executable: bool = False

    @property
    def size(self) -> int:
        """Its bytes; an estimate where it is made later."""
        match self.source:
            case bytes():
                return len(self.source)
            case DeferredFile():
                return self.source.size
            case EditedFile():
                path = self.source.path
            case _:
                path = self.source
        with self._named_errors():
            return path.stat().st_size

    @contextmanager
    def file(self) -> Iterator[EditedFile]:
        """Yield the file of a member that is not in memory; a deferred one is deleted afterwards."""
        match self.source:
            case DeferredFile():
                path = self.source.make()
                try:
                    yield EditedFile(path=path)
                finally:
                    path.unlink(missing_ok=True)
            case EditedFile():
                yield self.source
            case Path():
                yield EditedFile(path=self.source)

    @contextmanager
    def content(self) -> Iterator[Content]:
        """Open a member's bytes."""
        if isinstance(self.source, bytes):
            yield Content(data=self.source)
            return

        with self._named_errors(), self.file() as file, file.path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size < _LARGE_FILE:
                data = stream.read()
                stream.close()  # few files are open at one time, while many members wait to be written
                yield Content(
                    data=data,
                    edits=file.edits,
                    tail=file.tail,
                )
                return
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                stream.close()
                yield Content(
                    data=mapped,
                    edits=file.edits,
                    tail=file.tail,
                )

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Name the member in the error, where its source cannot be read."""
        try:
            yield
        except OSError as problem:
            raise MissingInputError(
                f"{self.name} could not be read from {problem.filename}: {problem.strerror}."
            ) from problem


@dataclass(frozen=True, kw_only=True)
class Content:
    """A member's bytes, in memory or mapped; edits are made to what is asked for."""

    data: bytes | mmap.mmap
    edits: tuple[tuple[int, bytes], ...] = ()
    tail: bytes = b""

    def __len__(self) -> int:
        return len(self.data) + len(self.tail)

    def part(
        self,
        start: int,
        stop: int,
    ) -> memoryview:
        """Return the bytes from `start` to `stop`, without a copy where nothing is edited; release it."""
        data_size = len(self.data)
        edits = [
            (offset, replacement)
            for offset, replacement in self.edits
            if offset < stop and start < offset + len(replacement)
        ]
        if not edits and stop <= data_size:
            return memoryview(self.data)[start:stop]

        part = memoryview(bytearray(stop - start))
        with memoryview(self.data) as data:
            part[: max(0, min(stop, data_size) - start)] = data[start:stop]
        for offset, replacement in (*edits, (data_size, self.tail)):
            first = max(offset, start)
            last = min(offset + len(replacement), stop)
            if first < last:
                part[first - start : last - start] = replacement[first - offset : last - offset]
        self.forget(start, stop)
        return part

    def pieces(
        self,
        start: int,
        stop: int,
    ) -> Iterator[memoryview]:
        """Yield the bytes from `start` to `stop` for a writer, a little at a time."""
        for offset in range(start, stop, _PIECE):
            with self.part(offset, min(offset + _PIECE, stop)) as part:
                yield part
            self.forget(offset, offset + _PIECE)

    def forget(
        self,
        start: int,
        stop: int,
    ) -> None:
        """Let go of pages that were read: they count as memory while they are mapped."""
        if not isinstance(self.data, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
            return
        first_page = -(-max(start, 0) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = min(stop, len(self.data))
        if first_page < end:
            self.data.madvise(mmap.MADV_DONTNEED, first_page, end - first_page)
