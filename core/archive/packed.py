"""Members packed for zip files: compressed and hashed on all cores, and handed out in order.

Each becomes one ordinary deflate stream (RFC 1951). Libraries for GPUs are largely compressed already, so
each `PIECE` of a large member is looked at: stretches that would not shrink become stored blocks, the runs
between them are deflated. Runs are cut at `RUN`, to go to several cores and to bound memory. All of this
follows from a member's bytes and the level alone: the number of cores never shows in an archive.

libdeflate packs better and faster than zlib, but only whole buffers, and marks each one's last block as the
stream's. So it packs what ends a member, which is nearly all; a run with something behind it is packed by
zlib-ng up to a byte boundary (zlib's sync flush), a third slower and a few percent larger.
"""

import hashlib
import itertools
import mmap
import os
import struct
import tempfile
import threading
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

import deflate
from zlib_ng import zlib_ng

from core.archive import Content, Made, Member

PIECE = 1 << 20
RUN = 64 << 20
LEVEL = 5
"""libdeflate's: as small as zlib's level 6, in a quarter of the time.

Members beyond `PIECE` are packed one level lower, 2 % larger and a seventh faster: all of a wheel
stays within 2 % of zlib's.
"""
LARGE = 2 << 20
SMALL, BATCH = 64 << 10, 1 << 20
STORED, DEFLATED = 0, 8
_SAMPLES, _SAMPLE = 4, 8 << 10
_DENSE = 0.95  # of its size is what a sample shrinks to at most: pieces lie far above or far below
_BLOCK, _BLOCK_HEAD = (1 << 16) - 1, 5  # what a stored block holds at most, behind its head
_MOST = 9  # zlib-ng's highest level; libdeflate's next lower one takes as long


Sized = tuple[Member, int]


Pieces = Callable[[], Iterator[bytes | memoryview | mmap.mmap]]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A member's bytes as an archive holds them."""

    method: int
    packed_size: int
    pieces: Pieces


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A member, ready to be written; afterwards it is released."""

    member: Member
    kept: Kept
    crc: int
    size: int
    sha256: bytes
    release: Callable[[], None] = lambda: None


@dataclass
class Workers:
    """Threads that compress, and the memory they may take, for all archives written at one time."""

    jobs: int | None = None
    memory: int | None = None
    pool: ThreadPoolExecutor = field(init=False)
    _held: int = field(init=False, default=0)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.jobs = max(1, self.jobs or os.cpu_count() or 1)
        self.memory = self.memory or self.jobs * RUN
        self.pool = ThreadPoolExecutor(self.jobs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def take(self, size: int, *, wait: bool) -> bool:
        """Take memory; without `wait`, return whether there was enough."""
        with self._changed:
            while self._held and self._held + size > (self.memory or 0):
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


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How members are packed.

    `workers` are threads shared with other archives, which keep running (default: own ones, one a core);
    `level` is libdeflate's, 1 to 12, and 0 stores. In `scratch` very large members lie, compressed, until
    they are written. `known` are members packed in just this way before, by the SHA-256 of their bytes.
    """

    workers: Workers | None = None
    level: int = LEVEL
    scratch: Path | None = None
    known: Mapping[bytes, Kept] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A part of a member: `dense` where it would not shrink."""

    start: int
    stop: int
    dense: bool

    def __len__(self) -> int:
        return self.stop - self.start


def packed_in_order(
    members: Sequence[Sized], workers: Workers, packing: Packing
) -> Generator[Packed, None, None]:
    """Compress members ahead of the writer, within the memory there is; it calls `release` of each."""
    waiting: deque[tuple[Future[list[Packed]], int]] = deque()
    try:
        for batch in _batches(members):
            size = sum(min(size, RUN) for _, size in batch)
            while not workers.take(size, wait=not waiting):
                yield from waiting.popleft()[0].result()
            waiting.append((workers.pool.submit(_pack_all, batch, workers, packing), size))
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
    return one[1] > SMALL or isinstance(one[0].source, Made)


def longest_first(members: Sequence[Member]) -> list[tuple[int, Sized]]:
    """Return the order to pack members in: the large ones by size, then the others as they come."""
    sized = [(index, (member, member.size)) for index, member in enumerate(members)]
    return sorted(sized, key=lambda one: -one[1][1] if one[1][1] > LARGE else 0)


def _pack_all(batch: Sequence[Sized], workers: Workers, packing: Packing) -> list[Packed]:
    packed: list[Packed] = []
    try:
        for member, size in batch:
            packed.append(_pack(member, min(size, RUN), workers, packing))
    except BaseException:
        for done in packed:
            done.release()
        workers.give(sum(min(size, RUN) for _, size in batch[len(packed) + 1 :]))
        raise
    return packed


def _pack(member: Member, held: int, workers: Workers, packing: Packing) -> Packed:
    done = ExitStack()
    try:
        content = done.enter_context(member.content())
        size, (crc, sha256) = len(content), _hashed(content)
        known = packing.known.get(sha256)
        stretches = [] if known or not packing.level else _stretches(_dense_pieces(content), size)
        runs = [] if known else _deflated(content, stretches, workers, packing)
        kept, left = known or _kept(content, stretches, runs), sum(map(len, runs))
        if known or (kept.method == DEFLATED and not any(one.dense for one in stretches)):
            done.close()
        else:  # it is read again to be written; how many files are open at one time is bounded, too
            left += PIECE
    except BaseException:
        done.close()
        workers.give(held)
        raise
    left = min(left, held)
    workers.give(held - left)
    done.callback(workers.give, left)
    return Packed(member=member, kept=kept, crc=crc, size=size, sha256=sha256, release=done.close)


def _kept(content: Content, stretches: Sequence[Stretch], runs: Sequence[bytes | mmap.mmap]) -> Kept:
    """Choose between a deflate stream and the bytes as they are."""
    dense = [one for one in stretches if one.dense]
    packed_size = sum(map(len, runs)) + sum(len(one) + -(-len(one) // _BLOCK) * _BLOCK_HEAD for one in dense)
    if not runs or packed_size >= len(content):
        return Kept(method=STORED, packed_size=len(content), pieces=partial(content.pieces, 0, len(content)))
    pieces = partial(_stream, content, stretches, runs) if dense else partial(iter, runs)
    return Kept(method=DEFLATED, packed_size=packed_size, pieces=pieces)


def _hashed(content: Content) -> tuple[int, bytes]:
    """Read all of a member; return its CRC-32 and its SHA-256."""
    digest, crc = hashlib.sha256(), 0
    for part in content.pieces(0, len(content)):
        digest.update(part)
        crc = deflate.crc32(part, crc)
    return crc, digest.digest()


def _dense_pieces(content: Content) -> list[bool]:
    """Say of each piece of a large member whether it would not shrink, by a sample of it."""
    starts = range(0, len(content), PIECE)
    if len(content) < LARGE:
        return [False] * len(starts)
    return [_is_dense(content, start, min(start + PIECE, len(content))) for start in starts]


def _is_dense(content: Content, start: int, stop: int) -> bool:
    step = max((stop - start) // _SAMPLES, 1)
    sample = b"".join(content.part(at, min(at + _SAMPLE, stop)) for at in range(start, stop, step))
    return len(deflate.deflate_compress(sample, 1)) > _DENSE * len(sample)


def _stretches(dense: Sequence[bool], size: int) -> list[Stretch]:
    """Put pieces together, and cut runs that are too long; the short part of one comes first."""
    found: list[Stretch] = []
    for kind, places in itertools.groupby(range(len(dense)), key=dense.__getitem__):
        first, *rest = places
        new = Stretch(start=first * PIECE, stop=min(((rest or [first])[-1] + 1) * PIECE, size), dense=kind)
        # What ends a run early makes all of it cost half as much again: a short stretch saves less.
        if found and (kind == found[-1].dense or (kind and len(new) < len(found[-1]) // 4)):
            new = Stretch(start=found.pop().start, stop=new.stop, dense=False)
        found.append(new)
    cut: list[Stretch] = []
    for one in found:
        pieces = -(-len(one) // PIECE) * PIECE  # so that all parts begin on a page
        second = one.stop if one.dense else one.start + (pieces % RUN or RUN)
        bounds = [one.start, *range(second, one.stop, RUN), one.stop]
        cut += [Stretch(start=a, stop=b, dense=one.dense) for a, b in itertools.pairwise(bounds)]
    return cut


def _deflated(
    content: Content, stretches: Sequence[Stretch], workers: Workers, packing: Packing
) -> list[bytes | mmap.mmap]:
    """Deflate the runs of a member, side by side where threads are free; what is dense gets none."""
    if not stretches:
        return []
    size = len(content)
    level = packing.level - (packing.level == LEVEL and size > PIECE)

    def packed(one: Stretch) -> bytes | mmap.mmap:
        if one.dense:
            return b""
        with content.part(one.start, one.stop) as data:
            run = deflate_run(data, level, last=one.stop == size)
        if size <= RUN:
            return run
        content.forget(one.start, one.stop)
        with tempfile.TemporaryFile(dir=packing.scratch, prefix=".packed.") as file:
            file.write(run)
            file.flush()
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    first, *others = stretches
    started = [workers.pool.submit(packed, one) for one in others]
    try:
        runs = [packed(first)]
        # This thread is one of the pool's, so it waits for none that has not begun.
        runs += [
            packed(one) if job.cancel() else job.result() for one, job in zip(others, started, strict=True)
        ]
    finally:
        wait([job for job in started if not job.cancel()])
    return runs


def deflate_run(data: memoryview | bytes, level: int, *, last: bool) -> bytes:
    """Deflate a part of a stream, without reference to what is before it."""
    if last:
        return bytes(deflate.deflate_compress(data, level))
    deflater = zlib_ng.compressobj(min(level + 1, _MOST), zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    return deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH)


def _stream(
    content: Content, stretches: Sequence[Stretch], runs: Sequence[bytes | mmap.mmap]
) -> Iterator[bytes | memoryview | mmap.mmap]:
    """Return the deflate stream: runs, and stored blocks between them (RFC 1951, section 3.2.4)."""
    for one, run in zip(stretches, runs, strict=True):
        if not one.dense:
            yield run
            continue
        for start in range(one.start, one.stop, _BLOCK):
            stop = min(start + _BLOCK, one.stop)
            yield struct.pack("<?HH", stop == len(content), stop - start, (stop - start) ^ 0xFFFF)
            with content.part(start, stop) as part:
                yield part
            content.forget(start - PIECE, start)
