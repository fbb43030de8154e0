"""Zip files: members from elsewhere, read strictly; and archives written fast and the same every time.

`zipfile` cuts a member off at the size its header declares, so it cannot tell a lie from the truth. Here
a member's bytes are inflated by hand: they must end exactly where the central directory says, with its
CRC, and no two members may share bytes (overlapping members are how small archives unpack to petabytes).

What is written goes front to back: members are compressed on all cores, or taken over from another archive
as they are compressed there. Format: APPNOTE.TXT of PKWARE, with ZIP64.
"""

from __future__ import annotations

import hashlib
import io
import stat
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from zlib_ng import zlib_ng  # inflates half again as fast as zlib

from core.archive import Member
from core.archive.packed import (
    DEFLATED,
    STORED,
    Kept,
    Packed,
    Packing,
    Workers,
    longest_first,
    packed_in_order,
)
from core.errors import MissingInputError, WheelError

if TYPE_CHECKING:
    import mmap

CHUNK = 1 << 20
KEPT = 32 << 20
"""How many of a member's first bytes a `MemberStream` keeps, where headers and names mostly lie."""
_PACKED_CHUNK = 256 << 10  # what is not inflated at once is copied, so less of it is fed
_RAW_DEFLATE = -15
_DAMAGED: Any = zlib_ng.error  # its stub takes the class for an instance
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_UTF8_FLAG = 0x800
_ENCRYPTED_FLAG = 0x1
_UNIX = 3


class MemberError(Exception):
    """A member that is not what its header says. Callers name the archive and the member."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Where a member's bytes lie in the archive."""

    header: int
    start: int
    end: int


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive by its central directory."""
    # zipfile raises any of these for a damaged directory, by where the damage lies.
    damaged = (zipfile.BadZipFile, EOFError, ValueError, struct.error, NotImplementedError, OverflowError)
    try:
        archive = zipfile.ZipFile(path)
    except FileNotFoundError:
        raise MissingInputError(f"{path} does not exist.") from None
    except OSError as problem:
        raise WheelError(f"{path} could not be read: {problem.strerror or problem}.") from problem
    except damaged as problem:
        raise WheelError(
            f"{path.name} is not a readable zip file: {problem}.", hint="Build or download it again."
        ) from problem
    with archive:
        yield archive


def unsafe_path(name: str) -> str:
    """Return why a member's name may not be unpacked, or ""."""
    if not name or "\0" in name:
        return "an empty or cut-off name"
    if "\\" in name:
        return "a backslash, which is a separator on Windows"
    if name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        return "an absolute path"
    parts = name.removesuffix("/").split("/")
    if ".." in parts:
        return "a path that leaves its folder"
    return "a path that is not in its shortest form" if {"", "."} & {*parts} else ""


def unsafe_kind(info: zipfile.ZipInfo) -> str:
    """Return why a member is not a plain file or folder, or ""."""
    if info.flag_bits & _ENCRYPTED_FLAG:
        return "encrypted"
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        return f"compressed by method {info.compress_type}; installers read only stored and deflated members"
    kind = stat.S_IFMT(info.external_attr >> 16) if info.create_system == _UNIX else 0
    if kind == stat.S_IFLNK:
        return "a symbolic link"
    return "" if kind in {0, stat.S_IFREG, stat.S_IFDIR} else "neither a file nor a folder"


def is_executable(info: zipfile.ZipInfo) -> bool:
    """Return whether a member has an executable bit."""
    return bool(info.external_attr >> 16 & 0o111)


def span_of(stream: BinaryIO, info: zipfile.ZipInfo) -> Span:
    """Find a member's data by its local header."""
    stream.seek(info.header_offset)
    head = stream.read(_LOCAL.size)
    if len(head) != _LOCAL.size or not head.startswith(b"PK\x03\x04"):
        raise MemberError("no local header where the central directory says")
    *_, name_length, extra_length = _LOCAL.unpack(head)
    expected = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8_FLAG else "cp437", "replace")
    if stream.read(name_length) != expected:
        raise MemberError("another name in its local header than in the central directory")
    start = info.header_offset + _LOCAL.size + name_length + extra_length
    return Span(header=info.header_offset, start=start, end=start + info.compress_size)


def chunks(stream: BinaryIO, info: zipfile.ZipInfo, span: Span) -> Iterator[bytes]:
    """Return a member's bytes, never more than its header declares, `CHUNK` at a time."""
    pieces = _inflated if info.compress_type == zipfile.ZIP_DEFLATED else compressed
    left, crc = info.file_size, 0
    for piece in filter(None, pieces(stream, span)):
        left -= len(piece)
        if left < 0:
            raise MemberError(f"more data than the {info.file_size} bytes it declares")
        crc = zlib_ng.crc32(piece, crc)
        yield piece
    if left:
        raise MemberError(f"{info.file_size - left} bytes of the {info.file_size} it declares")
    if crc != info.CRC:
        raise MemberError("data that its CRC does not match")


def compressed(stream: BinaryIO, span: Span, size: int = CHUNK) -> Iterator[bytes]:
    """Return a member's bytes as the archive holds them."""
    stream.seek(span.start)
    left = span.end - span.start
    while left:
        piece = stream.read(min(size, left))
        if not piece:
            raise MemberError("data cut off by the end of the archive")
        left -= len(piece)
        yield piece


def _inflated(stream: BinaryIO, span: Span) -> Iterator[bytes]:
    inflater = zlib_ng.decompressobj(_RAW_DEFLATE)
    try:
        for piece in compressed(stream, span, _PACKED_CHUNK):
            if inflater.eof:
                raise MemberError("data behind the end of its deflate stream")
            pending = piece
            while pending:
                yield inflater.decompress(pending, CHUNK)
                pending = inflater.unconsumed_tail
        while not inflater.eof:
            rest = inflater.decompress(b"", CHUNK)
            if not rest:
                raise MemberError("a deflate stream without an end")
            yield rest
    except _DAMAGED as problem:
        raise MemberError(f"a damaged deflate stream ({problem})") from problem
    if inflater.unused_data:
        raise MemberError("data behind the end of its deflate stream")


class MemberStream(io.RawIOBase, BinaryIO):
    """A member, read like a file: forwards fast, backwards by starting over.

    Headers of compiled files are read here and there, and libraries are gigabytes: nothing is unpacked to
    disk, and only as much is inflated as is read.
    """

    def __init__(self, path: Path, info: zipfile.ZipInfo) -> None:
        self._name = f"{path.name}: {info.filename}"
        self._raw = path.open("rb")
        self._info = info
        self._at = 0
        self._kept = bytearray()
        try:
            self._span = span_of(self._raw, info)
        except MemberError as problem:
            self._raw.close()
            raise WheelError(f"{self._name} has {problem}.") from problem
        self._restart()

    def _restart(self) -> None:
        self._pieces = chunks(self._raw, self._info, self._span)
        self._piece, self._start = b"", 0

    def _advance(self) -> bool:
        """Take the next piece; False at the end."""
        try:
            piece = next(self._pieces, b"")
        except MemberError as problem:
            raise WheelError(f"{self._name} has {problem}.", hint="Build or download it again.") from problem
        self._start += len(self._piece)
        self._piece = piece
        if self._start == len(self._kept) and self._start < KEPT:
            self._kept += piece
        return bool(piece)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Choose the place of the next read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.file_size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Read from the chosen place on: `size` bytes, fewer only at the end."""
        left = self._info.file_size - self._at
        wanted = max(0, left if size is None or size < 0 else min(size, left))
        data = bytes(self._kept[self._at : self._at + wanted])
        self._at += len(data)
        if len(data) == wanted:
            return data
        if self._at < self._start:
            self._restart()
        parts, missing = [data], wanted - len(data)
        while missing:
            inside = self._at - self._start
            if inside >= len(self._piece):
                if not self._advance():
                    break
                continue
            part = self._piece[inside : inside + missing]
            parts.append(part)
            self._at += len(part)
            missing -= len(part)
        if self._at == self._info.file_size:
            self._advance()  # past the last piece, where lengths and the CRC are compared
        return b"".join(parts)

    def close(self) -> None:
        """Close the archive."""
        self._raw.close()
        super().close()


_MADE_ON_UNIX = 3 << 8
_REGULAR_FILE = 0o100000
_U16, _U32 = 0xFFFF, 0xFFFFFFFF
_ZIP64_VERSION, _PLAIN_VERSION = 45, 20
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<4sIQI")
_END = struct.Struct("<4sHHHHIIH")
EARLIEST = int(datetime(1980, 1, 1, tzinfo=UTC).timestamp())
_LATEST = int(datetime(2107, 12, 31, 23, 59, 58, tzinfo=UTC).timestamp())


class HashingStream:
    """A binary stream that knows how many bytes went through it, and their SHA-256."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | bytearray | memoryview | mmap.mmap) -> int:
        """Write bytes, count and hash them."""
        self._stream.write(data)
        self._hash.update(data)
        self.size += len(data)
        return len(data)

    @property
    def sha256(self) -> str:
        """The hex SHA-256 of what was written so far."""
        return self._hash.hexdigest()


class ZipWriter:
    """Write one zip file, front to back, without ever seeking.

    Every member gets the time `epoch`, in seconds since 1970 UTC; before 1980 it is the earliest that a zip
    can hold.
    """

    def __init__(
        self, stream: HashingStream, *, epoch: int | None = None, packing: Packing | None = None
    ) -> None:
        self._stream = stream
        moment = datetime.fromtimestamp(min(max(epoch or EARLIEST, EARLIEST), _LATEST), tz=UTC)
        self._date = (moment.year - 1980) << 9 | moment.month << 5 | moment.day
        self._time = moment.hour << 11 | moment.minute << 5 | moment.second // 2
        self._packing = packing or Packing()
        self._directory: list[bytes] = []

    def add(self, members: Sequence[Member]) -> list[tuple[str, bytes, int]]:
        """Compress and write members, listed in the order given; return name, SHA-256 and size of each.

        Their bytes come in another order: what takes longest to compress begins first, so that no core
        waits for it in the end. Readers find members by the offsets in the listing.
        """
        order = longest_first(members)
        before = len(self._directory)
        with ExitStack() as held:
            workers = self._packing.workers or held.enter_context(Workers())
            packed = packed_in_order([one for _, one in order], workers, self._packing)
            written = [self._put(one) for one in held.enter_context(closing(packed))]
        places = sorted(range(len(order)), key=lambda place: order[place][0])
        self._directory[before:] = [self._directory[before + place] for place in places]
        return [written[place] for place in places]

    def copy(
        self, source: Path, stream: BinaryIO, info: zipfile.ZipInfo, span: Span, *, name: str, sha256: bytes
    ) -> None:
        """Take a member of another archive, opened as `stream`, over as it is compressed there.

        Nothing is inflated, so the other archive's own facts are trusted: verify it by
        `core.wheel.record.require_listing`, and by `require_sound` where it is from elsewhere. `sha256` is
        that of the uncompressed bytes; empty where it is not known.
        """

        def pieces() -> Iterator[bytes]:
            try:
                yield from compressed(stream, span)
            except MemberError:
                raise WheelError(f"{source.name} is cut off within {info.filename}.") from None

        self._put(
            Packed(
                member=Member(name=name, source=source, executable=is_executable(info)),
                kept=Kept(
                    method=STORED if info.compress_type == zipfile.ZIP_STORED else DEFLATED,
                    packed_size=info.compress_size,
                    pieces=pieces,
                ),
                crc=info.CRC,
                size=info.file_size,
                sha256=sha256,
            )
        )

    def finish(self) -> None:
        """Write the central directory. Nothing may be added afterwards."""
        start, count = self._stream.size, len(self._directory)
        for entry in self._directory:
            self._stream.write(entry)
        size = self._stream.size - start
        if start > _U32 or size > _U32 or count > _U16:
            end, version = self._stream.size, _ZIP64_VERSION
            # 44: the size of what follows that field
            head = (b"PK\6\6", 44, _MADE_ON_UNIX | version, version, 0, 0)
            self._stream.write(_END64.pack(*head, count, count, size, start))
            self._stream.write(_LOCATOR64.pack(b"PK\6\7", 0, end, 1))
        count16 = min(count, _U16)
        self._stream.write(_END.pack(b"PK\5\6", 0, 0, count16, count16, min(size, _U32), min(start, _U32), 0))

    def _put(self, packed: Packed) -> tuple[str, bytes, int]:
        try:
            self._write_member(packed)
        finally:
            packed.release()
        return packed.member.name, packed.sha256, packed.size

    def _write_member(self, packed: Packed) -> None:
        name = packed.member.name.encode()
        offset, compressed = self._stream.size, packed.kept.packed_size
        sizes64 = struct.pack("<HHQQ", 1, 16, packed.size, compressed)
        large = packed.size > _U32 or compressed > _U32
        local_extra = sizes64 if large else b""
        # the central entry's field: only the values that do not fit into 32 bits
        values = [*([packed.size, compressed] if large else []), *([offset] if offset > _U32 else [])]
        central_extra = struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values) if values else b""
        version = _ZIP64_VERSION if values else _PLAIN_VERSION
        common = (_UTF8_FLAG, packed.kept.method, self._time, self._date, packed.crc)
        sizes = (_U32, _U32) if large else (compressed, packed.size)
        lengths = (len(name), len(local_extra))
        self._stream.write(_LOCAL.pack(b"PK\3\4", version, *common, *sizes, *lengths) + name + local_extra)
        for piece in packed.kept.pieces():
            self._stream.write(piece)
        mode = (_REGULAR_FILE | (0o755 if packed.member.executable else 0o644)) << 16
        head = (b"PK\1\2", _MADE_ON_UNIX | version, version, *common, *sizes, len(name), len(central_extra))
        tail = (0, 0, 0, mode, min(offset, _U32))
        self._directory.append(_CENTRAL.pack(*head, *tail) + name + central_extra)
