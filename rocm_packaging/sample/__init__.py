"""A miniature ROCm: artifacts of the real layout, compiled from a few small sources.

`ensure_artifacts` makes an artifact directory as a ROCm build leaves it, so that packaging,
PyTorch builds and their checks run against real ELF files on any machine with a C++ compiler, and
against DLLs with one for Windows, MinGW's.
Each kind of file has a module: libraries, programs, device code, links, and all that is copied or written.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from core import console, process
from core.errors import MissingInputError
from core.files import digest_of, file_sizes, locked, replacement_folder, sha256, write_text
from core.run import Platform, this_platform
from rocm_packaging.sample.data_files import data_files, write_data_files
from rocm_packaging.sample.facts import (
    FAMILIES,
    ROCM_VERSION,
    TARGETS,
    ArtifactName,
    Variant,
)
from rocm_packaging.sample.kernels import compile_bundles, write_archives
from rocm_packaging.sample.libraries import archived_libraries, libraries_of
from rocm_packaging.sample.library_compiler import LibraryCompiler
from rocm_packaging.sample.links import LINKS, make_links
from rocm_packaging.sample.programs import compile_programs, compiled_artifacts

__all__ = ["FAMILIES", "ROCM_VERSION", "ensure_artifacts"]

_DIGEST_FILE = ".sample-digest"
_COMPILERS = ("c++", "g++", "clang++")
_COMPILERS_FOR_WINDOWS = ("x86_64-w64-mingw32-g++", "x86_64-w64-mingw32-clang++")


def ensure_artifacts(folder: Path, *, split: bool = False, platform: Platform | None = None) -> Path:
    """Generate the sample's artifact directory, unless it is there already and current.

    Args:
        folder: The directory; it is replaced as a whole when the sample has changed.
        split: Whether device code is to lie in artifacts of its own, one set a gfx target.
        platform: What it is a ROCm for; None for this machine's.

    Returns:
        `folder`, holding one ``{name}_{component}_{target}`` folder an artifact.

    Raises:
        MissingInputError: There is no C++ compiler for the platform.
        ProcessError: The compiler failed.
    """
    variant = Variant(split=split, platform=platform or this_platform())
    compiler = _find_compiler(variant)
    digest = _digest(compiler, variant)
    if _is_current(folder, digest):
        return folder
    with locked(
        folder.with_name(f"{folder.name}.lock"),
        what="the sample's ROCm artifacts",
    ):
        if _is_current(folder, digest):
            return folder
        console.say(f"Compiling the sample's ROCm artifacts into {folder}.")
        with replacement_folder(folder) as fresh_folder:
            _generate(fresh_folder, fresh_folder.parent, compiler, variant)
            stamp = _stamp(fresh_folder, digest)
            write_text(fresh_folder / _DIGEST_FILE, stamp)
    return folder


def _is_current(folder: Path, digest: str) -> bool:
    try:
        stamp = (folder / _DIGEST_FILE).read_text(encoding="utf-8")
    except OSError:
        return False
    return stamp == _stamp(folder, digest)


def _stamp(folder: Path, digest: str) -> str:
    """Return what says that the artifacts are those of a digest, and have lost no file."""
    sizes = file_sizes(folder)
    sizes.pop(_DIGEST_FILE, None)
    return digest_of([digest, sizes])


def _find_compiler(variant: Variant) -> Path:
    names = list(_COMPILERS)
    package = "g++"
    if variant.is_for_windows:
        package = "g++-mingw-w64-x86-64"
        names = [*_COMPILERS_FOR_WINDOWS]
        if this_platform() == "windows":
            names += _COMPILERS

    for name in names:
        compiler = process.which(name)
        if compiler is not None:
            return compiler
    raise MissingInputError(
        f"No C++ compiler for {variant.platform} is on the PATH (looked for {', '.join(names)}).",
        hint=f"Install one, such as the package {package}, or give your own artifacts: --artifact-dir DIR.",
    )


def _digest(compiler: Path, variant: Variant) -> str:
    """Digest all that the artifacts follow from: templates, this package's code, the compiler."""
    package = Path(__file__).parent
    digests: dict[str, str] = {}
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digests[str(path.relative_to(package))] = sha256(path)
    binary = compiler.resolve().stat()
    return digest_of(
        {
            "files": digests,
            "split": variant.split,
            "platform": variant.platform,
            "compiler": [
                str(compiler.resolve()),
                binary.st_size,
                binary.st_mtime_ns,
            ],
        }
    )


def _generate(root: Path, scratch: Path, compiler: Path, variant: Variant) -> None:
    for artifact in _artifacts(variant):
        artifact.folder(root).mkdir()
    write_data_files(root, variant)
    if not variant.is_for_windows:
        make_links(root)

    bundles: dict[str, Path] = {}
    references: dict[str, Path] = {}
    if variant.split:
        references = write_archives(root, scratch, variant)
    else:
        bundles = compile_bundles(scratch)
    libraries = LibraryCompiler(root, scratch, compiler, variant, bundles=bundles, references=references)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = pool.submit(compile_programs, root, compiler, variant)
        libraries.compile_all(pool)
        programs.result()
    _write_manifests(root)


def _artifacts(variant: Variant) -> list[ArtifactName]:
    """Return all artifacts of a variant, sorted."""
    artifacts = compiled_artifacts(variant)
    if not variant.is_for_windows:
        artifacts.update(link.artifact for link in LINKS)
    for file in data_files(variant):
        artifacts.update(file.artifact.expanded(variant))
    for library in libraries_of(variant):
        name, _stage = library.artifact
        for target in library.targets(variant):
            artifacts.add(ArtifactName(name=name, component="lib", target=target))
    if variant.split:
        for name in archived_libraries(variant):
            artifacts.update(ArtifactName(name=name, component="lib", target=target) for target in TARGETS)
    return sorted(artifacts)


def _write_manifests(root: Path) -> None:
    """List the stage folders of each artifact, as a ROCm build does."""
    for folder in sorted(root.iterdir()):
        stages = sorted(str(path.relative_to(folder)) for path in folder.rglob("stage") if path.is_dir())
        text = "".join(f"{stage}\n" for stage in stages)
        (folder / "artifact_manifest.txt").write_text(text, encoding="utf-8")
