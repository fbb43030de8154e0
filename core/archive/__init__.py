"""Archive."""

from __future__ import annotations

import mmap
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import FatalError, MissingInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader


_MAPPED = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Made:
    """A member's content that is made when its turn comes, and is deleted afterwards.

    Attributes:
        size: About how many bytes it will have.
        make: Makes the file, in any thread.
    """

    size: int
    make: Callable[[], Path]


@dataclass(frozen=True, kw_only=True)
class Edited:
    """A file that goes into an archive with a few bytes changed; the file itself stays as it is.

    Attributes:
        path: The file.
        edits: Offsets in it, with the bytes that are to be there.
        tail: What follows its own bytes.
    """

    path: Path
    edits: tuple[tuple[int, bytes], ...]
    tail: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file to write into an archive.

    Attributes:
        name: Its path in the archive, with forward slashes.
        source: The file that holds its bytes, the bytes themselves, how to make the file, or how
            to change it.
        executable: Whether it is unpacked with mode 755 instead of 644.
    """

    name: str
    source: Path | bytes | Made | Edited
    executable: bool = False


def size_of(member: Member) -> int:
    """Say how many bytes a member has; about how many, where it is made later."""
    if isinstance(member.source, bytes):
        return len(member.source)
    if isinstance(member.source, Made):
        return member.source.size
    try:
        path = member.source.path if isinstance(member.source, Edited) else member.source
        return path.stat().st_size
    except OSError as problem:
        raise unreadable(member, problem) from problem


@contextmanager
def content_of(member: Member) -> Iterator[bytes | bytearray | mmap.mmap]:
    """Give all of a member's bytes, edits included."""
    if isinstance(member.source, bytes):
        yield member.source
        return
    try:
        with file_of(member) as path, path.open("rb") as stream:
            edits, tail = edits_of(member), tail_of(member)
            size = os.fstat(stream.fileno()).st_size
            if tail:
                yield _with_tail(stream, size, edits, tail)
                return
            if size < _MAPPED:
                yield edited(stream.read(), 0, edits)
                return
            access = mmap.ACCESS_COPY if edits else mmap.ACCESS_READ
            with mmap.mmap(stream.fileno(), 0, access=access) as mapping:
                for offset, data in edits:
                    mapping[offset : offset + len(data)] = data
                yield mapping
    except OSError as problem:
        raise unreadable(member, problem) from problem


@contextmanager
def file_of(member: Member) -> Iterator[Path]:
    """Give the file of a member whose source is no bytes, without edits; a made one goes afterwards."""
    if isinstance(member.source, Made):
        path = member.source.make()
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)
    elif isinstance(member.source, Edited):
        yield member.source.path
    elif isinstance(member.source, Path):
        yield member.source


def edits_of(member: Member) -> tuple[tuple[int, bytes], ...]:
    """Give a member's edits, if it has some."""
    return member.source.edits if isinstance(member.source, Edited) else ()


def tail_of(member: Member) -> bytes:
    """Give what follows a member's own bytes."""
    return member.source.tail if isinstance(member.source, Edited) else b""


def _with_tail(
    stream: BufferedReader, size: int, edits: tuple[tuple[int, bytes], ...], tail: bytes
) -> bytearray:
    data = bytearray(size + len(tail))
    with memoryview(data) as view:
        stream.readinto(view[:size])
        view[size:] = tail
        for offset, new in edits:
            view[offset : offset + len(new)] = new
    return data


def edited(data: bytes, start: int, edits: tuple[tuple[int, bytes], ...]) -> bytes:
    """Apply edits of a file to the part of it that begins at `start`."""
    for offset, new in edits:
        first, last = max(offset, start), min(offset + len(new), start + len(data))
        if first < last:
            piece = new[first - offset : last - offset]
            data = data[: first - start] + piece + data[last - start :]
    return data


def unreadable(member: Member, problem: OSError) -> FatalError:
    """Write the error of a member whose source cannot be read."""
    return MissingInputError(f"{member.name} could not be read from {problem.filename}: {problem.strerror}.")
