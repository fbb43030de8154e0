"""Zip files written fast, front to back, and the same every time.

`zipfile` deflates on one core, by zlib: a wheel of 51 MiB takes it 2.0 s of CPU, where this writer needs
0.6 s and ends in a quarter of the time (docs/performance.md, "Wheels"). Wheels of ROCm and torch are
gigabytes, so this decides how long packaging takes. It also takes members of other archives over as
they are compressed there, which `zipfile` cannot do.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from core.archive import Member
from core.archive.packed import PackedData, PackedMember, Packing, Workers, longest_first, packed_in_order
from core.archive.zip_headers import (
    CENTRAL,
    CENTRAL_SIGNATURE,
    END,
    END64,
    END64_REMAINDER,
    END64_SIGNATURE,
    END_SIGNATURE,
    LOCAL,
    LOCAL_SIGNATURE,
    LOCATOR64,
    LOCATOR64_SIGNATURE,
    MOST_16,
    MOST_32,
    UTF8_FLAG,
    ZIP64_FIELD,
    MemberError,
    ZipMember,
)
from core.archive.zips import ZipArchive, compressed_chunks
from core.errors import WheelError

if TYPE_CHECKING:
    import mmap

EARLIEST = int(datetime(1980, 1, 1, tzinfo=UTC).timestamp())
_LATEST = int(datetime(2107, 12, 31, 23, 59, 58, tzinfo=UTC).timestamp())
_MADE_ON_UNIX = 3 << 8
_REGULAR_FILE = 0o100000
_VERSION = 20
_ZIP64_VERSION = 45


class WrittenMember(NamedTuple):
    """What RECORD says of a member: its name, and the SHA-256 and the size of its bytes."""

    name: str
    sha256: bytes
    size: int


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

    def add(self, members: Sequence[Member]) -> list[WrittenMember]:
        """Compress and write members, listed in the order given; return them in that order.

        Their bytes come in another order: what takes longest to compress begins first, so that no core
        waits for it in the end. Readers find members by the offsets in the listing.
        """
        ordered_members = longest_first(members)
        written_members: dict[int, WrittenMember] = {}
        directory_entries: dict[int, bytes] = {}
        with ExitStack() as stack:
            workers = self._packing.workers or stack.enter_context(Workers())
            packed_members = stack.enter_context(
                closing(packed_in_order(ordered_members, workers, self._packing))
            )
            for sized, packed in zip(ordered_members, packed_members, strict=True):
                directory_entries[sized.place] = self._write_and_release(packed)
                written_members[sized.place] = WrittenMember(sized.member.name, packed.sha256, packed.size)

        self._directory += [directory_entries[place] for place in range(len(members))]
        return [written_members[place] for place in range(len(members))]

    def copy(
        self, archive: ZipArchive, stream: BinaryIO, member: ZipMember, *, name: str, sha256: bytes
    ) -> None:
        """Take a member of another archive, opened as `stream`, over as it is compressed there.

        Nothing is inflated, so the other archive's own facts are trusted: verify it by
        `core.wheel.record.require_listing`, and by `require_sound` where it is from elsewhere. `sha256` is
        that of the uncompressed bytes; empty where it is not known.
        """

        def pieces() -> Iterator[bytes]:
            try:
                yield from compressed_chunks(stream, member)
            except MemberError:
                raise WheelError(f"{archive.path.name} is cut off within {member.name}.") from None

        data = PackedData(
            method=member.method,
            size=member.packed_size,
            pieces=pieces,
        )
        packed = PackedMember(
            member=Member(
                name=name,
                source=archive.path,
                executable=member.is_executable,
            ),
            data=data,
            crc=member.crc,
            size=member.size,
            sha256=sha256,
        )
        self._directory.append(self._write_and_release(packed))

    def finish(self) -> None:
        """Write the central directory. Nothing may be added afterwards."""
        start = self._stream.size
        for entry in self._directory:
            self._stream.write(entry)
        size = self._stream.size - start
        count = len(self._directory)

        if start >= MOST_32 or size >= MOST_32 or count > MOST_16:
            self._write_zip64_end(start, size, count)
        short_count = min(count, MOST_16)
        self._stream.write(
            END.pack(
                END_SIGNATURE, 0, 0, short_count, short_count, min(size, MOST_32), min(start, MOST_32), 0
            )
        )

    def _write_zip64_end(
        self,
        start: int,
        size: int,
        count: int,
    ) -> None:
        end = self._stream.size
        made_by = _MADE_ON_UNIX | _ZIP64_VERSION
        self._stream.write(
            END64.pack(
                *(END64_SIGNATURE, END64_REMAINDER, made_by, _ZIP64_VERSION),
                *(0, 0, count, count, size, start),
            )
        )
        self._stream.write(LOCATOR64.pack(LOCATOR64_SIGNATURE, 0, end, 1))

    def _write_and_release(self, packed: PackedMember) -> bytes:
        try:
            return self._write_member(packed)
        finally:
            packed.release()

    def _write_member(self, packed: PackedMember) -> bytes:
        """Write a member; return its entry in the central directory."""
        name = packed.member.name.encode()
        offset = self._stream.size
        sizes = (packed.data.size, packed.size)
        local_extra = b""
        central_values: list[int] = []
        if max(sizes) >= MOST_32:
            # Both sizes go there, whichever is too large: a local header has to have both or none.
            local_extra = _zip64_field([packed.size, packed.data.size])
            central_values += [packed.size, packed.data.size]
            sizes = (MOST_32, MOST_32)
        if offset >= MOST_32:
            central_values.append(offset)
        central_extra = _zip64_field(central_values)

        version = _ZIP64_VERSION if central_values else _VERSION
        common = (version, UTF8_FLAG, packed.data.method, self._time, self._date, packed.crc, *sizes)
        header = LOCAL.pack(LOCAL_SIGNATURE, *common, len(name), len(local_extra))
        self._stream.write(header + name + local_extra)
        for part in packed.data.pieces():
            self._stream.write(part)

        permissions = 0o755 if packed.member.executable else 0o644
        attributes = (_REGULAR_FILE | permissions) << 16
        entry = CENTRAL.pack(
            *(CENTRAL_SIGNATURE, _MADE_ON_UNIX | version, *common),
            *(len(name), len(central_extra), 0, 0, 0, attributes, min(offset, MOST_32)),
        )
        return entry + name + central_extra


def _zip64_field(values: Sequence[int]) -> bytes:
    """Return the extra field with the values that do not fit into 32 bits; empty without any."""
    if not values:
        return b""
    return struct.pack(f"<HH{len(values)}Q", ZIP64_FIELD, 8 * len(values), *values)
