"""A wheel written again under another version, with some of its text files edited.

All other members are copied as they are compressed, so the time follows the size of the file and
not of its contents, and memory follows neither. What RECORD says of copied members is taken
over. Format: the binary distribution format (PEP 427).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

from packaging.version import InvalidVersion, Version

from core import zip_members
from core.errors import WheelError
from core.files import atomic
from core.wheel_record import Entry, require_listing
from core.wheel_writer import WrittenFile
from core.wheels import parse_wheel_name, read_text_member
from core.zip_packing import DEFLATED, STORED, Packed
from core.zip_writer import HashingStream, Member, Workers, ZipWriter

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from core.zip_members import Span

TEXT_LIMIT = 1 << 20
_SNIFFED_PACKED, _SNIFFED = 4 << 10, 1 << 10
# RECORD is written anew; a signature of the old one would no longer hold.
_DROPPED = ("RECORD", "RECORD.jws", "RECORD.p7s")


class Edit(Protocol):
    """Says what becomes of a text file; it sees every one up to `TEXT_LIMIT`, and all of `.dist-info`."""

    def __call__(self, member: str, content: bytes, /) -> bytes:
        """Give the new content of a member, by its path in the old wheel; the same for no change."""


@dataclass(frozen=True, kw_only=True)
class Edited:
    """A wheel or sdist that was written again.

    Attributes:
        file: The new file.
        members: New paths of all its files, in its order; without RECORD.
        changed: Of these, the ones that hold other bytes than before, sorted.
    """

    file: WrittenFile
    members: tuple[str, ...]
    changed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Step:
    info: zipfile.ZipInfo
    span: Span
    name: str
    content: bytes | None
    entry: Entry | None


def edit_wheel(source: Path, folder: Path, *, version: str, edit: Edit, epoch: int | None = None) -> Edited:
    """Write a wheel again under another version.

    ``.dist-info`` and ``.data`` folders and the file name follow the version; RECORD is written
    anew and last; signatures are left out; who may run a file stays. All edits are made before
    anything is written.

    The old wheel's paths, kinds, names and sizes are held against each other first, and its small
    text files are inflated. The others are not: what RECORD says of them is as true of the new
    wheel as it was of the old one, and `core.wheel_record` says of the new one, in the one pass
    that a new wheel needs anyway, whether that is so.

    Args:
        source: The old wheel.
        folder: Where the new one goes.
        version: The new version.
        edit: What becomes of text files.
        epoch: The time that every member carries (default: 1980-01-01, the earliest a zip holds).

    Raises:
        MissingInputError: There is no old wheel.
        WheelError: It is broken or hostile, or has that version already.
    """
    name = parse_wheel_name(source.name)
    target = folder / _file_name(source.name, version)
    if name.version == Version(version):
        raise WheelError(f"{source.name} has version {version} already.")
    with zip_members.opened(source) as archive, source.open("rb") as stream:
        listing = require_listing(source, archive)
        dropped = {f"{listing.folder}/{one}" for one in _DROPPED}
        steps = []
        for info, span in listing.files:
            if info.filename in dropped:
                continue
            old = None
            if info.filename.startswith(f"{listing.folder}/") or _is_small_text(stream, info, span):
                old = read_text_member(source, archive, info.filename)
            new = None if old is None else edit(info.filename, old)
            steps.append(
                _Step(
                    info=info,
                    span=span,
                    name=_renamed(info.filename, version),
                    content=None if new == old else new,
                    entry=listing.entries[info.filename],
                )
            )
        _require_distinct(source, steps)
        file = _write(source, stream, target, steps, epoch=epoch)
    return Edited(
        file=file,
        members=tuple(step.name for step in steps),
        changed=tuple(sorted(step.name for step in steps if step.content is not None)),
    )


def _file_name(filename: str, version: str) -> str:
    try:
        normal = str(Version(version))
    except InvalidVersion:
        raise WheelError(f"{version!r} is no version.") from None
    distribution, _, *rest = filename.split("-")
    return "-".join([distribution, normal, *rest])


def _renamed(member: str, version: str) -> str:
    """Put the version into the name of a ``.dist-info`` or ``.data`` folder."""
    first, slash, rest = member.partition("/")
    for suffix in (".dist-info", ".data"):
        distribution, dash, _ = first.removesuffix(suffix).rpartition("-")
        if slash and dash and first.endswith(suffix):
            return f"{distribution}-{Version(version)}{suffix}/{rest}"
    return member


def _require_distinct(source: Path, steps: Sequence[_Step]) -> None:
    seen: set[str] = set()
    for step in steps:
        if step.name in seen:
            raise WheelError(f"{source.name} would hold {step.name} twice under its new version.")
        seen.add(step.name)


def _is_small_text(stream: BinaryIO, info: zipfile.ZipInfo, span: Span) -> bool:
    """Whether a member is small and begins like a text."""
    if not 0 < info.file_size <= TEXT_LIMIT:
        return False
    stream.seek(span.start)
    head = stream.read(min(_SNIFFED_PACKED, info.compress_size))
    if info.compress_type == DEFLATED:
        try:
            head = zlib.decompressobj(-zlib.MAX_WBITS).decompress(head, _SNIFFED)
        except zlib.error:
            return True  # reading it whole says what is wrong with it
    return is_text(head)


def is_text(head: bytes) -> bool:
    """Whether a file begins like a text: without a zero byte."""
    return b"\0" not in head[:_SNIFFED]


def _write(
    source: Path, stream: BinaryIO, target: Path, steps: Sequence[_Step], *, epoch: int | None
) -> WrittenFile:
    rows = io.StringIO()
    table = csv.writer(rows, lineterminator="\n")
    with atomic(target) as raw, Workers(jobs=1) as workers:
        hashing = HashingStream(raw)
        archive = _CopyingWriter(hashing, epoch=epoch, workers=workers)
        for step in steps:
            if step.content is None:
                archive.copy(source, stream, step)
                table.writerow((step.name, *_row(step.entry, step.info.file_size)))
                continue
            archive.add([Member(name=step.name, source=step.content, executable=_is_executable(step.info))])
            made = Entry(algorithm="sha256", digest=hashlib.sha256(step.content).digest(), size=None)
            table.writerow((step.name, *_row(made, len(step.content))))
        folder = next(step.name for step in steps if step.name.endswith(".dist-info/METADATA"))
        record = f"{folder.removesuffix('METADATA')}RECORD"
        table.writerow((record, "", ""))
        archive.add([Member(name=record, source=rows.getvalue().encode())])
        archive.finish()
    return WrittenFile(path=target, sha256=hashing.sha256, size=hashing.size)


def _row(entry: Entry | None, size: int) -> tuple[str, int | str]:
    if entry is None:
        return "", ""
    return f"{entry.algorithm}={base64.urlsafe_b64encode(entry.digest).decode().rstrip('=')}", size


def _is_executable(info: zipfile.ZipInfo) -> bool:
    return bool(info.external_attr >> 16 & 0o111)


class _CopyingWriter(ZipWriter):
    """Also takes members over under another name."""

    def copy(self, source: Path, stream: BinaryIO, step: _Step) -> None:
        """Write a member as it is compressed in the old wheel."""

        def pieces() -> Iterator[bytes]:
            stream.seek(step.span.start)
            left = step.info.compress_size
            while left:
                piece = stream.read(min(zip_members.CHUNK, left))
                if not piece:
                    raise WheelError(f"{source.name} is cut off within {step.info.filename}.")
                left -= len(piece)
                yield piece

        self._put(
            Packed(
                member=Member(name=step.name, source=source, executable=_is_executable(step.info)),
                method=DEFLATED if step.info.compress_type == DEFLATED else STORED,
                packed_size=step.info.compress_size,
                pieces=pieces,
                crc=step.info.CRC,
                size=step.info.file_size,
                sha256=step.entry.digest if step.entry else b"",
                release=lambda: None,
            )
        )
