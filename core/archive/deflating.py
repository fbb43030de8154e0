"""Deflate streams of large data, made by libdeflate on all cores with little memory.

libdeflate packs better and faster than zlib, but only whole buffers: each of its streams ends
with a block that is marked as the last. To join the streams of neighbouring chunks, that mark
is taken out and an empty stored block is added, which ends on a byte boundary (as zlib's
sync flush does). Where the last block begins is found by inflating the chunk: a decoder
gives nothing out while it reads the code tables at a block's start. Every joint is proved by
inflating the changed block to the chunk's own bytes; where that fails (such as for a last
block without tables), zlib packs the chunk instead. Format: RFC 1951, section 3.2.3.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import deflate
from zlib_ng import zlib_ng  # inflates half again as fast as zlib

if TYPE_CHECKING:
    from collections.abc import Iterator

_INFLATE: Any = zlib_ng  # whose stubs know neither copies nor its error
_RAW = -zlib.MAX_WBITS
_PIECE = 64 << 10
_STEP = 16  # bytes; most tables fill two of these, and other data gives something out in one
_WINDOWS = (160 << 10, 64 << 10, 24 << 10)  # the last block begins in the last bytes; rarely before the first
_EMPTY_STORED = b"\x00\x00\xff\xff"
_FINAL_EMPTY_STORED = b"\x01\x00\x00\xff\xff"
_FINAL_WITH_TABLES = 0b101  # BFINAL is set, BTYPE is 2; the lowest bit comes first
_ZLIB_LEVEL = 6


def chunk(data: bytes | memoryview, level: int, *, last: bool) -> bytes:
    """Deflate one chunk of a larger stream, without reference to what is before it."""
    packed = bytes(deflate.deflate_compress(data, level))
    if last:
        return packed
    return _opened(packed, data) or _by_zlib(data)


def _by_zlib(data: bytes | memoryview) -> bytes:
    deflater = zlib.compressobj(_ZLIB_LEVEL, zlib.DEFLATED, _RAW, 9)
    return deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH)


def _opened(packed: bytes, data: bytes | memoryview) -> bytes | None:
    """Give a stream whose last block is no longer marked as such; None where none was found."""
    found = _before_last_tables(packed)
    if found is None:
        return None
    before, start, given = found
    wanted = bytes(data[given:])
    for bit in _final_marks(packed[start : start + 4 * _STEP]):
        changed = bytearray(packed[start:])
        changed[bit >> 3] ^= 1 << (bit & 7)
        # The empty block's three bits fit behind the last code, or need another byte.
        for ending in (_EMPTY_STORED, b"\x00" + _EMPTY_STORED):
            joined = bytes(changed) + ending
            if _inflates_to(before, joined, wanted):
                return packed[:start] + joined
    return None


def _before_last_tables(packed: bytes) -> tuple[Any, int, int] | None:
    """Find the last place where a decoder reads tables."""
    inflater, given, at = _INFLATE.decompressobj(_RAW), 0, 0
    seen = []
    for window in _WINDOWS:
        start = max(at, len(packed) - window)
        given += sum(len(inflater.decompress(packed[one:start][:_PIECE])) for one in range(at, start, _PIECE))
        at = start
        seen.append((inflater.copy(), start, given))
    ends = [*(start for _, start, _ in seen[1:]), len(packed) - _STEP]
    for (state, start, count), end in zip(reversed(seen), reversed(ends), strict=True):
        tables = _last_silence(state.copy(), packed, start, end)
        if tables is not None and tables > start:  # else they may have begun before this window
            begin = max(start, tables - 2 * _STEP)
            return state, begin, count + len(state.decompress(packed[start:begin]))
    return None


def _last_silence(inflater: Any, packed: bytes, start: int, end: int) -> int | None:  # noqa: ANN401 - as below
    """Find the offset from which a decoder begins to read without giving anything out."""
    last, reading = None, False
    for at in range(start, end, _STEP):
        silent = not inflater.decompress(packed[at : at + _STEP])
        if silent and not reading:
            last = at
        reading = silent
    return last


def _final_marks(window: bytes) -> Iterator[int]:
    """List the bits that could mark a last block with tables of its own: 1, then 0 1."""
    bits = int.from_bytes(window, "little")
    for bit in range(8 * len(window) - 2):
        if bits >> bit & 0b111 == _FINAL_WITH_TABLES:
            yield bit


def _inflates_to(before: Any, joined: bytes, wanted: bytes) -> bool:  # noqa: ANN401 - the class has no public name
    inflater = before.copy()
    try:
        out = inflater.decompress(joined)
        rest = inflater.decompress(_FINAL_EMPTY_STORED)
    except _INFLATE.error:
        return False
    return bool(out == wanted and not rest and inflater.eof and not inflater.unused_data)
