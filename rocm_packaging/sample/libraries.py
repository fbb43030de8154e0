"""The shared libraries of the miniature ROCm."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rocm_packaging.sample.facts import FAMILIES, GENERIC, ArtifactName, Variant


@dataclass(frozen=True, kw_only=True)
class SampleLibrary:
    """One shared library.

    Attributes:
        short: The name that `rocm_sdk.find_libraries` knows it by; selects its source block.
        file: Its file name without a version, ``libamdhip64.so``.
        version: Its full version; the first number is the SONAME's. "" for a library without one.
        artifact: ``(name, stage)`` of the artifact it belongs to.
        dll: Its file name on Windows, in ``bin``; "" where Windows has no such library.
        folder: Where it lies below the stage on Linux, and on Windows what is linked with in its place.
        rpath: Its RPATH, as a ROCm build sets it.
        needs: The libraries it links to, by short name.
        per_family: Whether it has device code: in it, once a family, or of each target in an archive.
    """

    short: str
    file: str
    version: str
    artifact: tuple[str, str]
    dll: str = ""
    folder: str = "lib"
    rpath: str = "$ORIGIN"
    needs: tuple[str, ...] = ()
    per_family: bool = False

    @property
    def soname(self) -> str:
        """The name that the dynamic loader looks for."""
        major, _, _ = self.version.partition(".")
        return f"{self.file}.{major}" if major else self.file

    def path(self, variant: Variant) -> str:
        """Return its file below the stage."""
        if variant.is_for_windows:
            return f"bin/{self.dll}"
        file = f"{self.file}.{self.version}" if self.version else self.file
        return f"{self.folder}/{file}"

    def targets(self, variant: Variant) -> Sequence[str]:
        """Return the targets of the artifacts that have it."""
        return FAMILIES if self.per_family and not variant.split else (GENERIC,)

    def path_in(self, root: Path, variant: Variant, target: str = GENERIC) -> Path:
        """Return its file in an artifact directory."""
        name, stage = self.artifact
        folder = ArtifactName(name=name, component="lib", target=target).folder(root)
        return folder / stage / self.path(variant)


_CLR = ("core-hip", "core/clr/stage")
_PROFILER = ("rocprofiler-sdk", "profiler/rocprofiler-sdk/stage")
_SYSTEMS = ("rocprofiler-systems", "profiler/rocprofiler-systems/stage")
_TRACER = ("rocprofiler-sdk", "profiler/roctracer/stage")
_BLAS = ("blas", "math-libs/BLAS/hipBLAS/stage")
_SPARSE = ("blas", "math-libs/BLAS/hipSPARSE/stage")


def _math(short: str, file: str, version: str, artifact: tuple[str, str], *, dll: str = "") -> SampleLibrary:
    return SampleLibrary(
        short=short,
        file=file,
        version=version,
        dll=dll,
        artifact=artifact,
        needs=("amdhip64",),
        per_family=True,
    )


LIBRARIES: tuple[SampleLibrary, ...] = (
    SampleLibrary(
        short="amdhip64", file="libamdhip64.so", version="7.99.0", dll="amdhip64_7.dll", artifact=_CLR
    ),
    SampleLibrary(
        short="hiprtc",
        file="libhiprtc.so",
        version="7.99.0",
        dll="hiprtc0799.dll",
        artifact=_CLR,
        needs=("amdhip64",),
    ),
    SampleLibrary(
        short="amd_comgr",
        file="libamd_comgr.so",
        version="3.0.0",
        dll="amd_comgr.dll",
        artifact=("amd-llvm", "compiler/amd-comgr/stage"),
    ),
    SampleLibrary(
        short="amd_smi",
        file="libamd_smi.so",
        version="26.2.0",
        artifact=("core-amdsmi", "core/amdsmi/stage"),
    ),
    SampleLibrary(
        short="rocm_smi64",
        file="librocm_smi64.so",
        version="7.8.0",
        artifact=("base", "base/rocm_smi_lib/stage"),
    ),
    SampleLibrary(
        short="rocm_kpack",
        file="librocm_kpack.so",
        version="0.1.0",
        dll="rocm_kpack.dll",
        artifact=("core-kpack", "core/kpack/stage"),
    ),
    SampleLibrary(
        short="hipfile",
        file="libhipfile.so",
        version="0.2.0",
        artifact=("hipfile", "core/hipfile/stage"),
        needs=("amdhip64",),
    ),
    SampleLibrary(
        short="hsa-runtime64",
        file="libhsa-runtime64.so",
        version="1.18.0",
        artifact=("core-runtime", "core/ROCR-Runtime/stage"),
    ),
    SampleLibrary(
        short="profiler-hub",
        file="libprofiler-hub.so",
        version="0.1.0",
        artifact=_SYSTEMS,
    ),
    SampleLibrary(
        short="rocprof-sys",
        file="librocprof-sys.so",
        version="1.4.0",
        artifact=_SYSTEMS,
        needs=("profiler-hub", "rocprofiler-sdk"),
    ),
    SampleLibrary(short="roctx64", file="libroctx64.so", version="4.1.0", artifact=_TRACER),
    SampleLibrary(
        short="roctracer64",
        file="libroctracer64.so",
        version="4.1.0",
        artifact=_TRACER,
    ),
    SampleLibrary(
        short="rocprofiler-sdk",
        file="librocprofiler-sdk.so",
        version="1.1.0",
        artifact=_PROFILER,
    ),
    SampleLibrary(
        short="rocprofiler-sdk-roctx",
        file="librocprofiler-sdk-roctx.so",
        version="1.1.0",
        artifact=_PROFILER,
    ),
    SampleLibrary(
        short="rocdecode",
        file="librocdecode.so",
        version="1.4.0",
        artifact=("rocdecode", "media-libs/rocdecode/stage"),
    ),
    SampleLibrary(
        short="rocjpeg",
        file="librocjpeg.so",
        version="1.2.0",
        artifact=("rocjpeg", "media-libs/rocjpeg/stage"),
    ),
    SampleLibrary(
        short="rocm_sysdeps_liblzma",
        file="librocm_sysdeps_liblzma.so",
        version="5.8.0",
        artifact=("sysdeps", "third-party/sysdeps/linux/xz/build/stage"),
        folder="lib/rocm_sysdeps/lib",
    ),
    SampleLibrary(
        short="rocm-openblas",
        file="librocm-openblas.so",
        version="0.3",
        dll="rocm-openblas.dll",
        artifact=("host-blas", "third-party/host-blas/stage"),
        folder="lib/host-math/lib",
    ),
    _math("hipblas", "libhipblas.so", "3.1.0", _BLAS, dll="hipblas.dll"),
    _math(
        "hipblaslt",
        "libhipblaslt.so",
        "1.1.0",
        ("blas", "math-libs/BLAS/hipBLASLt/stage"),
        dll="libhipblaslt.dll",
    ),
    _math(
        "origami",
        "liborigami.so",
        "0.1.0",
        ("blas", "math-libs/BLAS/hipBLASLt/stage"),
        dll="origami.dll",
    ),
    _math("hipsparse", "libhipsparse.so", "4.1.0", _SPARSE, dll="hipsparse.dll"),
    _math("hipsparselt", "libhipsparselt.so", "0.2.0", _SPARSE),
    _math(
        "hipsolver",
        "libhipsolver.so",
        "1.1.0",
        ("blas", "math-libs/BLAS/hipSOLVER/stage"),
        dll="hipsolver.dll",
    ),
    _math("hipfft", "libhipfft.so", "0.1.0", ("fft", "math-libs/hipFFT/stage"), dll="hipfft.dll"),
    _math("hiprand", "libhiprand.so", "1.1.0", ("rand", "math-libs/hipRAND/stage"), dll="hiprand.dll"),
    _math("miopen", "libMIOpen.so", "1.0.0", ("miopen", "ml-libs/MIOpen/stage"), dll="MIOpen.dll"),
    _math(
        "hipdnn",
        "libhipdnn_backend.so",
        "0.1.0",
        ("hipdnn", "ml-libs/hipDNN/stage"),
        dll="hipdnn_backend.dll",
    ),
    _math(
        "rocblas",
        "librocblas.so",
        "5.2.0",
        ("blas", "math-libs/BLAS/rocBLAS/stage"),
        dll="rocblas.dll",
    ),
    _math(
        "rocsolver",
        "librocsolver.so",
        "0.7.0",
        ("blas", "math-libs/BLAS/rocSOLVER/stage"),
        dll="rocsolver.dll",
    ),
    _math(
        "rocsparse",
        "librocsparse.so",
        "1.0.0",
        ("blas", "math-libs/BLAS/rocSPARSE/stage"),
        dll="rocsparse.dll",
    ),
    _math("rocfft", "librocfft.so", "0.1.0", ("fft", "math-libs/rocFFT/stage"), dll="rocfft.dll"),
    _math("rocrand", "librocrand.so", "1.1.0", ("rand", "math-libs/rocRAND/stage"), dll="rocrand.dll"),
    _math("rccl", "librccl.so", "1.0.0", ("rccl", "comm-libs/rccl/stage")),
    _math("rpp", "librpp.so", "2.1.0", ("rpp", "media-libs/rpp/stage")),
)

DEVICE_LIBRARY = "lib/libMIOpenCKGroupedConv_{target}.so"
"""A library of one gfx target's kernels, which only its device package holds; of the artifact miopen."""
# Compiles its kernels where it runs.
_WITHOUT_ARCHIVE = "rpp"


def libraries_of(variant: Variant) -> list[SampleLibrary]:
    """Return the libraries that a platform has."""
    if variant.is_for_windows:
        return [library for library in LIBRARIES if library.dll]
    return list(LIBRARIES)


def library_named(short: str) -> SampleLibrary:
    """Return a library by its short name."""
    (library,) = [library for library in LIBRARIES if library.short == short]
    return library


def archived_libraries(variant: Variant) -> dict[str, list[SampleLibrary]]:
    """Return the libraries whose code lies in archives of a split ROCm, by artifact."""
    libraries: dict[str, list[SampleLibrary]] = {}
    for library in libraries_of(variant):
        name, _stage = library.artifact
        if library.per_family and name != _WITHOUT_ARCHIVE:
            libraries.setdefault(name, []).append(library)
    return libraries


def device_library(target: str) -> SampleLibrary:
    """Return the library that only the device package of a gfx target holds."""
    file = DEVICE_LIBRARY.format(target=target).rpartition("/")[2]
    dll = f"{file.removeprefix('lib').removesuffix('.so')}.dll"
    return replace(library_named("miopen"), short="ck", file=file, version="", dll=dll)
