"""A miniature ROCm: artifacts of the real layout, compiled from a few small sources.

`ensure_artifacts` makes an artifact directory as a ROCm build leaves it, so that packaging,
PyTorch builds and their checks run against real ELF files on any machine with a C++ compiler.
"""

import io
import json
import os
import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import zstandard

from core import console, process
from core.errors import MissingInputError
from core.files import digest_of, locked, replaced, sha256, write_text
from rocm_packaging.packages import kpack
from rocm_packaging.sample.layout import (
    AUX_OVERLAY,
    DEVICE_LIBRARY,
    FAMILIES,
    FAMILY,
    FAMILY_TARGETS,
    LIBRARIES,
    OFFLOAD_ARCH,
    ROCM_VERSION,
    SYMLINKS,
    TARGETS,
    WITHOUT_ARCHIVE,
    Library,
    data_files,
)

__all__ = ["FAMILIES", "ROCM_VERSION", "ensure_artifacts"]

TEMPLATES = Path(__file__).parent / "templates"
_DIGEST_FILE = ".sample-digest"
_COMPILERS = ("c++", "g++", "clang++")
_ENTRIES = 32  # behind a bundle's magic and count
# No start files beyond libc's: most of the sample's time is starting compilers and linkers.
_FLAGS = ("-shared", "-fPIC", "-O1", "-s", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden")

_Artifact = tuple[str, str, str]


def ensure_artifacts(dest: Path, *, split: bool = False) -> Path:
    """Generate the sample's artifact directory, unless it is there already and current.

    Args:
        dest: The directory; it is replaced as a whole when the sample has changed.
        split: Whether device code is to lie in artifacts of its own, one set a gfx target.

    Returns:
        `dest`, holding one ``{name}_{component}_{target}`` folder an artifact.

    Raises:
        MissingInputError: There is no C++ compiler.
        ProcessError: The compiler failed.
    """
    compiler = _compiler()
    digest = _digest(compiler, split=split)
    if _is_current(dest, digest):
        return dest
    with locked(dest.with_name(f"{dest.name}.lock"), what="the sample's ROCm artifacts"):
        if _is_current(dest, digest):
            return dest
        console.say(f"Compiling the sample's ROCm artifacts into {dest}.")
        with replaced(dest) as fresh:
            _generate(fresh, fresh.parent, compiler, split=split)
            write_text(fresh / _DIGEST_FILE, digest)
    return dest


def _is_current(dest: Path, digest: str) -> bool:
    try:
        return (dest / _DIGEST_FILE).read_text(encoding="utf-8") == digest
    except OSError:
        return False


def _compiler() -> Path:
    for name in _COMPILERS:
        found = process.which(name)
        if found is not None:
            return found
    raise MissingInputError(
        f"No C++ compiler is on the PATH (looked for {', '.join(_COMPILERS)}).",
        hint="Install one, such as the package g++, or give your own --artifacts-dir.",
    )


def _digest(compiler: Path, *, split: bool) -> str:
    """Digest all that the artifacts follow from: templates, this package's code, the compiler."""
    sources = sorted(path for path in Path(__file__).parent.rglob("*") if path.is_file())
    relevant = [path for path in sources if "__pycache__" not in path.parts]
    binary = compiler.resolve().stat()
    return digest_of(
        {
            "files": {str(path.relative_to(TEMPLATES.parent)): sha256(path) for path in relevant},
            "split": split,
            "compiler": [str(compiler.resolve()), binary.st_size, binary.st_mtime_ns],
        }
    )


def _generate(root: Path, scratch: Path, compiler: Path, *, split: bool) -> None:
    for name, component, target in _artifact_names(split=split):
        (root / f"{name}_{component}_{target}").mkdir()
    _write_data(root, split=split)
    _write_overlay(root, split=split)
    bundles = {} if split else {one: _bundle(scratch, one, FAMILY_TARGETS[one]) for one in FAMILIES}
    if split:
        _write_archives(root, scratch)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        needed = {short for library in LIBRARIES for short in library.needs}
        first = [library for library in LIBRARIES if library.short in needed]
        rest = [library for library in LIBRARIES if library.short not in needed]
        for library in first:  # the others link to them
            _compile(root, scratch, compiler, library, "generic", None)
        program = pool.submit(_compile_program, root, compiler)
        jobs = [
            pool.submit(_compile, root, scratch, compiler, library, target, bundles.get(target))
            for library in rest
            for target in _targets(library, split=split)
        ]
        jobs += [
            pool.submit(_compile, root, scratch, compiler, library, target, None)
            for library, target in (_device_libraries() if split else ())
        ]
        for job in jobs:
            job.result()
        program.result()
    _write_manifests(root)


def _targets(library: Library, *, split: bool) -> Sequence[str]:
    return FAMILIES if library.per_family and not split else ("generic",)


def _device_libraries() -> list[tuple[Library, str]]:
    """List the libraries that only a device package holds, each with its gfx target."""
    miopen = next(library for library in LIBRARIES if library.short == "miopen")
    files = {target: DEVICE_LIBRARY.format(target=target).rpartition("/")[2] for target in TARGETS}
    return [(replace(miopen, short="ck", file=file, version=""), target) for target, file in files.items()]


def _archived() -> dict[str, list[Library]]:
    """Group the libraries whose code lies in archives, by artifact."""
    found: dict[str, list[Library]] = {}
    for library in LIBRARIES:
        if library.per_family and library.artifact[0] != WITHOUT_ARCHIVE:
            found.setdefault(library.artifact[0], []).append(library)
    return found


def _write_archives(root: Path, scratch: Path) -> None:
    """Write the archives of each gfx target, and what each library says of where they are."""
    for target in TARGETS:
        code = code_object(_bundle(scratch, target, (target,)).read_bytes())
        for name, libraries in _archived().items():
            folder = _folder(root, (name, "lib", target)) / libraries[0].artifact[1]
            path = folder / kpack.archive_name(f"{name}_lib", target)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(kernel_archive(name, target, {library.path: code for library in libraries}))
    for name, libraries in _archived().items():
        for library in libraries:
            _reference(scratch, library).write_bytes(kpack.reference(f"{name}_lib", library.path).packed())


def code_object(bundle: bytes) -> bytes:
    """Take the only code object out of a bundle of the sample's compiler, whose first entry is the host's."""
    (length,) = struct.unpack_from("<Q", bundle, _ENTRIES + 16)
    start, size = struct.unpack_from("<QQ", bundle, _ENTRIES + 24 + length)
    return bundle[start : start + size]


def kernel_archive(artifact: str, target: str, code: Mapping[str, bytes]) -> bytes:
    """Write an artifact's kernel archive (``.kpack``) for a gfx target: code objects by library's path."""
    frames = [zstandard.ZstdCompressor().compress(content) for content in code.values()]
    kernels = [
        (kpack.Kernel(binary=f"{path}#0", target=target, size=len(content)), len(frame))
        for (path, content), frame in zip(code.items(), frames, strict=True)
    ]
    stream = io.BytesIO()
    kpack.write(stream, f"{artifact}_lib", target, frames, kernels)
    return stream.getvalue()


def _reference(scratch: Path, library: Library) -> Path:
    return scratch / f"{library.short}.kpack_ref"


def _expanded(artifact: _Artifact, *, split: bool) -> Iterable[_Artifact]:
    name, component, target = artifact
    if target != FAMILY:
        return [artifact]
    return [(name, component, each) for each in (("generic",) if split else FAMILIES)]


def _artifact_names(*, split: bool) -> list[_Artifact]:
    names = {(lib.artifact[0], "lib", target) for lib in LIBRARIES for target in _targets(lib, split=split)}
    names.update(each for data in data_files(split=split) for each in _expanded(data.artifact, split=split))
    names.update(artifact for artifact, _, _ in SYMLINKS)
    names.update((OFFLOAD_ARCH[0], AUX_OVERLAY[0]))
    if split:
        names.update((name, "lib", target) for name in _archived() for target in TARGETS)
    return sorted(names)


def _folder(root: Path, artifact: _Artifact) -> Path:
    return root / "_".join(artifact)


def _write_data(root: Path, *, split: bool) -> None:
    for data in data_files(split=split):
        for artifact in _expanded(data.artifact, split=split):
            path = _folder(root, artifact) / data.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if data.template:
                shutil.copyfile(TEMPLATES / data.template, path)
            else:
                path.write_bytes(data.text.encode("latin-1"))
            path.chmod(0o755 if data.executable else 0o644)
    for artifact, name, target in SYMLINKS:
        path = _folder(root, artifact) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


def _write_overlay(root: Path, *, split: bool) -> None:
    folder = _folder(root, AUX_OVERLAY[0]) / AUX_OVERLAY[1]
    folder.mkdir(parents=True)
    manifest = {"rocm_version": ROCM_VERSION, "flags": {"KPACK_SPLIT_ARTIFACTS": split}}
    for name, value in (
        ("therock_manifest.json", manifest),
        ("dist_info.json", {"dist_amdgpu_targets": ";".join(TARGETS)}),
    ):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _bundle(scratch: Path, name: str, gpu_targets: Sequence[str]) -> Path:
    """Let the sample's own compiler wrapper bundle the device code of gfx targets."""
    path = scratch / f"{name}.hipfb"
    targets = [f"--offload-arch={target}" for target in gpu_targets]
    python = process.which("python3")
    if python is None:
        raise MissingInputError("No python3 is on the PATH, which the sample's hipcc runs under.")
    process.capture([python, TEMPLATES / "bin" / "hipcc", "--genco", *targets, "-o", path])
    return path


def _compile(
    root: Path, scratch: Path, compiler: Path, library: Library, target: str, bundle: Path | None
) -> Path:
    name, stage = library.artifact
    folder = _folder(root, (name, "lib", target)) / stage / library.folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / library.path.rpartition("/")[2]
    block = library.short.replace("-", "_")
    device = [f'-D__HIP_FATBIN_FILE__="{bundle}"', "-DHAS_FATBIN"] if bundle else []
    reference = _reference(scratch, library)
    if reference.exists():
        device = [f'-D__HIP_KPACK_REF_FILE__="{reference}"', "-DHAS_FATBIN"]
    needed = [_path_of(root, short) for short in library.needs]
    process.capture(
        [
            compiler,
            *_FLAGS,
            f"-I{TEMPLATES / 'include'}",
            f'-DLIBRARY="{library.short}"',
            f"-DIN_{block}",
            *device,
            TEMPLATES / "library.cpp",
            "-o",
            path,
            f"-Wl,-soname,{library.soname}",
            f"-Wl,-rpath,{library.rpath}",
            "-Wl,--no-as-needed",
            "-nodefaultlibs",
            *needed,
            "-lc",
        ],
        cwd=scratch,
    )
    for link in dict.fromkeys((library.soname, library.file)):
        if link != path.name:
            (folder / link).symlink_to(path.name)
    return path


def _path_of(root: Path, short: str) -> Path:
    library = next(library for library in LIBRARIES if library.short == short)
    name, stage = library.artifact
    return _folder(root, (name, "lib", "generic")) / stage / library.path


def _compile_program(root: Path, compiler: Path) -> None:
    artifact, name = OFFLOAD_ARCH
    path = _folder(root, artifact) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    process.capture([compiler, "-O1", "-s", TEMPLATES / "offload_arch.cpp", "-o", path])


def _write_manifests(root: Path) -> None:
    """List the stage folders of each artifact, as a ROCm build does."""
    for folder in sorted(root.iterdir()):
        stages = {str(path.relative_to(folder)) for path in folder.rglob("stage") if path.is_dir()}
        text = "".join(f"{stage}\n" for stage in sorted(stages))
        (folder / "artifact_manifest.txt").write_text(text, encoding="utf-8")
