"""Artifacts packed as ROCm's builds upload them: the manifest first, and a digest beside."""

import io
import lzma
import tarfile
from pathlib import Path

import zstandard

from core import files
from core.archive.tar import XZ, ZSTD
from rocm_packaging.artifacts import scan


def pack(folder: Path, directory: Path, *, suffix: str = ZSTD) -> Path:
    """Write the archive of an artifact's folder."""
    stream, manifest = io.BytesIO(), "artifact_manifest.txt"
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in (manifest, *(folder / manifest).read_text(encoding="utf-8").splitlines()):
            if (folder / name).exists():
                archive.add(folder / name, name)
    path = directory / f"{folder.name}{suffix}"
    data = stream.getvalue()
    with files.atomic(path) as out:
        out.write(lzma.compress(data, preset=0) if suffix == XZ else zstandard.compress(data, 1))
    files.write_text(path.with_name(f"{path.name}.sha256sum"), f"{files.sha256(path)}\n")
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
