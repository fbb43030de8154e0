"""One member of a zip file, read like a file: forwards fast, backwards by starting over.

Headers of compiled files are read here and there, and libraries are gigabytes: nothing is
unpacked to disk, and only as much is inflated as is asked for.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO, Self

from core.archive import zip_members
from core.archive.zip_members import MemberError
from core.errors import WheelError

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator
    from pathlib import Path

KEPT = 32 << 20
"""How many of a member's first bytes stay in memory, where headers and names mostly lie."""


class MemberStream(io.RawIOBase, BinaryIO):
    """A member's bytes, for reading only.

    Args:
        path: The archive.
        info: The member; stored or deflated.

    Raises:
        WheelError: The archive has no such member where it says, or it is damaged; also while reading.
    """

    def __init__(self, path: Path, info: zipfile.ZipInfo) -> None:
        self._name = f"{path.name}: {info.filename}"
        self._raw = path.open("rb")
        self._info = info
        self._at = 0
        self._kept = bytearray()
        try:
            self._span = zip_members.span_of(self._raw, info)
        except MemberError as problem:
            self._raw.close()
            raise WheelError(f"{self._name} has {problem}.") from problem
        self._restart()

    def _restart(self) -> None:
        self._pieces: Iterator[bytes] = zip_members.chunks(self._raw, self._info, self._span)
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

    def __enter__(self) -> Self:
        return self

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read at any place."""
        return True

    def tell(self) -> int:
        """Give the place of the next read."""
        return self._at

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
