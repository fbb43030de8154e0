"""Compressed streams of unknown origin: hashed as they are read, decompressed within bounds."""

from __future__ import annotations

import hashlib
import lzma
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

import zstandard

from core.errors import ArtifactError, FatalError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

ZSTD = ".tar.zst"
XZ = ".tar.xz"
_READ = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How much an archive may ask for before it is taken for an attack.

    Attributes:
        max_bytes: Bytes that it may expand to.
        max_members: Members that it may hold.
        max_ratio: How many times its own size it may expand to, once it is past `ratio_from`.
        ratio_from: Bytes up to which the ratio is nobody's concern.
        max_memory: Bytes of memory that decompressing may take.
    """

    max_bytes: int = 256 << 30
    max_members: int = 2_000_000
    max_ratio: int = 1000
    ratio_from: int = 256 << 20
    max_memory: int = 128 << 20


class Reader(Protocol):
    """Decompressed bytes, forward only."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill a part of `buffer`, and say how much; 0 is the end."""
        ...


class HashedSource:
    """A stream of compressed bytes that hashes and counts what it gives.

    Attributes:
        count: Bytes read so far.
    """

    def __init__(self, stream: BinaryIO, *, where: str, on_bytes: Callable[[int], object] | None) -> None:
        self.count = 0
        self._stream = stream
        self._where = where
        self._on_bytes = on_bytes
        self._hash = hashlib.sha256()

    def read(self, size: int = _READ) -> bytes:
        """Read up to `size` bytes.

        Raises:
            StoreError: Reading broke off.
        """
        try:
            data = self._stream.read(size)
        except FatalError:
            raise
        except OSError as problem:
            raise StoreError(
                f"Reading {self._where} broke off after {self.count} bytes: {problem}.",
                hint="Run the same command again.",
            ) from problem
        self.count += len(data)
        self._hash.update(data)
        if self._on_bytes is not None:
            self._on_bytes(len(data))
        return data

    def finish(self) -> str:
        """Read what is left, which nothing asked for, and give the SHA-256 of all."""
        while self.read():
            pass
        return self._hash.hexdigest()


class _Zstd:
    def __init__(self, source: HashedSource, where: str, policy: Policy) -> None:
        self._where = where
        window = zstandard.ZstdDecompressor(max_window_size=policy.max_memory)
        self._reader = window.stream_reader(
            cast("BinaryIO", source), read_size=_READ, read_across_frames=True, closefd=False
        )

    def readinto(self, buffer: memoryview, /) -> int:
        try:
            return int(self._reader.readinto(buffer))
        except zstandard.ZstdError as problem:
            raise _damaged(self._where, problem) from problem


class _Xz:
    def __init__(self, source: HashedSource, where: str, policy: Policy) -> None:
        self._source = source
        self._where = where
        self._memory = policy.max_memory
        self._stream = self._next_stream()
        self._rest = b""

    def readinto(self, buffer: memoryview, /) -> int:
        try:
            while not self._stream.eof or self._another():
                data = self._stream.decompress(self._input(), len(buffer))
                if data:
                    buffer[: len(data)] = data
                    return len(data)
        except (lzma.LZMAError, MemoryError) as problem:
            raise _damaged(self._where, problem) from problem
        return 0

    def _input(self) -> bytes:
        if not self._stream.needs_input:
            return b""
        given, self._rest = self._rest or self._source.read(), b""
        if not given:
            raise ArtifactError(f"{self._where} is truncated.", hint="Fetch it again.")
        return given

    def _another(self) -> bool:
        """Begin the next of several streams, which zeros may part."""
        rest = self._stream.unused_data.lstrip(b"\0")
        while not rest:
            more = self._source.read()
            if not more:
                return False
            rest = more.lstrip(b"\0")
        self._rest = rest
        self._stream = self._next_stream()
        return True

    def _next_stream(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=self._memory)


def _damaged(where: str, problem: Exception) -> ArtifactError:
    said = str(problem).removeprefix("zstd decompress error: ") or "it asks for too much memory"
    return ArtifactError(f"{where} is damaged: {said}.", hint="Fetch it again.")


def open_reader(source: HashedSource, suffix: str, *, where: str, policy: Policy) -> Reader:
    """Decompress a source by the file's suffix, `ZSTD` or `XZ`.

    Raises:
        ArtifactError: From the reader: the data is damaged, truncated (xz only; a zstd stream
            just ends), or asks for more memory than `policy` grants.
    """
    return _Xz(source, where, policy) if suffix == XZ else _Zstd(source, where, policy)
