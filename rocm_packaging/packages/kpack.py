"""Kernel archives (``.kpack``), as ROCm's librocm_kpack reads them.

A header (magic, format version, offset of the table), from byte 64 on the code objects, each a
zstd frame behind its size, and a table in MessagePack: binary and index -> gfx target -> frame.
Source: shared/kpack of ROCm/rocm-systems (docs/multi_arch_packaging_with_kpack.md, runtime/src).
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgpack
import zstandard

MAGIC = b"KPAK"
FOLDER = ".kpack"
SUFFIX = ".kpack"
_VERSION = 1
_HEADER = struct.Struct("<4sIQ")
_START = 64
_U32 = struct.Struct("<I")
_NONE, _ZSTD = "none", "zstd-per-kernel"
# What librocm_kpack takes: it holds all frames in memory.
MAX_FRAMES = 4 << 30
_PLACEHOLDER = "@GFXARCH@"


class KpackError(ValueError):
    """Bytes that are no sound archive or reference. Callers name the file."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One code object of an archive: the library and index it was at (``lib/libx.so#0``), its gfx target."""

    binary: str
    target: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An opened archive."""

    group: str
    targets: tuple[str, ...]
    kernels: Mapping[Kernel, tuple[int, int]]
    packed: bool

    def content(self, stream: BinaryIO, kernel: Kernel) -> bytes:
        """Read a code object."""
        offset, length = self.kernels[kernel]
        stream.seek(offset)
        data = stream.read(length)
        if self.packed:
            try:
                data = zstandard.ZstdDecompressor().decompress(data, max_output_size=kernel.size)
            except (zstandard.ZstdError, MemoryError, OverflowError) as problem:
                raise KpackError(f"{kernel.binary} for {kernel.target} is damaged ({problem})") from problem
        if len(data) != kernel.size:
            raise KpackError(f"{kernel.binary} for {kernel.target} has {len(data)} bytes, not {kernel.size}")
        return data


def write(
    stream: BinaryIO, group: str, family: str, frames: Iterable[bytes], kernels: Sequence[tuple[Kernel, int]]
) -> None:
    """Write the archive of a package (group) for a gfx target (family), front to back.

    `kernels` come each with the length of its zstd frame; the frames, in pieces of any size, in their order.
    """
    size = _U32.size + sum(_U32.size + length for _, length in kernels)
    if size > MAX_FRAMES:
        raise KpackError(f"the code objects for {family} take {size} bytes, and {MAX_FRAMES} is the limit")
    stream.write(_HEADER.pack(MAGIC, _VERSION, _START + size).ljust(_START, b"\0"))
    stream.write(_U32.pack(len(kernels)))
    pieces = iter(frames)
    for _, length in kernels:
        stream.write(_U32.pack(length))
        left = length
        while left:
            left -= stream.write(next(pieces))
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for ordinal, (kernel, _) in enumerate(kernels):
        entry = {"type": "hsaco", "ordinal": ordinal, "original_size": kernel.size}
        table.setdefault(kernel.binary, {})[kernel.target] = entry
    targets = sorted({kernel.target for kernel, _ in kernels})
    for entries in table.values():
        entries |= dict(_aliases(entries, targets))
    contents = {
        "format_version": _VERSION,
        "group_name": group,
        "gfx_arch_family": family,
        "gfx_arches": targets,
        "toc": table,
        "compression_scheme": _ZSTD,
        "zstd_offset": _START,
        "zstd_size": size,
    }
    stream.write(msgpack.packb(contents))


def _aliases(
    entries: Mapping[str, dict[str, Any]], targets: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what a GPU in a mode that others have code for takes of a library without: its general code.

    Runtimes up to ROCm 7.14 look a library up under the most special target of the archive alone.
    """
    for target in targets:
        if target not in entries:
            wanted = set(target.split(":"))
            fitting = [one for one in entries if set(one.split(":")) < wanted]
            if fitting:
                yield target, entries[max(fitting, key=len)]


def read(stream: BinaryIO) -> Archive:
    """Read an archive's table, and where each code object lies."""
    size = stream.seek(0, 2)
    stream.seek(0)
    head = stream.read(_HEADER.size)
    if len(head) != _HEADER.size or not head.startswith(MAGIC):
        raise KpackError("it is not a kernel archive")
    _, version, at = _HEADER.unpack(head)
    if version != _VERSION:
        raise KpackError(f"it has format version {version}, and {_VERSION} is supported")
    if not _HEADER.size <= at < size:
        raise KpackError("it is cut off: its table lies beyond its end")
    stream.seek(at)
    table = _unpacked(stream.read())
    try:
        packed = table["compression_scheme"] == _ZSTD
        places = list(_frames(stream, table, at) if packed else _blobs(table, at))
        kernels = {
            Kernel(binary=binary, target=target, size=_size(entry["original_size"])): places[
                _size(entry["ordinal"])
            ]
            for binary, targets in table["toc"].items()
            for target, entry in targets.items()
        }
        return Archive(
            group=table["group_name"], targets=tuple(table["gfx_arches"]), kernels=kernels, packed=packed
        )
    except (KeyError, TypeError, IndexError, AttributeError, struct.error) as problem:
        raise KpackError(f"its table is damaged ({problem!r})") from problem


def _size(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is not a size")
    return value


def _unpacked(data: bytes) -> dict[str, Any]:
    try:
        found = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException) as problem:
        raise KpackError(f"its table is cut off or damaged ({problem})") from problem
    if not isinstance(found, dict):
        raise KpackError("its table is not a map")
    return found


def _frames(stream: BinaryIO, table: Mapping[str, Any], end: int) -> Iterator[tuple[int, int]]:
    position = _size(table["zstd_offset"])
    stop = position + _size(table["zstd_size"])
    if stop > end:
        raise KpackError("its code objects reach into its table")
    stream.seek(position)
    (count,) = _U32.unpack(stream.read(_U32.size))
    position += _U32.size
    for _ in range(count):
        stream.seek(position)
        (length,) = _U32.unpack(stream.read(_U32.size))
        position += _U32.size + length
        if position > stop:
            raise KpackError("a code object reaches beyond the others' end")
        yield position - length, length


def _blobs(table: Mapping[str, Any], end: int) -> Iterator[tuple[int, int]]:
    if table["compression_scheme"] != _NONE:
        raise KpackError(f"unknown compression scheme {table['compression_scheme']!r}")
    for offset, size in ((_size(blob["offset"]), _size(blob["size"])) for blob in table["blobs"]):
        if offset + size > end:
            raise KpackError("a code object reaches into its table")
        yield offset, size


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Where a library's device code is: its name in archives' tables, their paths from its folder."""

    binary: str
    paths: tuple[str, ...]

    def packed(self) -> bytes:
        """Return what the section ``.rocm_kpack_ref`` holds."""
        data: bytes = msgpack.packb({"kpack_search_paths": list(self.paths), "kernel_name": self.binary})
        return data


def reference(package: str, binary: str) -> Reference:
    """Return the reference of a library, by its path below its wheel's package."""
    up = "../" * binary.count("/")
    return Reference(binary=binary, paths=(f"{up}{archive_name(package, _PLACEHOLDER)}",))


def archive_name(package: str, target: str) -> str:
    """Return an archive's path below its package's folder."""
    return f"{FOLDER}/{package}_{target}{SUFFIX}"


def read_reference(data: bytes) -> Reference:
    """Read the section ``.rocm_kpack_ref``; bytes behind it do not matter."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    try:
        found = unpacker.unpack()
        binary, paths = found["kernel_name"], tuple(found["kpack_search_paths"])
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as problem:
        raise KpackError(f"its reference to kernel archives is damaged ({problem!r})") from problem
    if not paths or not all(isinstance(text, str) for text in (binary, *paths)):
        raise KpackError("its reference to kernel archives names none")
    return Reference(binary=binary, paths=paths)
