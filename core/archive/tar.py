"""Compressed tar streams of unknown origin: hashed as they are read, expanded within bounds, read strictly.

The standard library's reader takes a broken header in mid-archive, and an archive that ends too early, for
the end. Here everything that is not as POSIX (pax) or GNU tar write it is an error that names the member.
"""

import hashlib
import lzma
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal, Protocol, cast

import zstandard

from core import console
from core.errors import ArtifactError, StoreError

ZSTD = ".tar.zst"
XZ = ".tar.xz"
_READ = 1 << 18
Kind = Literal["file", "folder", "symlink", "hardlink"]

_BLOCK = tarfile.BLOCKSIZE
_BUFFER = 1 << 20
_ZEROS = bytes(_BLOCK)
_SIZE = re.compile(r"[0-9]{1,20}")
_LONGEST_EXTENSION = 1 << 16
_KINDS: dict[bytes, Kind] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
}
_REFUSED = {
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}
_GNU_EXTENSIONS = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}
_EXTENSIONS = {*_GNU_EXTENSIONS, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE}
_MEANT = {"path", "linkpath", "size"}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How much an archive may expand to before it counts as an attack; sizes in bytes."""

    max_bytes: int = 256 << 30
    max_members: int = 2_000_000
    max_ratio: int = 1000  # times its own size, once it is past `ratio_from`
    ratio_from: int = 256 << 20
    max_memory: int = 128 << 20  # of decompressing


class HashedSource:
    """A stream of compressed bytes that hashes and counts what is read from it."""

    def __init__(self, stream: BinaryIO, *, where: str, on_bytes: Callable[[int], object]) -> None:
        self.count = 0
        self._stream, self._where, self._on_bytes = stream, where, on_bytes
        self._hash = hashlib.sha256()

    def read(self, size: int = _READ) -> bytes:
        """Read up to `size` bytes."""
        try:
            data = self._stream.read(size)
        except OSError as problem:
            raise StoreError(
                f"Reading {self._where} broke off after {self.count} bytes: {problem}.",
                hint="Run the same command again.",
            ) from problem
        self.count += len(data)
        self._hash.update(data)
        self._on_bytes(len(data))
        return data

    def finish(self) -> str:
        """Read to the end, and return the SHA-256 of everything."""
        while self.read():
            pass
        return self._hash.hexdigest()


class _Reader(Protocol):
    def readinto(self, buffer: memoryview, /) -> int: ...


class _Xz:
    def __init__(self, source: HashedSource, where: str, memory: int) -> None:
        self._source, self._where, self._memory = source, where, memory
        self._stream = self._next_stream()
        self._rest = b""

    def readinto(self, buffer: memoryview, /) -> int:
        while not self._stream.eof or self._another():
            if data := self._stream.decompress(self._input(), len(buffer)):
                buffer[: len(data)] = data
                return len(data)
        return 0

    def _input(self) -> bytes:
        if not self._stream.needs_input:
            return b""
        data, self._rest = self._rest or self._source.read(), b""
        if not data:
            raise ArtifactError(f"{self._where} is truncated.", hint="Fetch it again.")
        return data

    def _another(self) -> bool:
        """Begin the next of several streams, which zeros may part."""
        self._rest = self._stream.unused_data.lstrip(b"\0")
        while not self._rest:
            if not (more := self._source.read()):
                return False
            self._rest = more.lstrip(b"\0")
        self._stream = self._next_stream()
        return True

    def _next_stream(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=self._memory)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One member as its headers describe it; `mode` includes set-user-id bits."""

    name: str
    kind: Kind
    size: int
    mode: int
    link: str


class TarStream:
    """The members of a tar stream (suffix `ZSTD` or `XZ`), each with its data, in their order.

    A truncated xz stream is an error of its own; a zstd stream just ends, and the tar format tells.
    """

    def __init__(self, source: HashedSource, suffix: str, *, where: str, policy: Policy) -> None:
        self.expanded = 0
        if suffix == XZ:
            self._reader: _Reader = _Xz(source, where, policy.max_memory)
        else:
            zstd = zstandard.ZstdDecompressor(max_window_size=policy.max_memory)
            stream = cast("BinaryIO", source)
            self._reader = zstd.stream_reader(stream, _READ, read_across_frames=True, closefd=False)
        self._source, self._where, self._policy = source, where, policy
        self._buffer = memoryview(bytearray(_BUFFER))
        self._start = self._end = self._left = self._padding = 0
        self._last = ""

    def members(self) -> Iterator[Member]:
        """Return the members up to the archive's end, behind which only zeros may be."""
        count = 0
        extensions: dict[str, str] = {}
        while (info := self._header()) is not None:
            count += 1
            if count > self._policy.max_members:
                raise self._bad(f"holds more than {self._policy.max_members} members")
            if info.type in _EXTENSIONS:
                extensions |= self._extension(info)
                continue
            member = self._member(info, extensions)
            self._last, extensions = member.name, {}
            self._expect(member.size)
            yield member
            self._skip()
        if extensions:
            raise self._bad("ends after an extended header")

    def chunks(self) -> Iterator[memoryview]:
        """Return the current member's data piece by piece; a piece is valid until the next one."""
        while self._left:
            if self._start == self._end:
                self._fill()
            start = self._start
            self._start = min(self._end, start + self._left)
            self._left -= self._start - start
            yield self._buffer[start : self._start]

    def data(self) -> bytes:
        """Return the current member's data whole; the caller has checked its size."""
        return b"".join(self.chunks())

    def _expect(self, size: int) -> None:
        self._left, self._padding = size, -size % _BLOCK

    def _skip(self) -> None:
        """Go to the next header; the padding must be zeros, or the data is longer than its header says."""
        for _ in self.chunks():
            pass
        self._left, self._padding = self._padding, 0
        for part in self.chunks():
            if bytes(part).strip(b"\0"):
                raise self._bad(f"has more data at {self._last!r} than its header says")

    def _header(self) -> tarfile.TarInfo | None:
        block = self._block()
        if block == _ZEROS:
            self._require_end()
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, ValueError) as problem:
            raise self._bad(f"has a malformed header after {self._last!r} ({problem})") from problem
        if info.size < 0:
            raise self._bad(f"gives {info.name!r} a negative size")
        return info

    def _require_end(self) -> None:
        if self._block() != _ZEROS:
            raise self._bad(f"has a malformed header after {self._last!r} (empty)")
        while self._start < self._end or self._fill(required=False):
            if bytes(self._buffer[self._start : self._end]).strip(b"\0"):
                raise self._bad("goes on behind its end")
            self._start = self._end

    def _extension(self, info: tarfile.TarInfo) -> dict[str, str]:
        if info.size > _LONGEST_EXTENSION:
            raise self._bad(f"has an extended header of {info.size} bytes after {self._last!r}")
        self._expect(info.size)
        data = self.data()
        self._skip()
        try:
            if info.type in _GNU_EXTENSIONS:
                return {_GNU_EXTENSIONS[info.type]: data.rstrip(b"\0").decode()}
            found = pax_records(data)
        except ValueError as problem:
            raise self._bad(f"has a malformed extended header after {self._last!r} ({problem})") from problem
        if info.type == tarfile.XGLTYPE and _MEANT & found.keys():
            raise self._bad("renames or resizes members by a global header")
        if any(key.startswith("GNU.sparse") for key in found):
            raise self._bad(f"holds a sparse file after {self._last!r}")
        return {key: found[key] for key in _MEANT & found.keys()}

    def _member(self, info: tarfile.TarInfo, extensions: dict[str, str]) -> Member:
        name = extensions.get("path", info.name)
        kind = _KINDS.get(info.type)
        if kind is None:
            what = _REFUSED.get(info.type, f"of an unknown type {info.type!r}")
            raise self._bad(f"holds {name!r}, which is {what}")
        size = extensions.get("size", str(info.size))
        if not _SIZE.fullmatch(size) or (kind != "file" and int(size)):
            raise self._bad(f"gives {name!r} the size {size}")
        if int(size) > self._policy.max_bytes:
            raise self._bad(f"holds {name!r} of {console.size(int(size))}, more than any artifact is granted")
        return Member(
            name=name.rstrip("/") if kind == "folder" else name,
            kind=kind,
            size=int(size),
            mode=info.mode & 0o7777,
            link=extensions.get("linkpath", info.linkname),
        )

    def _block(self) -> bytes:
        while self._end - self._start < _BLOCK:
            self._fill()
        self._start += _BLOCK
        return bytes(self._buffer[self._start - _BLOCK : self._start])

    def _fill(self, *, required: bool = True) -> bool:
        """Read more behind what is still unread; return whether there was any."""
        rest = self._end - self._start
        if rest:
            self._buffer[:rest] = bytes(self._buffer[self._start : self._end])
        self._start, self._end = 0, rest
        try:
            read = self._reader.readinto(self._buffer[rest:])
        except (zstandard.ZstdError, lzma.LZMAError, MemoryError) as problem:
            why = str(problem).removeprefix("zstd decompress error: ") or "it needs too much memory"
            raise self._bad(f"is damaged: {why}", hint="Fetch it again.") from problem
        if not read and required:
            after = f" after {self._last!r}" if self._last else ""
            raise self._bad(f"is truncated{after}", hint="Fetch it again.")
        self._end += read
        self.expanded += read
        policy = self._policy
        bomb = self.expanded > policy.ratio_from and self.expanded > policy.max_ratio * self._source.count
        if bomb or self.expanded > policy.max_bytes:
            raise self._bad(
                f"expands to more than {console.size(self.expanded - 1)} from "
                f"{console.size(self._source.count)}, at {self._last!r}: a decompression bomb"
            )
        return bool(read)

    def _bad(self, what: str, *, hint: str = "") -> ArtifactError:
        return ArtifactError(f"{self._where} {what}.", hint=hint)


def pax_records(data: bytes) -> dict[str, str]:
    r"""Read pax records (POSIX.1-2001): ``{length} {keyword}={value}\n``, each length its own included."""
    found: dict[str, str] = {}
    while data:
        digits, space, _ = data[:20].partition(b" ")
        if not space or not digits.isdigit():
            raise ValueError("no length")
        record, data = data[: int(digits)], data[int(digits) :]
        keyword, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if len(record) != int(digits) or not record.endswith(b"\n") or not equals:
            raise ValueError("cut off")
        name = keyword.decode()
        # times and attributes are not used, and may be of any bytes
        found[name] = value.decode("utf-8", "strict" if name in _MEANT else "replace")
    return found
