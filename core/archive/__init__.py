"""What goes into archives: bytes in memory, files, files with a few bytes changed, files made late."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    def apply(self, data: bytes, start: int) -> bytes:
        """Apply the edits to the part of the file that begins at `start`."""
        for offset, new in self.edits:
            first, last = max(offset, start), min(offset + len(new), start + len(data))
            if first < last:
                piece = new[first - offset : last - offset]
                data = data[: first - start] + piece + data[last - start :]
        return data


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
        try:
            return (self.source.path if isinstance(self.source, Edited) else self.source).stat().st_size
        except OSError as problem:
            raise self.unreadable(problem) from problem

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
    def content(self) -> Iterator[bytes | bytearray | mmap.mmap]:
        """Return all of a member's bytes, edits included."""
        if isinstance(self.source, bytes):
            yield self.source
            return
        try:
            with self.file() as file, file.path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                data: bytearray | mmap.mmap
                if file.tail or size < _MAPPED:
                    data = bytearray(size + len(file.tail))
                    with memoryview(data) as view:
                        stream.readinto(view[:size])
                        view[size:] = file.tail
                else:
                    access = mmap.ACCESS_COPY if file.edits else mmap.ACCESS_READ
                    data = mmap.mmap(stream.fileno(), 0, access=access)
                for offset, new in file.edits:
                    data[offset : offset + len(new)] = new
                yield data
                if isinstance(data, mmap.mmap):
                    data.close()
        except OSError as problem:
            raise self.unreadable(problem) from problem

    def unreadable(self, problem: OSError) -> MissingInputError:
        """Return the error for a source that cannot be read."""
        return MissingInputError(
            f"{self.name} could not be read from {problem.filename}: {problem.strerror}."
        )
