"""Zip files written fast and the same every time, front to back.

Members are compressed on all cores, or taken over from another archive as they are compressed there.
Format: APPNOTE.TXT of PKWARE, with ZIP64.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO

from core.archive import Member
from core.archive.compression import DEFLATED, LEVEL, STORED, Packed, Workers, longest_first, packed_in_order
from core.archive.zip_reader import MemberError, compressed, is_executable
from core.errors import WheelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from core.archive.zip_reader import Span

_UTF8_FLAG = 0x800
_UNIX = 3 << 8
_REGULAR_FILE = 0o100000
_U16, _U32 = 0xFFFF, 0xFFFFFFFF
_ZIP64_VERSION, _PLAIN_VERSION = 45, 20
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<4sIQI")
_END = struct.Struct("<4sHHHHIIH")
EARLIEST = int(datetime(1980, 1, 1, tzinfo=UTC).timestamp())
_LATEST = int(datetime(2107, 12, 31, 23, 59, 58, tzinfo=UTC).timestamp())


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written of one member."""

    name: str
    sha256: bytes
    size: int


class HashingStream:
    """A binary stream that knows how many bytes went through it, and their SHA-256."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
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
    can hold. `level` is libdeflate's, 1 to 12; 0 stores members as they are. `workers` are threads shared
    with other archives, which keep running (default: its own, one a core). Very large
    members lie in `scratch`, compressed, before they are written.
    """

    def __init__(
        self,
        stream: HashingStream,
        *,
        epoch: int | None = None,
        workers: Workers | None = None,
        level: int = LEVEL,
        scratch: Path | None = None,
    ) -> None:
        self._stream = stream
        moment = datetime.fromtimestamp(min(max(epoch or EARLIEST, EARLIEST), _LATEST), tz=UTC)
        self._date = (moment.year - 1980) << 9 | moment.month << 5 | moment.day
        self._time = moment.hour << 11 | moment.minute << 5 | moment.second // 2
        self._workers, self._level, self._scratch = workers, level, scratch
        self._directory: list[bytes] = []

    def add(self, members: Sequence[Member]) -> list[Written]:
        """Compress and write members; the archive lists them in the order given.

        Their bytes come in another order: what takes longest to compress begins first, so that no core
        waits for it in the end. Readers find members by the offsets in the listing.
        """
        order = longest_first(members)
        before = len(self._directory)
        with ExitStack() as held:
            workers = self._workers or held.enter_context(Workers())
            sized = [one for _, one in order]
            packed = packed_in_order(sized, workers, level=self._level, scratch=self._scratch)
            written = [self._put(one) for one in held.enter_context(closing(packed))]
        places = sorted(range(len(order)), key=lambda place: order[place][0])
        self._directory[before:] = [self._directory[before + place] for place in places]
        return [written[place] for place in places]

    def copy(
        self, source: Path, stream: BinaryIO, info: zipfile.ZipInfo, span: Span, *, name: str, sha256: bytes
    ) -> Written:
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

        return self._put(
            Packed(
                member=Member(name=name, source=source, executable=is_executable(info)),
                method=STORED if info.compress_type == zipfile.ZIP_STORED else DEFLATED,
                packed_size=info.compress_size,
                pieces=pieces,
                crc=info.CRC,
                size=info.file_size,
                sha256=sha256,
                release=lambda: None,
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
            head = (b"PK\6\6", 44, _UNIX | version, version, 0, 0)
            self._stream.write(_END64.pack(*head, count, count, size, start))
            self._stream.write(_LOCATOR64.pack(b"PK\6\7", 0, end, 1))
        count16 = min(count, _U16)
        self._stream.write(_END.pack(b"PK\5\6", 0, 0, count16, count16, min(size, _U32), min(start, _U32), 0))

    def _put(self, packed: Packed) -> Written:
        try:
            self._write_member(packed)
        finally:
            packed.release()
        return Written(name=packed.member.name, sha256=packed.sha256, size=packed.size)

    def _write_member(self, packed: Packed) -> None:
        name = packed.member.name.encode()
        offset, compressed = self._stream.size, packed.packed_size
        sizes64 = struct.pack("<HHQQ", 1, 16, packed.size, compressed)
        large = packed.size > _U32 or compressed > _U32
        local_extra = sizes64 if large else b""
        # the central entry's field: only the values that do not fit into 32 bits
        values = [*([packed.size, compressed] if large else []), *([offset] if offset > _U32 else [])]
        central_extra = struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values) if values else b""
        version = _ZIP64_VERSION if values else _PLAIN_VERSION
        common = (_UTF8_FLAG, packed.method, self._time, self._date, packed.crc)
        sizes = (_U32, _U32) if large else (compressed, packed.size)
        lengths = (len(name), len(local_extra))
        self._stream.write(_LOCAL.pack(b"PK\3\4", version, *common, *sizes, *lengths) + name + local_extra)
        for piece in packed.pieces():
            self._stream.write(piece)
        mode = (_REGULAR_FILE | (0o755 if packed.member.executable else 0o644)) << 16
        head = (b"PK\1\2", _UNIX | version, version, *common, *sizes, len(name), len(central_extra))
        tail = (0, 0, 0, mode, min(offset, _U32))
        self._directory.append(_CENTRAL.pack(*head, *tail) + name + central_extra)
