"""Device code of the miniature ROCm: bundles in libraries, or kernel archives of a split ROCm."""

import io
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import zstandard

from core import process
from rocm_packaging.packages import kpack
from rocm_packaging.sample.facts import (
    FAMILY_TARGETS,
    TARGETS,
    TEMPLATES,
    ArtifactName,
    Variant,
)
from rocm_packaging.sample.libraries import archived_libraries

_ENTRIES = 32  # behind a bundle's magic and count


def compile_bundles(scratch: Path) -> dict[str, Path]:
    """Compile the device code of each family; return the files by family."""
    bundles: dict[str, Path] = {}
    for family, targets in FAMILY_TARGETS.items():
        bundles[family] = _compile_bundle(scratch, family, targets)
    return bundles


def _compile_bundle(scratch: Path, name: str, gpu_targets: Sequence[str]) -> Path:
    """Let the sample's own compiler wrapper bundle the device code of gfx targets."""
    path = scratch / f"{name}.hipfb"
    options = [f"--offload-arch={target}" for target in gpu_targets]
    process.capture([sys.executable, TEMPLATES / "bin" / "hipcc", "--genco", *options, "-o", path])
    return path


def write_archives(root: Path, scratch: Path, variant: Variant) -> dict[str, Path]:
    """Write the kernel archives of each gfx target, and what each library says of where they are.

    Returns:
        The files with the latter, by the library's short name.
    """
    for target in TARGETS:
        code = code_object(_compile_bundle(scratch, target, (target,)).read_bytes())
        _write_archives_of_target(root, target, code, variant)

    references: dict[str, Path] = {}
    for name, libraries in archived_libraries(variant).items():
        for library in libraries:
            reference = scratch / f"{library.short}.kpack_ref"
            reference.write_bytes(kpack.reference(f"{name}_lib", library.path(variant)).packed())
            references[library.short] = reference
    return references


def _write_archives_of_target(root: Path, target: str, code: bytes, variant: Variant) -> None:
    for name, libraries in archived_libraries(variant).items():
        _name, stage = libraries[0].artifact
        folder = ArtifactName(name=name, component="lib", target=target).folder(root) / stage
        path = folder / kpack.archive_name(f"{name}_lib", target)
        path.parent.mkdir(parents=True, exist_ok=True)
        codes = {library.path(variant): code for library in libraries}
        path.write_bytes(kernel_archive(name, target, codes))


def code_object(bundle: bytes) -> bytes:
    """Take the only code object out of a bundle of the sample's compiler, whose first entry is the host's."""
    (length,) = struct.unpack_from("<Q", bundle, _ENTRIES + 16)
    start, size = struct.unpack_from("<QQ", bundle, _ENTRIES + 24 + length)
    return bundle[start : start + size]


def kernel_archive(artifact: str, target: str, code: Mapping[str, bytes]) -> bytes:
    """Write an artifact's kernel archive (``.kpack``) for a gfx target: code objects by library's path."""
    frames: list[bytes] = []
    kernels: list[tuple[kpack.Kernel, int]] = []
    for path, content in code.items():
        frame = zstandard.ZstdCompressor().compress(content)
        frames.append(frame)
        kernels.append(
            (
                kpack.Kernel(binary=f"{path}#0", target=target, size=len(content)),
                len(frame),
            )
        )
    stream = io.BytesIO()
    kpack.write(stream, f"{artifact}_lib", target, frames, kernels)
    return stream.getvalue()
