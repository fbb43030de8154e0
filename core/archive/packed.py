"""Members packed for zip files: compressed and hashed on all cores, and handed out in order.

Each becomes one ordinary deflate stream (RFC 1951). Libraries for GPUs are largely compressed already, so
each `PIECE` of a large member is sampled, and the member is divided into segments: those that would not
shrink become stored blocks, the others are deflated. A segment that is deflated has at most
`LARGEST_SEGMENT`, so that several cores take part and memory is bounded. All of this follows from a member's
bytes and the level alone: the number of cores never shows in an archive.

libdeflate packs better and faster than zlib, but only whole buffers, and marks each one's last block as the
stream's. So it packs what ends a member, which is nearly all; a segment with something behind it is packed by
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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Self

import deflate
from zlib_ng import zlib_ng

from core.archive import Content, DeferredFile, Member
from core.archive.zip_headers import DEFLATED, STORED

PIECE = 1 << 20
LARGEST_SEGMENT = 64 << 20
LEVEL = 5
"""libdeflate's: as small as zlib's level 6, in a quarter of the time.

Members beyond `PIECE` are packed one level lower, 2 % larger and a seventh faster: all of a wheel
stays within 2 % of zlib's.
"""
LARGE = 2 << 20
SMALL = 64 << 10
BATCH = 1 << 20
_SAMPLES = 4
_SAMPLE_SIZE = 8 << 10
_SHRUNK = 0.95  # of its size is what a sample shrinks to at most: pieces lie far above or far below
_STORED_BLOCK = (1 << 16) - 1  # what a stored block holds at most
_STORED_BLOCK_HEAD = 5
_HIGHEST_ZLIB_LEVEL = 9  # zlib-ng's; libdeflate's next lower one takes as long

Buffer = bytes | memoryview | mmap.mmap


class SizedMember(NamedTuple):
    """A member to pack, its place in the listing, and its size, which is estimated where it is made later."""

    place: int
    member: Member
    size: int

    @property
    def memory(self) -> int:
        """How much memory is taken to pack it: a large one is packed by segments."""
        return min(self.size, LARGEST_SEGMENT)


@dataclass(frozen=True, kw_only=True)
class PackedData:
    """A member's bytes as an archive holds them; `pieces` yields them.

    Until they are written, they take `memory`, and some of them may be read from the member's content.
    """

    method: int
    size: int
    pieces: Callable[[], Iterator[Buffer]]
    memory: int = 0
    needs_content: bool = False


@dataclass(frozen=True, kw_only=True)
class PackedMember:
    """A member, ready to be written; afterwards it is released."""

    member: Member
    data: PackedData
    crc: int
    size: int
    sha256: bytes
    release: Callable[[], None] = lambda: None


class Workers:
    """Threads that compress, and the memory they may take, for all archives written at one time."""

    def __init__(
        self,
        *,
        jobs: int | None = None,
        memory: int | None = None,
    ) -> None:
        self.jobs = max(1, jobs or os.cpu_count() or 1)
        self.pool = ThreadPoolExecutor(self.jobs)
        self._memory = memory or self.jobs * LARGEST_SEGMENT
        self._taken = 0
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def take(
        self,
        size: int,
        *,
        wait: bool,
    ) -> bool:
        """Take memory; without `wait`, return whether there was enough."""
        with self._changed:
            # What is larger than all of the memory gets it alone.
            while self._taken and self._taken + size > self._memory:
                if not wait:
                    return False
                self._changed.wait()
            self._taken += size
            return True

    def give_back(self, size: int) -> None:
        """Release memory."""
        with self._changed:
            self._taken -= size
            self._changed.notify_all()


class _Reservation:
    """Memory of the workers that was taken for one member."""

    def __init__(self, workers: Workers, size: int) -> None:
        self._workers = workers
        self._size = size

    def shrink(self, size: int) -> None:
        """Give back what is beyond a size; it never grows, as that might wait for memory for ever."""
        if size < self._size:
            self._workers.give_back(self._size - size)
            self._size = size

    def release(self) -> None:
        """Give back what is left of it."""
        self.shrink(0)


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
    known: Mapping[bytes, PackedData] = field(default_factory=dict)


class _Batch(NamedTuple):
    """Members that a thread packs, and the memory that was taken for them."""

    future: Future[list[PackedMember]]
    memory: int


def packed_in_order(
    members: Sequence[SizedMember], workers: Workers, packing: Packing
) -> Generator[PackedMember, None, None]:
    """Compress members ahead of the writer, within the memory there is; it calls `release` of each."""
    batches: deque[_Batch] = deque()
    try:
        for batch in _batches(members):
            memory = sum(member.memory for member in batch)
            # With a batch on its way, that one is written meanwhile, which gives its memory back.
            while not workers.take(memory, wait=not batches):
                yield from batches.popleft().future.result()
            future = workers.pool.submit(_pack_batch, batch, workers, packing)
            batches.append(_Batch(future, memory))
            while batches and batches[0].future.done():
                yield from batches.popleft().future.result()
        while batches:
            yield from batches.popleft().future.result()
    finally:
        _abandon(batches, workers)


def _abandon(batches: deque[_Batch], workers: Workers) -> None:
    """Release what will not be written: other archives may wait for the memory."""
    for batch in batches:
        if batch.future.cancel():
            workers.give_back(batch.memory)
        elif batch.future.exception() is None:
            for packed in batch.future.result():
                packed.release()


def _batches(members: Sequence[SizedMember]) -> Iterator[list[SizedMember]]:
    """Put small neighbours together: handing one to a thread takes longer than packing it."""
    batch: list[SizedMember] = []
    batch_size = 0
    for member in members:
        is_full = batch_size + member.size > BATCH
        if batch and (is_full or _is_packed_alone(member) or _is_packed_alone(batch[-1])):
            yield batch
            batch = []
            batch_size = 0
        batch.append(member)
        batch_size += member.size
    if batch:
        yield batch


def _is_packed_alone(sized: SizedMember) -> bool:
    return sized.size > SMALL or isinstance(sized.member.source, DeferredFile)


def longest_first(members: Sequence[Member]) -> list[SizedMember]:
    """Return the order to pack members in: the large ones by size, then the others as they come."""

    def rank(sized: SizedMember) -> int:
        return -sized.size if sized.size > LARGE else 0

    sized_members = [SizedMember(place, member, member.size) for place, member in enumerate(members)]
    return sorted(sized_members, key=rank)


def _pack_batch(
    batch: Sequence[SizedMember],
    workers: Workers,
    packing: Packing,
) -> list[PackedMember]:
    with ExitStack() as on_failure:
        reservations: list[_Reservation] = []
        for sized in batch:
            reservation = _Reservation(workers, sized.memory)
            on_failure.callback(reservation.release)
            reservations.append(reservation)

        packed_members: list[PackedMember] = []
        for sized, reservation in zip(batch, reservations, strict=True):
            packed = _pack(sized.member, reservation, workers, packing)
            on_failure.callback(packed.release)
            packed_members.append(packed)
        on_failure.pop_all()
    return packed_members


def _pack(
    member: Member,
    reservation: _Reservation,
    workers: Workers,
    packing: Packing,
) -> PackedMember:
    """Pack a member in reserved memory, and keep open and reserved only what writing it needs."""
    with ExitStack() as resources:
        resources.callback(reservation.release)
        content_file = resources.enter_context(ExitStack())
        content = content_file.enter_context(member.content())
        size = len(content)
        crc, sha256 = _hash(content)

        data = packing.known.get(sha256)
        if data is None:
            data = _compress(content, workers, packing)
        # What was deflated, or known, has bytes of its own: few files are open while many wait to be written.
        if not data.needs_content:
            content_file.close()
        reservation.shrink(data.memory)
        return PackedMember(
            member=member,
            data=data,
            crc=crc,
            size=size,
            sha256=sha256,
            release=resources.pop_all().close,
        )


def _hash(content: Content) -> tuple[int, bytes]:
    """Read all of a member; return its CRC-32 and its SHA-256."""
    digest = hashlib.sha256()
    crc = 0
    for part in content.pieces(0, len(content)):
        digest.update(part)
        crc = deflate.crc32(part, crc)
    return crc, digest.digest()


# Compressing a member's content


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a member that is deflated at once or, where it would not shrink, stored as it is."""

    start: int
    stop: int
    is_compressible: bool

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, kw_only=True)
class _PackedSegment:
    """A segment, and what it was deflated to; None where it is stored as it is."""

    segment: Segment
    deflated: Buffer | None

    @property
    def size(self) -> int:
        """How many bytes it takes in the stream."""
        if self.deflated is not None:
            return len(self.deflated)
        blocks = -(-len(self.segment) // _STORED_BLOCK)
        return len(self.segment) + blocks * _STORED_BLOCK_HEAD


def _compress(content: Content, workers: Workers, packing: Packing) -> PackedData:
    """Deflate a member's content, or store it where that takes no more room."""
    if packing.level == 0:
        return _stored(content)
    packed_segments = _pack_segments(content, _segments(content), workers, packing)
    packed_size = sum(packed.size for packed in packed_segments)
    if packed_size >= len(content):
        return _stored(content)

    buffers = [packed.deflated for packed in packed_segments if packed.deflated is not None]
    deflated_size = sum(map(len, buffers))
    needs_content = len(buffers) < len(packed_segments)
    return PackedData(
        method=DEFLATED,
        size=packed_size,
        pieces=partial(_deflate_stream, content, packed_segments),
        memory=deflated_size + PIECE if needs_content else deflated_size,
        needs_content=needs_content,
    )


def _stored(content: Content) -> PackedData:
    return PackedData(
        method=STORED,
        size=len(content),
        pieces=partial(content.pieces, 0, len(content)),
        # It is read again to be written; how many files are open at one time is bounded, too.
        memory=PIECE,
        needs_content=True,
    )


def _segments(content: Content) -> list[Segment]:
    """Divide a member into segments to deflate, which are cut where they are too long, and to store."""
    joined_segments: list[Segment] = []
    for segment in _join_alike(_sampled_pieces(content)):
        if joined_segments and _is_joined(joined_segments[-1], segment):
            joined_segments[-1] = replace(joined_segments[-1], stop=segment.stop)
        else:
            joined_segments.append(segment)

    segments: list[Segment] = []
    for segment in joined_segments:
        if segment.is_compressible:
            segments += _cut(segment)
        else:
            segments.append(segment)
    return segments


def _sampled_pieces(content: Content) -> Iterator[Segment]:
    """Yield the pieces of a member; of a large one those that would not shrink are found by a sample."""
    is_sampled = len(content) >= LARGE
    for start in range(0, len(content), PIECE):
        stop = min(start + PIECE, len(content))
        is_compressible = not is_sampled or _shrinks(content, start, stop)
        yield Segment(start=start, stop=stop, is_compressible=is_compressible)


def _shrinks(
    content: Content,
    start: int,
    stop: int,
) -> bool:
    step = max((stop - start) // _SAMPLES, 1)
    offsets = range(start, stop, step)
    sample = b"".join(content.part(offset, min(offset + _SAMPLE_SIZE, stop)) for offset in offsets)
    return len(deflate.deflate_compress(sample, 1)) <= _SHRUNK * len(sample)


def _join_alike(pieces: Iterable[Segment]) -> Iterator[Segment]:
    """Make one segment of each series of pieces that all shrink, or all do not."""
    for is_compressible, neighbours in itertools.groupby(pieces, attrgetter("is_compressible")):
        series = list(neighbours)
        yield Segment(start=series[0].start, stop=series[-1].stop, is_compressible=is_compressible)


def _is_joined(previous: Segment, segment: Segment) -> bool:
    """Return whether a segment is deflated together with the one before it.

    Where deflating ends early, all before it costs half as much again: storing a short segment saves less.
    """
    if not previous.is_compressible:
        return False
    return segment.is_compressible or len(segment) < len(previous) // 4


def _cut(segment: Segment) -> list[Segment]:
    """Cut a segment into those that are deflated at once; the short one comes first."""
    whole_pieces = -(-len(segment) // PIECE) * PIECE  # so that all parts begin on a page
    second_start = segment.start + (whole_pieces % LARGEST_SEGMENT or LARGEST_SEGMENT)
    bounds = [segment.start, *range(second_start, segment.stop, LARGEST_SEGMENT), segment.stop]
    return [replace(segment, start=start, stop=stop) for start, stop in itertools.pairwise(bounds)]


def _pack_segments(
    content: Content, segments: Sequence[Segment], workers: Workers, packing: Packing
) -> list[_PackedSegment]:
    """Deflate the segments of a member, side by side where threads are free."""
    if not segments:
        return []
    level = packing.level
    if level == LEVEL and len(content) > PIECE:
        level -= 1
    pack_segment = partial(
        _pack_segment,
        content,
        level=level,
        scratch=packing.scratch,
    )

    first, *other_segments = segments
    futures = [workers.pool.submit(pack_segment, segment) for segment in other_segments]
    try:
        packed_segments = [pack_segment(first)]
        for segment, future in zip(other_segments, futures, strict=True):
            # This thread is one of the pool's, so it waits for none that has not begun.
            packed_segments.append(pack_segment(segment) if future.cancel() else future.result())
    finally:
        wait([future for future in futures if not future.cancel()])
    return packed_segments


def _pack_segment(
    content: Content,
    segment: Segment,
    *,
    level: int,
    scratch: Path | None,
) -> _PackedSegment:
    """Deflate a segment if it shrinks; of a member that is too long for one the result lies in a file."""
    if not segment.is_compressible:
        return _PackedSegment(segment=segment, deflated=None)
    with content.part(segment.start, segment.stop) as data:
        deflated = deflate_segment(data, level, is_last=segment.stop == len(content))
    if len(content) <= LARGEST_SEGMENT:
        return _PackedSegment(segment=segment, deflated=deflated)

    content.forget(segment.start, segment.stop)
    with tempfile.TemporaryFile(
        dir=scratch,
        prefix=".packed.",
    ) as file:
        file.write(deflated)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _PackedSegment(segment=segment, deflated=mapped)


def deflate_segment(
    data: memoryview | bytes,
    level: int,
    *,
    is_last: bool,
) -> bytes:
    """Deflate a part of a stream, without reference to what is before it."""
    if is_last:
        return bytes(deflate.deflate_compress(data, level))
    zlib_level = min(level + 1, _HIGHEST_ZLIB_LEVEL)
    deflater = zlib_ng.compressobj(zlib_level, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    return deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH)


def _deflate_stream(content: Content, packed_segments: Sequence[_PackedSegment]) -> Iterator[Buffer]:
    """Yield a member's deflate stream: what was deflated, and stored blocks of what was not."""
    for packed in packed_segments:
        if packed.deflated is not None:
            yield packed.deflated
        else:
            yield from _stored_blocks(content, packed.segment)


def _stored_blocks(content: Content, segment: Segment) -> Iterator[Buffer]:
    """Yield a segment in the blocks of RFC 1951, section 3.2.4."""
    for start in range(segment.start, segment.stop, _STORED_BLOCK):
        stop = min(start + _STORED_BLOCK, segment.stop)
        length = stop - start
        is_last = stop == len(content)
        yield struct.pack("<?HH", is_last, length, length ^ 0xFFFF)
        with content.part(start, stop) as part:
            yield part
        content.forget(start - PIECE, start)
