"""Verify a wheel's RECORD: every member listed, with its digest and size, and safe to unpack.

Each member is decompressed once, largest first, on all cores; hashing and inflating let go of the
interpreter lock. Checks that need a member's bytes take them from the same pass, by a `Tap`.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from core.archive import zips
from core.archive.zips import MemberError, Span
from core.errors import FatalError, WheelError
from core.wheel import find_dist_info, read_text_member

if TYPE_CHECKING:
    import zipfile

# The largest real wheels (torch for every GPU family) unpack to about 15 GB.
MAX_UNPACKED = 256 << 30
_ALGORITHMS = frozenset({"sha256", "sha384", "sha512"})
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_RECORD_FIELDS = 3
_Problems = list[tuple[str, str]]  # member and message


@dataclass(frozen=True, kw_only=True, order=True)
class RecordProblem:
    """One thing that is wrong with a wheel as an archive; `member` is "" for the archive as a whole."""

    member: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Tap:
    """Takes members from the pass that verifies them, as temporary files.

    Attributes:
        wanted: Whether to keep a member, by its name and its first bytes (at least 64, if it has them).
        inspect: Called with the name and the file of each kept member, in any thread; the file is
            gone afterwards. Only members whose data is sound arrive here.
        folder: Where the files lie meanwhile (default: the system's temporary folder).
    """

    wanted: Callable[[str, bytes], bool]
    inspect: Callable[[str, Path], None]
    folder: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What RECORD promises of one member."""

    algorithm: str
    digest: bytes
    size: int | None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A wheel as its central directory, its local headers and its RECORD describe it."""

    folder: str
    files: tuple[tuple[zipfile.ZipInfo, Span], ...]
    entries: Mapping[str, Entry | None]


def verify_record(
    path: Path, *, tap: Tap | None = None, jobs: int | None = None
) -> tuple[RecordProblem, ...]:
    """Compare a wheel's members with its RECORD and with what is safe to unpack; return every problem."""
    with zips.opened(path) as archive:
        listing, problems = _list(path, archive)
    if listing is not None:
        # largest first
        files = sorted(listing.files, key=lambda pair: (-pair[0].file_size, pair[1].header))
        with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
            for found in pool.map(lambda pair: _read_member(path, pair[0], pair[1], listing, tap), files):
                problems += found
    return tuple(sorted({RecordProblem(member=member, message=message) for member, message in problems}))


def require_listing(path: Path, archive: zipfile.ZipFile) -> Listing:
    """Read how a wheel describes itself; raise for what is wrong with that alone.

    Paths, kinds, names and bytes that members would share are judged; of the members only RECORD is
    inflated, so what RECORD says of the others is not known to be true.
    """
    listing, problems = _list(path, archive)
    _require_none(path, [message for _, message in sorted(problems)])
    if listing is None:
        raise WheelError(f"{path.name} cannot be listed.")
    return listing


def require_sound(path: Path) -> None:
    """Raise for the first problem that `verify_record` finds."""
    _require_none(path, [problem.message for problem in verify_record(path)])


def _require_none(path: Path, messages: Sequence[str]) -> None:
    if messages:
        more = f" ({len(messages) - 1} more problems)" if len(messages) > 1 else ""
        raise WheelError(f"{path.name}: {messages[0]}{more}", hint="Build or download the wheel again.")


def _list(path: Path, archive: zipfile.ZipFile) -> tuple[Listing | None, _Problems]:
    """Read everything but the members' bytes; no listing where members may not be read."""
    problems, files = _survey(archive)
    try:
        folder = find_dist_info(path, archive)
        listed, more = _parse_record(read_text_member(path, archive, f"{folder}/RECORD"), folder)
    except WheelError as problem:
        return None, [*problems, ("", problem.message)]
    problems += more
    present = {info.filename for info in files}
    needed = {f"{folder}/METADATA", f"{folder}/WHEEL"}
    unlisted = present - set(listed) - {f"{folder}/{name}" for name in _SIGNATURES}
    problems += [(name, f"The wheel holds no {name}.") for name in needed - present]
    problems += [(name, f"{name} is not listed in RECORD.") for name in unlisted]
    problems += [
        (name, f"RECORD lists {name}, which the wheel does not hold.") for name in set(listed) - present
    ]
    placed, overlaps = _place(path, files)
    if overlaps:
        return None, problems + overlaps
    return Listing(folder=folder, files=placed, entries=listed), problems


def _survey(archive: zipfile.ZipFile) -> tuple[_Problems, list[zipfile.ZipInfo]]:
    """Judge the central directory alone; return the files that may be read."""
    files: list[zipfile.ZipInfo] = []
    counted = Counter(info.filename for info in archive.infolist())
    problems = [
        (name, f"{name} is in the archive {count} times.") for name, count in counted.items() if count > 1
    ]
    total = sum(info.file_size for info in archive.infolist())
    if total > MAX_UNPACKED:
        return [*problems, ("", f"The archive declares {total} bytes, more than {MAX_UNPACKED}.")], []
    for info in archive.infolist():
        if why := zips.unsafe_path(info.orig_filename):
            problems.append((info.filename, f"{info.orig_filename!r} is {why}."))
        if kind := zips.unsafe_kind(info):
            problems.append((info.filename, f"{info.filename} is {kind}."))
        elif info.is_dir() and info.file_size:
            problems.append((info.filename, f"The folder {info.filename} has data."))
        elif not info.is_dir():
            files.append(info)
    return problems, files


def _parse_record(raw: bytes, folder: str) -> tuple[dict[str, Entry | None], _Problems]:
    """Read RECORD: path -> what it promises; ``None`` where no digest is needed."""
    record = f"{folder}/RECORD"
    exempt = {record, *(f"{folder}/{name}" for name in _SIGNATURES)}
    listed: dict[str, Entry | None] = {}
    problems: _Problems = []
    try:
        rows = list(csv.reader(raw.decode("utf-8").splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as problem:
        return {}, [(record, f"{record} is not UTF-8 CSV: {problem}.")]
    for number, row in enumerate(rows, start=1):
        where = f"{record} line {number}"
        if len(row) != _RECORD_FIELDS:
            problems.append((record, f"{where} has {len(row)} fields, not 3."))
            continue
        name, digest, size = row
        if name in listed:
            problems.append((name, f"{where} lists {name} again."))
        try:
            listed[name] = None if name in exempt and not digest else _entry(digest, size)
        except ValueError as problem:
            listed[name] = None
            problems.append((name, f"{where} ({name}): {problem}."))
    return listed, problems


def _entry(digest: str, size: str) -> Entry:
    algorithm, _, encoded = digest.partition("=")
    if not digest:
        raise ValueError("no digest")
    if algorithm not in _ALGORITHMS:
        raise ValueError(f"a digest by {algorithm!r}; {', '.join(sorted(_ALGORITHMS))} are accepted")
    try:
        value = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError("a digest that is not urlsafe base64") from None
    if size and not (size.isascii() and size.isdigit()):
        raise ValueError(f"a size that is not a number ({size!r})")
    return Entry(algorithm=algorithm, digest=value, size=int(size) if size else None)


def _place(
    path: Path, files: Iterable[zipfile.ZipInfo]
) -> tuple[tuple[tuple[zipfile.ZipInfo, Span], ...], _Problems]:
    """Find where each member's bytes lie, by its local header; no two may share any."""
    problems: _Problems = []
    placed: list[tuple[zipfile.ZipInfo, Span]] = []
    with path.open("rb") as stream:
        for info in files:
            try:
                placed.append((info, zips.span_of(stream, info)))
            except MemberError as problem:
                problems.append((info.filename, f"{info.filename} has {problem}."))
    for (_, span), (info, following) in pairwise(sorted(placed, key=lambda pair: pair[1].header)):
        if following.header < span.end:
            problems.append((info.filename, f"{info.filename} shares bytes with another."))
    return tuple(placed), problems


def _read_member(
    path: Path, info: zipfile.ZipInfo, span: Span, listing: Listing, tap: Tap | None
) -> _Problems:
    name, entry = info.filename, listing.entries.get(info.filename)
    hasher = hashlib.new(entry.algorithm if entry else "sha256")
    try:
        with path.open("rb") as stream:
            _consume(stream, info, span, hasher.update, tap)
    except MemberError as problem:
        return [(name, f"{name} has {problem}.")]
    except OSError as problem:
        raise FatalError(
            f"{path.name}: {name} could not be read or kept: {problem.strerror or problem}.",
            hint="Check the disk and the free space of the temporary folder.",
        ) from problem
    problems: _Problems = []
    if entry and entry.size not in {None, info.file_size}:
        problems.append((name, f"{name} has {info.file_size} bytes; RECORD says {entry.size}."))
    if entry and hasher.digest() != entry.digest:
        problems.append((name, f"{name} does not have the {entry.algorithm} that RECORD says."))
    return problems


def _consume(
    stream: BinaryIO, info: zipfile.ZipInfo, span: Span, update: Callable[[bytes], object], tap: Tap | None
) -> None:
    """Feed a member to the hasher and, where it is wanted, to the tap."""
    pieces = zips.chunks(stream, info, span)
    first = next(pieces, b"")
    update(first)
    if tap is None or not tap.wanted(info.filename, first):
        for piece in pieces:
            update(piece)
        return
    with tempfile.TemporaryDirectory(prefix="member-", dir=tap.folder) as place:
        kept = Path(place) / "member"
        with kept.open("wb") as copy:
            copy.write(first)
            for piece in pieces:
                update(piece)
                copy.write(piece)
        tap.inspect(info.filename, kept)
