"""What goes into archives: bytes in memory, files, files with a few bytes changed, files made late."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from core.errors import MissingInputError

_MAPPED = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Made:
    """A file that is made when its turn comes, in any thread, and deleted afterwards; `size` is estimated."""

    size: int
    make: Callable[[], Path]


@dataclass(frozen=True, kw_only=True)
class Edited:
    """A file archived with new bytes at some offsets, and a tail behind its own; it stays as it is."""

    path: Path
    edits: tuple[tuple[int, bytes], ...] = ()
    tail: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file to write into an archive: its path in there, its bytes, and whether it gets mode 755."""

    name: str
    source: Path | bytes | Made | Edited
    executable: bool = False

    @property
    def size(self) -> int:
        """Its bytes; an estimate where it is made later."""
        match self.source:
            case bytes():
                return len(self.source)
            case Made():
                return self.source.size
        with self.reading():
            return (self.source.path if isinstance(self.source, Edited) else self.source).stat().st_size

    @contextmanager
    def file(self) -> Iterator[Edited]:
        """Return the file of a member that is not in memory; a made one is deleted afterwards."""
        match self.source:
            case Made():
                path = self.source.make()
                try:
                    yield Edited(path=path)
                finally:
                    path.unlink(missing_ok=True)
            case Edited():
                yield self.source
            case Path():
                yield Edited(path=self.source)

    @contextmanager
    def content(self) -> Iterator[Content]:
        """Open a member's bytes."""
        if isinstance(self.source, bytes):
            yield Content(data=self.source)
            return
        with self.reading(), self.file() as file, ExitStack() as held:
            with file.path.open("rb") as stream:
                small = os.fstat(stream.fileno()).st_size < _MAPPED
                data = stream.read() if small else mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            if isinstance(data, mmap.mmap):
                held.enter_context(data)
            yield Content(data=data, edits=file.edits, tail=file.tail)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Name the member in the error, where its source cannot be read."""
        try:
            yield
        except OSError as problem:
            said = f"{self.name} could not be read from {problem.filename}: {problem.strerror}."
            raise MissingInputError(said) from problem


@dataclass(frozen=True, kw_only=True)
class Content:
    """A member's bytes, in memory or mapped; edits are made to what is asked for."""

    data: bytes | mmap.mmap
    edits: tuple[tuple[int, bytes], ...] = ()
    tail: bytes = b""

    def __len__(self) -> int:
        return len(self.data) + len(self.tail)

    def part(self, start: int, stop: int) -> memoryview:
        """Return the bytes from `start` to `stop`, without a copy where nothing is edited; release it."""
        own = len(self.data)
        edits = [one for one in self.edits if one[0] < stop and start < one[0] + len(one[1])]
        if not edits and stop <= own:
            return memoryview(self.data)[start:stop]
        part = memoryview(bytearray(stop - start))
        with memoryview(self.data) as data:
            part[: max(0, min(stop, own) - start)] = data[start:stop]
        for offset, new in (*edits, (own, self.tail)):
            first, last = max(offset, start), min(offset + len(new), stop)
            if first < last:
                part[first - start : last - start] = new[first - offset : last - offset]
        self.forget(start, stop)
        return part

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """Return the bytes from `start` to `stop` for a writer, a little at a time."""
        for at in range(start, stop, _MAPPED):
            with self.part(at, min(at + _MAPPED, stop)) as part:
                yield part
            self.forget(at, at + _MAPPED)

    def forget(self, start: int, stop: int) -> None:
        """Let go of pages that were read: they count as memory while they are mapped."""
        start, stop = -(-max(start, 0) // mmap.PAGESIZE) * mmap.PAGESIZE, min(stop, len(self.data))
        if isinstance(self.data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") and start < stop:
            self.data.madvise(mmap.MADV_DONTNEED, start, stop - start)
