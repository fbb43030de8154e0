"""What an ELF file says of itself: what packaging decides by, and what checks judge.

Read by hand, from the program headers: a ROCm build has thousands of libraries, and pyelftools takes
milliseconds for each, on one core. Format: the System V ABI (gABI), chapters "ELF Header", "Sections",
"Program Header" and "Dynamic Section", and the LSB's symbol versions; 64 bits, little endian.
"""

import io
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

from core.binaries import read_at, refused_where_damaged

MAGIC = b"\x7fELF"
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT = struct.Struct("<IIQQQQQQ")
SECTION = struct.Struct("<IIQQQQIIQQ")
TAG = struct.Struct("<qQ")
_NEED, _NEED_ENTRY = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_CLASS64_LITTLE = b"\x02\x01"
_BIG_ENDIAN = 2
_MACHINES = {3: "EM_386", 62: "EM_X86_64", 183: "EM_AARCH64", 224: "EM_AMDGPU"}
_HOSTS = {"EM_X86_64", "EM_AARCH64"}
_KINDS = {1: "ET_REL", 2: "ET_EXEC", 3: "ET_DYN", 4: "ET_CORE"}
LOAD, DYNAMIC, INTERP, NOTE, PHDR, _STACK = 1, 2, 3, 4, 6, 0x6474E551
STRTAB_SECTION, _NOBITS, _VERNEED = 3, 8, 0x6FFFFFFE
DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 5, 10, 14, 15, 29
# DT_HASH, DT_SYMTAB, DT_RELA, DT_INIT, DT_FINI, DT_JMPREL, DT_INIT_ARRAY, DT_GNU_HASH, DT_VERSYM, DT_VERNEED
_ADDRESSES = {4, 6, 7, 12, 13, 23, 25, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFE}
_MOST_SEGMENTS, _MOST_SECTIONS, _MOST_TABLE, _MOST_STRING = 4096, 1 << 18, 1 << 20, 1 << 16
_SHORT = 256  # bytes; few names have more
_MANY_SECTIONS = 0xFFFF
_DEBUG = (".debug_", ".zdebug_")
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)")


@dataclass(frozen=True, kw_only=True)
class ElfFacts:
    """What an ELF file says of itself. All from `stack` on is read by `read_all` alone.

    `rpath` is DT_RUNPATH, which a loader prefers, else DT_RPATH (`is_rpath`), split at the colons;
    `runpath_at` is where in the file the DT_RUNPATH entry lies, 0 for none. `stack` are PT_GNU_STACK's
    permissions, "" without such a header. `sections` and `notes` are offsets and sizes in the file.
    """

    machine: str = ""
    kind: str = ""
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    is_rpath: bool = False
    dynamic: bool = False
    program: bool = False
    runpath_at: int = 0
    stack: str = ""
    debug_bytes: int = 0
    glibc: tuple[int, int] = (0, 0)
    sections: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[tuple[int, int], ...] = ()

    @property
    def search(self) -> tuple[str, ...]:
        """The entries of its search path that name a folder."""
        return tuple(part for part in self.rpath if part)


class Segment(NamedTuple):
    """A program header."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    size: int
    memory: int
    alignment: int


class Section(NamedTuple):
    """A section header."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Elf:
    """The headers of a 64-bit little-endian ELF file; each table is read when it is first needed.

    All raise what `read_all` makes an ArtifactError of: ValueError, struct.error, OverflowError, OSError.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._size = stream.seek(0, io.SEEK_END)
        header = HEADER.unpack(self.at(0, HEADER.size))
        self.kind, self.machine = header[1], header[2]
        self._segments_at, self.sections_at = header[5], header[6]
        self._segment_size, self._segment_count, self._section_size, self._section_count = header[9:13]
        self._names = header[13]

    def at(self, offset: int, size: int) -> bytes:
        """Read a part of the file."""
        return read_at(self._stream, offset, size)

    def text(self, offset: int, limit: int) -> str:
        """Read a name that ends with a zero within `limit` bytes."""
        for size in (_SHORT, _MOST_STRING):
            self._stream.seek(offset)
            text, end, _ = self._stream.read(max(0, min(size, limit))).partition(b"\0")
            if end:
                return text.decode()
        raise ValueError("a name without an end")

    @cached_property
    def segments(self) -> Sequence[Segment]:
        """The program headers."""
        if self._segment_count and self._segment_size != SEGMENT.size:
            raise ValueError(f"program headers of {self._segment_size} bytes")
        if self._segment_count > _MOST_SEGMENTS:
            raise ValueError(f"{self._segment_count} program headers")
        data = self.at(self._segments_at, self._segment_count * SEGMENT.size)
        return [Segment(*one) for one in SEGMENT.iter_unpack(data)]

    @cached_property
    def section_table(self) -> Sequence[Section]:
        """The section headers; the first one holds the numbers that the file's header has no room for."""
        if not self.sections_at:
            return []
        first = Section(*SECTION.unpack(self.at(self.sections_at, SECTION.size)))
        count = self._section_count or first.size
        if count > _MOST_SECTIONS or self._section_size != SECTION.size:
            raise ValueError(f"{count} section headers of {self._section_size} bytes")
        self._names = first.link if self._names == _MANY_SECTIONS else self._names
        data = self.at(self.sections_at, count * SECTION.size)
        return [Section(*one) for one in SECTION.iter_unpack(data)]

    @cached_property
    def sections(self) -> Mapping[str, Section]:
        """The sections that have bytes, by name."""
        table = self.section_table
        if not table or not self._names:
            return {}
        names = self._section(self._names)
        return {
            self.text(names.offset + one.name, names.size - one.name): one
            for one in table
            if one.kind not in {0, _NOBITS}
        }

    def _section(self, index: int) -> Section:
        if index >= len(self.section_table):
            raise ValueError(f"no section {index}")
        return self.section_table[index]

    @cached_property
    def dynamic(self) -> Sequence[tuple[int, int, int]]:
        """The dynamic section: tag, value, and where the entry lies in the file."""
        segment = next((one for one in self.segments if one.kind == DYNAMIC), None)
        if segment is None:
            return []
        if segment.size > _MOST_TABLE:
            raise ValueError(f"a dynamic section of {segment.size} bytes")
        entries = []
        for index, (tag, value) in enumerate(TAG.iter_unpack(self.at(segment.offset, segment.size))):
            if not tag:
                break
            entries.append((tag, value, segment.offset + index * TAG.size))
        return entries

    @cached_property
    def tags(self) -> Mapping[int, int]:
        """The dynamic section's values by tag, the last of each."""
        return {tag: value for tag, value, _ in self.dynamic}

    def place(self, address: int, length: int = 1) -> int:
        """Find where in the file some memory comes from."""
        for one in self.segments:
            inside = one.address <= address and address + length <= one.address + one.size
            if one.kind == LOAD and inside:
                return one.offset + address - one.address
        raise ValueError("a table outside of the file")

    def strings(self, wanted: int) -> tuple[str, ...]:
        """Read the names that dynamic entries of a tag point to, in order."""
        found = [value for tag, value, _ in self.dynamic if tag == wanted]
        size = self.tags.get(DT_STRSZ, 0)
        if found and (DT_STRTAB not in self.tags or max(found) >= size):
            raise ValueError("a name outside of the string table")
        return tuple(self.text(self.place(self.tags[DT_STRTAB] + one), size - one) for one in found)

    @property
    def stack(self) -> str:
        """The permissions of PT_GNU_STACK; "" without such a header."""
        flags = next((one.flags for one in self.segments if one.kind == _STACK), None)
        if flags is None:
            return ""
        return "".join(letter for letter, bit in (("R", 4), ("W", 2), ("E", 1)) if flags & bit) or "-"

    @property
    def glibc(self) -> tuple[int, int]:
        """The newest version of glibc that symbols need."""
        section = self.sections.get(".gnu.version_r")
        if section is None or section.kind != _VERNEED:
            return (0, 0)
        if section.size > _MOST_TABLE:
            raise ValueError(f"a table of versions of {section.size} bytes")
        names, data = self._section(section.link), self.at(section.offset, section.size)
        found, at, following, left = {(0, 0)}, 0, 1, len(data) // _NEED_ENTRY.size
        while following:
            _, count, _, entry, following = _NEED.unpack_from(data, at)
            entry += at
            for _ in range(count):
                _, _, _, name, further = _NEED_ENTRY.unpack_from(data, entry)
                if version := _GLIBC.match(self.text(names.offset + name, names.size - name)):
                    found.add((int(version[1]), int(version[2])))
                entry += further
                left -= 1
                if left < 0:
                    raise ValueError("a table of versions that repeats itself")
            at += following
        return max(found)

    def require_whole(self) -> None:
        """Raise for a table, segment or section that the file ends before, and for what points nowhere."""
        held = [one for one in self.section_table if one.kind not in {0, _NOBITS}]
        parts: Sequence[Segment | Section] = [*self.segments, *held]
        if any(one.offset + one.size > self._size for one in parts):
            raise ValueError("it is cut off")
        if any(one.size > one.memory for one in self.segments if one.kind == LOAD):
            raise ValueError("a segment that is longer in the file than in memory")
        for tag in _ADDRESSES & set(self.tags):
            self.place(self.tags[tag])

    def facts(self, *, whole: bool) -> ElfFacts:
        """Return the facts, with those of sections where the `whole` is wanted."""
        (soname, rpath, runpath) = (
            (self.strings(tag) or ("",))[-1] for tag in (DT_SONAME, DT_RPATH, DT_RUNPATH)
        )
        tags = self.tags
        search = runpath if DT_RUNPATH in tags else rpath
        starts = _KINDS.get(self.kind) == "ET_EXEC" or any(one.kind == INTERP for one in self.segments)
        facts = ElfFacts(
            machine=_MACHINES.get(self.machine, f"machine {self.machine}"),
            kind=_KINDS.get(self.kind, f"type {self.kind}"),
            soname=soname,
            needed=self.strings(DT_NEEDED),
            rpath=tuple(search.split(":")) if search else (),
            is_rpath=DT_RPATH in tags and DT_RUNPATH not in tags,
            dynamic=bool(tags),
            program=starts and not soname,
            runpath_at=next((place for tag, _, place in self.dynamic if tag == DT_RUNPATH), 0),
        )
        if not whole:
            return facts
        self.require_whole()
        return replace(
            facts,
            stack=self.stack,
            debug_bytes=sum(one.size for name, one in self.sections.items() if name.startswith(_DEBUG)),
            glibc=self.glibc,
            sections={name: (one.offset, one.size) for name, one in self.sections.items()},
            notes=tuple((one.offset, one.size) for one in self.segments if one.kind == NOTE),
        )


def read(path: Path) -> ElfFacts | None:
    """Read the facts of an ELF file for the host's processor; None for anything else."""
    with path.open("rb") as stream:
        return read_needs(stream, str(path))


def read_needs(stream: BinaryIO, name: str) -> ElfFacts | None:
    """Read the same from a stream that errors call `name`; None also for objects and device code."""
    with refused_where_damaged(name, "ELF"):
        if _head(stream)[4:6] != _CLASS64_LITTLE:
            return None
        elf = Elf(stream)
        known = _MACHINES.get(elf.machine) in _HOSTS and _KINDS.get(elf.kind) in {"ET_EXEC", "ET_DYN"}
        return elf.facts(whole=False) if known else None


def read_all(stream: BinaryIO, name: str) -> ElfFacts | None:
    """Read every fact of an ELF file, whatever it is for; None for another file.

    Of one that is not of 64 bits and little endian: the processor and the type.
    """
    with refused_where_damaged(name, "ELF"):
        head = _head(stream)
        if not head or head[4:6] == _CLASS64_LITTLE:
            return Elf(stream).facts(whole=True) if head else None
        big = head[5] == _BIG_ENDIAN
        kind, machine = struct.unpack_from(">HH" if big else "<HH", head, 16)
        words = "big-endian" if big else "not of 64 bits"
        return ElfFacts(
            machine=f"{_MACHINES.get(machine, f'machine {machine}')} ({words})",
            kind=_KINDS.get(kind, f"type {kind}"),
        )


def _head(stream: BinaryIO) -> bytes:
    """Read an ELF file's header; nothing of another file."""
    stream.seek(0)
    head = stream.read(HEADER.size)
    return head if head.startswith(MAGIC) else b""
