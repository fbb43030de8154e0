"""Members of zip files from elsewhere, read strictly.

`zipfile` cuts a member off at the size its header declares, so it cannot tell a lie from the truth. Here a
member's bytes have to end exactly where the headers say, with the CRC that they give; the headers
themselves were judged by `core.archive.zip_headers`, when the archive was opened.
"""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from zlib_ng import zlib_ng  # inflates half again as fast as zlib

from core import files
from core.archive.zip_headers import DEFLATED, STORED, HeaderError, MemberError, ZipMember, read_members
from core.errors import MachineError, WheelError

__all__ = [
    "MemberError",
    "MemberStream",
    "ZipArchive",
    "ZipMember",
    "chunks",
    "compressed_chunks",
    "read_archive",
    "unsafe_kind",
    "unsafe_path",
]

CHUNK = 256 << 10  # stays in a core's cache, between inflating it and its CRC
KEPT = 32 << 20
"""How many of a member's first bytes a `MemberStream` keeps, where headers and names mostly lie."""
_RAW_DEFLATE = -15
_DAMAGED: Any = zlib_ng.error  # its stub takes the class for an instance


@dataclass(frozen=True, kw_only=True)
class ZipArchive:
    """An archive and its members, in the order of its central directory."""

    path: Path
    members: tuple[ZipMember, ...]

    @cached_property
    def by_name(self) -> Mapping[str, ZipMember]:
        """The members by name."""
        return {member.name: member for member in self.members}

    @property
    def total_size(self) -> int:
        """How many bytes the members have when they are unpacked."""
        return sum(member.size for member in self.members)

    def read(self, member: ZipMember) -> bytes:
        """Return a member's bytes; the caller has checked its size.

        Raises:
            MemberError: The bytes are not what the headers say.
        """
        with self.path.open("rb") as stream:
            return b"".join(chunks(stream, member))


def read_archive(path: Path) -> ZipArchive:
    """Read what an archive holds; raise a WheelError where an installer would refuse the archive."""
    try:
        with files.open_regular(path, largest=files.LARGEST_ARCHIVE) as stream, files.reading(path):
            members = read_members(stream)
    except MachineError as problem:
        raise WheelError(problem.message, hint=problem.hint) from problem
    except HeaderError as problem:
        raise WheelError(
            f"{path.name} is a zip file that installers refuse. {problem}.",
            hint="Build it again, or download it again.",
        ) from problem
    return ZipArchive(path=path, members=tuple(members))


def unsafe_path(name: str) -> str | None:
    """Return why a member's name may not be unpacked, or None."""
    if not name or "\0" in name:
        return "an empty or cut-off name"
    if "\\" in name:
        return "a backslash, which is a separator on Windows"
    if name.startswith("/") or name[1:2] == ":":
        return "an absolute path"

    parts = name.removesuffix("/").split("/")
    if ".." in parts:
        return "a path that leaves its folder"
    if "" in parts or "." in parts:
        return "a path that is not in its shortest form"
    return None


def unsafe_kind(member: ZipMember) -> str | None:
    """Return why a member is not a plain file or folder, or None."""
    if member.method not in {STORED, DEFLATED}:
        return f"compressed by method {member.method}; installers read only stored and deflated members"

    kind = stat.S_IFMT(member.mode)
    if kind == stat.S_IFLNK:
        return "a symbolic link"
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        return "neither a file nor a folder"
    return None


def chunks(stream: BinaryIO, member: ZipMember) -> Iterator[bytes]:
    """Return a member's bytes, never more than its header declares, `CHUNK` at a time."""
    read_chunks = _inflated_chunks if member.method == DEFLATED else compressed_chunks
    bytes_left = member.size
    crc = 0
    for chunk in read_chunks(stream, member):
        if not chunk:
            continue
        bytes_left -= len(chunk)
        if bytes_left < 0:
            raise MemberError(f"more data than the {member.size} bytes it declares")
        crc = zlib_ng.crc32(chunk, crc)
        yield chunk

    if bytes_left:
        raise MemberError(f"{member.size - bytes_left} bytes of the {member.size} it declares")
    if crc != member.crc:
        raise MemberError("data that its CRC does not match")


def compressed_chunks(
    stream: BinaryIO,
    member: ZipMember,
) -> Iterator[bytes]:
    """Return a member's bytes as the archive holds them."""
    stream.seek(member.start)
    bytes_left = member.packed_size
    while bytes_left:
        chunk = stream.read(min(CHUNK, bytes_left))
        if not chunk:
            raise MemberError("data cut off by the end of the archive")
        bytes_left -= len(chunk)
        yield chunk


def _inflated_chunks(stream: BinaryIO, member: ZipMember) -> Iterator[bytes]:
    inflater = zlib_ng.decompressobj(_RAW_DEFLATE)
    try:
        for chunk in compressed_chunks(stream, member):
            if inflater.eof:
                raise MemberError("data behind the end of its deflate stream")
            pending = chunk
            while pending:
                yield inflater.decompress(pending, CHUNK)
                pending = inflater.unconsumed_tail

        while not inflater.eof:
            inflated = inflater.decompress(b"", CHUNK)
            if not inflated:
                raise MemberError("a deflate stream without an end")
            yield inflated
    except _DAMAGED as problem:
        raise MemberError(f"a damaged deflate stream ({problem})") from problem
    if inflater.unused_data:
        raise MemberError("data behind the end of its deflate stream")


class MemberStream(io.RawIOBase, BinaryIO):
    """A member, read like a file: forwards fast, backwards by starting over.

    Headers of compiled files are read here and there, and libraries are gigabytes: nothing is unpacked to
    disk, and only as much is inflated as is read.
    """

    def __init__(
        self,
        path: Path,
        member: ZipMember,
    ) -> None:
        self._name = f"{path.name}: {member.name}"
        self._archive = path.open("rb")
        self._member = member
        self._position = 0
        self._first_bytes = bytearray()
        self._restart()

    def _restart(self) -> None:
        self._chunks = chunks(self._archive, self._member)
        self._chunk = b""
        self._chunk_start = 0

    def _take_next_chunk(self) -> bool:
        """Take the next chunk; return whether there was one."""
        try:
            chunk = next(self._chunks, b"")
        except MemberError as problem:
            raise WheelError(f"{self._name} has {problem}.", hint="Build or download it again.") from problem
        self._chunk_start += len(self._chunk)
        self._chunk = chunk

        is_first_time_here = self._chunk_start == len(self._first_bytes)
        if is_first_time_here and self._chunk_start < KEPT:
            self._first_bytes += chunk
        return bool(chunk)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(
        self,
        offset: int,
        whence: int = io.SEEK_SET,
    ) -> int:
        """Choose the place of the next read."""
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._member.size}
        self._position = max(0, bases[whence] + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Read from the chosen place on: `size` bytes, fewer only at the end."""
        bytes_left = max(0, self._member.size - self._position)
        if size is not None and size >= 0:
            bytes_left = min(bytes_left, size)

        part = bytes(self._first_bytes[self._position : self._position + bytes_left])
        self._position += len(part)
        if len(part) == bytes_left:
            return part
        return part + self._read_chunks(bytes_left - len(part))

    def _read_chunks(self, bytes_left: int) -> bytes:
        if self._position < self._chunk_start:
            self._restart()

        parts: list[bytes] = []
        while bytes_left:
            offset = self._position - self._chunk_start
            if offset >= len(self._chunk):
                if not self._take_next_chunk():
                    break
                continue
            part = self._chunk[offset : offset + bytes_left]
            parts.append(part)
            self._position += len(part)
            bytes_left -= len(part)

        if self._position == self._member.size:
            self._take_next_chunk()  # past the last one, where lengths and the CRC are compared
        return b"".join(parts)

    def close(self) -> None:
        """Close the archive."""
        self._archive.close()
        super().close()
