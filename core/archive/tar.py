"""Compressed tar streams of unknown origin: hashed as they are read, expanded within bounds, read strictly.

`tarfile` takes a broken header in mid-archive, and an archive that ends too early, for the end, and so a
damaged artifact for a smaller one. It also needs twice the CPU time to extract (6,000 headers of 3 kB: 1.9
times; libraries of 4 MB: 2.0 times), and ROCm's artifacts are gigabytes. Here everything that is not as POSIX
(pax) or GNU tar write it is an error that names the member. `tarfile` parses the headers themselves.
"""

import gzip
import hashlib
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Literal, Protocol, cast

import zstandard

from core import console
from core.errors import ArtifactError, StoreError

ZSTD = ".tar.zst"
XZ = ".tar.xz"
GZIP = ".tar.gz"
_READ_SIZE = 1 << 18
_BUFFER_SIZE = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_ZERO_BLOCK = bytes(_BLOCK)
_SIZE = re.compile(r"[0-9]{1,20}")
_LONGEST_EXTENSION = 1 << 16

Kind = Literal["file", "folder", "symlink", "hardlink"]
_KINDS: dict[bytes, Kind] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
}
_REFUSED_KINDS = {
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}
_GNU_EXTENSIONS = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}
_PAX_EXTENSIONS = {tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE}
_EXTENSIONS = _PAX_EXTENSIONS | _GNU_EXTENSIONS.keys()
_USED_KEYWORDS = frozenset({"path", "linkpath", "size"})
# What decompressors raise.
_DAMAGED = (zstandard.ZstdError, lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError, MemoryError)


@dataclass(frozen=True, kw_only=True)
class TarLimits:
    """How much an archive may expand to before it counts as an attack; sizes in bytes."""

    max_bytes: int = 256 << 30
    max_members: int = 2_000_000
    max_ratio: int = 1000  # times its own size, once it is past `ratio_from`
    ratio_from: int = 256 << 20
    max_memory: int = 128 << 20  # of decompressing


class HashedSource:
    """A stream of compressed bytes that hashes and counts what is read from it."""

    def __init__(
        self,
        stream: BinaryIO,
        *,
        name: str,
        on_bytes: Callable[[int], object] | None = None,
    ) -> None:
        self.count = 0
        self._stream = stream
        self._name = name
        self._on_bytes = on_bytes
        self._hash = hashlib.sha256()

    def read(self, size: int = _READ_SIZE) -> bytes:
        """Read up to `size` bytes."""
        try:
            data = self._stream.read(size)
        except OSError as problem:
            raise StoreError(
                f"Reading {self._name} broke off after {self.count} bytes: {problem}.",
                hint="Run the same command again.",
            ) from problem
        self.count += len(data)
        self._hash.update(data)
        if self._on_bytes is not None:
            self._on_bytes(len(data))
        return data

    def finish(self) -> str:
        """Read to the end, and return the SHA-256 of everything."""
        while self.read():
            pass
        return self._hash.hexdigest()


class _Decompressor(Protocol):
    def readinto(self, buffer: memoryview, /) -> int: ...


class _XzDecompressor:
    def __init__(
        self,
        source: HashedSource,
        name: str,
        memory: int,
    ) -> None:
        self._source = source
        self._name = name
        self._memory = memory
        self._decompressor = self._new_decompressor()
        self._unused = b""

    def readinto(self, buffer: memoryview, /) -> int:
        while not self._decompressor.eof or self._begin_next_stream():
            data = self._decompressor.decompress(self._next_input(), len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
        return 0

    def _next_input(self) -> bytes:
        if not self._decompressor.needs_input:
            return b""
        data = self._unused or self._source.read()
        self._unused = b""
        if not data:
            raise ArtifactError(f"{self._name} is truncated.", hint="Fetch it again.")
        return data

    def _begin_next_stream(self) -> bool:
        """Begin the next of several streams, which zeros may part; return whether there is one."""
        self._unused = self._decompressor.unused_data.lstrip(b"\0")
        while not self._unused:
            data = self._source.read()
            if not data:
                return False
            self._unused = data.lstrip(b"\0")
        self._decompressor = self._new_decompressor()
        return True

    def _new_decompressor(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=self._memory)


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamedMember:
    """One member as its headers describe it; `mode` includes set-user-id bits."""

    name: str
    kind: Kind
    size: int
    mode: int
    link: str


class TarStream:
    """The members of a tar stream (suffix `ZSTD`, `XZ` or `GZIP`), each with its data, in their order.

    A truncated xz stream is an error of its own; a zstd stream just ends, and the tar format tells.
    """

    def __init__(
        self,
        source: HashedSource,
        suffix: str,
        *,
        name: str,
        limits: TarLimits,
    ) -> None:
        self.expanded = 0
        self._source = source
        self._name = name
        self._limits = limits
        self._decompressor = _decompressor(
            source,
            suffix,
            name=name,
            memory=limits.max_memory,
        )
        self._buffer = memoryview(bytearray(_BUFFER_SIZE))
        # What is unread lies in the buffer from `_start` to `_end`.
        self._start = 0
        self._end = 0
        self._unread_data = 0
        self._padding = 0
        self._last_name = ""

    def members(self) -> Iterator[StreamedMember]:
        """Yield the members up to the archive's end, behind which only zeros may be."""
        count = 0
        extensions: dict[str, str] = {}
        while (info := self._read_header()) is not None:
            count += 1
            if count > self._limits.max_members:
                raise self._error(f"holds more than {self._limits.max_members} members")
            if info.type in _EXTENSIONS:
                extensions |= self._read_extension(info)
                continue
            member = self._member(info, extensions)
            extensions = {}
            self._last_name = member.name
            self._begin_data(member.size)
            yield member
            self._skip_data()
        if extensions:
            raise self._error("ends after an extended header")

    def chunks(self) -> Iterator[memoryview]:
        """Yield the current member's data piece by piece; a piece is valid until the next one."""
        while self._unread_data:
            if self._start == self._end:
                self._fill_buffer()
            start = self._start
            self._start = min(self._end, start + self._unread_data)
            self._unread_data -= self._start - start
            yield self._buffer[start : self._start]

    def data(self) -> bytes:
        """Return the current member's data whole; the caller has checked its size."""
        # Each chunk is copied before the next one overwrites it, which `join` on views would not do.
        return b"".join(bytes(chunk) for chunk in self.chunks())

    def _begin_data(self, size: int) -> None:
        self._unread_data = size
        self._padding = -size % _BLOCK

    def _skip_data(self) -> None:
        """Go to the next header; the padding must be zeros, or the data is longer than its header says."""
        for _chunk in self.chunks():
            pass
        self._unread_data = self._padding
        self._padding = 0
        if self.data().strip(b"\0"):
            raise self._error(f"has more data at {self._last_name!r} than its header says")

    def _read_header(self) -> tarfile.TarInfo | None:
        """Read the next header; None at the archive's end."""
        block = self._read_block()
        if block == _ZERO_BLOCK:
            self._require_end()
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, ValueError) as problem:
            raise self._error(f"has a malformed header after {self._last_name!r} ({problem})") from problem
        if info.size < 0:
            raise self._error(f"gives {info.name!r} a negative size")
        return info

    def _require_end(self) -> None:
        if self._read_block() != _ZERO_BLOCK:
            raise self._error(f"has a malformed header after {self._last_name!r} (empty)")
        while self._start < self._end or self._fill_buffer(required=False):
            if bytes(self._buffer[self._start : self._end]).strip(b"\0"):
                raise self._error("goes on behind its end")
            self._start = self._end

    def _read_extension(self, info: tarfile.TarInfo) -> Mapping[str, str]:
        """Read an extended header: what it says of the next member by keywords of pax."""
        if info.size > _LONGEST_EXTENSION:
            raise self._error(f"has an extended header of {info.size} bytes after {self._last_name!r}")
        self._begin_data(info.size)
        data = self.data()
        self._skip_data()
        try:
            if info.type in _GNU_EXTENSIONS:
                return {_GNU_EXTENSIONS[info.type]: data.rstrip(b"\0").decode()}
            records = pax_records(data)
        except ValueError as problem:
            raise self._error(
                f"has a malformed extended header after {self._last_name!r} ({problem})"
            ) from problem

        used = {keyword: records[keyword] for keyword in _USED_KEYWORDS & records.keys()}
        if info.type == tarfile.XGLTYPE and used:
            raise self._error("renames or resizes members by a global header")
        if any(keyword.startswith("GNU.sparse") for keyword in records):
            raise self._error(f"holds a sparse file after {self._last_name!r}")
        return used

    def _member(
        self,
        info: tarfile.TarInfo,
        extensions: Mapping[str, str],
    ) -> StreamedMember:
        name = extensions.get("path", info.name)
        kind = _KINDS.get(info.type)
        if kind is None:
            reason = _REFUSED_KINDS.get(info.type, f"of an unknown type {info.type!r}")
            raise self._error(f"holds {name!r}, which is {reason}")

        size_text = extensions.get("size", str(info.size))
        if not _SIZE.fullmatch(size_text):
            raise self._error(f"gives {name!r} the size {size_text}")
        size = int(size_text)
        if size and kind != "file":
            raise self._error(f"gives {name!r} the size {size_text}")
        if size > self._limits.max_bytes:
            raise self._error(f"holds {name!r} of {console.size(size)}, more than any artifact is granted")
        return StreamedMember(
            name=name.rstrip("/") if kind == "folder" else name,
            kind=kind,
            size=size,
            mode=info.mode & 0o7777,
            link=extensions.get("linkpath", info.linkname),
        )

    def _read_block(self) -> bytes:
        while self._end - self._start < _BLOCK:
            self._fill_buffer()
        self._start += _BLOCK
        return bytes(self._buffer[self._start - _BLOCK : self._start])

    def _fill_buffer(self, *, required: bool = True) -> bool:
        """Read more behind what is still unread; return whether there was any."""
        unread_count = self._end - self._start
        if unread_count:
            self._buffer[:unread_count] = bytes(self._buffer[self._start : self._end])
        self._start = 0
        self._end = unread_count
        try:
            read_count = self._decompressor.readinto(self._buffer[unread_count:])
        except _DAMAGED as problem:
            reason = str(problem).removeprefix("zstd decompress error: ") or "it needs too much memory"
            raise self._error(f"is damaged: {reason}", hint="Fetch it again.") from problem
        if not read_count and required:
            place = f" after {self._last_name!r}" if self._last_name else ""
            raise self._error(f"is truncated{place}", hint="Fetch it again.")
        self._end += read_count
        self.expanded += read_count
        self._require_no_bomb()
        return bool(read_count)

    def _require_no_bomb(self) -> None:
        limits = self._limits
        is_dense = self.expanded > limits.ratio_from and self.expanded > limits.max_ratio * self._source.count
        if is_dense or self.expanded > limits.max_bytes:
            raise self._error(
                f"expands to more than {console.size(self.expanded - 1)} from "
                f"{console.size(self._source.count)}, at {self._last_name!r}: a decompression bomb"
            )

    def _error(
        self,
        problem: str,
        *,
        hint: str = "",
    ) -> ArtifactError:
        return ArtifactError(f"{self._name} {problem}.", hint=hint)


def _decompressor(
    source: HashedSource,
    suffix: str,
    *,
    name: str,
    memory: int,
) -> _Decompressor:
    if suffix == XZ:
        return _XzDecompressor(source, name, memory)
    # The others call nothing but `read`, which a source has.
    stream = cast("BinaryIO", source)
    if suffix == GZIP:
        return gzip.GzipFile(fileobj=stream, mode="rb")
    zstd = zstandard.ZstdDecompressor(max_window_size=memory)
    return zstd.stream_reader(
        stream,
        _READ_SIZE,
        read_across_frames=True,
        closefd=False,
    )


def pax_records(data: bytes) -> dict[str, str]:
    r"""Read pax records (POSIX.1-2001): ``{length} {keyword}={value}\n``, each length its own included."""
    records: dict[str, str] = {}
    while data:
        digits, space, _ = data[:20].partition(b" ")
        if not space or not digits.isdigit():
            raise ValueError("no length")
        length = int(digits)
        record = data[:length]
        data = data[length:]
        keyword_bytes, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if len(record) != length or not record.endswith(b"\n") or not equals:
            raise ValueError("cut off")

        keyword = keyword_bytes.decode()
        # times and attributes are not used, and may be of any bytes
        errors = "strict" if keyword in _USED_KEYWORDS else "replace"
        records[keyword] = value.decode("utf-8", errors)
    return records
