"""Kernel archives (``.kpack``), as ROCm's librocm_kpack reads them.

A header (magic, format version, offset of the table), from byte 64 on the code objects, each a
zstd frame behind its size, and a table in MessagePack: binary and index -> gfx target -> frame.
Source: shared/kpack of ROCm/rocm-systems (docs/multi_arch_packaging_with_kpack.md, runtime/src).
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
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
_NONE = "none"
_ZSTD = "zstd-per-kernel"
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
    stream: BinaryIO,
    group: str,
    family: str,
    frames: Iterable[bytes],
    kernels: Sequence[tuple[Kernel, int]],
) -> None:
    """Write the archive of a package (group) for a gfx target (family), front to back.

    `kernels` come each with the length of its zstd frame; the frames, in pieces of any size, in their order.
    """
    lengths = [length for _kernel, length in kernels]
    size = _U32.size + sum(_U32.size + length for length in lengths)
    if size > MAX_FRAMES:
        raise KpackError(f"the code objects for {family} take {size} bytes, and {MAX_FRAMES} is the limit")

    stream.write(_HEADER.pack(MAGIC, _VERSION, _START + size).ljust(_START, b"\0"))
    _write_frames(stream, frames, lengths)
    targets = sorted({kernel.target for kernel, _length in kernels})
    contents = {
        "format_version": _VERSION,
        "group_name": group,
        "gfx_arch_family": family,
        "gfx_arches": targets,
        "toc": _table([kernel for kernel, _length in kernels], targets),
        "compression_scheme": _ZSTD,
        "zstd_offset": _START,
        "zstd_size": size,
    }
    stream.write(msgpack.packb(contents))


def _write_frames(stream: BinaryIO, frames: Iterable[bytes], lengths: Sequence[int]) -> None:
    """Write the count of frames, and each behind its length."""
    stream.write(_U32.pack(len(lengths)))
    pieces = iter(frames)
    for length in lengths:
        stream.write(_U32.pack(length))
        missing_bytes = length
        while missing_bytes:
            missing_bytes -= stream.write(next(pieces))


_Row = dict[str, Any]


def _table(kernels: Sequence[Kernel], targets: Sequence[str]) -> dict[str, dict[str, _Row]]:
    """Return the table of kernels: binary -> gfx target -> place among the frames."""
    table: dict[str, dict[str, _Row]] = {}
    for ordinal, kernel in enumerate(kernels):
        row = {"type": "hsaco", "ordinal": ordinal, "original_size": kernel.size}
        table.setdefault(kernel.binary, {})[kernel.target] = row
    for rows_by_target in table.values():
        rows_by_target.update(_aliases(rows_by_target, targets))
    return table


def _aliases(rows_by_target: Mapping[str, _Row], targets: Sequence[str]) -> dict[str, _Row]:
    """Return what a GPU in a mode that others have code for takes of a library without: its general code.

    Runtimes up to ROCm 7.14 look a library up under the most special target of the archive alone.
    """
    aliases: dict[str, _Row] = {}
    for target in targets:
        if target in rows_by_target:
            continue
        features = set(target.split(":"))
        general_targets = [other for other in rows_by_target if set(other.split(":")) < features]
        if general_targets:
            aliases[target] = rows_by_target[max(general_targets, key=len)]
    return aliases


def read(stream: BinaryIO) -> Archive:
    """Read an archive's table, and where each code object lies."""
    table_offset = _read_header(stream)
    stream.seek(table_offset)
    table = _unpack_table(stream.read())
    try:
        is_packed = table["compression_scheme"] == _ZSTD
        if is_packed:
            places = _frame_places(stream, table, table_offset)
        else:
            places = _blob_places(table, table_offset)
        return Archive(
            group=table["group_name"],
            targets=tuple(table["gfx_arches"]),
            kernels=_kernels_of(table, places),
            packed=is_packed,
        )
    except (
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        struct.error,
    ) as problem:
        raise KpackError(f"its table is damaged ({problem!r})") from problem


def _read_header(stream: BinaryIO) -> int:
    """Return the offset of the table."""
    size = stream.seek(0, 2)
    stream.seek(0)
    header = stream.read(_HEADER.size)
    if len(header) != _HEADER.size or not header.startswith(MAGIC):
        raise KpackError("it is not a kernel archive")

    _magic, version, table_offset = _HEADER.unpack(header)
    if version != _VERSION:
        raise KpackError(f"it has format version {version}, and {_VERSION} is supported")
    if not _HEADER.size <= table_offset < size:
        raise KpackError("it is cut off: its table lies beyond its end")
    return int(table_offset)


def _kernels_of(table: Mapping[str, Any], places: Sequence[tuple[int, int]]) -> dict[Kernel, tuple[int, int]]:
    """Return the code objects of a table, each with its offset and length."""
    kernels: dict[Kernel, tuple[int, int]] = {}
    for binary, rows in table["toc"].items():
        for target, row in rows.items():
            kernel = Kernel(binary=binary, target=target, size=_natural_number(row["original_size"]))
            kernels[kernel] = places[_natural_number(row["ordinal"])]
    return kernels


def _natural_number(number: object) -> int:
    if not isinstance(number, int) or number < 0:
        raise TypeError(f"{number!r} is not a natural number")
    return number


def _unpack_table(data: bytes) -> dict[str, Any]:
    try:
        table = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException) as problem:
        raise KpackError(f"its table is cut off or damaged ({problem})") from problem
    if not isinstance(table, dict):
        raise KpackError("its table is not a map")
    return table


def _frame_places(stream: BinaryIO, table: Mapping[str, Any], end: int) -> list[tuple[int, int]]:
    """Return the offset and the length of each frame; all lie before `end`."""
    position = _natural_number(table["zstd_offset"])
    end_of_frames = position + _natural_number(table["zstd_size"])
    if end_of_frames > end:
        raise KpackError("its code objects reach into its table")

    stream.seek(position)
    (count,) = _U32.unpack(stream.read(_U32.size))
    position += _U32.size
    places: list[tuple[int, int]] = []
    for _ordinal in range(count):
        stream.seek(position)
        (length,) = _U32.unpack(stream.read(_U32.size))
        position += _U32.size + length
        if position > end_of_frames:
            raise KpackError("a code object reaches beyond the others' end")
        places.append((position - length, length))
    return places


def _blob_places(table: Mapping[str, Any], end: int) -> list[tuple[int, int]]:
    """Return the offset and the length of each code object that is not packed; all lie before `end`."""
    if table["compression_scheme"] != _NONE:
        raise KpackError(f"unknown compression scheme {table['compression_scheme']!r}")
    places: list[tuple[int, int]] = []
    for blob in table["blobs"]:
        offset = _natural_number(blob["offset"])
        size = _natural_number(blob["size"])
        if offset + size > end:
            raise KpackError("a code object reaches into its table")
        places.append((offset, size))
    return places


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
        content = unpacker.unpack()
        binary = content["kernel_name"]
        paths = tuple(content["kpack_search_paths"])
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as problem:
        raise KpackError(f"its reference to kernel archives is damaged ({problem!r})") from problem
    if not paths or not all(isinstance(text, str) for text in (binary, *paths)):
        raise KpackError("its reference to kernel archives names none")
    return Reference(binary=binary, paths=paths)
