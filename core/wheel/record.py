"""Verify a wheel's RECORD: every member listed, with its digest and size, and safe to unpack.

Each member is decompressed once, largest first, on all cores; hashing and inflating let go of the
interpreter lock. Checks that need a member's bytes take them from the same pass, by a `Tap`.
"""

import base64
import binascii
import csv
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from core import temporary
from core.archive.zips import (
    MemberError,
    ZipArchive,
    ZipMember,
    chunks,
    read_archive,
    unsafe_kind,
    unsafe_path,
)
from core.errors import FatalError, WheelError
from core.wheel import find_dist_info, read_small_member

# The largest real wheels (torch for every GPU family) unpack to about 15 GB.
MAX_UNPACKED = 256 << 30
_ALGORITHMS = frozenset({"sha256", "sha384", "sha512"})
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_RECORD_FIELDS = 3


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
class RecordRow:
    """What a row of RECORD promises of a member."""

    algorithm: str
    digest: bytes
    size: int | None


@dataclass(frozen=True, kw_only=True)
class WheelListing:
    """A wheel as its headers and its RECORD describe it.

    `folder` is its ``.dist-info``; `members` are its files; `rows` are those of RECORD by member, with None
    where it promises nothing, as of itself.
    """

    archive: ZipArchive
    folder: str
    members: tuple[ZipMember, ...]
    rows: Mapping[str, RecordRow | None]

    @property
    def by_name(self) -> dict[str, ZipMember]:
        """The files, by their names."""
        return {member.name: member for member in self.members}


def verify_record(
    path: Path, *, tap: Tap | None = None, jobs: int | None = None
) -> tuple[RecordProblem, ...]:
    """Compare a wheel's members with its RECORD and with what is safe to unpack; return every problem."""
    listing, problems = _list_wheel(path)
    if listing is not None:

        def verify_member(member: ZipMember) -> list[RecordProblem]:
            return _verify_member(listing, member, tap)

        largest_first = sorted(listing.members, key=lambda member: (-member.size, member.header))
        with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
            for problems_of_member in pool.map(verify_member, largest_first):
                problems += problems_of_member
    return tuple(sorted(set(problems)))


def require_listing(path: Path) -> WheelListing:
    """Read how a wheel describes itself; raise for what is wrong with that alone.

    Headers, paths, kinds and names are judged; of the members only RECORD is inflated, so what RECORD
    says of the others is not known to be true.
    """
    listing, problems = _list_wheel(path)
    _require_no_problems(path, sorted(problems))
    if listing is None:
        raise WheelError(f"{path.name} cannot be listed.")
    return listing


def require_sound(path: Path) -> None:
    """Raise for the first problem that `verify_record` finds."""
    _require_no_problems(path, verify_record(path))


def _require_no_problems(path: Path, problems: Sequence[RecordProblem]) -> None:
    if problems:
        message = f"{path.name}: {problems[0].message}"
        if len(problems) > 1:
            message += f" ({len(problems) - 1} more problems)"
        raise WheelError(message, hint="Build or download the wheel again.")


def _list_wheel(path: Path) -> tuple[WheelListing | None, list[RecordProblem]]:
    """Read everything but the members' bytes; without a listing the members may not be read."""
    archive = read_archive(path)
    if archive.total_size > MAX_UNPACKED:
        message = f"The archive declares {archive.total_size} bytes, more than {MAX_UNPACKED}."
        return None, [RecordProblem(member="", message=message)]

    problems = _judge_members(archive)
    try:
        folder = find_dist_info(archive)
        record = read_small_member(archive, f"{folder}/RECORD")
    except WheelError as problem:
        return None, [
            *problems,
            RecordProblem(
                member="",
                message=problem.message,
            ),
        ]
    rows, problems_of_rows = _parse_record(record, folder)
    problems += problems_of_rows

    members = [member for member in archive.members if not member.is_folder and unsafe_kind(member) is None]
    problems += _compare_names({member.name for member in members}, rows, folder)
    return WheelListing(
        archive=archive,
        folder=folder,
        members=tuple(members),
        rows=rows,
    ), problems


def _judge_members(archive: ZipArchive) -> list[RecordProblem]:
    """Return what is wrong with the members' names and kinds."""
    problems: list[RecordProblem] = []
    for member in archive.members:
        if reason := unsafe_path(member.name):
            message = f"{member.name!r} is {reason}."
            problems.append(
                RecordProblem(
                    member=member.name,
                    message=message,
                )
            )
        if reason := unsafe_kind(member):
            message = f"{member.name} is {reason}."
            problems.append(
                RecordProblem(
                    member=member.name,
                    message=message,
                )
            )
    return problems


def _compare_names(
    names: set[str],
    rows: Mapping[str, RecordRow | None],
    folder: str,
) -> list[RecordProblem]:
    """Compare the members of a wheel with those that it has to have, and with those that RECORD lists."""
    messages: dict[str, str] = {}
    for name in names - set(rows) - _signatures(folder):
        messages[name] = f"{name} is not listed in RECORD."
    for name in set(rows) - names:
        messages[name] = f"RECORD lists {name}, which the wheel does not hold."
    for name in {f"{folder}/METADATA", f"{folder}/WHEEL"} - names:
        messages[name] = f"The wheel holds no {name}."
    return [
        RecordProblem(
            member=name,
            message=message,
        )
        for name, message in messages.items()
    ]


def _signatures(folder: str) -> set[str]:
    """Return the files that RECORD cannot list, as they sign it."""
    return {f"{folder}/{name}" for name in _SIGNATURES}


def _parse_record(raw: bytes, folder: str) -> tuple[dict[str, RecordRow | None], list[RecordProblem]]:
    """Read RECORD: path to what it promises, None where no digest is needed."""
    record = f"{folder}/RECORD"
    without_digest = {record, *_signatures(folder)}
    rows: dict[str, RecordRow | None] = {}
    problems: list[RecordProblem] = []
    try:
        lines = list(csv.reader(raw.decode("utf-8").splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as problem:
        message = f"{record} is not UTF-8 CSV: {problem}."
        return {}, [RecordProblem(member=record, message=message)]

    for number, fields in enumerate(lines, start=1):
        place = f"{record} line {number}"
        if len(fields) != _RECORD_FIELDS:
            message = f"{place} has {len(fields)} fields, not 3."
            problems.append(
                RecordProblem(
                    member=record,
                    message=message,
                )
            )
            continue
        name, digest, size = fields
        if name in rows:
            problems.append(
                RecordProblem(
                    member=name,
                    message=f"{place} lists {name} again.",
                )
            )
        rows[name] = None
        if name in without_digest and not digest:
            continue
        try:
            rows[name] = _parse_row(digest, size)
        except ValueError as problem:
            problems.append(
                RecordProblem(
                    member=name,
                    message=f"{place} ({name}): {problem}.",
                )
            )
    return rows, problems


def _parse_row(digest_field: str, size_field: str) -> RecordRow:
    algorithm, _, encoded = digest_field.partition("=")
    if not digest_field:
        raise ValueError("no digest")
    if algorithm not in _ALGORITHMS:
        raise ValueError(f"a digest by {algorithm!r}; {', '.join(sorted(_ALGORITHMS))} are accepted")
    padding = "=" * (-len(encoded) % 4)
    try:
        digest_bytes = base64.b64decode(
            encoded + padding,
            altchars=b"-_",
            validate=True,
        )
    except binascii.Error:
        raise ValueError("a digest that is not urlsafe base64") from None
    if size_field and not (size_field.isascii() and size_field.isdigit()):
        raise ValueError(f"a size that is not a number ({size_field!r})")
    return RecordRow(
        algorithm=algorithm,
        digest=digest_bytes,
        size=int(size_field) if size_field else None,
    )


def _verify_member(
    listing: WheelListing,
    member: ZipMember,
    tap: Tap | None,
) -> list[RecordProblem]:
    row = listing.rows.get(member.name)
    hasher = hashlib.new(row.algorithm if row else "sha256")
    path = listing.archive.path
    try:
        with path.open("rb") as stream:
            _read_member(stream, member, hasher.update, tap)
    except MemberError as problem:
        return [
            RecordProblem(
                member=member.name,
                message=f"{member.name} has {problem}.",
            )
        ]
    except OSError as problem:
        raise FatalError(
            f"{path.name}: {member.name} could not be read or kept: {problem.strerror or problem}.",
            hint="Check the disk and the free space of the temporary folder.",
        ) from problem

    messages: list[str] = []
    if row is not None and row.size not in {None, member.size}:
        messages.append(f"{member.name} has {member.size} bytes; RECORD says {row.size}.")
    if row is not None and hasher.digest() != row.digest:
        messages.append(f"{member.name} does not have the {row.algorithm} that RECORD says.")
    return [
        RecordProblem(
            member=member.name,
            message=message,
        )
        for message in messages
    ]


def _read_member(
    stream: BinaryIO, member: ZipMember, update: Callable[[bytes], object], tap: Tap | None
) -> None:
    """Feed a member to the hasher and, where it is wanted, to the tap."""
    member_chunks = chunks(stream, member)
    first_chunk = next(member_chunks, b"")
    update(first_chunk)
    if tap is None or not tap.wanted(member.name, first_chunk):
        for chunk in member_chunks:
            update(chunk)
        return

    with temporary.folder("member", within=tap.folder) as folder:
        copy = folder / "member"
        with copy.open("wb") as copy_stream:
            copy_stream.write(first_chunk)
            for chunk in member_chunks:
                update(chunk)
                copy_stream.write(chunk)
        tap.inspect(member.name, copy)
