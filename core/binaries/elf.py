"""The few facts of an ELF file that packaging decides by.

Read by hand, from the program headers alone: a ROCm build has thousands of libraries, and
pyelftools takes milliseconds for each, on one core. Format: the System V ABI (gABI),
chapters "ELF Header", "Program Header" and "Dynamic Section"; 64 bits, little endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

from core.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MAGIC = b"\x7fELF"
_CLASS64_LITTLE = b"\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_TAG = struct.Struct("<qQ")
_X86_64, _AARCH64 = 62, 183
_EXEC, _DYN = 2, 3
_LOAD, _DYNAMIC, _INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 10, 14, 15, 29
RPATH_TAG = struct.pack("<q", _DT_RPATH)
_MOST_SEGMENTS, _MOST_DYNAMIC, _MOST_STRING = 4096, 1 << 20, 1 << 16


@dataclass(frozen=True, kw_only=True)
class ElfFacts:
    """What an ELF file of the host says of itself.

    Attributes:
        soname: DT_SONAME, or empty.
        search: DT_RUNPATH, which a loader prefers, else DT_RPATH, split at the colons.
        is_rpath: Whether `search` is a DT_RPATH.
        dynamic: Whether it is linked dynamically at all.
        program: Whether it is a program, not a library.
        runpath_at: Where in the file the dynamic section's DT_RUNPATH entry lies; 0: it has none.
        needed: DT_NEEDED, in order; only `read_needs` reads it.
    """

    soname: str
    search: tuple[str, ...]
    is_rpath: bool
    dynamic: bool
    program: bool
    runpath_at: int = 0
    needed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def read(path: Path) -> ElfFacts | None:
    """Read the facts of an ELF file for the host's processor.

    Returns:
        The facts; None for anything else (device code objects, relocatable objects, scripts).
    """
    with path.open("rb") as stream:
        head = stream.read(_HEADER.size)
        if not head.startswith(_MAGIC) or head[4:6] != _CLASS64_LITTLE:
            return None
        try:
            return _facts(stream, head)
        except (struct.error, ValueError, OverflowError, OSError) as problem:
            raise ArtifactError(
                f"{path} is a damaged ELF file: {problem}.", hint="Fetch the artifact again."
            ) from problem


def read_needs(stream: BinaryIO, name: str) -> ElfFacts | None:
    """Read the facts of an ELF file for the host's processor, and the libraries that it needs.

    Returns:
        The facts; None for anything else.
    """
    head = stream.read(_HEADER.size)
    if not head.startswith(_MAGIC) or head[4:6] != _CLASS64_LITTLE:
        return None
    try:
        facts = _facts(stream, head)
        if facts is None:
            return None
        _, _, _, _, _, table, _, _, _, entry_size, count, *_ = _HEADER.unpack(head)
        segments = _segments(stream, table, entry_size, count)
        tags = _tags(stream, segments)
        needed = (
            _string(stream, segments, {**tags, _DT_NEEDED: value}, _DT_NEEDED)
            for value in _values(stream, segments, _DT_NEEDED)
        )
        return replace(facts, needed=tuple(needed))
    except (struct.error, ValueError, OverflowError) as problem:
        raise ArtifactError(f"{name} is a damaged ELF file: {problem}.", hint="Get it again.") from problem


def _facts(stream: BinaryIO, head: bytes) -> ElfFacts | None:
    _, kind, machine, _, _, table, _, _, _, entry_size, count, *_ = _HEADER.unpack(head)
    if machine not in {_X86_64, _AARCH64} or kind not in {_EXEC, _DYN}:
        return None
    segments = _segments(stream, table, entry_size, count)
    tags = _tags(stream, segments)
    soname, rpath, runpath = (
        _string(stream, segments, tags, tag) for tag in (_DT_SONAME, _DT_RPATH, _DT_RUNPATH)
    )
    starts = kind == _EXEC or any(segment.kind == _INTERP for segment in segments)
    return ElfFacts(
        soname=soname,
        search=tuple(part for part in (runpath or rpath).split(":") if part),
        is_rpath=_DT_RPATH in tags and _DT_RUNPATH not in tags,
        dynamic=bool(tags),
        program=starts and not soname,
        runpath_at=_entry_of(stream, segments, _DT_RUNPATH),
    )


def _segments(stream: BinaryIO, table: int, entry_size: int, count: int) -> list[_Segment]:
    if count and entry_size != _SEGMENT.size:
        raise ValueError(f"program headers of {entry_size} bytes")
    if count > _MOST_SEGMENTS:
        raise ValueError(f"{count} program headers")
    data = _read_at(stream, table, count * _SEGMENT.size)
    return [
        _Segment(kind=kind, offset=offset, address=address, size=size)
        for kind, _, offset, address, _, size, _, _ in _SEGMENT.iter_unpack(data)
    ]


def _tags(stream: BinaryIO, segments: Sequence[_Segment]) -> dict[int, int]:
    """Read the dynamic section: tag -> value, the last of each; empty where there is none."""
    found = next((segment for segment in segments if segment.kind == _DYNAMIC), None)
    if found is None:
        return {}
    if found.size > _MOST_DYNAMIC:
        raise ValueError(f"a dynamic section of {found.size} bytes")
    tags: dict[int, int] = {}
    for tag, value in _TAG.iter_unpack(_read_at(stream, found.offset, found.size)):
        if tag == _DT_NULL:
            break
        tags[tag] = value
    return tags


def _values(stream: BinaryIO, segments: Sequence[_Segment], wanted: int) -> list[int]:
    """Read the values of every dynamic entry with a tag, in order."""
    found = next((segment for segment in segments if segment.kind == _DYNAMIC), None)
    values: list[int] = []
    for tag, value in _TAG.iter_unpack(_read_at(stream, found.offset, found.size)) if found else ():
        if tag == _DT_NULL:
            break
        values += [value] if tag == wanted else []
    return values


def _entry_of(stream: BinaryIO, segments: Sequence[_Segment], wanted: int) -> int:
    """Find the file offset of the first dynamic entry with a tag; 0 where there is none."""
    found = next((segment for segment in segments if segment.kind == _DYNAMIC), None)
    if found is None:
        return 0
    for index, (tag, _) in enumerate(_TAG.iter_unpack(_read_at(stream, found.offset, found.size))):
        if tag in {wanted, _DT_NULL}:
            return found.offset + index * _TAG.size if tag == wanted else 0
    return 0


def _string(stream: BinaryIO, segments: Sequence[_Segment], tags: dict[int, int], tag: int) -> str:
    if tag not in tags:
        return ""
    if _DT_STRTAB not in tags or tags[tag] >= tags.get(_DT_STRSZ, 0):
        raise ValueError("a name outside of the string table")
    address = tags[_DT_STRTAB] + tags[tag]
    for segment in segments:
        if segment.kind == _LOAD and segment.address <= address < segment.address + segment.size:
            stream.seek(segment.offset + address - segment.address)
            text, end, _ = stream.read(min(_MOST_STRING, tags[_DT_STRSZ] - tags[tag])).partition(b"\0")
            if not end:
                raise ValueError("a name without an end")
            return text.decode()
    raise ValueError("a string table outside of the file")


def _read_at(stream: BinaryIO, offset: int, size: int) -> bytes:
    stream.seek(offset)
    data = stream.read(size)
    if len(data) != size:
        raise ValueError("it is cut off")
    return data
