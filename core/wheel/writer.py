"""Wheels and sdists written so that the same inputs give the same bytes.

Members are sorted, carry one fixed time and fixed modes, and are hashed in the pass that compresses them.
Formats: the binary distribution format (PEP 427, RECORD and WHEEL) and the source distribution format
(PEP 625 names, PKG-INFO in the top folder).
"""

import base64
import csv
import io
import itertools
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import deflate
from packaging.tags import parse_tag
from packaging.utils import canonicalize_version

from core.archive import Member
from core.archive.packed import Packing
from core.archive.zip_writer import EARLIEST, HashingStream, ZipWriter
from core.errors import WheelError
from core.files import atomic_file

_GENERATOR = "rocm-pytorch-wheels"
_GZIP_LEVEL = 6


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """A finished file, with the hex SHA-256 of its bytes; of one that was edited also its members' names."""

    path: Path
    sha256: str
    size: int
    members: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WheelSpec:
    """What a wheel says of itself: `tag` may be a compressed set, `purelib` is WHEEL's Root-Is-Purelib.

    `console_scripts` are names -> ``module:function``, `license_files` what METADATA's License-File names.
    """

    distribution: str
    version: str
    tag: str
    metadata: str
    purelib: bool = True
    console_scripts: Mapping[str, str] | None = None
    license_files: Sequence[Member] = ()

    @property
    def filename(self) -> str:
        """The wheel's file name."""
        return f"{file_stem(self.distribution, self.version)}-{self.tag}.whl"

    @property
    def info(self) -> str:
        """Its ``.dist-info`` folder."""
        return f"{file_stem(self.distribution, self.version)}.dist-info"

    @property
    def info_files(self) -> list[Member]:
        """The files of its ``.dist-info`` folder, without RECORD and licences."""
        tags = sorted(str(tag) for tag in parse_tag(self.tag))
        wheel = (
            "Wheel-Version: 1.0\n"
            f"Generator: {_GENERATOR}\n"
            f"Root-Is-Purelib: {'true' if self.purelib else 'false'}\n"
        )
        wheel += "".join(f"Tag: {tag}\n" for tag in tags)
        files = {"METADATA": self.metadata, "WHEEL": wheel}
        if self.console_scripts:
            entry_points = "[console_scripts]\n"
            for name, target in sorted(self.console_scripts.items()):
                entry_points += f"{name} = {target}\n"
            files["entry_points.txt"] = entry_points

        return [
            Member(
                name=f"{self.info}/{name}",
                source=text.encode(),
            )
            for name, text in sorted(files.items())
        ]


def file_stem(distribution: str, version: str) -> str:
    """Return ``name-version`` as wheel and sdist file names spell it (PEP 427, PEP 625)."""
    name = re.sub(r"[-_.]+", "_", distribution).lower()
    return f"{name}-{canonicalize_version(version, strip_trailing_zero=False)}"


def metadata_text(fields: Iterable[tuple[str, str]]) -> str:
    """Write core metadata (version 2.4: the first with ``License-Expression``)."""
    lines = ["Metadata-Version: 2.4"]
    for field, value in fields:
        if "\n" in value or "\r" in value:
            raise WheelError(f"The metadata field {field} holds a line break: {value!r}.")
        lines.append(f"{field}: {value}")
    return "\n".join(lines) + "\n"


def write_wheel(
    folder: Path,
    spec: WheelSpec,
    members: Iterable[Member],
    *,
    epoch: int | None = None,
    packing: Packing | None = None,
) -> WrittenFile:
    """Write a wheel: `members` sorted by name, then ``.dist-info``, RECORD last (options: `ZipWriter`)."""
    target = folder / spec.filename
    licenses = [replace(file, name=f"{spec.info}/licenses/{file.name}") for file in spec.license_files]
    content = [*_sorted(target, members), *_sorted(target, [*spec.info_files, *licenses])]
    with atomic_file(target) as raw:
        stream = HashingStream(raw)
        archive = ZipWriter(
            stream,
            epoch=epoch,
            packing=replace(packing or Packing(), scratch=folder),
        )
        rows = [record_row(member.name, member.sha256, member.size) for member in archive.add(content)]
        archive.add([record_member(spec.info, rows)])
        archive.finish()
    return WrittenFile(
        path=target,
        sha256=stream.sha256,
        size=stream.size,
    )


def write_sdist(
    folder: Path,
    distribution: str,
    version: str,
    members: Iterable[Member],
    *,
    metadata: str,
    epoch: int | None = None,
) -> WrittenFile:
    """Write ``{name}-{version}.tar.gz`` with everything under one folder, and PKG-INFO."""
    stem = file_stem(distribution, version)
    target = folder / f"{stem}.tar.gz"
    all_members = [
        Member(
            name="PKG-INFO",
            source=metadata.encode(),
        ),
        *members,
    ]
    rooted_members = [replace(member, name=f"{stem}/{member.name}") for member in all_members]
    tar = io.BytesIO()
    write_tar(tar, _sorted(target, rooted_members), epoch=epoch)
    with atomic_file(target) as raw:
        stream = HashingStream(raw)
        stream.write(deflate.gzip_compress(tar.getvalue(), _GZIP_LEVEL))
    return WrittenFile(
        path=target,
        sha256=stream.sha256,
        size=stream.size,
    )


def write_tar(
    stream: BinaryIO,
    members: Sequence[Member],
    *,
    links: Mapping[str, str] | None = None,
    epoch: int | None = None,
) -> None:
    """Write an uncompressed tar without owners, with one time and fixed modes, in name order.

    Members are written without edits; `links` are symbolic links: name -> target as written.
    """
    contents: dict[str, Member | str] = {member.name: member for member in members}
    contents.update(links or {})
    with tarfile.open(
        fileobj=stream,
        mode="w",
        format=tarfile.PAX_FORMAT,
    ) as archive:
        for name, member_or_link in sorted(contents.items()):
            info = tarfile.TarInfo(name)
            info.mtime = EARLIEST if epoch is None else epoch
            if isinstance(member_or_link, Member):
                _add_to_tar(archive, info, member_or_link)
                continue
            info.type = tarfile.SYMTYPE
            info.linkname = member_or_link
            info.mode = 0o777
            archive.addfile(info)


def _add_to_tar(
    archive: tarfile.TarFile,
    info: tarfile.TarInfo,
    member: Member,
) -> None:
    info.mode = 0o755 if member.executable else 0o644
    if isinstance(member.source, bytes):
        info.size = len(member.source)
        archive.addfile(info, io.BytesIO(member.source))
        return
    with member.file() as file, file.path.open("rb") as content:
        info.size = file.path.stat().st_size
        archive.addfile(info, content)


def record_row(
    name: str,
    digest: bytes,
    size: int,
    algorithm: str = "sha256",
) -> tuple[str, str, str]:
    """Return a file's row in RECORD."""
    encoded = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return name, f"{algorithm}={encoded}", str(size)


def record_member(info: str, rows: Iterable[tuple[str, str, str]]) -> Member:
    """Return RECORD with these rows and its own."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*rows, (f"{info}/RECORD", "", "")])
    return Member(
        name=f"{info}/RECORD",
        source=text.getvalue().encode(),
    )


def _sorted(target: Path, members: Iterable[Member]) -> list[Member]:
    """Sort members by name, and refuse names that an installer would refuse."""
    ordered = sorted(members, key=lambda member: member.name)
    for previous, member in itertools.pairwise(ordered):
        if previous.name == member.name:
            raise WheelError(f"{target.name} would hold {member.name} twice.")
    for member in ordered:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or "\\" in member.name or str(path) != member.name:
            raise WheelError(f"{target.name} would hold {member.name!r}, which is not a plain relative path.")
    if not ordered:
        raise WheelError(f"{target.name} would hold no files.")
    return ordered
