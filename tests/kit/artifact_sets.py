"""Artifact sets on disk, of text files only: nothing in them needs a process; and what was made of them."""

import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rocm_packaging.packages.build import BuildRequest
from rocm_packaging.packages.layouts import packages

VERSION = "7.99.0.dev0+sample"
# what torch loads first
PRELOADED = [
    *("amd_comgr", "amdhip64", "hiprtc", "hipblas", "hipfft", "hiprand", "hipsparse", "hipsparselt"),
    *("hipsolver", "hipblaslt", "miopen", "hipdnn", "rocm-openblas", "amd_smi", "rocm_sysdeps_liblzma"),
    *("rocm_smi64", "rocprofiler-sdk", "rocprofiler-sdk-roctx", "roctracer64", "roctx64", "rccl", "hipfile"),
]


def write(root: Path, name: str, **files: str) -> None:
    """Write an artifact: paths in its one folder, and what they hold."""
    stage = root / name / "x" / "stage"
    stage.mkdir(parents=True, exist_ok=True)
    manifest = root / name / "artifact_manifest.txt"
    stages = manifest.read_text(encoding="utf-8").split() if manifest.exists() else []
    manifest.write_text("\n".join(dict.fromkeys([*stages, "x/stage"])), encoding="utf-8")
    for path, content in files.items():
        (stage / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / path).write_text(content, encoding="utf-8")


def write_base(root: Path, *targets: str, split: bool, **facts: str) -> None:
    """Write the artifact that says of the others which ROCm they are, and for which gfx targets."""
    write(root, "base_lib_generic")
    overlay = root / "base_lib_generic" / "base" / "aux-overlay" / "stage" / "share" / "therock"
    overlay.mkdir(parents=True)
    manifest = {"flags": {"KPACK_SPLIT_ARTIFACTS": split}, "rocm_version": VERSION, **facts}
    (overlay / "therock_manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    info = {"dist_amdgpu_targets": ";".join(targets)}
    (overlay / "dist_info.json").write_text(json.dumps(info), encoding="utf-8")
    (root / "base_lib_generic" / "artifact_manifest.txt").write_text(
        "base/aux-overlay/stage\n", encoding="utf-8"
    )


def write_whole(
    root: Path, families: Mapping[str, Sequence[str]], *, split: bool, platform: str = "linux"
) -> Path:
    """Write a set that holds what the data says that it must, in text files."""
    targets = [target for each in families.values() for target in each]
    write_base(root, *targets, split=split)
    for name, contents in packages().contents.items():
        in_general = name not in packages().libraries.artifacts or split
        for owner, each in {"generic": targets}.items() if in_general else families.items():
            for label, component, glob in contents.wanted(platform, each):
                kernels = [one for one in each if split and label.endswith("-kernels") and one in glob]
                write(root, f"{name}_{component}_{(kernels or [owner])[0]}", **{path_of(glob): glob})
    return root


def path_of(glob: str) -> str:
    return glob.replace("**/", "").replace("*", "")


def request(artifacts: Path, **changes: Any) -> BuildRequest:
    own = {"artifact_dir": artifacts, "output_dir": artifacts.parent / "out", "without": ("*",)}
    return BuildRequest(**{**own, **changes})


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def executed(dist_info: bytes) -> ModuleType:
    module = ModuleType("dist_info")
    exec(compile(dist_info, "_dist_info.py", "exec"), module.__dict__)  # noqa: S102 - our own file
    return module


def in_sdist(sdist: Path, name: str) -> bytes:
    with tarfile.open(sdist) as archive:
        member = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/{name}")
        assert member is not None
        return member.read()
