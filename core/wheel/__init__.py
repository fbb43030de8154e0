"""Wheel and sdist files: their names, METADATA, WHEEL and sizes by folder, without unpacking anything.

Names follow the binary (PEP 427) and source (PEP 625) distribution formats, normalised by PEP 503.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from core.archive.zips import MemberError, ZipArchive, read_archive, unsafe_kind
from core.errors import WheelError

if TYPE_CHECKING:
    from packaging.metadata import RawMetadata
    from packaging.tags import Tag

# METADATA of torch, with its whole README, is 30 kB. More than this is an attack.
_MAX_TEXT = 16 << 20
_TAGS = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")  # PEP 425, as a compressed set
# what a record's details call it: file name of a wheel -> its folders
CONTENTS = "contents"
REST = "…"
MOST_FOLDERS = 25
DEPTH = 2
MOST_LETTERS = 200


@dataclass(frozen=True, kw_only=True)
class WheelName:
    """What the file name of a wheel or sdist says: names by PEP 503, versions by PEP 440, tags expanded."""

    distribution: str
    version: Version
    build_tag: tuple[()] | tuple[int, str] = ()
    tags: frozenset[Tag] = frozenset()
    filename: str

    def is_of_release(self, distribution: str, version: str) -> bool:
        """Return whether a name and a version, in any spelling, are those of the file name."""
        try:
            is_same_version = _parse_version(version) == self.version
        except InvalidVersion:
            return False
        return is_same_version and canonicalize_name(distribution) == self.distribution


@dataclass(frozen=True, kw_only=True)
class WheelMetadata:
    """What a wheel's METADATA says; names, requirements and extras as written.

    `license` is License-Expression (SPDX), else the first line of License, else the licence classifiers' last
    parts; `raw` are the file's bytes, as a `.metadata` sidecar holds them (PEP 658).
    """

    name: str
    version: Version
    requires_dist: tuple[str, ...]
    requires_python: str
    provides_extra: tuple[str, ...]
    license: str
    raw: bytes


@dataclass(frozen=True, kw_only=True)
class WheelInfo:
    """What a wheel's WHEEL file says; tags are expanded, such as ``cp312-cp312-linux_x86_64``."""

    wheel_version: str
    root_is_purelib: bool
    tags: frozenset[str]
    build: str


@lru_cache(maxsize=1 << 10)
def parse_wheel_name(filename: str) -> WheelName:
    """Parse a wheel's file name."""
    try:
        name, version, build, tags = parse_wheel_filename(filename)
        _require_plain_tags(filename)
    except ValueError as problem:
        raise WheelError(
            f"{filename} is not a wheel's file name: {problem}.",
            hint="A wheel is named NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl.",
        ) from problem
    return WheelName(
        distribution=name,
        version=version,
        build_tag=build,
        tags=tags,
        filename=filename,
    )


def _require_plain_tags(filename: str) -> None:
    """Refuse what a browser or a file manager makes of a name: "… (1).whl" is for no platform."""
    for tag in filename.removesuffix(".whl").split("-")[-3:]:
        if not _TAGS.fullmatch(tag):
            raise ValueError(f"{tag!r} is not a tag")


def parse_name(filename: str) -> WheelName:
    """Parse the file name of a wheel or sdist."""
    if filename.endswith(".whl"):
        return parse_wheel_name(filename)
    try:
        name, version = parse_sdist_filename(filename)
    except ValueError as problem:
        raise WheelError(
            f"{filename} is not an sdist's file name: {problem}.",
            hint="An sdist is named NAME-VERSION.tar.gz.",
        ) from problem
    return WheelName(
        distribution=name,
        version=version,
        filename=filename,
    )


def read_metadata(path: Path) -> WheelMetadata:
    """Read a wheel's METADATA, and nothing else of it but the headers of its members."""
    return metadata_in(read_archive(path))


def read_checked_metadata(path: Path) -> WheelMetadata:
    """Read a wheel's METADATA; its name and version have to be those of the file name."""
    name = parse_wheel_name(path.name)
    metadata = read_metadata(path)
    if canonicalize_name(metadata.name) != name.distribution or metadata.version != name.version:
        raise WheelError(
            f"{path.name} says in its METADATA that it is {metadata.name} {metadata.version}.",
            hint="A wheel is renamed by rewriting its metadata, not by renaming the file.",
        )
    return metadata


def metadata_in(archive: ZipArchive) -> WheelMetadata:
    """Read the METADATA of a wheel whose headers were read."""
    from packaging.metadata import parse_email

    wheel_name = archive.path.name
    raw = read_small_member(archive, f"{find_dist_info(archive)}/METADATA")
    fields, _unparsed = parse_email(raw)
    if not fields.get("name"):
        raise WheelError(f"{wheel_name}: METADATA has no Name.")
    version_text = fields.get("version", "")
    try:
        version = _parse_version(version_text)
    except InvalidVersion:
        raise WheelError(f"{wheel_name}: METADATA has no valid Version ({version_text!r}).") from None
    return WheelMetadata(
        name=fields["name"],
        version=version,
        requires_dist=tuple(fields.get("requires_dist", ())),
        requires_python=fields.get("requires_python", ""),
        provides_extra=tuple(fields.get("provides_extra", ())),
        license=_license(fields),
        raw=raw,
    )


@lru_cache(maxsize=1 << 10)
def _parse_version(text: str) -> Version:
    """Return a version: a wheel says its own three times, and many wheels share one."""
    return Version(text)


def _license(fields: RawMetadata) -> str:
    """Return the licence that core metadata names, by PEP 639's order."""
    expression = fields.get("license_expression", "")
    if expression:
        return expression
    first_line = fields.get("license", "").strip().partition("\n")[0].strip()
    if first_line:
        return first_line

    classified: list[str] = []
    for classifier in fields.get("classifiers", ()):
        parts = classifier.split(" :: ")
        if parts[0] == "License":
            classified.append(parts[-1])
    return ", ".join(classified)


def read_wheel_info(path: Path) -> WheelInfo:
    """Read a wheel's WHEEL file."""
    from email.parser import BytesParser

    archive = read_archive(path)
    raw = read_small_member(archive, f"{find_dist_info(archive)}/WHEEL")
    fields = BytesParser().parsebytes(raw, headersonly=True)
    purelib = str(fields.get("Root-Is-Purelib", "")).strip().lower()
    version = str(fields.get("Wheel-Version", "")).strip()
    if purelib not in {"true", "false"} or not version:
        raise WheelError(f"{path.name}: WHEEL lacks a valid Root-Is-Purelib or Wheel-Version.")
    return WheelInfo(
        wheel_version=version,
        root_is_purelib=purelib == "true",
        tags=frozenset(str(tag).strip() for tag in fields.get_all("Tag", ())),
        build=str(fields.get("Build", "")).strip(),
    )


def find_dist_info(archive: ZipArchive) -> str:
    """Find a wheel's one `.dist-info` folder, which must carry the file's name and version."""
    filename = archive.path.name
    name = parse_wheel_name(filename)
    folders: set[str] = set()
    for member in archive.members:
        folder, slash, _rest = member.name.partition("/")
        if slash and folder.endswith(".dist-info"):
            folders.add(folder)
    if len(folders) != 1:
        present = ", ".join(sorted(folders)) or "none"
        raise WheelError(f"{filename} must hold exactly one .dist-info folder; it holds {present}.")

    (folder,) = folders
    distribution, _, version = folder.removesuffix(".dist-info").rpartition("-")
    if not name.is_of_release(distribution, version):
        raise WheelError(
            f"{filename}: {folder} does not carry the file's name and version.",
            hint="A wheel is renamed by rewriting its metadata, not by renaming the file.",
        )
    return folder


def read_small_member(archive: ZipArchive, name: str) -> bytes:
    """Read one small member whole."""
    wheel_name = archive.path.name
    member = archive.by_name.get(name)
    if member is None:
        raise WheelError(f"{wheel_name} holds no {name}.")
    if reason := unsafe_kind(member):
        raise WheelError(f"{wheel_name}: {name} is {reason}.")
    if member.size > _MAX_TEXT:
        raise WheelError(f"{wheel_name}: {name} declares {member.size} bytes, more than {_MAX_TEXT}.")
    try:
        return archive.read(member)
    except MemberError as problem:
        raise WheelError(f"{wheel_name}: {name} has {problem}.") from problem


class FolderSize(NamedTuple):
    """How many files a folder has, their bytes, and their bytes in the wheel."""

    files: int = 0
    size: int = 0
    packed_size: int = 0

    def plus(self, other: FolderSize) -> FolderSize:
        """Return the size of two folders together."""
        return FolderSize(
            files=self.files + other.files,
            size=self.size + other.size,
            packed_size=self.packed_size + other.packed_size,
        )


def folder_sizes(wheel: Path) -> dict[str, FolderSize]:
    """Add a wheel's members up by folder (up to `DEPTH` names), from its headers alone.

    The largest in the wheel come first, at most `MOST_FOLDERS` of them, and then `REST` for all others.
    """
    sizes: dict[str, FolderSize] = defaultdict(FolderSize)
    for member in read_archive(wheel).members:
        if not member.is_folder:
            parents = member.name.split("/")[:-1]
            # Records keep these names, and a wheel may have any. What is cut alike is added up.
            folder = "/".join(parents[:DEPTH])[:MOST_LETTERS] or "."
            file_size = FolderSize(files=1, size=member.size, packed_size=member.packed_size)
            sizes[folder] = sizes[folder].plus(file_size)

    folders = sorted(sizes, key=lambda folder: (-sizes[folder].packed_size, folder))
    shown_sizes = {folder: sizes[folder] for folder in folders[:MOST_FOLDERS]}
    for folder in folders[MOST_FOLDERS:]:
        shown_sizes[REST] = shown_sizes.get(REST, FolderSize()).plus(sizes[folder])
    return shown_sizes
