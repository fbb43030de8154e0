"""Files of the miniature ROCm that are copied or written: programs, headers, CMake packages, databases."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rocm_packaging.sample.facts import (
    FAMILY,
    FAMILY_TARGETS,
    GENERIC,
    ROCM_VERSION,
    TARGETS,
    ArtifactName,
    Variant,
)
from rocm_packaging.sample.links import AMD_COMPILERS


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file, copied from the sample's templates or written.

    Attributes:
        artifact: The artifact that has it; of the target `FAMILY`, each family's.
        path: Its path in the artifact, the stage folder first.
        template: Its path below ``templates/``, where Windows may have its own; None for one with a `text`.
        text: Its content.
        executable: Whether it is a program.
    """

    artifact: ArtifactName
    path: str
    template: str | None = None
    text: str = ""
    executable: bool = False


AUX_OVERLAY = ArtifactName(name="base", component="lib")
_OVERLAY_FOLDER = "base/aux-overlay/stage/share/therock"
_PROFILER_SCRIPT = '#!/bin/sh\necho "${0##*/}: profiling with $ROCM_PATH: $*"\n'


# Programs

_PYTHON_PROGRAMS = ("hipcc", "hipconfig")


def _programs_of_linux() -> Iterator[DataFile]:
    """Yield the programs: those of the sample's own, and stand-ins that print what they are."""
    for name in _PYTHON_PROGRAMS:
        yield _program("amd-llvm", f"compiler/hipcc/stage/bin/{name}", template=f"bin/{name}")
    for name in ("rocminfo", "rocm_agent_enumerator"):
        yield _program(
            "core-runtime",
            f"core/ROCR-Runtime/stage/bin/{name}",
            template=f"bin/{name}",
        )

    for name in ("clang", "clang++", "lld", *AMD_COMPILERS):
        yield _program(
            "amd-llvm",
            f"compiler/amd-llvm/stage/lib/llvm/bin/{name}",
            template="bin/tool",
        )
    for name in ("hipify-clang", "hipify-perl"):
        yield _program("hipify", f"compiler/hipify/stage/bin/{name}", template="bin/tool")
    yield _program("core-amdsmi", "core/amdsmi/stage/bin/amd-smi", template="bin/tool")
    yield _program("base", "base/rocm_smi_lib/stage/bin/rocm-smi", template="bin/tool")

    for name in ("instrument", "run", "sample"):
        path = f"profiler/rocprofiler-systems/stage/bin/rocprof-sys-{name}"
        yield _program("rocprofiler-systems", path, text=_PROFILER_SCRIPT)


def _programs_of_windows() -> Iterator[DataFile]:
    """Yield what the compiled programs of Windows run (`rocm_packaging.sample.programs`)."""
    for name in _PYTHON_PROGRAMS:
        yield _program("amd-llvm", f"compiler/hipcc/stage/bin/{name}.py", template=f"bin/{name}")


def _program(artifact: str, path: str, *, template: str | None = None, text: str = "") -> DataFile:
    return DataFile(
        artifact=ArtifactName(name=artifact, component="run"),
        path=path,
        template=template,
        text=text,
        executable=True,
    )


# What is compiled with


def _headers() -> Iterator[DataFile]:
    """Yield headers and CMake packages that the sample's builds use."""
    for name in (
        "hip_version.h",
        "hip_runtime_api.h",
        "hip_runtime.h",
        "detail/fatbin_wrapper.h",
    ):
        yield _header(
            "core-hip",
            f"core/clr/stage/include/hip/{name}",
            f"include/hip/{name}",
        )
    yield _header(
        "core-hip",
        "core/clr/stage/lib/cmake/hip/hip-config.cmake",
        "cmake/hip-config.cmake",
    )
    yield _header(
        "rocprofiler-sdk",
        "profiler/roctracer/stage/include/roctracer/roctx.h",
        "include/roctracer/roctx.h",
    )
    yield _header(
        "host-blas",
        "third-party/host-blas/stage/lib/host-math/include/cblas.h",
        "include/cblas.h",
    )

    xz = "third-party/sysdeps/linux/xz/build/stage/lib/rocm_sysdeps"
    yield _header("sysdeps", f"{xz}/include/lzma.h", "include/lzma.h")
    yield _header("sysdeps", f"{xz}/lib/pkgconfig/liblzma.pc", "cmake/liblzma.pc")

    hipblas = "math-libs/BLAS/hipBLAS/stage"
    yield _header(
        "blas",
        f"{hipblas}/include/hipblas/hipblas.h",
        "include/hipblas/hipblas.h",
        FAMILY,
    )
    yield _header(
        "blas",
        f"{hipblas}/lib/cmake/hipblas/hipblas-config.cmake",
        "cmake/hipblas-config.cmake",
        FAMILY,
    )


def _header(artifact: str, path: str, template: str, target: str = GENERIC) -> DataFile:
    return DataFile(
        artifact=ArtifactName(name=artifact, component="dev", target=target),
        path=path,
        template=template,
    )


# What others compile and find with CMake, though nothing of the sample does: artifact, folder, library.
_DEVELOPED_LIBRARIES = (
    (
        ArtifactName(name="blas", component="dev", target=FAMILY),
        "math-libs/BLAS/hipBLASLt",
        "hipblaslt",
    ),
    (
        ArtifactName(name="blas", component="dev", target=FAMILY),
        "math-libs/BLAS/hipSOLVER",
        "hipsolver",
    ),
    (
        ArtifactName(name="blas", component="dev", target=FAMILY),
        "math-libs/BLAS/hipSPARSE",
        "hipsparse",
    ),
    (
        ArtifactName(name="blas", component="dev", target=FAMILY),
        "math-libs/BLAS/rocBLAS",
        "rocblas",
    ),
    (
        ArtifactName(name="fft", component="dev", target=FAMILY),
        "math-libs/hipFFT",
        "hipfft",
    ),
    (
        ArtifactName(name="miopen", component="dev", target=FAMILY),
        "ml-libs/MIOpen",
        "miopen",
    ),
    (ArtifactName(name="prim", component="dev"), "math-libs/rocPRIM", "rocprim"),
    (
        ArtifactName(name="rand", component="dev", target=FAMILY),
        "math-libs/hipRAND",
        "hiprand",
    ),
    (
        ArtifactName(name="rccl", component="dev", target=FAMILY),
        "comm-libs/rccl",
        "rccl",
    ),
)


def _developed_libraries() -> Iterator[DataFile]:
    """Yield a header and a CMake package of each library that others develop with."""
    for artifact, folder, name in _DEVELOPED_LIBRARIES:
        header = f"{folder}/stage/include/{name}/{name}.h"
        text = "#pragma once\n"
        if name == "rocprim":
            header = f"{folder}/stage/include/rocprim/rocprim_version.hpp"
            text += "#define ROCPRIM_VERSION 400100\n"
        yield DataFile(artifact=artifact, path=header, text=text)

        config = f"{folder}/stage/lib/cmake/{name}/{name}-config.cmake"
        yield DataFile(artifact=artifact, path=config, text=f"set({name}_FOUND TRUE)\n")


# Licences and bitcode


def _licenses() -> Iterator[DataFile]:
    yield _license("amd-llvm", "compiler/amd-comgr/stage", "amd_comgr")
    yield _license("core-hip", "core/clr/stage", "hip")
    yield _license("blas", "math-libs/BLAS/hipBLAS/stage", "hipblas", FAMILY)


def _license(artifact: str, stage: str, name: str, target: str = GENERIC) -> DataFile:
    return DataFile(
        artifact=ArtifactName(name=artifact, component="doc", target=target),
        path=f"{stage}/share/doc/{name}/LICENSE.md",
        text=f"The sample's {name} is under the MIT licence of the project that it belongs to.\n",
    )


def _bitcode() -> Iterator[DataFile]:
    """Yield the compiler's device libraries."""
    names = ["ocml", "ockl", "oclc_abi_version_600"]
    names += [f"oclc_isa_version_{target.removeprefix('gfx')}" for target in TARGETS]
    for name in names:
        # An LLVM bitcode file starts with BC 0xC0DE; nothing of the sample reads further.
        yield DataFile(
            artifact=ArtifactName(name="amd-llvm", component="lib"),
            path=f"compiler/amd-llvm/stage/lib/llvm/amdgcn/bitcode/{name}.bc",
            text=f"BC\xc0\xde{name}",
        )


# Databases of each gfx target: artifact and path.
_ROCBLAS = "math-libs/BLAS/rocBLAS/stage/{folder}/rocblas/library"
_HIPBLASLT = "math-libs/BLAS/hipBLASLt/stage/{folder}/hipblaslt/library"
_DATABASES = (
    ("blas", f"{_ROCBLAS}/TensileLibrary_{{target}}.dat"),
    ("blas", f"{_ROCBLAS}/Kernels.so-000-{{target}}.hsaco"),
    ("blas", f"{_HIPBLASLT}/{{target}}/TensileLibrary_lazy_{{target}}.dat"),
    ("miopen", "ml-libs/MIOpen/stage/share/miopen/db/{target}130.HIP.fdb.txt"),
    ("rccl", "comm-libs/rccl/stage/share/rccl/msccl-algorithms/{target}.xml"),
)


def _databases(variant: Variant) -> Iterator[DataFile]:
    folder = "bin" if variant.is_for_windows else "lib"  # where the libraries are that read them
    for name, path in _DATABASES:
        for family, targets in FAMILY_TARGETS.items():
            for target in targets:
                owner = target if variant.split else family
                artifact = ArtifactName(name=name, component="lib", target=owner)
                yield DataFile(
                    artifact=artifact,
                    path=path.format(folder=folder, target=target),
                    text=f"{name} {target}\n",
                )


# What ROCm says of itself


def _overlay(variant: Variant) -> Iterator[DataFile]:
    manifest = {
        "rocm_version": ROCM_VERSION,
        "flags": {"KPACK_SPLIT_ARTIFACTS": variant.split},
    }
    yield _overlay_file("therock_manifest.json", manifest)
    yield _overlay_file("dist_info.json", {"dist_amdgpu_targets": ";".join(TARGETS)})


def _overlay_file(name: str, content: object) -> DataFile:
    text = json.dumps(content, indent=2) + "\n"
    return DataFile(artifact=AUX_OVERLAY, path=f"{_OVERLAY_FOLDER}/{name}", text=text)


def data_files(variant: Variant) -> tuple[DataFile, ...]:
    """List the files of one variant of the sample."""
    programs = _programs_of_windows() if variant.is_for_windows else _programs_of_linux()
    files = (
        *programs,
        *_headers(),
        *_developed_libraries(),
        *_licenses(),
        *_bitcode(),
        *_databases(variant),
        *_overlay(variant),
    )
    return tuple(file for file in files if variant.has_artifact(file.artifact.name))


def write_data_files(root: Path, variant: Variant) -> None:
    """Write the files into an artifact directory."""
    for file in data_files(variant):
        for artifact in file.artifact.expanded(variant):
            path = artifact.folder(root) / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if file.template is not None:
                shutil.copyfile(variant.template(file.template), path)
            else:
                path.write_bytes(file.text.encode("latin-1"))
            path.chmod(0o755 if file.executable else 0o644)
