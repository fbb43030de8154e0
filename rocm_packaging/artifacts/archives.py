"""Artifacts as archives: ``{name}_{component}_{target}.tar.zst`` or ``.tar.xz``, and a digest beside.

Archives from elsewhere are hostile until read to their end: `extract` writes into a sibling of
the artifact's folder, and renames it only when the digest held. What `pack` writes follows from
the artifact's contents and permission bits alone.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.archive.tar import XZ, ZSTD, HashedSource, Policy, TarStream
from core.errors import ArtifactError, FatalError, nearest
from core.run.outputs import this_platform
from rocm_packaging.artifacts.artifacts import COMPONENTS
from rocm_packaging.artifacts.extraction import unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from core.run.outputs import Platform

SUFFIXES = (ZSTD, XZ)  # the preferred one first
SIDECAR = ".sha256sum"
MARKER = ".archive.sha256"

_STEM = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9-]*)_(?P<component>[a-z]+)"
    r"_(?P<target>[A-Za-z0-9][A-Za-z0-9-]*)(?P<features>(?::[a-z]+[+-])*)"
)
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, order=True)
class ArchiveName:
    """What an archive's file name says.

    Attributes:
        name: What the artifact is, such as ``core-hip``.
        component: Which slice of it.
        target: ``generic``, a GPU family or a gfx target, without features.
        features: Those of the target, such as ``:xnack+``; mostly empty.
        suffix: One of `SUFFIXES`.
    """

    name: str
    component: str
    target: str
    features: str = ""
    suffix: str = ZSTD

    @property
    def stem(self) -> str:
        """The artifact's name: ``{name}_{component}_{target}``, features included."""
        return f"{self.name}_{self.component}_{self.target}{self.features}"

    @property
    def filename(self) -> str:
        """The archive's file name."""
        return f"{self.stem}{self.suffix}"

    def folder(self, platform: Platform) -> str:
        """Name the artifact's folder; Windows allows no colon in it."""
        return self.stem.replace(":", "~") if platform == "windows" else self.stem


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """What an extraction left."""

    path: Path
    sha256: str
    size: int
    expanded: int
    files: int


def is_archive(filename: str) -> bool:
    """Say whether a file is named like an artifact's archive, be it malformed."""
    return filename.endswith(SUFFIXES)


def parse_name(filename: str) -> ArchiveName:
    """Read an archive's file name: exactly three fields, then one of `SUFFIXES`.

    Raises:
        ArtifactError: The name is of another form, or its component is not known.
    """
    suffix = next((one for one in SUFFIXES if filename.endswith(one)), "")
    match = _STEM.fullmatch(filename.removesuffix(suffix))
    if not suffix or match is None:
        raise ArtifactError(
            f"{filename!r} is no artifact's archive: "
            f"those are named name_component_target{' or '.join(SUFFIXES)}."
        )
    if match["component"] not in COMPONENTS:
        close = nearest(match["component"], COMPONENTS)
        raise ArtifactError(f"{filename!r} is of an unknown component {match['component']!r}. {close}")
    return ArchiveName(suffix=suffix, **match.groupdict())


def parse_sidecar(text: str, *, where: str) -> str:
    """Read a ``.sha256sum``: the digest is the first word, whatever follows.

    Raises:
        ArtifactError: There is no SHA-256 in it.
    """
    digest = (text.split() or [""])[0].lower()
    if not _DIGEST.fullmatch(digest):
        raise ArtifactError(f"{where} holds no SHA-256.", hint="Upload the artifact again.")
    return digest


def extracted_digest(folder: Path) -> str:
    """Give the digest of the archive that an artifact's folder came from; "" where it came from none."""
    try:
        return (folder / MARKER).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def extract(
    stream: BinaryIO,
    archive: ArchiveName,
    directory: Path,
    *,
    sha256: str,
    policy: Policy | None = None,
    on_bytes: Callable[[int], object] | None = None,
) -> Extracted:
    """Extract an archive as it arrives, hashing the same bytes; an artifact of the name is replaced.

    Args:
        stream: The compressed bytes, from their beginning.
        archive: The archive's name.
        directory: The artifact directory; the artifact's folder appears in it when it is whole.
        sha256: The digest that the bytes must have; "" takes any.
        policy: How much the archive may ask for.
        on_bytes: Told of each number of compressed bytes read.

    Raises:
        ArtifactError: The archive is hostile, malformed, truncated, or of another digest.
        StoreError: Reading broke off.
        FatalError: The disk is full, or the directory cannot be written.
    """
    granted = policy or Policy()
    source = HashedSource(stream, where=archive.filename, on_bytes=on_bytes)
    tar = TarStream(source, archive.suffix, where=archive.filename, policy=granted)
    target = directory / archive.folder(this_platform())
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=f".{target.name}.", suffix=".part") as work:
            fresh = Path(work) / "new"
            fresh.mkdir(mode=0o755)
            files = _unpack_checked(tar, source, fresh, archive, sha256)
            digest = source.finish()
            (fresh / MARKER).write_text(digest, encoding="ascii")
            if target.exists():
                target.rename(Path(work) / "old")
            fresh.rename(target)
    except OSError as problem:
        raise FatalError(
            f"{target} could not be written: {problem.strerror or problem}.",
            hint="Free space or change the folder.",
        ) from problem
    return Extracted(path=target, sha256=digest, size=source.count, expanded=tar.expanded, files=files)


def _unpack_checked(
    tar: TarStream, source: HashedSource, folder: Path, archive: ArchiveName, sha256: str
) -> int:
    """Unpack, and compare digests, which say more than what a damaged archive happens to break."""
    try:
        files = unpack(tar, folder, where=archive.filename)
    except ArtifactError as problem:
        _require_digest(source.finish(), sha256, archive, problem)
        raise
    _require_digest(source.finish(), sha256, archive, None)
    return files


def _require_digest(found: str, sha256: str, archive: ArchiveName, problem: ArtifactError | None) -> None:
    if sha256 and found != sha256:
        raise ArtifactError(
            f"{archive.filename} has the SHA-256 {found}, but its {SIDECAR} says {sha256}."
            + (f" ({problem.message})" if problem else ""),
            hint="It was damaged or replaced: fetch it again, or upload it again.",
        ) from problem
