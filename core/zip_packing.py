"""Members of zip files, compressed and hashed on all cores, and handed out in order.

A member is deflated whole by libdeflate, many at a time. One beyond `BIG` is cut into chunks
that are deflated side by side and joined into one ordinary stream; what they take compressed
lies in a scratch file until the member is complete, as its header comes first and holds its
size. Where the cuts lie depends on the size alone, so the number of cores never shows in the
bytes. `Workers` bounds the memory that all archives written at one time take together.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import tempfile
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

import deflate

from core import deflating
from core.errors import FatalError, MissingInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from io import BufferedReader
    from types import TracebackType
    from typing import Self

BIG = 128 << 20
CHUNK = 16 << 20
BULK = 16 << 20
LEVEL = 5
"""libdeflate's: as small as zlib's level 6, three times as fast.

Members beyond `BULK` are packed one level lower, 2 % larger and a sixth faster: all of a wheel
stays within 2 % of zlib's.
"""
LARGE = 2 << 20
MEMORY = 256 << 20
_COPIED = _MAPPED = 1 << 20
STORED, DEFLATED = 0, 8


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


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A member, ready to be written.

    Attributes:
        member: The member.
        method: How it is compressed: `STORED` or `DEFLATED`.
        packed_size: How many bytes it takes compressed.
        pieces: Gives these bytes, once.
        crc: The CRC-32 of its uncompressed bytes.
        size: The number of its uncompressed bytes.
        sha256: The raw SHA-256 of its uncompressed bytes.
        release: To be called when the bytes are no longer needed.
    """

    member: Member
    method: int
    packed_size: int
    pieces: Callable[[], Iterator[bytes | bytearray]]
    crc: int
    size: int
    sha256: bytes
    release: Callable[[], None]


@dataclass
class Workers:
    """Threads that compress, and the memory they may take, for all archives written at one time.

    Args:
        jobs: How many threads (default: one a core).
        memory: How many bytes of members may be held at once; one larger member may be held alone.
    """

    jobs: int | None = None
    memory: int = MEMORY
    pool: ThreadPoolExecutor = field(init=False)
    _held: int = field(init=False, default=0)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.jobs = max(1, self.jobs or os.cpu_count() or 1)
        self.pool = ThreadPoolExecutor(self.jobs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.shutdown(cancel_futures=True)

    def take(self, size: int, *, wait: bool) -> bool:
        """Take memory; without `wait`, say whether there was enough."""
        with self._changed:
            while self._held and self._held + size > self.memory:
                if not wait:
                    return False
                self._changed.wait()
            self._held += size
            return True

    def give(self, size: int) -> None:
        """Give memory back."""
        with self._changed:
            self._held -= size
            self._changed.notify_all()


def packed_in_order(
    members: Sequence[Member], workers: Workers, *, level: int, scratch: Path | None
) -> Generator[Packed, None, None]:
    """Compress members ahead of who writes them, within the memory that there is.

    Who takes one calls its `release` when it is written.

    Raises:
        MissingInputError: A member's source file does not exist.
        FatalError: The scratch folder is full.
    """
    waiting: deque[tuple[Future[Packed], int]] = deque()
    try:
        for member in members:
            size = _size(member)
            if size > BIG:
                while waiting:
                    yield waiting.popleft()[0].result()
                yield _pack_big(member, workers, level, scratch)
                continue
            while not workers.take(size, wait=not waiting):
                yield waiting.popleft()[0].result()
            waiting.append((workers.pool.submit(_pack, member, size, workers, level), size))
            while waiting and waiting[0][0].done():
                yield waiting.popleft()[0].result()
        while waiting:
            yield waiting.popleft()[0].result()
    finally:
        _abandon(waiting, workers)


def longest_first(members: Sequence[Member]) -> list[int]:
    """Give the order to pack members in: the large ones by size, then the others as they come.

    Returns:
        Indexes of `members`. The order follows from sizes and names alone, never from the machine.
    """
    sizes = [_size(member) for member in members]
    large = sorted((-size, index) for index, size in enumerate(sizes) if size > LARGE)
    first = [index for _, index in large]
    return [*first, *(index for index, size in enumerate(sizes) if size <= LARGE)]


def _abandon(waiting: deque[tuple[Future[Packed], int]], workers: Workers) -> None:
    """Give back what nobody will write: other archives may wait for the memory."""
    for future, size in waiting:
        if future.cancel():
            workers.give(size)
        elif future.exception() is None:
            future.result().release()


def _size(member: Member) -> int:
    if isinstance(member.source, bytes):
        return len(member.source)
    if isinstance(member.source, Made):
        return member.source.size
    try:
        path = member.source.path if isinstance(member.source, Edited) else member.source
        return path.stat().st_size
    except OSError as problem:
        raise _unreadable(member, problem) from problem


def _pack(member: Member, held: int, workers: Workers, level: int) -> Packed:
    try:
        with _content(member) as data:
            size = len(data)
            packed = _deflated_whole(data, level)
            smaller = packed is not None and len(packed) < size
            kept = packed if packed is not None and smaller else bytes(data)
            result = Packed(
                member=member,
                method=DEFLATED if smaller else STORED,
                packed_size=len(kept),
                pieces=lambda: iter((kept,)),
                crc=deflate.crc32(data),
                size=size,
                sha256=hashlib.sha256(data).digest(),
                release=lambda: workers.give(min(len(kept), held)),
            )
    except BaseException:
        workers.give(held)
        raise
    workers.give(held - min(len(kept), held))
    return result


def _deflated_whole(data: bytes | bytearray | mmap.mmap, level: int) -> bytes | bytearray | None:
    if not level or not data:
        return None
    packed: bytes | bytearray = deflate.deflate_compress(data, _level_for(len(data), level))
    return packed


def _level_for(size: int, level: int) -> int:
    return level - (level == LEVEL and size > BULK)


@contextmanager
def _content(member: Member) -> Iterator[bytes | bytearray | mmap.mmap]:
    if isinstance(member.source, bytes):
        yield member.source
        return
    try:
        with file_of(member) as path, path.open("rb") as stream:
            edits, tail = _edits(member), _tail(member)
            size = os.fstat(stream.fileno()).st_size
            if tail:
                yield _with_tail(stream, size, edits, tail)
                return
            if size < _MAPPED:
                yield _edited(stream.read(), 0, edits)
                return
            access = mmap.ACCESS_COPY if edits else mmap.ACCESS_READ
            with mmap.mmap(stream.fileno(), 0, access=access) as mapping:
                for offset, data in edits:
                    mapping[offset : offset + len(data)] = data
                yield mapping
    except OSError as problem:
        raise _unreadable(member, problem) from problem


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


def _edits(member: Member) -> tuple[tuple[int, bytes], ...]:
    return member.source.edits if isinstance(member.source, Edited) else ()


def _tail(member: Member) -> bytes:
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


def _edited(data: bytes, start: int, edits: tuple[tuple[int, bytes], ...]) -> bytes:
    """Apply edits of a file to the part of it that begins at `start`."""
    for offset, new in edits:
        first, last = max(offset, start), min(offset + len(new), start + len(data))
        if first < last:
            piece = new[first - offset : last - offset]
            data = data[: first - start] + piece + data[last - start :]
    return data


def _pack_big(member: Member, workers: Workers, level: int, scratch: Path | None) -> Packed:
    """Deflate one large member on all threads, into a scratch file."""
    if isinstance(member.source, bytes):
        raise FatalError(f"{member.name} has {len(member.source)} bytes in memory; put them into a file.")
    try:
        with file_of(member) as path, path.open("rb") as source:
            return _packed_file(member, source, workers, level, scratch)
    except OSError as problem:
        raise _unreadable(member, problem) from problem


def _packed_file(
    member: Member, source: IO[bytes], workers: Workers, level: int, scratch: Path | None
) -> Packed:
    own, tail = os.fstat(source.fileno()).st_size, _tail(member)
    size = own + len(tail)
    spool = tempfile.TemporaryFile(dir=scratch, prefix=".packed.")  # noqa: SIM115 - lives until the member is written
    digest, crc, packed_size = hashlib.sha256(), 0, 0
    waiting: deque[Future[bytes]] = deque()
    try:
        for start in range(0, size, CHUNK):
            while not workers.take(CHUNK, wait=not waiting):
                packed_size += spool.write(waiting.popleft().result())
            data = _edited(source.read(CHUNK), start, _edits(member))
            data += tail[max(0, start - own) : max(0, start + CHUNK - own)]
            last, chosen = start + CHUNK >= size, _level_for(size, level)
            waiting.append(workers.pool.submit(_deflated, data, workers, chosen, last=last))
            digest.update(data)
            crc = deflate.crc32(data, crc)
            while waiting and waiting[0].done():
                packed_size += spool.write(waiting.popleft().result())
        while waiting:
            packed_size += spool.write(waiting.popleft().result())
        smaller = bool(level) and packed_size < size
        if not smaller:
            spool.seek(0)
            source.seek(0)
            shutil.copyfileobj(source, spool, _COPIED)
            spool.write(tail)
            for offset, new in _edits(member):
                spool.seek(offset)
                spool.write(new)
    except BaseException:
        spool.close()
        for future in waiting:
            if future.cancel():
                workers.give(CHUNK)
        raise
    return Packed(
        member=member,
        method=DEFLATED if smaller else STORED,
        packed_size=packed_size if smaller else size,
        pieces=lambda: _read_back(spool, packed_size if smaller else size),
        crc=crc,
        size=size,
        sha256=digest.digest(),
        release=spool.close,
    )


def _deflated(data: bytes, workers: Workers, level: int, *, last: bool) -> bytes:
    try:
        return deflating.chunk(data, level, last=last) if level else b""
    finally:
        workers.give(CHUNK)


def _read_back(spool: IO[bytes], size: int) -> Iterator[bytes]:
    spool.seek(0)
    while size:
        piece = spool.read(min(_COPIED, size))
        size -= len(piece)
        yield piece


def _unreadable(member: Member, problem: OSError) -> FatalError:
    return MissingInputError(f"{member.name} could not be read from {problem.filename}: {problem.strerror}.")
