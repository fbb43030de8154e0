"""Artifact sets on disk, of text files only: nothing in them needs a process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "7.99.0.dev0+sample"


def write(root: Path, name: str, **files: str) -> None:
    """Write an artifact: paths in its one folder, and what they hold."""
    stage = root / name / "x" / "stage"
    stage.mkdir(parents=True, exist_ok=True)
    (root / name / "artifact_manifest.txt").write_text("x/stage\n", encoding="utf-8")
    for path, content in files.items():
        (stage / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / path).write_text(content, encoding="utf-8")


def write_base(root: Path, *targets: str, split: bool) -> None:
    """Write the artifact that says of the others which ROCm they are, and for which gfx targets.

    Args:
        root: The set's folder.
        targets: gfx targets.
        split: Device code lies in artifacts of its own.
    """
    write(root, "base_lib_generic")
    overlay = root / "base_lib_generic" / "base" / "aux-overlay" / "stage" / "share" / "therock"
    overlay.mkdir(parents=True)
    manifest = {"flags": {"KPACK_SPLIT_ARTIFACTS": split}, "rocm_version": VERSION}
    (overlay / "therock_manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    info = {"dist_amdgpu_targets": ";".join(targets)}
    (overlay / "dist_info.json").write_text(json.dumps(info), encoding="utf-8")
    (root / "base_lib_generic" / "artifact_manifest.txt").write_text(
        "base/aux-overlay/stage\n", encoding="utf-8"
    )
