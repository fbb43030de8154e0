"""Wheel and sdist files: their names, METADATA, WHEEL and sizes by folder, without unpacking anything.

Names follow the binary (PEP 427) and source (PEP 625) distribution formats, normalised by PEP 503.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from core.archive import zips
from core.errors import WheelError

if TYPE_CHECKING:
    import zipfile

    from packaging.metadata import RawMetadata
    from packaging.tags import Tag

# METADATA of torch, with its whole README, is 30 kB. More than this is an attack.
_MAX_TEXT = 16 << 20
# what a record's details call it: file name of a wheel -> its folders
CONTENTS = "contents"
REST = "…"
MOST_FOLDERS, DEPTH, MOST_LETTERS = 25, 2, 200


@dataclass(frozen=True, kw_only=True)
class WheelName:
    """What the file name of a wheel or sdist says: names by PEP 503, versions by PEP 440, tags expanded."""

    distribution: str
    version: Version
    build_tag: tuple[()] | tuple[int, str] = ()
    tags: frozenset[Tag] = frozenset()
    filename: str


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


def parse_wheel_name(filename: str) -> WheelName:
    """Parse a wheel's file name."""
    try:
        name, version, build, tags = parse_wheel_filename(filename)
    except ValueError as problem:
        raise WheelError(
            f"{filename} is not a wheel's file name: {problem}.",
            hint="A wheel is named NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl.",
        ) from problem
    return WheelName(distribution=name, version=version, build_tag=build, tags=tags, filename=filename)


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
    return WheelName(distribution=name, version=version, filename=filename)


def read_metadata(path: Path) -> WheelMetadata:
    """Read a wheel's METADATA, and nothing else of it but the central directory."""
    from packaging.metadata import parse_email

    with zips.opened(path) as archive:
        raw = read_text_member(path, archive, f"{find_dist_info(path, archive)}/METADATA")
    fields, _unparsed = parse_email(raw)
    if not fields.get("name"):
        raise WheelError(f"{path.name}: METADATA has no Name.")
    try:
        version = Version(fields.get("version", ""))
    except InvalidVersion:
        found = fields.get("version", "")
        raise WheelError(f"{path.name}: METADATA has no valid Version ({found!r}).") from None
    return WheelMetadata(
        name=fields["name"],
        version=version,
        requires_dist=tuple(fields.get("requires_dist", ())),
        requires_python=fields.get("requires_python", ""),
        provides_extra=tuple(fields.get("provides_extra", ())),
        license=_license(fields),
        raw=raw,
    )


def _license(fields: RawMetadata) -> str:
    """Return the licence that core metadata names, by PEP 639's order."""
    text = fields.get("license", "").strip()
    kinds = (one.split(" :: ") for one in fields.get("classifiers", ()))
    classified = [kind[-1] for kind in kinds if kind[0] == "License"]
    return fields.get("license_expression", "") or text.partition("\n")[0].strip() or ", ".join(classified)


def read_wheel_info(path: Path) -> WheelInfo:
    """Read a wheel's WHEEL file."""
    from email.parser import BytesParser

    with zips.opened(path) as archive:
        raw = read_text_member(path, archive, f"{find_dist_info(path, archive)}/WHEEL")
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


def find_dist_info(path: Path, archive: zipfile.ZipFile) -> str:
    """Find a wheel's one `.dist-info` folder, which must carry the file's name and version."""
    name = parse_wheel_name(path.name)
    firsts = {first for first, slash, _ in (one.partition("/") for one in archive.namelist()) if slash}
    folders = sorted(first for first in firsts if first.endswith(".dist-info"))
    if len(folders) != 1:
        found = ", ".join(folders) or "none"
        raise WheelError(f"{path.name} must hold exactly one .dist-info folder; it holds {found}.")
    distribution, _, version = folders[0].removesuffix(".dist-info").rpartition("-")
    try:
        fits = canonicalize_name(distribution) == name.distribution and Version(version) == name.version
    except InvalidVersion:
        fits = False
    if not fits:
        raise WheelError(
            f"{path.name}: {folders[0]} does not carry the file's name and version.",
            hint="A wheel is renamed by rewriting its metadata, not by renaming the file.",
        )
    return folders[0]


def read_text_member(path: Path, archive: zipfile.ZipFile, member: str) -> bytes:
    """Read one small member whole."""
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise WheelError(f"{path.name} holds no {member}.") from None
    if why := zips.unsafe_kind(info):
        raise WheelError(f"{path.name}: {member} is {why}.")
    if info.file_size > _MAX_TEXT:
        raise WheelError(f"{path.name}: {member} declares {info.file_size} bytes, more than {_MAX_TEXT}.")
    try:
        with path.open("rb") as stream:
            return b"".join(zips.chunks(stream, info, zips.span_of(stream, info)))
    except zips.MemberError as problem:
        raise WheelError(f"{path.name}: {member} has {problem}.") from problem


def folder_sizes(wheel: Path) -> dict[str, list[int]]:
    """Add a wheel's members up by folder, from its central directory alone.

    Returns:
        Folder (up to `DEPTH` names) to its files, their bytes, and their bytes in the wheel; the largest
        in the wheel first, at most `MOST_FOLDERS` of them and `REST` for all others.
    """
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    with zips.opened(wheel) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                folder = "/".join(member.filename.split("/")[:-1][:DEPTH])[:MOST_LETTERS] or "."
                added = (1, member.file_size, member.compress_size)
                found[folder] = [sum(pair) for pair in zip(found[folder], added, strict=True)]
    ordered = sorted(found.items(), key=lambda item: (-item[1][2], item[0]))
    kept = dict(ordered[:MOST_FOLDERS])
    if rest := [numbers for _, numbers in ordered[MOST_FOLDERS:]]:
        kept[REST] = [sum(column) for column in zip(*rest, strict=True)]
    return kept
