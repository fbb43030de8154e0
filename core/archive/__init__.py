"""What goes into archives: bytes in memory, files, files with a few bytes changed, files made late.

For zip files, members are compressed and hashed on all cores, and handed out in order. A member is deflated
whole by libdeflate, many at a time. One beyond `BIG` is cut into chunks that are deflated side by side and
joined into one ordinary stream; compressed, they lie in a scratch file until the member is complete, as its
header comes first and holds its size. Where the cuts lie depends on the size alone, so the number of cores
never shows in the bytes.

libdeflate packs better and faster than zlib, but only whole buffers. Chunks are packed by zlib-ng, each up
to a byte boundary (zlib's sync flush), and come as fast and a few percent larger.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import tempfile
import threading
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Self

import deflate
from zlib_ng import zlib_ng

from core.errors import FatalError, MissingInputError

BIG = 128 << 20
CHUNK = 16 << 20
BULK = 16 << 20
LEVEL = 5
"""libdeflate's: as small as zlib's level 6, three times as fast.

Members beyond `BULK` are packed one level lower, 2 % larger and a sixth faster: all of a wheel
stays within 2 % of zlib's.
"""
LARGE = 2 << 20
SMALL, BATCH = 64 << 10, 1 << 20
MEMORY = 256 << 20
_COPIED = 1 << 20
_MAPPED = 1 << 20
STORED, DEFLATED = 0, 8
_MOST = 9  # zlib-ng's highest level; libdeflate's next lower one takes as long


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
    def content(self) -> Iterator[bytes | bytearray | mmap.mmap]:
        """Return all of a member's bytes, edits included."""
        if isinstance(self.source, bytes):
            yield self.source
            return
        with self.reading(), self.file() as file, file.path.open("rb") as stream:
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

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Name the member in the error, where its source cannot be read."""
        try:
            yield
        except OSError as problem:
            said = f"{self.name} could not be read from {problem.filename}: {problem.strerror}."
            raise MissingInputError(said) from problem


Sized = tuple[Member, int]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A member, ready to be written."""

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
    """Threads that compress, and the memory they may take, for all archives written at one time."""

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

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def take(self, size: int, *, wait: bool) -> bool:
        """Take memory; without `wait`, return whether there was enough."""
        with self._changed:
            while self._held and self._held + size > self.memory:
                if not wait:
                    return False
                self._changed.wait()
            self._held += size
            return True

    def give(self, size: int) -> None:
        """Release memory."""
        with self._changed:
            self._held -= size
            self._changed.notify_all()


def packed_in_order(
    members: Sequence[Sized], workers: Workers, *, level: int, scratch: Path | None
) -> Generator[Packed, None, None]:
    """Compress members ahead of the writer, within the memory there is; it calls `release` of each."""
    waiting: deque[tuple[Future[list[Packed]], int]] = deque()
    try:
        for batch in _batches(members):
            if batch[0][1] > BIG:
                while waiting:
                    yield from waiting.popleft()[0].result()
                yield _pack_big(batch[0][0], workers, level, scratch)
                continue
            size = sum(size for _, size in batch)
            while not workers.take(size, wait=not waiting):
                yield from waiting.popleft()[0].result()
            waiting.append((workers.pool.submit(_pack_all, batch, workers, level), size))
            while waiting and waiting[0][0].done():
                yield from waiting.popleft()[0].result()
        while waiting:
            yield from waiting.popleft()[0].result()
    finally:
        _abandon(waiting, workers)


def _abandon(waiting: deque[tuple[Future[list[Packed]], int]], workers: Workers) -> None:
    """Release what will not be written: other archives may wait for the memory."""
    for future, size in waiting:
        if future.cancel():
            workers.give(size)
        elif future.exception() is None:
            for packed in future.result():
                packed.release()


def _batches(members: Sequence[Sized]) -> Iterator[list[Sized]]:
    """Put small neighbours together: handing one to a thread takes longer than packing it."""
    batch: list[Sized] = []
    held = 0
    for one in members:
        if batch and (held + one[1] > BATCH or _alone(one) or _alone(batch[-1])):
            yield batch
            batch, held = [], 0
        batch.append(one)
        held += one[1]
    if batch:
        yield batch


def _alone(one: Sized) -> bool:
    return one[1] > min(SMALL, BIG) or isinstance(one[0].source, Made)


def longest_first(members: Sequence[Member]) -> list[tuple[int, Sized]]:
    """Return the order to pack members in: the large ones by size, then the others as they come."""
    sized = [(index, (member, member.size)) for index, member in enumerate(members)]
    return sorted(sized, key=lambda one: -one[1][1] if one[1][1] > LARGE else 0)


def _pack_all(batch: Sequence[Sized], workers: Workers, level: int) -> list[Packed]:
    packed: list[Packed] = []
    try:
        for member, size in batch:
            packed.append(_pack(member, size, workers, level))
    except BaseException:
        for done in packed:
            done.release()
        workers.give(sum(size for _, size in batch[len(packed) + 1 :]))
        raise
    return packed


def _pack(member: Member, held: int, workers: Workers, level: int) -> Packed:
    try:
        with member.content() as data:
            size = len(data)
            own = level - (level == LEVEL and size > BULK)
            packed = deflate.deflate_compress(data, own) if level and data else None
            kept = bytes(data) if packed is None or len(packed) >= size else packed
            result = Packed(
                member=member,
                method=DEFLATED if kept is packed else STORED,
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


def _pack_big(member: Member, workers: Workers, level: int, scratch: Path | None) -> Packed:
    """Deflate one large member on all threads, into a scratch file."""
    if isinstance(member.source, bytes):
        raise FatalError(f"{member.name} has {len(member.source)} bytes in memory; put them into a file.")
    with member.reading(), member.file() as file, file.path.open("rb") as source:
        return _packed_file(member, file, source, workers, level, scratch)


def _packed_file(
    member: Member, file: Edited, source: IO[bytes], workers: Workers, level: int, scratch: Path | None
) -> Packed:
    own = os.fstat(source.fileno()).st_size
    size = own + len(file.tail)
    spool = tempfile.TemporaryFile(dir=scratch, prefix=".packed.")  # noqa: SIM115 - lives until the member is written
    digest, crc, packed_size = hashlib.sha256(), 0, 0
    waiting: deque[Future[bytes]] = deque()
    try:
        for start in range(0, size, CHUNK):
            while not workers.take(CHUNK, wait=not waiting):
                packed_size += spool.write(waiting.popleft().result())
            data = file.apply(source.read(CHUNK), start)
            data += file.tail[max(0, start - own) : max(0, start + CHUNK - own)]
            last = start + CHUNK >= size
            waiting.append(workers.pool.submit(_deflated, data, workers, level, last=last))
            digest.update(data)
            crc = deflate.crc32(data, crc)
            while waiting and waiting[0].done():
                packed_size += spool.write(waiting.popleft().result())
        while waiting:
            packed_size += spool.write(waiting.popleft().result())
        smaller = bool(level) and packed_size < size
        if not smaller:
            packed_size = size
            spool.seek(0)
            source.seek(0)
            shutil.copyfileobj(source, spool, _COPIED)
            spool.write(file.tail)
            for offset, new in file.edits:
                spool.seek(offset)
                spool.write(new)
            spool.truncate(size)
        spool.seek(0)
    except BaseException:
        spool.close()
        for future in waiting:
            if future.cancel():
                workers.give(CHUNK)
        raise
    return Packed(
        member=member,
        method=DEFLATED if smaller else STORED,
        packed_size=packed_size,
        pieces=lambda: iter(partial(spool.read, _COPIED), b""),
        crc=crc,
        size=size,
        sha256=digest.digest(),
        release=spool.close,
    )


def _deflated(data: bytes, workers: Workers, level: int, *, last: bool) -> bytes:
    try:
        return deflate_chunk(data, level, last=last) if level else b""
    finally:
        workers.give(CHUNK)


def deflate_chunk(data: bytes, level: int, *, last: bool) -> bytes:
    """Deflate one chunk of a larger stream, without reference to what is before it."""
    deflater = zlib_ng.compressobj(min(level + 1, _MOST), zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    return deflater.compress(data) + deflater.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
