"""Clang offload bundles: which GPU targets device code was compiled for.

Sources: the layout in clang's ClangOffloadBundler documentation, and that of compressed
bundles (``CCOB``) in `CompressedOffloadBundle` of llvm's Object/OffloadBundle. A plain
bundle is a magic, a count, and one (offset, size, id) for each code object. A compressed
one wraps a plain one; only as much of it is inflated as its table of entries needs.

Linkers lay the bundles of all objects one after another, padded with zeros.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Iterator

    Data = bytes | memoryview | mmap.mmap

PLAIN_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED_MAGIC = b"CCOB"
_MAGIC = re.compile(PLAIN_MAGIC + b"|" + COMPRESSED_MAGIC)
_NONZERO = re.compile(rb"[^\0]")
_COMMON = struct.Struct("<4sHH")
# Behind the common fields: [total size,] uncompressed size, hash.
_REST = {1: struct.Struct("<IQ"), 2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}
_ZLIB, _ZSTD = 0, 1
_COUNT = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQQ")
# Real bundles hold up to about 50 entries with ids of about 50 bytes.
_MAX_ENTRIES = 4096
_MAX_ID = 1024
_STEP = 1 << 16
# clang compresses with long-distance matching: the frame's window is the bundle's size, up to this.
# It bounds what may be asked for; pages are touched only as far as the table reaches.
_MAX_WINDOW = 1 << 31
_TRIPLE_PARTS = 5

Form = Literal["plain", "zlib", "zstd"]


class BundleError(ValueError):
    """Bytes that are no sound bundle. Callers name the file."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One code object of a bundle."""

    kind: str
    target: str
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """One bundle."""

    offset: int
    form: Form
    version: int
    size: int
    uncompressed: int
    entries: tuple[Entry, ...]

    @property
    def targets(self) -> frozenset[str]:
        """GPU targets that it holds code for; an entry without bytes is none."""
        return frozenset(entry.target for entry in self.entries if entry.target and entry.size)


def read_bundles(data: Data) -> tuple[Bundle, ...]:
    """Read every bundle of a section or file."""
    return tuple(_bundles(memoryview(data)))


def targets_of(bundles: Iterable[Bundle]) -> frozenset[str]:
    """All GPU targets of several bundles."""
    return frozenset(target for bundle in bundles for target in bundle.targets)


def code_objects(data: Data, bundle: Bundle) -> Iterator[tuple[Entry, bytes | memoryview]]:
    """Yield a bundle's code objects for GPUs, one at a time; a compressed bundle is inflated as it goes."""
    view = memoryview(data)[bundle.offset :]
    wanted = sorted((one for one in bundle.entries if one.target and one.size), key=lambda one: one.offset)
    if bundle.form == "plain":
        yield from ((one, view[one.offset : one.offset + one.size]) for one in wanted)
        return
    header = _COMMON.size + _REST[bundle.version].size
    payload = view[header : bundle.size] if bundle.size else view[header:]
    source, at = _opened(payload, _ZLIB if bundle.form == "zlib" else _ZSTD, bundle.offset), 0
    for one in wanted:
        if one.offset < at:
            raise BundleError(f"the bundle at offset {bundle.offset} has code objects that overlap")
        while at < one.offset:
            at += len(_take(source, min(_STEP, one.offset - at), bundle.offset))
        yield one, _take(source, one.size, bundle.offset)
        at += one.size


def parse_entry_id(text: str) -> tuple[str, str]:
    """Split a bundle entry's id, ``<kind>-<triple>[-<target id>]``."""
    parts = text.split("-", _TRIPLE_PARTS)
    kind = parts[0]
    if kind == "host":
        return kind, ""
    if len(parts) > _TRIPLE_PARTS:
        return kind, parts[_TRIPLE_PARTS]
    # Old compilers left the triple's empty environment out.
    return kind, parts[-1] if parts[-1].startswith("gfx") else ""


def _bundles(data: memoryview) -> Iterator[Bundle]:
    position = 0
    while (found := _NONZERO.search(data, position)) is not None:
        bundle = _bundle_at(data, found.start())
        yield bundle
        position = bundle.offset + bundle.size if bundle.size else _end_of_version_1(data, bundle)


def _bundle_at(data: memoryview, offset: int) -> Bundle:
    head = bytes(data[offset : offset + len(PLAIN_MAGIC)])
    if head == PLAIN_MAGIC:
        return _plain_at(data, offset)
    if head.startswith(COMPRESSED_MAGIC):
        return _compressed_at(data, offset)
    raise BundleError(f"neither a bundle nor padding at offset {offset}")


def _plain_at(data: memoryview, offset: int) -> Bundle:
    entries = _read_table(_Plain(data[offset:]), offset)
    size = max((entry.offset + entry.size for entry in entries), default=len(PLAIN_MAGIC) + _COUNT.size)
    if offset + size > len(data):
        raise BundleError(f"the bundle at offset {offset} is cut off")
    return Bundle(offset=offset, form="plain", version=0, size=size, uncompressed=size, entries=entries)


def _compressed_at(data: memoryview, offset: int) -> Bundle:
    if offset + _COMMON.size > len(data):
        raise BundleError(f"the compressed bundle at offset {offset} is cut off")
    _, version, method = _COMMON.unpack_from(data, offset)
    if version not in _REST:
        raise BundleError(f"the compressed bundle at offset {offset} has unknown version {version}")
    rest, start = _REST[version], offset + _COMMON.size
    if start + rest.size > len(data):
        raise BundleError(f"the compressed bundle at offset {offset} is cut off")
    *sizes, uncompressed, _hash = rest.unpack_from(data, start)
    header, size = _COMMON.size + rest.size, sizes[0] if sizes else 0
    if sizes and (size < header or offset + size > len(data)):
        raise BundleError(f"the compressed bundle at offset {offset} is cut off")
    payload = data[offset + header : offset + size] if sizes else data[offset + header :]
    entries = _read_table(_opened(payload, method, offset), offset)
    _require_inside(entries, uncompressed, offset)
    return Bundle(
        offset=offset,
        form="zlib" if method == _ZLIB else "zstd",
        version=version,
        size=size,
        uncompressed=uncompressed,
        entries=entries,
    )


def _require_inside(entries: Iterable[Entry], uncompressed: int, offset: int) -> None:
    if any(entry.offset + entry.size > uncompressed for entry in entries):
        raise BundleError(f"the bundle at offset {offset} has code objects beyond its end")


def _end_of_version_1(data: memoryview, bundle: Bundle) -> int:
    """Find the next bundle where the header does not say how long this one is.

    The magic may occur in compressed data by chance, so what follows it must be a bundle.
    """
    for found in _MAGIC.finditer(data, bundle.offset + len(COMPRESSED_MAGIC)):
        try:
            _bundle_at(data, found.start())
        except BundleError:
            continue
        return found.start()
    return len(data)


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Plain:
    """Reads a view from its start."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def read(self, size: int, /) -> bytes:
        piece = bytes(self._data[self._at : self._at + size])
        self._at += len(piece)
        return piece


class _Inflated:
    """Inflates a zlib stream as far as it is read."""

    def __init__(self, data: memoryview, offset: int) -> None:
        self._source, self._offset, self._inflater = _Plain(data), offset, zlib.decompressobj()

    def read(self, size: int, /) -> bytes:
        found = bytearray()
        while len(found) < size and not self._inflater.eof:
            pending = self._inflater.unconsumed_tail or self._source.read(_STEP)
            if not pending:
                break
            try:
                found += self._inflater.decompress(pending, size - len(found))
            except zlib.error as problem:
                raise BundleError(f"the bundle at offset {self._offset} is damaged ({problem})") from problem
        return bytes(found)


class _Zstd:
    """Inflates a zstd frame as far as it is read."""

    def __init__(self, data: memoryview, offset: int) -> None:
        import zstandard

        self._offset, self._error = offset, zstandard.ZstdError
        inflater = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        self._reader = inflater.stream_reader(data, read_size=_STEP)

    def read(self, size: int, /) -> bytes:
        try:
            return self._reader.read(size)
        except (self._error, MemoryError) as problem:
            raise BundleError(f"the bundle at offset {self._offset} is damaged ({problem})") from problem


def _opened(payload: memoryview, method: int, offset: int) -> _Source:
    if method == _ZLIB:
        return _Inflated(payload, offset)
    if method == _ZSTD:
        return _Zstd(payload, offset)
    raise BundleError(f"the bundle at offset {offset} is compressed by unknown method {method}")


def _read_table(source: _Source, offset: int) -> tuple[Entry, ...]:
    """Read a bundle's magic and entries, and nothing behind them."""
    if _take(source, len(PLAIN_MAGIC), offset) != PLAIN_MAGIC:
        raise BundleError(f"the compressed data at offset {offset} is no bundle")
    (count,) = _COUNT.unpack(_take(source, _COUNT.size, offset))
    if count > _MAX_ENTRIES:
        raise BundleError(f"the bundle at offset {offset} claims {count} entries")
    return tuple(_read_entry(source, offset) for _ in range(count))


def _read_entry(source: _Source, offset: int) -> Entry:
    start, size, length = _ENTRY.unpack(_take(source, _ENTRY.size, offset))
    if not 0 < length <= _MAX_ID:
        raise BundleError(f"the bundle at offset {offset} has an id of {length} bytes")
    kind, target = parse_entry_id(_take(source, length, offset).decode("utf-8", "replace"))
    return Entry(kind=kind, target=target, offset=start, size=size)


def _take(source: _Source, size: int, offset: int) -> bytes:
    found = source.read(size)
    if len(found) != size:
        raise BundleError(f"the bundle at offset {offset} ends within its table or code")
    return found
