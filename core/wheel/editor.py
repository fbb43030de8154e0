"""A wheel or sdist written again under another version or tag, with text files edited and others added.

All other members of a wheel are copied as they are compressed, so the time follows the size of the file
and not of its contents, and memory follows neither. Members of other wheels join in the same way. What
RECORD says of copied members is taken over. Sdists of ours hold sources only, so they are read whole, up
to a limit. Formats: the binary (PEP 427) and source (PEP 625) distribution formats.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from packaging.version import InvalidVersion, Version

from core.archive import Member
from core.archive.packed import LEVEL, Packing, Workers
from core.archive.zip_headers import DEFLATED
from core.archive.zip_writer import HashingStream, ZipWriter
from core.archive.zips import ZipArchive, ZipMember, unsafe_path
from core.errors import MissingInputError, WheelError
from core.files import atomic_file
from core.wheel import parse_name, parse_wheel_name, read_small_member
from core.wheel.record import RecordRow, WheelListing, require_listing
from core.wheel.writer import WheelSpec, WrittenFile, record_member, record_row, write_sdist

if TYPE_CHECKING:
    # of a text file's path in the old wheel and content: its new content, the same for no change;
    # it sees every one up to `TEXT_LIMIT`, and all of `.dist-info`
    Edit = Callable[[str, bytes], bytes]

# members of other wheels: path of a wheel -> name of a member there -> its name in the new wheel
NewNamesByWheel = Mapping[Path, Mapping[str, str]]

TEXT_LIMIT = 1 << 20
LIMIT = 64 << 20
_PROBE_COMPRESSED = 4 << 10
_PROBE = 1 << 10
# RECORD is written anew; a signature of the old one would no longer hold.
_DROPPED_NAMES = ("RECORD", "RECORD.jws", "RECORD.p7s")
_PKG_INFO = "PKG-INFO"


@dataclass(frozen=True, kw_only=True)
class Additions:
    """What a wheel gets besides its own members, and which of those (`dropped_names`) it does not get.

    `members` take the place of old ones of the same name; `texts` are new contents of old members, by their
    names there; `new_names_by_wheel` name members of other wheels; `platform` is that of the tags, None for
    the old one.
    """

    members: tuple[Member, ...] = ()
    texts: Mapping[str, bytes] = field(default_factory=dict)
    new_names_by_wheel: NewNamesByWheel = field(default_factory=dict)
    dropped_names: frozenset[str] = frozenset()
    platform: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Copy:
    """A member of an old wheel, its name in the new one, and its content where that changes."""

    archive: ZipArchive
    member: ZipMember
    name: str
    row: RecordRow | None
    content: bytes | None = None


def edit_wheel(
    source: Path,
    folder: Path,
    *,
    version: str,
    edit: Edit | None = None,
    additions: Additions | None = None,
    epoch: int | None = None,
) -> WrittenFile:
    """Write a wheel again under another version, or with additions: also onto itself.

    ``.dist-info`` and ``.data`` folders and the file name follow the version; RECORD is written anew and
    last; signatures are left out; modes stay. All edits are made before anything is written. Additions
    come behind the old members and before ``.dist-info``.

    The old wheels' paths, kinds, names and sizes are verified first, and small text files of this one are
    inflated. The others are not: what RECORD says of them is as true of the new wheel as it was of the old
    one, and `core.wheel.record` verifies it in the one pass that a new wheel needs anyway.
    """
    name = parse_wheel_name(source.name)
    platform = None if additions is None else additions.platform
    target = folder / _file_name(source.name, version, platform)
    if name.version == Version(version) and additions is None:
        raise WheelError(f"{source.name} has version {version} already.")

    listing = require_listing(source)
    info_folder = _with_version(f"{listing.folder}/", version).removesuffix("/")
    if additions is None:
        copies = _copies_of(listing, version, edit, dropped_names=set(), texts={})
        _require_distinct(source, [copy.name for copy in copies])
        return _write(target, copies, info_folder=info_folder, epoch=epoch)

    new_names = [member.name for member in additions.members]
    copies = _copies_of(
        listing,
        version,
        edit,
        dropped_names={*additions.dropped_names, *new_names},
        texts=additions.texts,
    )
    copies_of_others = _copies_of_others(additions.new_names_by_wheel)
    _require_distinct(source, [copy.name for copy in (*copies, *copies_of_others)] + new_names)

    copies_of_content: list[_Copy] = []
    copies_of_info: list[_Copy] = []
    for copy in copies:
        if copy.name.startswith(f"{info_folder}/"):
            copies_of_info.append(copy if platform is None else _with_platform(copy, platform))
        else:
            copies_of_content.append(copy)
    return _write(
        target,
        [*copies_of_content, *copies_of_others],
        new_members=additions.members,
        copies_of_info=copies_of_info,
        info_folder=info_folder,
        epoch=epoch,
    )


def assemble_wheel(
    folder: Path,
    spec: WheelSpec,
    members: Sequence[Member],
    *,
    new_names_by_wheel: NewNamesByWheel,
    epoch: int | None = None,
) -> WrittenFile:
    """Write a new wheel of members that are stored, as they are compressed already, and members of others."""
    target = folder / spec.filename
    copies = _copies_of_others(new_names_by_wheel)
    new_members = [*members, *spec.info_files]
    _require_distinct(target, [copy.name for copy in copies] + [member.name for member in new_members])
    return _write(
        target,
        copies,
        new_members=new_members,
        info_folder=spec.info,
        epoch=epoch,
        level=0,
    )


def edit_sdist(
    source: Path,
    folder: Path,
    *,
    version: str,
    edit: Edit,
) -> WrittenFile:
    """Write an sdist again under another version; top folder and file name follow it, modes stay."""
    name = parse_name(source.name)
    old_files = _read_sdist(source)
    if _PKG_INFO not in old_files:
        raise WheelError(f"{source.name} holds no {_PKG_INFO}.")

    members: list[Member] = []
    metadata = b""
    for path, file in old_files.items():
        content = edit(path, file.content)
        if path == _PKG_INFO:
            metadata = content
        else:
            members.append(
                Member(
                    name=path,
                    source=content,
                    executable=file.executable,
                )
            )
    try:
        metadata_text = metadata.decode()
    except UnicodeDecodeError as problem:
        raise WheelError(f"{source.name}: {_PKG_INFO} is not UTF-8: {problem}.") from problem
    sdist = write_sdist(folder, name.distribution, version, members, metadata=metadata_text)
    return replace(sdist, members=tuple(old_files))


def _copies_of(
    listing: WheelListing,
    version: str,
    edit: Edit | None,
    *,
    dropped_names: set[str],
    texts: Mapping[str, bytes],
) -> list[_Copy]:
    """Decide what becomes of each member of the old wheel."""
    archive = listing.archive
    info = f"{listing.folder}/"
    all_dropped_names = dropped_names | {f"{info}{name}" for name in _DROPPED_NAMES}
    copies: list[_Copy] = []
    with archive.path.open("rb") as stream:
        for member in listing.members:
            if member.name in all_dropped_names:
                continue
            content = texts.get(member.name)
            if edit is not None and (member.name.startswith(info) or _is_small_text(stream, member)):
                old_content = read_small_member(archive, member.name)
                new_content = edit(member.name, old_content)
                if new_content != old_content:
                    content = new_content
            copies.append(
                _Copy(
                    archive=archive,
                    member=member,
                    name=_with_version(member.name, version),
                    row=listing.rows[member.name],
                    content=content,
                )
            )
    return copies


def _copies_of_others(new_names_by_wheel: NewNamesByWheel) -> list[_Copy]:
    copies: list[_Copy] = []
    for source, new_names in sorted(new_names_by_wheel.items()):
        listing = require_listing(source)
        members = listing.by_name
        missing_names = sorted(new_names.keys() - members.keys())
        if missing_names:
            raise WheelError(f"{source.name} holds no {missing_names[0]}.")
        for old_name, new_name in sorted(new_names.items(), key=lambda names: names[1]):
            copies.append(
                _Copy(
                    archive=listing.archive,
                    member=members[old_name],
                    name=new_name,
                    row=listing.rows[old_name],
                )
            )
    return copies


def _with_platform(copy: _Copy, platform: str) -> _Copy:
    """Put a platform into the tags of WHEEL; other files stay."""
    if not copy.name.endswith(".dist-info/WHEEL"):
        return copy
    content = copy.content or read_small_member(copy.archive, copy.member.name)
    lines: list[str] = []
    for line in content.decode().splitlines():
        field_name, colon, value = line.partition(":")
        if not colon or field_name.strip().lower() != "tag":
            lines.append(line)
            continue
        python_and_abi = value.strip().rpartition("-")[0]
        for part in platform.split("."):
            tag_line = f"Tag: {python_and_abi}-{part}"
            if tag_line not in lines:
                lines.append(tag_line)
    return replace(copy, content="".join(f"{line}\n" for line in lines).encode())


def _file_name(
    filename: str,
    version: str,
    platform: str | None,
) -> str:
    try:
        normalized = str(Version(version))
    except InvalidVersion:
        raise WheelError(f"{version!r} is not a version.") from None
    distribution, _, *rest = filename.split("-")
    name = "-".join([distribution, normalized, *rest])
    if platform is None:
        return name
    return f"{name.rpartition('-')[0]}-{platform}.whl"


def _with_version(member: str, version: str) -> str:
    """Put the version into the name of a ``.dist-info`` or ``.data`` folder."""
    folder, slash, rest = member.partition("/")
    for suffix in (".dist-info", ".data"):
        distribution, dash, _ = folder.removesuffix(suffix).rpartition("-")
        if slash and dash and folder.endswith(suffix):
            return f"{distribution}-{Version(version)}{suffix}/{rest}"
    return member


def _require_distinct(wheel: Path, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise WheelError(f"{wheel.name} would hold {name} twice under its new version.")


def _is_small_text(stream: BinaryIO, member: ZipMember) -> bool:
    """Return whether a member is small and begins like a text."""
    if not 0 < member.size <= TEXT_LIMIT:
        return False
    stream.seek(member.start)
    head = stream.read(min(_PROBE_COMPRESSED, member.packed_size))
    if member.method == DEFLATED:
        try:
            head = zlib.decompressobj(-zlib.MAX_WBITS).decompress(head, _PROBE)
        except zlib.error:
            return True  # reading it whole reports what is wrong with it
    return is_text(head)


def is_text(head: bytes) -> bool:
    """Return whether a file begins like a text: without a zero byte."""
    return b"\0" not in head[:_PROBE]


def _write(
    target: Path,
    copies: Sequence[_Copy],
    *,
    new_members: Sequence[Member] = (),
    copies_of_info: Sequence[_Copy] = (),
    info_folder: str,
    epoch: int | None,
    level: int = LEVEL,
) -> WrittenFile:
    # Threads are for new members; what was edited are small texts.
    jobs = None if new_members else 1
    with atomic_file(target) as raw, Workers(jobs=jobs) as workers, ExitStack() as streams:
        hashing = HashingStream(raw)
        packing = Packing(
            workers=workers,
            level=level,
            scratch=target.parent,
        )
        copier = _Copier(
            ZipWriter(
                hashing,
                epoch=epoch,
                packing=packing,
            ),
            streams,
        )
        for copy in copies:
            copier.copy(copy)
        copier.add(sorted(new_members, key=lambda member: member.name))
        for copy in copies_of_info:
            copier.copy(copy)
        copier.finish(info_folder)
    names = tuple(row[0] for row in copier.rows)
    return WrittenFile(
        path=target,
        sha256=hashing.sha256,
        size=hashing.size,
        members=names,
    )


class _Copier:
    """Writes members into a new wheel, and collects what RECORD says of them."""

    def __init__(
        self,
        writer: ZipWriter,
        streams: ExitStack,
    ) -> None:
        self.rows: list[tuple[str, str, str]] = []
        self._writer = writer
        self._streams = streams
        self._open_wheels: dict[Path, BinaryIO] = {}

    def add(self, members: Sequence[Member]) -> None:
        """Compress members."""
        for member in self._writer.add(members):
            self.rows.append(record_row(member.name, member.sha256, member.size))

    def copy(self, copy: _Copy) -> None:
        """Take a member over as it is compressed, or write its new content."""
        if copy.content is not None:
            executable = copy.member.is_executable
            self.add(
                [
                    Member(
                        name=copy.name,
                        source=copy.content,
                        executable=executable,
                    )
                ]
            )
            return

        row = copy.row
        digest = b"" if row is None else row.digest
        stream = self._stream(copy.archive.path)
        self._writer.copy(
            copy.archive,
            stream,
            copy.member,
            name=copy.name,
            sha256=digest,
        )
        if row is None:
            self.rows.append((copy.name, "", ""))
        else:
            self.rows.append(record_row(copy.name, digest, copy.member.size, row.algorithm))

    def finish(self, info_folder: str) -> None:
        """Write RECORD and the central directory."""
        self._writer.add([record_member(info_folder, self.rows)])
        self._writer.finish()

    def _stream(self, wheel: Path) -> BinaryIO:
        if wheel not in self._open_wheels:
            self._open_wheels[wheel] = self._streams.enter_context(wheel.open("rb"))
        return self._open_wheels[wheel]


@dataclass(frozen=True, kw_only=True)
class _SdistFile:
    content: bytes
    executable: bool


def _read_sdist(source: Path) -> dict[str, _SdistFile]:
    """Read every file of an sdist, by its path below the top folder."""
    files: dict[str, _SdistFile] = {}
    try:
        with gzip.open(source) as stream:
            data = stream.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise WheelError(f"{source.name} unpacks to more than {LIMIT} bytes.")
        with tarfile.open(
            fileobj=io.BytesIO(data),
            mode="r:",
        ) as archive:
            for member in archive:
                if member.isdir():
                    continue
                path = _path_below_top(source, member)
                if path in files:
                    raise WheelError(f"{source.name} holds {member.name} twice.")
                reader = archive.extractfile(member)
                content = reader.read() if reader else b""
                files[path] = _SdistFile(
                    content=content,
                    executable=bool(member.mode & 0o111),
                )
    except FileNotFoundError:
        raise MissingInputError(f"{source} does not exist.") from None
    except (tarfile.TarError, EOFError, OSError, zlib.error) as problem:
        raise WheelError(f"{source.name} is not a readable sdist: {problem}.") from problem
    return files


def _path_below_top(source: Path, member: tarfile.TarInfo) -> str:
    top = source.name.removesuffix(".tar.gz")
    reason = unsafe_path(member.name)
    if not member.isreg():
        reason = "neither a file nor a folder"
    elif reason is None and not member.name.startswith(f"{top}/"):
        reason = f"outside {top}"
    if reason is not None:
        raise WheelError(f"{source.name} holds {member.name!r}: {reason}.")
    return member.name.removeprefix(f"{top}/")
