"""The compiled programs of the miniature ROCm."""

import shutil
from pathlib import Path

from core import process
from rocm_packaging.sample.facts import TEMPLATES, ArtifactName, Variant
from rocm_packaging.sample.links import AMD_COMPILERS

_LLVM = "compiler/amd-llvm/stage/lib/llvm/bin"
# What Windows has: artifact, folder, names.
_WINDOWS_PROGRAMS = (
    ("amd-llvm", _LLVM, ("clang", "clang++", "clang-cl", "lld", *AMD_COMPILERS)),
    ("amd-llvm", "compiler/hipcc/stage/bin", ("hipcc", "hipconfig")),
    ("hipify", "compiler/hipify/stage/bin", ("hipify-clang",)),
    ("core-hipinfo", "core/hipInfo/stage/bin", ("hipInfo",)),
)
# Without a time of linking the same sources make the same bytes.
_WINDOWS_FLAGS = ("-static", "-Wl,--no-insert-timestamp")


def compiled_artifacts(variant: Variant) -> set[ArtifactName]:
    """Return the artifacts that have compiled programs."""
    names = {"amd-llvm"}
    if variant.is_for_windows:
        names.update(name for name, _folder, _programs in _WINDOWS_PROGRAMS)
    return {ArtifactName(name=name, component="run") for name in names}


def compile_programs(root: Path, compiler: Path, variant: Variant) -> None:
    """Compile the program that tells the machine's GPUs; for Windows all others, too, scripts on Linux."""
    offload_arch = _path(root, variant, "amd-llvm", f"{_LLVM}/offload-arch")
    _compile(compiler, variant, "offload_arch.cpp", offload_arch)
    if not variant.is_for_windows:
        return

    original: Path | None = None
    for artifact, folder, names in _WINDOWS_PROGRAMS:
        for name in names:
            path = _path(root, variant, artifact, f"{folder}/{name}")
            if original is None:
                _compile(compiler, variant, "windows/program.cpp", path)
                original = path
            else:
                shutil.copyfile(original, path)


def _path(root: Path, variant: Variant, artifact: str, program: str) -> Path:
    """Return where a program goes, whose folder is made."""
    suffix = ".exe" if variant.is_for_windows else ""
    path = ArtifactName(name=artifact, component="run").folder(root) / f"{program}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _compile(compiler: Path, variant: Variant, source: str, path: Path) -> None:
    flags = _WINDOWS_FLAGS if variant.is_for_windows else ()
    process.capture([compiler, "-O1", "-s", *flags, TEMPLATES / source, "-o", path])
