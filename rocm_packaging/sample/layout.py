"""What the miniature ROCm consists of: its libraries, its files, and the artifacts they lie in."""

from collections.abc import Mapping
from dataclasses import dataclass

ROCM_VERSION = "7.99.0.dev0+sample"
FAMILY_TARGETS: Mapping[str, tuple[str, ...]] = {
    "gfx94X-dcgpu": ("gfx942",),
    "gfx110X-all": ("gfx1100", "gfx1101", "gfx1102", "gfx1103"),
}
TARGETS = tuple(target for targets in FAMILY_TARGETS.values() for target in targets)
FAMILIES = tuple(FAMILY_TARGETS)
"""The GPU families of the sample; the first is its default."""
FAMILY = "{family}"
"""The target of artifacts that exist once a family."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """One shared library.

    Attributes:
        short: The name that `rocm_sdk.find_libraries` knows it by; selects its source block.
        file: Its file name without a version, ``libamdhip64.so``.
        version: Its full version; the first number is the SONAME's.
        artifact: ``(name, stage)`` of the artifact it belongs to.
        folder: Where it lies below the stage.
        rpath: Its RPATH, as a ROCm build sets it.
        needs: The libraries it links to, by short name.
        per_family: Whether it has device code: in it, once a family, or of each target in an archive.
    """

    short: str
    file: str
    version: str
    artifact: tuple[str, str]
    folder: str = "lib"
    rpath: str = "$ORIGIN"
    needs: tuple[str, ...] = ()
    per_family: bool = False

    @property
    def soname(self) -> str:
        """The name that the dynamic loader looks for."""
        return ".".join(filter(None, (self.file, self.version.split(".")[0])))

    @property
    def path(self) -> str:
        """Its file below the stage."""
        return f"{self.folder}/" + ".".join(filter(None, (self.file, self.version)))


_CLR = ("core-hip", "core/clr/stage")
_PROFILER = ("rocprofiler-sdk", "profiler/rocprofiler-sdk/stage")
_SYSTEMS = ("rocprofiler-systems", "profiler/rocprofiler-systems/stage")
_TRACER = ("rocprofiler-sdk", "profiler/roctracer/stage")
_BLAS = ("blas", "math-libs/BLAS/hipBLAS/stage")
_SPARSE = ("blas", "math-libs/BLAS/hipSPARSE/stage")


def _math(short: str, file: str, version: str, artifact: tuple[str, str]) -> Library:
    return Library(
        short=short, file=file, version=version, artifact=artifact, needs=("amdhip64",), per_family=True
    )


LIBRARIES: tuple[Library, ...] = (
    Library(short="amdhip64", file="libamdhip64.so", version="7.99.0", artifact=_CLR),
    Library(short="hiprtc", file="libhiprtc.so", version="7.99.0", artifact=_CLR, needs=("amdhip64",)),
    Library(
        short="amd_comgr",
        file="libamd_comgr.so",
        version="3.0.0",
        artifact=("amd-llvm", "compiler/amd-comgr/stage"),
    ),
    Library(
        short="amd_smi", file="libamd_smi.so", version="26.2.0", artifact=("core-amdsmi", "core/amdsmi/stage")
    ),
    Library(
        short="rocm_smi64",
        file="librocm_smi64.so",
        version="7.8.0",
        artifact=("base", "base/rocm_smi_lib/stage"),
    ),
    Library(
        short="rocm_kpack",
        file="librocm_kpack.so",
        version="0.1.0",
        artifact=("core-kpack", "core/kpack/stage"),
    ),
    Library(
        short="hipfile",
        file="libhipfile.so",
        version="0.2.0",
        artifact=("hipfile", "core/hipfile/stage"),
        needs=("amdhip64",),
    ),
    Library(
        short="hsa-runtime64",
        file="libhsa-runtime64.so",
        version="1.18.0",
        artifact=("core-runtime", "core/ROCR-Runtime/stage"),
    ),
    Library(short="profiler-hub", file="libprofiler-hub.so", version="0.1.0", artifact=_SYSTEMS),
    Library(
        short="rocprof-sys",
        file="librocprof-sys.so",
        version="1.4.0",
        artifact=_SYSTEMS,
        needs=("profiler-hub", "rocprofiler-sdk"),
    ),
    Library(short="roctx64", file="libroctx64.so", version="4.1.0", artifact=_TRACER),
    Library(short="roctracer64", file="libroctracer64.so", version="4.1.0", artifact=_TRACER),
    Library(short="rocprofiler-sdk", file="librocprofiler-sdk.so", version="1.1.0", artifact=_PROFILER),
    Library(
        short="rocprofiler-sdk-roctx", file="librocprofiler-sdk-roctx.so", version="1.1.0", artifact=_PROFILER
    ),
    Library(
        short="rocdecode",
        file="librocdecode.so",
        version="1.4.0",
        artifact=("rocdecode", "media-libs/rocdecode/stage"),
    ),
    Library(
        short="rocjpeg",
        file="librocjpeg.so",
        version="1.2.0",
        artifact=("rocjpeg", "media-libs/rocjpeg/stage"),
    ),
    Library(
        short="rocm_sysdeps_liblzma",
        file="librocm_sysdeps_liblzma.so",
        version="5.8.0",
        artifact=("sysdeps", "third-party/sysdeps/linux/xz/build/stage"),
        folder="lib/rocm_sysdeps/lib",
    ),
    Library(
        short="rocm-openblas",
        file="librocm-openblas.so",
        version="0.3",
        artifact=("host-blas", "third-party/host-blas/stage"),
        folder="lib/host-math/lib",
    ),
    _math("hipblas", "libhipblas.so", "3.1.0", _BLAS),
    _math("hipblaslt", "libhipblaslt.so", "1.1.0", ("blas", "math-libs/BLAS/hipBLASLt/stage")),
    _math("origami", "liborigami.so", "0.1.0", ("blas", "math-libs/BLAS/hipBLASLt/stage")),
    _math("hipsparse", "libhipsparse.so", "4.1.0", _SPARSE),
    _math("hipsparselt", "libhipsparselt.so", "0.2.0", _SPARSE),
    _math("hipsolver", "libhipsolver.so", "1.1.0", ("blas", "math-libs/BLAS/hipSOLVER/stage")),
    _math("hipfft", "libhipfft.so", "0.1.0", ("fft", "math-libs/hipFFT/stage")),
    _math("hiprand", "libhiprand.so", "1.1.0", ("rand", "math-libs/hipRAND/stage")),
    _math("miopen", "libMIOpen.so", "1.0.0", ("miopen", "ml-libs/MIOpen/stage")),
    _math("hipdnn", "libhipdnn_backend.so", "0.1.0", ("hipdnn", "ml-libs/hipDNN/stage")),
    _math("rocblas", "librocblas.so", "5.2.0", ("blas", "math-libs/BLAS/rocBLAS/stage")),
    _math("rocsolver", "librocsolver.so", "0.7.0", ("blas", "math-libs/BLAS/rocSOLVER/stage")),
    _math("rocsparse", "librocsparse.so", "1.0.0", ("blas", "math-libs/BLAS/rocSPARSE/stage")),
    _math("rocfft", "librocfft.so", "0.1.0", ("fft", "math-libs/rocFFT/stage")),
    _math("rocrand", "librocrand.so", "1.1.0", ("rand", "math-libs/rocRAND/stage")),
    _math("rccl", "librccl.so", "1.0.0", ("rccl", "comm-libs/rccl/stage")),
    _math("rpp", "librpp.so", "2.1.0", ("rpp", "media-libs/rpp/stage")),
)


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file that is copied from the sample's templates.

    Attributes:
        artifact: ``(name, component, target)``.
        path: Its path in the artifact, the stage folder first.
        template: Its path below ``templates/``; empty where `text` holds its content.
        text: Its content.
        executable: Whether it is a program.
    """

    artifact: tuple[str, str, str]
    path: str
    template: str = ""
    text: str = ""
    executable: bool = False


_HIP_DEV = ("core-hip", "dev", "generic")
_HIP_HEADERS = ("hip_version.h", "hip_runtime_api.h", "hip_runtime.h", "detail/fatbin_wrapper.h")
_XZ = "third-party/sysdeps/linux/xz/build/stage/lib/rocm_sysdeps"

_AMD_COMPILERS = ("amdclang", "amdclang++", "amdclang-cpp", "amdclang-cl", "amdflang", "amdlld")
_ISA_FILES = tuple(f"oclc_isa_version_{target.removeprefix('gfx')}" for target in TARGETS)

# What others compile and find with CMake, though nothing of the sample does.
_DEVELOPED = (
    ("blas", FAMILY, "math-libs/BLAS/hipBLASLt", "hipblaslt"),
    ("blas", FAMILY, "math-libs/BLAS/hipSOLVER", "hipsolver"),
    ("blas", FAMILY, "math-libs/BLAS/hipSPARSE", "hipsparse"),
    ("blas", FAMILY, "math-libs/BLAS/rocBLAS", "rocblas"),
    ("fft", FAMILY, "math-libs/hipFFT", "hipfft"),
    ("miopen", FAMILY, "ml-libs/MIOpen", "miopen"),
    ("prim", "generic", "math-libs/rocPRIM", "rocprim"),
    ("rand", FAMILY, "math-libs/hipRAND", "hiprand"),
    ("rccl", FAMILY, "comm-libs/rccl", "rccl"),
)

DATA_FILES: tuple[DataFile, ...] = (
    *(
        DataFile(
            artifact=("amd-llvm", "run", "generic"),
            path=f"compiler/hipcc/stage/bin/{name}",
            template=f"bin/{name}",
            executable=True,
        )
        for name in ("hipcc", "hipconfig")
    ),
    *(
        DataFile(
            artifact=("core-runtime", "run", "generic"),
            path=f"core/ROCR-Runtime/stage/bin/{name}",
            template=f"bin/{name}",
            executable=True,
        )
        for name in ("rocminfo", "rocm_agent_enumerator")
    ),
    *(
        DataFile(artifact=_HIP_DEV, path=f"core/clr/stage/include/hip/{name}", template=f"include/hip/{name}")
        for name in _HIP_HEADERS
    ),
    DataFile(
        artifact=_HIP_DEV,
        path="core/clr/stage/lib/cmake/hip/hip-config.cmake",
        template="cmake/hip-config.cmake",
    ),
    DataFile(
        artifact=("rocprofiler-sdk", "dev", "generic"),
        path="profiler/roctracer/stage/include/roctracer/roctx.h",
        template="include/roctracer/roctx.h",
    ),
    DataFile(
        artifact=("host-blas", "dev", "generic"),
        path="third-party/host-blas/stage/lib/host-math/include/cblas.h",
        template="include/cblas.h",
    ),
    DataFile(artifact=("sysdeps", "dev", "generic"), path=f"{_XZ}/include/lzma.h", template="include/lzma.h"),
    DataFile(
        artifact=("sysdeps", "dev", "generic"),
        path=f"{_XZ}/lib/pkgconfig/liblzma.pc",
        template="cmake/liblzma.pc",
    ),
    DataFile(
        artifact=("blas", "dev", FAMILY),
        path="math-libs/BLAS/hipBLAS/stage/include/hipblas/hipblas.h",
        template="include/hipblas/hipblas.h",
    ),
    DataFile(
        artifact=("blas", "dev", FAMILY),
        path="math-libs/BLAS/hipBLAS/stage/lib/cmake/hipblas/hipblas-config.cmake",
        template="cmake/hipblas-config.cmake",
    ),
    *(
        DataFile(
            artifact=(name, "run", "generic"), path=f"{stage}/{path}", template="bin/tool", executable=True
        )
        for name, stage, path in (
            *(
                ("amd-llvm", "compiler/amd-llvm/stage", f"lib/llvm/bin/{one}")
                for one in ("clang", "clang++", "lld", *_AMD_COMPILERS)
            ),
            *(("hipify", "compiler/hipify/stage", f"bin/{one}") for one in ("hipify-clang", "hipify-perl")),
            ("core-amdsmi", "core/amdsmi/stage", "bin/amd-smi"),
            ("base", "base/rocm_smi_lib/stage", "bin/rocm-smi"),
        )
    ),
    *(
        DataFile(
            artifact=("rocprofiler-systems", "run", "generic"),
            path=f"profiler/rocprofiler-systems/stage/bin/rocprof-sys-{name}",
            text='#!/bin/sh\necho "${0##*/}: profiling with $ROCM_PATH: $*"\n',
            executable=True,
        )
        for name in ("instrument", "run", "sample")
    ),
    *(
        DataFile(artifact=(artifact, "dev", target), path=f"{stage}/stage/{path}", text=text)
        for artifact, target, stage, name in _DEVELOPED
        for path, text in (
            (f"include/{name}/{name}.h", "#pragma once\n"),
            (f"lib/cmake/{name}/{name}-config.cmake", f"set({name}_FOUND TRUE)\n"),
        )
        # its header is another
        if name != "rocprim" or path.startswith("lib")
    ),
    DataFile(
        artifact=("prim", "dev", "generic"),
        path="math-libs/rocPRIM/stage/include/rocprim/rocprim_version.hpp",
        text="#pragma once\n#define ROCPRIM_VERSION 400100\n",
    ),
    *(
        DataFile(
            artifact=(artifact, "doc", target),
            path=f"{stage}/share/doc/{name}/LICENSE.md",
            text=f"The sample's {name} is under the MIT licence of the project that it belongs to.\n",
        )
        for artifact, target, stage, name in (
            ("amd-llvm", "generic", "compiler/amd-comgr/stage", "amd_comgr"),
            ("core-hip", "generic", "core/clr/stage", "hip"),
            ("blas", FAMILY, "math-libs/BLAS/hipBLAS/stage", "hipblas"),
        )
    ),
    *(
        # An LLVM bitcode file starts with BC 0xC0DE; nothing of the sample reads further.
        DataFile(
            artifact=("amd-llvm", "lib", "generic"),
            path=f"compiler/amd-llvm/stage/lib/llvm/amdgcn/bitcode/{name}.bc",
            text=f"BC\xc0\xde{name}",
        )
        for name in ("ocml", "ockl", "oclc_abi_version_600", *_ISA_FILES)
    ),
)

SYMLINKS: tuple[tuple[tuple[str, str, str], str, str], ...] = (
    *(
        (("amd-llvm", "run", "generic"), f"compiler/amd-llvm/stage/bin/{name}", f"../lib/llvm/bin/{name}")
        for name in _AMD_COMPILERS
    ),
    # An ELF program behind a symlink, and a symlinked folder: both occur in real artifacts.
    (
        ("amd-llvm", "run", "generic"),
        "compiler/amd-llvm/stage/bin/offload-arch",
        "../lib/llvm/bin/offload-arch",
    ),
    (("amd-llvm", "run", "generic"), "compiler/amd-llvm/stage/llvm", "lib/llvm"),
)
OFFLOAD_ARCH = (("amd-llvm", "run", "generic"), "compiler/amd-llvm/stage/lib/llvm/bin/offload-arch")
AUX_OVERLAY = (("base", "lib", "generic"), "base/aux-overlay/stage/share/therock")

DEVICE_LIBRARY = "lib/libMIOpenCKGroupedConv_{target}.so"
"""A library of one gfx target's kernels, which only its device package holds; of the artifact miopen."""
_DATABASES = (
    ("blas", "math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_{target}.dat"),
    ("blas", "math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/Kernels.so-000-{target}.hsaco"),
    (
        "blas",
        "math-libs/BLAS/hipBLASLt/stage/lib/hipblaslt/library/{target}/TensileLibrary_lazy_{target}.dat",
    ),
    ("miopen", "ml-libs/MIOpen/stage/share/miopen/db/{target}130.HIP.fdb.txt"),
    ("rccl", "comm-libs/rccl/stage/share/rccl/msccl-algorithms/{target}.xml"),
)
# Compiles its kernels where it runs.
WITHOUT_ARCHIVE = "rpp"


def data_files(*, split: bool) -> tuple[DataFile, ...]:
    """List the files of one variant of the sample.

    Args:
        split: Whether device code, with the databases of each gfx target, lies in artifacts of its own
            (``KPACK_SPLIT_ARTIFACTS``), or in those of its family.
    """
    found = list(DATA_FILES)
    for name, path in _DATABASES:
        for family, targets in FAMILY_TARGETS.items():
            for target in targets:
                owner, where = target if split else family, path.format(target=target)
                found.append(DataFile(artifact=(name, "lib", owner), path=where, text=f"{name} {target}\n"))
    return tuple(found)
