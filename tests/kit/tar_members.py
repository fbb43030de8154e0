"""Archives of artifacts, written member by member as a hostile hand may write them.

Formats: tar (POSIX.1-2001 with extended headers, and GNU's long names), compressed by zstd or xz.
"""

import io
import lzma
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import zstandard

from core.archive.tar import TarLimits
from rocm_packaging.archives import ArchiveName, extract

ZSTD_NAME = ArchiveName(name="blas", component="lib", target="generic")
XZ_NAME = replace(ZSTD_NAME, suffix=".tar.xz")

END = bytes(2 * tarfile.BLOCKSIZE)
TarFormat = Literal[0, 1, 2]


@dataclass(frozen=True, kw_only=True)
class TarMember:
    """A member as a hostile hand writes it: any field, any content, and a size that may be false."""

    name: str
    content: bytes = b""
    type: bytes = tarfile.REGTYPE
    link: str = ""
    mode: int = 0o644
    size: int | None = None
    format: TarFormat = tarfile.PAX_FORMAT

    def to_bytes(self) -> bytes:
        """Return the member's blocks."""
        header = tarfile.TarInfo(self.name)
        header.type = self.type
        header.linkname = self.link
        header.mode = self.mode
        header.size = len(self.content) if self.size is None else self.size
        padding = bytes(-len(self.content) % tarfile.BLOCKSIZE)
        return header.tobuf(self.format, "utf-8", "surrogateescape") + self.content + padding


MANIFEST = TarMember(name="artifact_manifest.txt", content=b"a/stage\nb/stage\n")


def file(name: str, content: bytes = b"", *, mode: int = 0o644, size: int | None = None) -> TarMember:
    """Return a file."""
    return TarMember(name=name, content=content, mode=mode, size=size)


def folder(name: str, mode: int = 0o755) -> TarMember:
    """Return a folder."""
    return TarMember(name=name, type=tarfile.DIRTYPE, mode=mode)


def symlink(name: str, link: str) -> TarMember:
    """Return a symbolic link."""
    return TarMember(name=name, type=tarfile.SYMTYPE, link=link)


def hardlink(name: str, link: str) -> TarMember:
    """Return a hard link."""
    return TarMember(name=name, type=tarfile.LNKTYPE, link=link)


def device(name: str, type_: bytes) -> TarMember:
    """Return a member that is neither file, folder nor link."""
    return TarMember(name=name, type=type_)


def pax_record(text: bytes) -> bytes:
    """Return a record of an extended header; its length counts its own digits."""
    length = len(text) + 2
    while len(b"%d %s\n" % (length, text)) != length:
        length += 1
    return b"%d %s\n" % (length, text)


def extended_header(*records: bytes, is_global: bool = False) -> TarMember:
    """Return an extended header with these records, for the next member or for all."""
    return TarMember(
        name="pax",
        type=tarfile.XGLTYPE if is_global else tarfile.XHDTYPE,
        content=b"".join(records),
        format=tarfile.USTAR_FORMAT,
    )


def tar(*members: TarMember, end: bytes = END) -> bytes:
    """Return an archive that begins with the manifest."""
    return b"".join(member.to_bytes() for member in (MANIFEST, *members)) + end


def compress(content: bytes, name: ArchiveName = ZSTD_NAME) -> bytes:
    """Return an archive compressed as its name says."""
    return lzma.compress(content, preset=0) if name is XZ_NAME else zstandard.compress(content, 1)


def unpack(
    content: bytes,
    target: Path,
    *,
    name: ArchiveName = ZSTD_NAME,
    limits: TarLimits | None = None,
    sha256: str = "",
) -> Path:
    """Compress an archive and extract it; return the artifact's folder."""
    return extract(io.BytesIO(compress(content, name)), name, target, limits=limits, sha256=sha256)


def unpack_compressed(
    content: bytes, target: Path, *, name: ArchiveName = ZSTD_NAME, limits: TarLimits | None = None
) -> Path:
    """Extract an archive that is compressed; return the artifact's folder."""
    return extract(io.BytesIO(content), name, target, limits=limits, sha256="")
