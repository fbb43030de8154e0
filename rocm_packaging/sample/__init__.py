"""A miniature ROCm: artifacts of the real layout, compiled from a few small sources.

`ensure_artifacts` makes an artifact directory as a ROCm build leaves it, so that packaging,
PyTorch builds and their checks run against real ELF files on any machine with a C++ compiler.
Each kind of file has a module: libraries, device code, links, and all that is copied or written.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from core import console, process
from core.errors import MissingInputError
from core.files import digest_of, file_sizes, locked, replaced, sha256, write_text
from rocm_packaging.sample.data_files import data_files, write_data_files
from rocm_packaging.sample.facts import (
    FAMILIES,
    ROCM_VERSION,
    TARGETS,
    TEMPLATES,
    ArtifactName,
)
from rocm_packaging.sample.kernels import compile_bundles, write_archives
from rocm_packaging.sample.libraries import (
    LIBRARIES,
    LibraryCompiler,
    archived_libraries,
)
from rocm_packaging.sample.links import LINKS, make_links

__all__ = ["FAMILIES", "ROCM_VERSION", "ensure_artifacts"]

_DIGEST_FILE = ".sample-digest"
_COMPILERS = ("c++", "g++", "clang++")
_OFFLOAD_ARCH = "compiler/amd-llvm/stage/lib/llvm/bin/offload-arch"


def ensure_artifacts(folder: Path, *, split: bool = False) -> Path:
    """Generate the sample's artifact directory, unless it is there already and current.

    Args:
        folder: The directory; it is replaced as a whole when the sample has changed.
        split: Whether device code is to lie in artifacts of its own, one set a gfx target.

    Returns:
        `folder`, holding one ``{name}_{component}_{target}`` folder an artifact.

    Raises:
        MissingInputError: There is no C++ compiler.
        ProcessError: The compiler failed.
    """
    compiler = _find_compiler()
    digest = _digest(compiler, split=split)
    if _is_current(folder, digest):
        return folder
    with locked(
        folder.with_name(f"{folder.name}.lock"),
        what="the sample's ROCm artifacts",
    ):
        if _is_current(folder, digest):
            return folder
        console.say(f"Compiling the sample's ROCm artifacts into {folder}.")
        with replaced(folder) as fresh_folder:
            _generate(fresh_folder, fresh_folder.parent, compiler, split=split)
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


def _find_compiler() -> Path:
    for name in _COMPILERS:
        compiler = process.which(name)
        if compiler is not None:
            return compiler
    raise MissingInputError(
        f"No C++ compiler is on the PATH (looked for {', '.join(_COMPILERS)}).",
        hint="Install one, such as the package g++, or give your own artifacts: --artifact-dir DIR.",
    )


def _digest(compiler: Path, *, split: bool) -> str:
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
            "split": split,
            "compiler": [
                str(compiler.resolve()),
                binary.st_size,
                binary.st_mtime_ns,
            ],
        }
    )


def _generate(root: Path, scratch: Path, compiler: Path, *, split: bool) -> None:
    for artifact in _artifacts(split=split):
        artifact.folder(root).mkdir()
    write_data_files(root, split=split)
    make_links(root)

    bundles: dict[str, Path] = {}
    references: dict[str, Path] = {}
    if split:
        references = write_archives(root, scratch)
    else:
        bundles = compile_bundles(scratch)
    libraries = LibraryCompiler(root, scratch, compiler, bundles=bundles, references=references)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        program = pool.submit(_compile_program, root, compiler)
        libraries.compile_all(pool, split=split)
        program.result()
    _write_manifests(root)


def _artifacts(*, split: bool) -> list[ArtifactName]:
    """Return all artifacts of a variant, sorted."""
    artifacts = {link.artifact for link in LINKS}
    for file in data_files(split=split):
        artifacts.update(file.artifact.expanded(split=split))
    for library in LIBRARIES:
        name, _stage = library.artifact
        for target in library.targets(split=split):
            artifacts.add(ArtifactName(name=name, component="lib", target=target))
    if split:
        for name in archived_libraries():
            artifacts.update(ArtifactName(name=name, component="lib", target=target) for target in TARGETS)
    return sorted(artifacts)


def _compile_program(root: Path, compiler: Path) -> None:
    """Compile the program that tells the machine's GPUs."""
    path = ArtifactName(name="amd-llvm", component="run").folder(root) / _OFFLOAD_ARCH
    path.parent.mkdir(parents=True, exist_ok=True)
    process.capture([compiler, "-O1", "-s", TEMPLATES / "offload_arch.cpp", "-o", path])


def _write_manifests(root: Path) -> None:
    """List the stage folders of each artifact, as a ROCm build does."""
    for folder in sorted(root.iterdir()):
        stages = sorted(str(path.relative_to(folder)) for path in folder.rglob("stage") if path.is_dir())
        text = "".join(f"{stage}\n" for stage in stages)
        (folder / "artifact_manifest.txt").write_text(text, encoding="utf-8")
