"""Artifacts packed as ROCm's builds upload them: the manifest first, and a digest beside."""

import hashlib
import io
import lzma
import tarfile
from pathlib import Path

import zstandard

from core.archive.tar import XZ, ZSTD
from rocm_packaging.artifacts import scan

MANIFEST = "artifact_manifest.txt"


def pack(folder: Path, directory: Path, *, suffix: str = ZSTD) -> Path:
    """Write the archive of an artifact's folder, and its digest beside; return the archive."""
    stages = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(folder / MANIFEST, MANIFEST)
        for stage in stages:
            if (folder / stage).exists():
                archive.add(folder / stage, stage)

    if suffix == XZ:
        content = lzma.compress(stream.getvalue(), preset=0)
    else:
        content = zstandard.compress(stream.getvalue(), 1)

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{folder.name}{suffix}"
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    path.with_name(f"{path.name}.sha256sum").write_text(f"{digest}\n", encoding="utf-8")
    return path


def pack_all(artifacts: Path, directory: Path) -> None:
    """Write the archives of every artifact in a directory, as a run has them."""
    for artifact in scan(artifacts):
        pack(artifact.path, directory)


def write_archive(folder: Path, name: str, *, content: str = "library", suffix: str = ZSTD) -> Path:
    """Write the archive of an artifact with one file, and its digest beside; return the archive's path.

    The artifact itself lies in ``source`` beside the folder.
    """
    source = folder.parent / "source" / name
    stage = source / "a" / "stage"
    stage.mkdir(parents=True, exist_ok=True)
    (source / "artifact_manifest.txt").write_text("a/stage\n", encoding="utf-8")
    (stage / name).write_text(content, encoding="utf-8")
    return pack(source, folder, suffix=suffix)
