"""Clang offload bundles: which GPU targets device code was compiled for.

Sources: the layout in clang's ClangOffloadBundler documentation, and that of compressed
bundles (``CCOB``) in `CompressedOffloadBundle` of llvm's Object/OffloadBundle. A plain
bundle is a magic, a count, and one (offset, size, id) for each code object. A compressed
one wraps a plain one; only as much of it is inflated as its table of entries needs.

Linkers lay the bundles of all objects one after another, padded with zeros.
"""

import mmap
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import zstandard

Buffer: TypeAlias = bytes | memoryview | mmap.mmap
# Returns the next bytes, as many as are asked for; fewer at the end.
Read: TypeAlias = Callable[[int], bytes]
Form = Literal["plain", "zlib", "zstd"]
PLAIN_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED_MAGIC = b"CCOB"
_NONZERO = re.compile(rb"[^\0]")
_COMMON = struct.Struct("<4sHH")
# Behind the common fields: total size, uncompressed size, hash. Version 1, of clang before 19, has no total.
_REST = {2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}
_METHODS: tuple[Form, ...] = ("zlib", "zstd")
_COUNT = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQQ")
# Real bundles hold up to about 50 entries with ids of about 50 bytes.
_MAX_ENTRIES = 4096
_MAX_ID = 1024
_STEP = 1 << 16
# clang compresses with long-distance matching: the frame's window is the bundle's size, up to this.
# It bounds the memory requested; pages are touched only as far as the table reaches.
_MAX_WINDOW = 1 << 31
_PARTS_BEFORE_TARGET = 5


class BundleError(ValueError):
    """Bytes that are not a sound bundle. Callers name the file."""


@dataclass(frozen=True, kw_only=True)
class BundleEntry:
    """One code object of a bundle: what it runs on, and where in the bundle it is."""

    kind: str
    target: str
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """One of clang's offload bundles in a file: device code for several targets, plain or compressed."""

    offset: int
    form: Form
    version: int
    size: int
    entries: tuple[BundleEntry, ...]

    @property
    def code(self) -> tuple[BundleEntry, ...]:
        """The entries with code for GPUs, which have a target and are not empty."""
        return tuple(entry for entry in self.entries if entry.target and entry.size)

    @property
    def targets(self) -> frozenset[str]:
        """The GPU targets that the bundle has code for."""
        return frozenset(entry.target for entry in self.code)


def read_bundles(data: Buffer) -> tuple[Bundle, ...]:
    """Return every bundle in the bytes of a section or file; anything else but padding is an error."""
    view = memoryview(data)
    bundles: list[Bundle] = []
    position = 0
    while (start := _NONZERO.search(view, position)) is not None:
        bundle = _bundle_at(view, start.start())
        bundles.append(bundle)
        position = bundle.offset + bundle.size
    return tuple(bundles)


def code_objects(data: Buffer, bundle: Bundle) -> Iterator[tuple[BundleEntry, bytes | memoryview]]:
    """Yield a bundle's code objects for GPUs with their bytes, which are inflated one at a time."""
    view = memoryview(data)[bundle.offset :]
    entries = sorted(bundle.code, key=lambda entry: entry.offset)
    if bundle.form == "plain":
        for entry in entries:
            yield entry, view[entry.offset : entry.offset + entry.size]
        return

    payload = view[_COMMON.size + _REST[bundle.version].size : bundle.size]
    read = _inflating_reader(payload, _METHODS.index(bundle.form), bundle.offset)
    position = 0
    for entry in entries:
        if entry.offset < position:
            raise _bundle_error(bundle.offset, "has code objects that overlap")
        while position < entry.offset:
            position += len(_read_exactly(read, min(_STEP, entry.offset - position), bundle.offset))
        yield entry, _read_exactly(read, entry.size, bundle.offset)
        position += entry.size


def parse_entry_id(text: str) -> tuple[str, str]:
    """Return the kind and the target in a bundle entry's id, ``<kind>-<triple>[-<target id>]``."""
    parts = text.split("-", _PARTS_BEFORE_TARGET)
    kind = parts[0]
    if kind == "host":
        return kind, ""
    if len(parts) > _PARTS_BEFORE_TARGET:
        return kind, parts[_PARTS_BEFORE_TARGET]
    # Old compilers left the triple's empty environment out.
    if parts[-1].startswith("gfx"):
        return kind, parts[-1]
    return kind, ""


def _bundle_error(offset: int, fault: str) -> BundleError:
    """Return the error for the bundle at an offset; `fault` continues the sentence."""
    return BundleError(f"the bundle at offset {offset} {fault}")


def _bundle_at(data: memoryview, offset: int) -> Bundle:
    """Return the bundle, plain or compressed, that begins at an offset."""
    head = bytes(data[offset : offset + len(PLAIN_MAGIC)])
    if head.startswith(COMPRESSED_MAGIC):
        return _compressed_bundle_at(data, offset)
    if head != PLAIN_MAGIC:
        raise BundleError(f"neither a bundle nor padding at offset {offset}")
    entries = _read_entries(_plain_reader(data[offset:]), offset)
    ends = [entry.offset + entry.size for entry in entries]
    size = max(ends, default=len(PLAIN_MAGIC) + _COUNT.size)
    if offset + size > len(data):
        raise _bundle_error(offset, "is cut off")
    return Bundle(
        offset=offset,
        form="plain",
        version=0,
        size=size,
        entries=entries,
    )


def _compressed_bundle_at(data: memoryview, offset: int) -> Bundle:
    """Return the compressed bundle that begins at an offset; its code objects are not inflated."""
    start = offset + _COMMON.size
    if start > len(data):
        raise _bundle_error(offset, "is cut off")
    _, version, method = _COMMON.unpack_from(data, offset)
    if version not in _REST:
        raise _bundle_error(offset, f"has unknown version {version}")
    rest = _REST[version]
    if start + rest.size > len(data):
        raise _bundle_error(offset, "is cut off")
    size, uncompressed, _hash = rest.unpack_from(data, start)
    header = _COMMON.size + rest.size
    if size < header or offset + size > len(data):
        raise _bundle_error(offset, "is cut off")
    payload = data[offset + header : offset + size]
    entries = _read_entries(_inflating_reader(payload, method, offset), offset)
    if any(entry.offset + entry.size > uncompressed for entry in entries):
        raise _bundle_error(offset, "has code objects beyond its end")
    return Bundle(
        offset=offset,
        form=_METHODS[method],
        version=version,
        size=size,
        entries=entries,
    )


def _plain_reader(data: memoryview) -> Read:
    """Return a function that returns so many of the next bytes, from the start of `data` on."""
    position = 0

    def read(size: int) -> bytes:
        """Return the next bytes, fewer where the data ends."""
        nonlocal position
        chunk = bytes(data[position : position + size])
        position += len(chunk)
        return chunk

    return read


def _inflating_reader(
    payload: memoryview,
    method: int,
    offset: int,
) -> Read:
    """Return a function that returns so many of the next bytes of a payload, inflated."""
    if method == 0:
        return _zlib_reader(payload)
    if method >= len(_METHODS):
        raise _bundle_error(offset, f"is compressed by unknown method {method}")
    inflater = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    return inflater.stream_reader(payload, read_size=_STEP).read


def _zlib_reader(payload: memoryview) -> Read:
    """Return a function that returns so many of the next bytes of a payload, inflated by zlib."""
    read_payload = _plain_reader(payload)
    inflater = zlib.decompressobj()

    def read(size: int) -> bytes:
        """Return the next bytes, fewer where the data ends."""
        inflated = bytearray()
        while len(inflated) < size and not inflater.eof:
            pending = inflater.unconsumed_tail or read_payload(_STEP)
            if not pending:
                break
            inflated += inflater.decompress(pending, size - len(inflated))
        return bytes(inflated)

    return read


def _read_entries(read: Read, offset: int) -> tuple[BundleEntry, ...]:
    """Read a bundle's magic and return the entries of its table; nothing behind it is read."""
    if _read_exactly(read, len(PLAIN_MAGIC), offset) != PLAIN_MAGIC:
        raise BundleError(f"the compressed data at offset {offset} is not a bundle")
    (count,) = _COUNT.unpack(_read_exactly(read, _COUNT.size, offset))
    if count > _MAX_ENTRIES:
        raise _bundle_error(offset, f"claims {count} entries")
    return tuple(_read_entry(read, offset) for _ in range(count))


def _read_entry(read: Read, offset: int) -> BundleEntry:
    """Read and return one entry of a bundle's table."""
    start, size, length = _ENTRY.unpack(_read_exactly(read, _ENTRY.size, offset))
    if not 0 < length <= _MAX_ID:
        raise _bundle_error(offset, f"has an id of {length} bytes")
    kind, target = parse_entry_id(_read_exactly(read, length, offset).decode("utf-8", "replace"))
    return BundleEntry(
        kind=kind,
        target=target,
        offset=start,
        size=size,
    )


def _read_exactly(
    read: Read,
    size: int,
    offset: int,
) -> bytes:
    """Return exactly `size` bytes of a reader; fewer are an error of the bundle at `offset`."""
    try:
        data = read(size)
    except (zlib.error, zstandard.ZstdError, MemoryError) as problem:
        raise _bundle_error(offset, f"is damaged ({problem})") from problem
    if len(data) != size:
        raise _bundle_error(offset, "ends within its table or code")
    return data
