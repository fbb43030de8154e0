"""Give a very large library a longer RPATH without reading it whole.

patchelf holds a file twice in memory, and device code makes libraries of gigabytes. What changes
is little: as patchelf does, a segment is added behind everything else, with the string table
and its new string, and with the program headers, which need room for one more. The rest of the
file is the same bytes. Format: the System V ABI (gABI), as `core.binaries.elf`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, BinaryIO

from core.wheel.wheel_writer import Edited

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_TAG = struct.Struct("<qQ")
_U64, _U16 = struct.Struct("<Q"), struct.Struct("<H")
_AT_SEGMENTS, _AT_COUNT = 32, 56  # e_phoff, e_phnum
_AT_SECTION_ADDRESS = 16  # sh_addr, then sh_offset and sh_size
_DYN, _LOAD, _DYNAMIC, _INTERP, _PHDR, _READABLE, _STRTAB_SECTION = 3, 1, 2, 3, 6, 4, 3
_DT_NULL, _DT_STRTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 0, 5, 10, 15, 29
_LEAST_ALIGNMENT = 0x1000
_Segment = tuple[int, int, int, int, int, int, int, int]


def grown(path: Path, rpath: str) -> Edited | None:
    """Say how a library gets an RPATH in place of the RPATH or RUNPATH that it has."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        header = _HEADER.unpack(stream.read(_HEADER.size))
        segments = _table(stream, header[5], header[10], _SEGMENT)
        dynamic = next((one for one in segments if one[0] == _DYNAMIC), None)
        if header[1] != _DYN or dynamic is None or any(one[0] == _INTERP for one in segments):
            return None
        places = _entries(stream, dynamic)
        paths = [tag for tag in (_DT_RPATH, _DT_RUNPATH) if tag in places]
        if len(paths) != 1 or not {_DT_STRTAB, _DT_STRSZ} <= set(places):
            return None
        address, length = places[_DT_STRTAB][1], places[_DT_STRSZ][1]
        at_strings = _place(segments, address, length)
        stream.seek(at_strings or 0)
        strings = stream.read(length)
        sections = _table(stream, header[6], header[12], _SECTION)
    if at_strings is None:
        return None
    added, tail, new_address = _added(segments, size, strings + rpath.encode() + b"\0")
    total = length + len(rpath.encode()) + 1
    offset = added + len(tail) - total
    edits = [
        (_AT_SEGMENTS, _U64.pack(added)),
        (_AT_COUNT, _U16.pack(len(segments) + 1)),
        (at_strings, bytes(length)),  # nothing points there any more, and zeros take no room
        (places[_DT_STRTAB][0], _TAG.pack(_DT_STRTAB, new_address)),
        (places[_DT_STRSZ][0], _TAG.pack(_DT_STRSZ, total)),
        (places[paths[0]][0], _TAG.pack(_DT_RPATH, length)),
    ]
    for index, section in enumerate(sections):
        if section[1] == _STRTAB_SECTION and section[3] == address:
            at = header[6] + index * _SECTION.size + _AT_SECTION_ADDRESS
            edits.append((at, struct.pack("<QQQ", new_address, offset, total)))
    return Edited(path=path, edits=tuple(edits), tail=bytes(added - size) + tail)


def _added(segments: list[_Segment], size: int, strings: bytes) -> tuple[int, bytes, int]:
    """Make the new segment."""
    loads = [index for index, one in enumerate(segments) if one[0] == _LOAD]
    alignment = max(_LEAST_ALIGNMENT, *(segments[index][7] for index in loads))
    end = max(segments[index][3] + segments[index][6] for index in loads)
    offset, address = _up(size, alignment), _up(end, alignment)
    headers = _SEGMENT.size * (len(segments) + 1)
    length = headers + len(strings)
    new = (_LOAD, _READABLE, offset, address, address, length, length, alignment)
    every = [*segments[: loads[-1] + 1], new, *segments[loads[-1] + 1 :]]
    place = (offset, address, address, headers, headers)
    every = [(*one[:2], *place, one[7]) if one[0] == _PHDR else one for one in every]
    table = b"".join(_SEGMENT.pack(*one) for one in every)
    return offset, table + strings, address + headers


def _up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _table(stream: BinaryIO, offset: int, count: int, form: struct.Struct) -> list[_Segment]:
    stream.seek(offset)
    return list(form.iter_unpack(stream.read(count * form.size)))


def _entries(stream: BinaryIO, dynamic: _Segment) -> dict[int, tuple[int, int]]:
    """Read the dynamic section: tag -> where its entry lies in the file, and its value."""
    stream.seek(dynamic[2])
    found: dict[int, tuple[int, int]] = {}
    for index, (tag, value) in enumerate(_TAG.iter_unpack(stream.read(dynamic[5]))):
        if tag == _DT_NULL:
            break
        found[tag] = (dynamic[2] + index * _TAG.size, value)
    return found


def _place(segments: list[_Segment], address: int, length: int) -> int | None:
    """Find where in the file some memory comes from."""
    for one in segments:
        if one[0] == _LOAD and one[3] <= address and address + length <= one[3] + one[5]:
            return one[2] + address - one[3]
    return None
