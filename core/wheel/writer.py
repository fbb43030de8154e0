"""Wheels and sdists written so that the same inputs give the same bytes.

Members are sorted, carry one fixed time and fixed modes, and are hashed in the pass that
compresses them. Formats: the binary distribution format (PEP 427, RECORD and WHEEL) and the
source distribution format (PEP 625 names, PKG-INFO in the top folder).
"""

from __future__ import annotations

import base64
import csv
import io
import itertools
import re
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import deflate
from packaging.tags import parse_tag
from packaging.utils import canonicalize_version

from core.archive import Edited, Made, Member, file_of
from core.archive.compression import LEVEL, Workers
from core.archive.zip_writer import EARLIEST, HashingStream, Written, ZipWriter
from core.errors import WheelError
from core.files import atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import BinaryIO

__all__ = [
    "LEVEL",
    "Edited",
    "Made",
    "Member",
    "WheelSpec",
    "Workers",
    "WrittenFile",
    "file_stem",
    "metadata_text",
    "write_sdist",
    "write_tar",
    "write_wheel",
]

_GENERATOR = "rocm-pytorch-wheels"
_GZIP_LEVEL = 6


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """A finished file.

    Attributes:
        path: Where it lies.
        sha256: The hex SHA-256 of its bytes.
        size: Its size in bytes.
    """

    path: Path
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class WheelSpec:
    """What a wheel says of itself.

    Attributes:
        distribution: Its name, in any spelling.
        version: Its version, already normalised.
        tag: Its compatibility tag, such as ``py3-none-linux_x86_64``, or a compressed set of them.
        metadata: The text of METADATA.
        purelib: Whether the root is installed into purelib (WHEEL's Root-Is-Purelib).
        console_scripts: Script name -> ``module:function``.
        license_files: What METADATA's License-File fields name.
    """

    distribution: str
    version: str
    tag: str
    metadata: str
    purelib: bool = True
    console_scripts: Mapping[str, str] | None = None
    license_files: Sequence[Member] = ()


def file_stem(distribution: str, version: str) -> str:
    """Give ``name-version`` as wheel and sdist file names spell it (PEP 427, PEP 625)."""
    name = re.sub(r"[-_.]+", "_", distribution).lower()
    return f"{name}-{canonicalize_version(version, strip_trailing_zero=False)}"


def metadata_text(fields: Iterable[tuple[str, str]], description: str = "") -> str:
    """Write core metadata (version 2.4: the first with ``License-Expression``)."""
    lines = ["Metadata-Version: 2.4"]
    for field, value in fields:
        if "\n" in value or "\r" in value:
            raise WheelError(f"The metadata field {field} holds a line break: {value!r}.")
        lines.append(f"{field}: {value}")
    return "\n".join(lines) + "\n" + (f"\n{description.strip()}\n" if description else "")


def write_wheel(
    folder: Path,
    spec: WheelSpec,
    members: Iterable[Member],
    *,
    epoch: int | None = None,
    jobs: int | None = None,
    workers: Workers | None = None,
    level: int = LEVEL,
) -> WrittenFile:
    """Write a wheel: `members` sorted by name, then ``.dist-info``, RECORD last."""
    stem = file_stem(spec.distribution, spec.version)
    target = folder / f"{stem}-{spec.tag}.whl"
    content = _sorted(target, members)
    info = f"{stem}.dist-info"
    described = [Member(name=f"{info}/{name}", source=text.encode()) for name, text in info_files(spec)]
    described += [replace(one, name=f"{info}/licenses/{one.name}") for one in spec.license_files]
    with atomic(target) as raw:
        stream = HashingStream(raw)
        archive = ZipWriter(stream, epoch=epoch, jobs=jobs, workers=workers, level=level, scratch=folder)
        written = archive.add([*content, *_sorted(target, described)])
        archive.add([Member(name=f"{info}/RECORD", source=_record(written, info).encode())])
        archive.finish()
    return WrittenFile(path=target, sha256=stream.sha256, size=stream.size)


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
    described = [Member(name="PKG-INFO", source=metadata.encode()), *members]
    rooted = [
        Member(name=f"{stem}/{member.name}", source=member.source, executable=member.executable)
        for member in described
    ]
    raw = io.BytesIO()
    write_tar(raw, _sorted(target, rooted), epoch=epoch)
    with atomic(target) as out:
        stream = HashingStream(out)
        stream.write(deflate.gzip_compress(raw.getvalue(), _GZIP_LEVEL))
    return WrittenFile(path=target, sha256=stream.sha256, size=stream.size)


def write_tar(
    stream: BinaryIO,
    members: Sequence[Member],
    *,
    links: Mapping[str, str] | None = None,
    epoch: int | None = None,
) -> None:
    """Write an uncompressed tar without owners, with one time and fixed modes, in name order."""
    entries: dict[str, Member | str] = {member.name: member for member in members}
    entries.update(links or {})
    moment = EARLIEST if epoch is None else epoch
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, entry in sorted(entries.items()):
            info = tarfile.TarInfo(name)
            info.mtime = moment
            if isinstance(entry, str):
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry, 0o777
                archive.addfile(info)
                continue
            info.mode = 0o755 if entry.executable else 0o644
            if isinstance(entry.source, bytes):
                info.size = len(entry.source)
                archive.addfile(info, io.BytesIO(entry.source))
                continue
            with file_of(entry) as path, path.open("rb") as content:
                info.size = path.stat().st_size
                archive.addfile(info, content)


def info_files(spec: WheelSpec) -> list[tuple[str, str]]:
    """Return the names and texts of a wheel's ``.dist-info`` files, without RECORD."""
    wheel = (
        "Wheel-Version: 1.0\n"
        f"Generator: {_GENERATOR}\n"
        f"Root-Is-Purelib: {'true' if spec.purelib else 'false'}\n"
        + "".join(f"Tag: {tag}\n" for tag in sorted(map(str, parse_tag(spec.tag))))
    )
    files = [("METADATA", spec.metadata), ("WHEEL", wheel)]
    if spec.console_scripts:
        lines = [f"{name} = {target}" for name, target in sorted(spec.console_scripts.items())]
        files.append(("entry_points.txt", "[console_scripts]\n" + "\n".join(lines) + "\n"))
    return sorted(files)


def _record(written: Sequence[Written], info: str) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for entry in written:
        digest = base64.urlsafe_b64encode(entry.sha256).decode().rstrip("=")
        rows.writerow((entry.name, f"sha256={digest}", entry.size))
    rows.writerow((f"{info}/RECORD", "", ""))
    return text.getvalue()


def _sorted(target: Path, members: Iterable[Member]) -> list[Member]:
    """Sort members by name, and refuse names that an installer would refuse."""
    ordered = sorted(members, key=lambda member: member.name)
    for before, after in itertools.pairwise(ordered):
        if before.name == after.name:
            raise WheelError(f"{target.name} would hold {after.name} twice.")
    for member in ordered:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or "\\" in member.name or str(path) != member.name:
            raise WheelError(f"{target.name} would hold {member.name!r}, which is no plain relative path.")
    if not ordered:
        raise WheelError(f"{target.name} would hold no files.")
    return ordered
