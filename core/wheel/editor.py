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

from core.archive import Member, zips
from core.archive.packed import DEFLATED, LEVEL, Packing, Workers
from core.archive.zips import HashingStream, Span, ZipWriter
from core.errors import MissingInputError, WheelError
from core.files import atomic
from core.wheel import parse_name, parse_wheel_name, read_text_member
from core.wheel.record import Entry, require_listing
from core.wheel.writer import WheelSpec, WrittenFile, record_member, record_row, write_sdist

if TYPE_CHECKING:
    import zipfile

    # of a text file's path in the old wheel and content: its new content, the same for no change;
    # it sees every one up to `TEXT_LIMIT`, and all of `.dist-info`
    Edit = Callable[[str, bytes], bytes]

TEXT_LIMIT = 1 << 20
LIMIT = 64 << 20
_SNIFFED_PACKED, _SNIFFED = 4 << 10, 1 << 10
# RECORD is written anew; a signature of the old one would no longer hold.
_DROPPED = ("RECORD", "RECORD.jws", "RECORD.p7s")
_PKG_INFO = "PKG-INFO"


@dataclass(frozen=True, kw_only=True)
class Additions:
    """What a wheel gets besides its own members, and which of those (`dropped`) it does not get.

    `members` take the place of old ones of the same name; `borrowed` are other wheels, with the members to
    copy from them -> their names in the new one; `platform` is that of the tags, "" for the old one.
    """

    members: tuple[Member, ...] = ()
    borrowed: Mapping[Path, Mapping[str, str]] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    platform: str = ""


@dataclass(frozen=True, kw_only=True)
class _Step:
    source: Path
    info: zipfile.ZipInfo
    span: Span
    name: str
    entry: Entry | None
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
    added = additions or Additions()
    target = folder / _file_name(source.name, version, added.platform)
    if name.version == Version(version) and additions is None:
        raise WheelError(f"{source.name} has version {version} already.")
    new = [member.name for member in added.members]
    steps, info = _own_steps(source, version, edit, {*added.dropped, *new})
    more = _borrowed(added.borrowed)
    _require_distinct(source, [*(step.name for step in (*steps, *more)), *new])
    first, last = steps, []
    if additions:
        first = [*(step for step in steps if not step.name.startswith(f"{info}/")), *more]
        last = [_retagged(step, added.platform) for step in steps if step.name.startswith(f"{info}/")]
    return _write(target, first, added.members, last, info=info, epoch=epoch)


def assemble_wheel(
    folder: Path,
    spec: WheelSpec,
    members: Sequence[Member],
    *,
    borrowed: Mapping[Path, Mapping[str, str]],
    epoch: int | None = None,
) -> WrittenFile:
    """Write a new wheel of members that are stored uncompressed, and members of other wheels."""
    target = folder / spec.filename
    steps = _borrowed(borrowed)
    every = [*members, *spec.info_files]
    _require_distinct(target, [*(step.name for step in steps), *(one.name for one in every)])
    return _write(target, steps, every, [], info=spec.info, epoch=epoch, level=0)


def edit_sdist(source: Path, folder: Path, *, version: str, edit: Edit) -> WrittenFile:
    """Write an sdist again under another version; top folder and file name follow it, modes stay."""
    name = parse_name(source.name)
    old = _read_sdist(source)
    if _PKG_INFO not in old:
        raise WheelError(f"{source.name} holds no {_PKG_INFO}.")
    new = {path: edit(path, content) for path, (content, _) in old.items()}
    members = [
        Member(name=path, source=new[path], executable=executable)
        for path, (_, executable) in old.items()
        if path != _PKG_INFO
    ]
    try:
        metadata = new[_PKG_INFO].decode()
    except UnicodeDecodeError as problem:
        raise WheelError(f"{source.name}: {_PKG_INFO} is not UTF-8: {problem}.") from problem
    file = write_sdist(folder, name.distribution, version, members, metadata=metadata)
    return replace(file, members=tuple(old))


def _own_steps(source: Path, version: str, edit: Edit | None, left_out: set[str]) -> tuple[list[_Step], str]:
    """Decide what becomes of each member of the old wheel; also return the new ``.dist-info`` folder."""
    steps = []
    with zips.opened(source) as archive, source.open("rb") as stream:
        listing = require_listing(source, archive)
        dropped = {f"{listing.folder}/{one}" for one in _DROPPED} | left_out
        for info, span in listing.files:
            member = info.filename
            if member in dropped:
                continue
            new = None
            if edit and (member.startswith(f"{listing.folder}/") or _is_small_text(stream, info, span)):
                old = read_text_member(source, archive, member)
                new = edit(member, old)
                new = None if new == old else new
            name, entry = _renamed(member, version), listing.entries[member]
            steps.append(_Step(source=source, info=info, span=span, name=name, entry=entry, content=new))
    return steps, _renamed(f"{listing.folder}/", version).removesuffix("/")


def _borrowed(wheels: Mapping[Path, Mapping[str, str]]) -> list[_Step]:
    steps = []
    for source, names in sorted(wheels.items()):
        with zips.opened(source) as archive:
            listing = require_listing(source, archive)
        found = {info.filename: (info, span) for info, span in listing.files}
        if missing := sorted(set(names) - set(found)):
            raise WheelError(f"{source.name} holds no {missing[0]}.")
        for old, new in sorted(names.items(), key=lambda pair: pair[1]):
            (info, span), entry = found[old], listing.entries[old]
            steps.append(_Step(source=source, info=info, span=span, name=new, entry=entry))
    return steps


def _retagged(step: _Step, platform: str) -> _Step:
    """Put a platform into the tags of WHEEL, if one is given."""
    if not platform or not step.name.endswith(".dist-info/WHEEL"):
        return step
    with zips.opened(step.source) as archive:
        content = step.content or read_text_member(step.source, archive, step.info.filename)
    lines: list[str] = []
    for line in content.decode().splitlines():
        field_name, colon, value = line.partition(":")
        tags = [f"Tag: {value.strip().rpartition('-')[0]}-{one}" for one in platform.split(".")]
        is_tag = colon and field_name.strip().lower() == "tag"
        lines += [tag for tag in tags if tag not in lines] if is_tag else [line]
    return replace(step, content="".join(f"{line}\n" for line in lines).encode())


def _file_name(filename: str, version: str, platform: str) -> str:
    try:
        normal = str(Version(version))
    except InvalidVersion:
        raise WheelError(f"{version!r} is not a version.") from None
    distribution, _, *rest = filename.split("-")
    name = "-".join([distribution, normal, *rest])
    return f"{name.rpartition('-')[0]}-{platform}.whl" if platform else name


def _renamed(member: str, version: str) -> str:
    """Put the version into the name of a ``.dist-info`` or ``.data`` folder."""
    first, slash, rest = member.partition("/")
    for suffix in (".dist-info", ".data"):
        distribution, dash, _ = first.removesuffix(suffix).rpartition("-")
        if slash and dash and first.endswith(suffix):
            return f"{distribution}-{Version(version)}{suffix}/{rest}"
    return member


def _require_distinct(source: Path, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise WheelError(f"{source.name} would hold {name} twice under its new version.")


def _is_small_text(stream: BinaryIO, info: zipfile.ZipInfo, span: Span) -> bool:
    """Return whether a member is small and begins like a text."""
    if not 0 < info.file_size <= TEXT_LIMIT:
        return False
    stream.seek(span.start)
    head = stream.read(min(_SNIFFED_PACKED, info.compress_size))
    if info.compress_type == DEFLATED:
        try:
            head = zlib.decompressobj(-zlib.MAX_WBITS).decompress(head, _SNIFFED)
        except zlib.error:
            return True  # reading it whole reports what is wrong with it
    return is_text(head)


def is_text(head: bytes) -> bool:
    """Return whether a file begins like a text: without a zero byte."""
    return b"\0" not in head[:_SNIFFED]


def _write(
    target: Path,
    first: Sequence[_Step],
    added: Sequence[Member],
    last: Sequence[_Step],
    *,
    info: str,
    epoch: int | None,
    level: int = LEVEL,
) -> WrittenFile:
    rows: list[tuple[str, str, str]] = []
    with atomic(target) as raw, Workers(jobs=None if added else 1) as workers, ExitStack() as opened:
        hashing = HashingStream(raw)
        packing = Packing(workers=workers, level=level, scratch=target.parent)
        archive = ZipWriter(hashing, epoch=epoch, packing=packing)
        streams: dict[Path, BinaryIO] = {}

        def add(members: Sequence[Member]) -> None:
            rows.extend(record_row(*one) for one in archive.add(members))

        def take(step: _Step) -> None:
            """Write a member, copied or edited."""
            if step.content is not None:
                executable = zips.is_executable(step.info)
                add([Member(name=step.name, source=step.content, executable=executable)])
                return
            if step.source not in streams:
                streams[step.source] = opened.enter_context(step.source.open("rb"))
            name, entry, size = step.name, step.entry, step.info.file_size
            digest = entry.digest if entry else b""
            archive.copy(step.source, streams[step.source], step.info, step.span, name=name, sha256=digest)
            rows.append(record_row(name, digest, size, entry.algorithm) if entry else (name, "", ""))

        for step in first:
            take(step)
        add(sorted(added, key=lambda member: member.name))
        for step in last:
            take(step)
        archive.add([record_member(info, rows)])
        archive.finish()
    members = tuple(name for name, *_ in rows)
    return WrittenFile(path=target, sha256=hashing.sha256, size=hashing.size, members=members)


def _read_sdist(source: Path) -> dict[str, tuple[bytes, bool]]:
    """Read every file: path below the top folder -> its bytes, and whether it is executable."""
    top = source.name.removesuffix(".tar.gz")
    found: dict[str, tuple[bytes, bool]] = {}
    try:
        with gzip.open(source) as stream:
            data = stream.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise WheelError(f"{source.name} unpacks to more than {LIMIT} bytes.")
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for one in archive:
                if one.isdir():
                    continue
                path = _path(source, one, top)
                if path in found:
                    raise WheelError(f"{source.name} holds {one.name} twice.")
                reader = archive.extractfile(one)
                found[path] = (reader.read() if reader else b"", bool(one.mode & 0o111))
    except FileNotFoundError:
        raise MissingInputError(f"{source} does not exist.") from None
    except (tarfile.TarError, EOFError, OSError, zlib.error) as problem:
        raise WheelError(f"{source.name} is not a readable sdist: {problem}.") from problem
    return found


def _path(source: Path, one: tarfile.TarInfo, top: str) -> str:
    why = zips.unsafe_path(one.name)
    if not one.isreg():
        why = "neither a file nor a folder"
    elif not why and not one.name.startswith(f"{top}/"):
        why = f"outside {top}"
    if why:
        raise WheelError(f"{source.name} holds {one.name!r}: {why}.")
    return one.name.removeprefix(f"{top}/")
