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
from typing import NamedTuple, Self

import deflate
from zlib_ng import zlib_ng

from core.archive import Content, DeferredFile, Member
from core.archive.zip_headers import DEFLATED, STORED

PIECE = 1 << 20
RUN = 64 << 20
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
_DENSE = 0.95  # of its size is what a sample shrinks to at most: pieces lie far above or far below
_STORED_BLOCK = (1 << 16) - 1  # what a stored block holds at most
_STORED_BLOCK_HEAD = 5
_HIGHEST_ZLIB_LEVEL = 9  # zlib-ng's; libdeflate's next lower one takes as long

Buffer = bytes | memoryview | mmap.mmap


class SizedMember(NamedTuple):
    """A member and its size, which is estimated where the member is made later."""

    member: Member
    size: int


@dataclass(frozen=True, kw_only=True)
class PackedData:
    """A member's bytes as an archive holds them; `pieces` yields them."""

    method: int
    size: int
    pieces: Callable[[], Iterator[Buffer]]


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
        self._memory = memory or self.jobs * RUN
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


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A part of a member: `dense` where it would not shrink."""

    start: int
    stop: int
    dense: bool

    def __len__(self) -> int:
        return self.stop - self.start


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
            memory = sum(min(member.size, RUN) for member in batch)
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


def longest_first(members: Sequence[Member]) -> list[tuple[int, SizedMember]]:
    """Return the order to pack members in: the large ones by size, then the others as they come."""
    numbered = [(index, SizedMember(member, member.size)) for index, member in enumerate(members)]

    def rank(numbered_member: tuple[int, SizedMember]) -> int:
        size = numbered_member[1].size
        return -size if size > LARGE else 0

    return sorted(numbered, key=rank)


def _pack_batch(
    batch: Sequence[SizedMember],
    workers: Workers,
    packing: Packing,
) -> list[PackedMember]:
    packed_members: list[PackedMember] = []
    try:
        for sized in batch:
            packed = _pack(sized.member, min(sized.size, RUN), workers, packing)
            packed_members.append(packed)
    except BaseException:
        for packed in packed_members:
            packed.release()
        # The one that failed gave its own memory back.
        untouched = batch[len(packed_members) + 1 :]
        workers.give_back(sum(min(sized.size, RUN) for sized in untouched))
        raise
    return packed_members


def _pack(
    member: Member,
    memory: int,
    workers: Workers,
    packing: Packing,
) -> PackedMember:
    """Pack a member, for which `memory` was taken, and keep only as much of it as the result needs."""
    resources = ExitStack()
    try:
        content = resources.enter_context(member.content())
        crc, sha256 = _hash(content)
        data = packing.known.get(sha256)
        needed_memory = 0
        needs_content = False
        if data is None:
            stretches = _stretches(_dense_pieces(content), len(content)) if packing.level else []
            runs = _deflate_runs(content, stretches, workers, packing)
            data = _packed_data(content, stretches, runs)
            needed_memory = sum(len(run) for run in runs)
            needs_content = data.method == STORED or any(stretch.dense for stretch in stretches)
        size = len(content)
        if needs_content:
            # It is read again to be written; how many files are open at one time is bounded, too.
            needed_memory += PIECE
        else:
            resources.close()
    except BaseException:
        resources.close()
        workers.give_back(memory)
        raise

    needed_memory = min(needed_memory, memory)
    workers.give_back(memory - needed_memory)
    resources.callback(workers.give_back, needed_memory)
    return PackedMember(
        member=member,
        data=data,
        crc=crc,
        size=size,
        sha256=sha256,
        release=resources.close,
    )


def _packed_data(
    content: Content,
    stretches: Sequence[Stretch],
    runs: Sequence[Buffer],
) -> PackedData:
    """Choose between a deflate stream and the bytes as they are."""
    dense_stretches = [stretch for stretch in stretches if stretch.dense]
    packed_size = sum(len(run) for run in runs)
    for stretch in dense_stretches:
        blocks = -(-len(stretch) // _STORED_BLOCK)
        packed_size += len(stretch) + blocks * _STORED_BLOCK_HEAD

    if not runs or packed_size >= len(content):
        whole_content = partial(content.pieces, 0, len(content))
        return PackedData(
            method=STORED,
            size=len(content),
            pieces=whole_content,
        )
    stream = partial(_deflate_stream, content, stretches, runs)
    return PackedData(
        method=DEFLATED,
        size=packed_size,
        pieces=stream,
    )


def _hash(content: Content) -> tuple[int, bytes]:
    """Read all of a member; return its CRC-32 and its SHA-256."""
    digest = hashlib.sha256()
    crc = 0
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


def _is_dense(
    content: Content,
    start: int,
    stop: int,
) -> bool:
    step = max((stop - start) // _SAMPLES, 1)
    offsets = range(start, stop, step)
    sample = b"".join(content.part(offset, min(offset + _SAMPLE_SIZE, stop)) for offset in offsets)
    return len(deflate.deflate_compress(sample, 1)) > _DENSE * len(sample)


def _stretches(dense_pieces: Sequence[bool], size: int) -> list[Stretch]:
    """Put pieces together, and cut runs that are too long; the short part of one comes first."""
    stretches: list[Stretch] = []
    piece = 0
    for is_dense, pieces in itertools.groupby(dense_pieces):
        first_piece = piece
        piece += len(list(pieces))
        stretch = Stretch(
            start=first_piece * PIECE,
            stop=min(piece * PIECE, size),
            dense=is_dense,
        )
        if stretches and _is_joined(stretches[-1], stretch):
            stretch = Stretch(
                start=stretches.pop().start,
                stop=stretch.stop,
                dense=False,
            )
        stretches.append(stretch)

    cut_stretches: list[Stretch] = []
    for stretch in stretches:
        cut_stretches += _cut(stretch)
    return cut_stretches


def _is_joined(previous: Stretch, stretch: Stretch) -> bool:
    """Return whether a stretch goes on with the run before it.

    What ends a run early makes all of it cost half as much again: a short dense stretch saves less.
    """
    return stretch.dense == previous.dense or (stretch.dense and len(stretch) < len(previous) // 4)


def _cut(stretch: Stretch) -> list[Stretch]:
    """Cut a stretch that is too long for one run."""
    if stretch.dense:
        return [stretch]
    whole_pieces = -(-len(stretch) // PIECE) * PIECE  # so that all parts begin on a page
    second_start = stretch.start + (whole_pieces % RUN or RUN)
    bounds = [stretch.start, *range(second_start, stretch.stop, RUN), stretch.stop]
    return [
        Stretch(
            start=start,
            stop=stop,
            dense=False,
        )
        for start, stop in itertools.pairwise(bounds)
    ]


def _deflate_runs(
    content: Content, stretches: Sequence[Stretch], workers: Workers, packing: Packing
) -> list[Buffer]:
    """Deflate the runs of a member, side by side where threads are free; what is dense gets none."""
    if not stretches:
        return []
    level = packing.level
    if level == LEVEL and len(content) > PIECE:
        level -= 1
    deflate_stretch = partial(
        _deflate_stretch,
        content,
        level=level,
        scratch=packing.scratch,
    )

    first, *other_stretches = stretches
    futures = [workers.pool.submit(deflate_stretch, stretch) for stretch in other_stretches]
    try:
        runs = [deflate_stretch(first)]
        for stretch, future in zip(other_stretches, futures, strict=True):
            # This thread is one of the pool's, so it waits for none that has not begun.
            runs.append(deflate_stretch(stretch) if future.cancel() else future.result())
    finally:
        wait([future for future in futures if not future.cancel()])
    return runs


def _deflate_stretch(
    content: Content,
    stretch: Stretch,
    *,
    level: int,
    scratch: Path | None,
) -> Buffer:
    """Return a run; of a member that has several it lies in a file."""
    if stretch.dense:
        return b""
    with content.part(stretch.start, stretch.stop) as data:
        run = deflate_run(data, level, last=stretch.stop == len(content))
    if len(content) <= RUN:
        return run

    content.forget(stretch.start, stretch.stop)
    with tempfile.TemporaryFile(
        dir=scratch,
        prefix=".packed.",
    ) as file:
        file.write(run)
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def deflate_run(
    data: memoryview | bytes,
    level: int,
    *,
    last: bool,
) -> bytes:
    """Deflate a part of a stream, without reference to what is before it."""
    if last:
        return bytes(deflate.deflate_compress(data, level))
    zlib_level = min(level + 1, _HIGHEST_ZLIB_LEVEL)
    deflater = zlib_ng.compressobj(zlib_level, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    return deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH)


def _deflate_stream(
    content: Content, stretches: Sequence[Stretch], runs: Sequence[Buffer]
) -> Iterator[Buffer]:
    """Yield the deflate stream: runs, and stored blocks between them (RFC 1951, section 3.2.4)."""
    for stretch, run in zip(stretches, runs, strict=True):
        if not stretch.dense:
            yield run
            continue
        for start in range(stretch.start, stretch.stop, _STORED_BLOCK):
            stop = min(start + _STORED_BLOCK, stretch.stop)
            length = stop - start
            is_last = stop == len(content)
            yield struct.pack("<?HH", is_last, length, length ^ 0xFFFF)
            with content.part(start, stop) as part:
                yield part
            content.forget(start - PIECE, start)
