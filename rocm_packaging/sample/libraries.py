"""The shared libraries of the miniature ROCm, and how they are compiled."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from core import process
from rocm_packaging.sample.facts import (
    FAMILIES,
    GENERIC,
    TARGETS,
    TEMPLATES,
    ArtifactName,
)

# No start files beyond libc's: most of the sample's time is starting compilers and linkers.
_FLAGS = (
    "-shared",
    "-fPIC",
    "-O1",
    "-s",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
)


@dataclass(frozen=True, kw_only=True)
class SampleLibrary:
    """One shared library.

    Attributes:
        short: The name that `rocm_sdk.find_libraries` knows it by; selects its source block.
        file: Its file name without a version, ``libamdhip64.so``.
        version: Its full version; the first number is the SONAME's. "" for a library without one.
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
        major, _, _ = self.version.partition(".")
        return f"{self.file}.{major}" if major else self.file

    @property
    def path(self) -> str:
        """Its file below the stage."""
        file = f"{self.file}.{self.version}" if self.version else self.file
        return f"{self.folder}/{file}"

    def targets(self, *, split: bool) -> Sequence[str]:
        """Return the targets of the artifacts that have it."""
        return FAMILIES if self.per_family and not split else (GENERIC,)

    def path_in(self, root: Path, target: str = GENERIC) -> Path:
        """Return its file in an artifact directory."""
        name, stage = self.artifact
        return ArtifactName(name=name, component="lib", target=target).folder(root) / stage / self.path


_CLR = ("core-hip", "core/clr/stage")
_PROFILER = ("rocprofiler-sdk", "profiler/rocprofiler-sdk/stage")
_SYSTEMS = ("rocprofiler-systems", "profiler/rocprofiler-systems/stage")
_TRACER = ("rocprofiler-sdk", "profiler/roctracer/stage")
_BLAS = ("blas", "math-libs/BLAS/hipBLAS/stage")
_SPARSE = ("blas", "math-libs/BLAS/hipSPARSE/stage")


def _math(short: str, file: str, version: str, artifact: tuple[str, str]) -> SampleLibrary:
    return SampleLibrary(
        short=short,
        file=file,
        version=version,
        artifact=artifact,
        needs=("amdhip64",),
        per_family=True,
    )


LIBRARIES: tuple[SampleLibrary, ...] = (
    SampleLibrary(short="amdhip64", file="libamdhip64.so", version="7.99.0", artifact=_CLR),
    SampleLibrary(
        short="hiprtc",
        file="libhiprtc.so",
        version="7.99.0",
        artifact=_CLR,
        needs=("amdhip64",),
    ),
    SampleLibrary(
        short="amd_comgr",
        file="libamd_comgr.so",
        version="3.0.0",
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
        artifact=("host-blas", "third-party/host-blas/stage"),
        folder="lib/host-math/lib",
    ),
    _math("hipblas", "libhipblas.so", "3.1.0", _BLAS),
    _math(
        "hipblaslt",
        "libhipblaslt.so",
        "1.1.0",
        ("blas", "math-libs/BLAS/hipBLASLt/stage"),
    ),
    _math(
        "origami",
        "liborigami.so",
        "0.1.0",
        ("blas", "math-libs/BLAS/hipBLASLt/stage"),
    ),
    _math("hipsparse", "libhipsparse.so", "4.1.0", _SPARSE),
    _math("hipsparselt", "libhipsparselt.so", "0.2.0", _SPARSE),
    _math(
        "hipsolver",
        "libhipsolver.so",
        "1.1.0",
        ("blas", "math-libs/BLAS/hipSOLVER/stage"),
    ),
    _math("hipfft", "libhipfft.so", "0.1.0", ("fft", "math-libs/hipFFT/stage")),
    _math("hiprand", "libhiprand.so", "1.1.0", ("rand", "math-libs/hipRAND/stage")),
    _math("miopen", "libMIOpen.so", "1.0.0", ("miopen", "ml-libs/MIOpen/stage")),
    _math(
        "hipdnn",
        "libhipdnn_backend.so",
        "0.1.0",
        ("hipdnn", "ml-libs/hipDNN/stage"),
    ),
    _math(
        "rocblas",
        "librocblas.so",
        "5.2.0",
        ("blas", "math-libs/BLAS/rocBLAS/stage"),
    ),
    _math(
        "rocsolver",
        "librocsolver.so",
        "0.7.0",
        ("blas", "math-libs/BLAS/rocSOLVER/stage"),
    ),
    _math(
        "rocsparse",
        "librocsparse.so",
        "1.0.0",
        ("blas", "math-libs/BLAS/rocSPARSE/stage"),
    ),
    _math("rocfft", "librocfft.so", "0.1.0", ("fft", "math-libs/rocFFT/stage")),
    _math("rocrand", "librocrand.so", "1.1.0", ("rand", "math-libs/rocRAND/stage")),
    _math("rccl", "librccl.so", "1.0.0", ("rccl", "comm-libs/rccl/stage")),
    _math("rpp", "librpp.so", "2.1.0", ("rpp", "media-libs/rpp/stage")),
)

DEVICE_LIBRARY = "lib/libMIOpenCKGroupedConv_{target}.so"
"""A library of one gfx target's kernels, which only its device package holds; of the artifact miopen."""
# Compiles its kernels where it runs.
_WITHOUT_ARCHIVE = "rpp"


def library_named(short: str) -> SampleLibrary:
    """Return a library by its short name."""
    (library,) = [library for library in LIBRARIES if library.short == short]
    return library


def archived_libraries() -> dict[str, list[SampleLibrary]]:
    """Return the libraries whose code lies in archives of a split ROCm, by artifact."""
    libraries: dict[str, list[SampleLibrary]] = {}
    for library in LIBRARIES:
        name, _stage = library.artifact
        if library.per_family and name != _WITHOUT_ARCHIVE:
            libraries.setdefault(name, []).append(library)
    return libraries


def _device_library(target: str) -> SampleLibrary:
    """Return the library that only the device package of a gfx target holds."""
    file = DEVICE_LIBRARY.format(target=target).rpartition("/")[2]
    return replace(library_named("miopen"), short="ck", file=file, version="")


class LibraryCompiler:
    """Compiles the sample's libraries into an artifact directory.

    `bundles` are the device code of unsplit libraries, a file a family; `references` say of libraries of a
    split ROCm, by short name, where their code is.
    """

    def __init__(
        self,
        root: Path,
        scratch: Path,
        compiler: Path,
        *,
        bundles: Mapping[str, Path],
        references: Mapping[str, Path],
    ) -> None:
        self._root = root
        self._scratch = scratch
        self._compiler = compiler
        self._bundles = bundles
        self._references = references

    def compile_all(self, pool: ThreadPoolExecutor, *, split: bool) -> None:
        """Compile every library, those that others link to first."""
        needed_names: set[str] = set()
        for library in LIBRARIES:
            needed_names.update(library.needs)
        for library in LIBRARIES:
            if library.short in needed_names:
                self._compile(library, GENERIC)

        jobs: list[Future[None]] = []
        for library in LIBRARIES:
            if library.short not in needed_names:
                targets = library.targets(split=split)
                jobs += [pool.submit(self._compile, library, target) for target in targets]
        if split:
            jobs += [pool.submit(self._compile, _device_library(target), target) for target in TARGETS]
        for job in jobs:
            job.result()

    def _compile(self, library: SampleLibrary, target: str) -> None:
        path = library.path_in(self._root, target)
        path.parent.mkdir(parents=True, exist_ok=True)
        needed_paths = [library_named(short).path_in(self._root) for short in library.needs]
        block = library.short.replace("-", "_")
        process.capture(
            [
                self._compiler,
                *_FLAGS,
                f"-I{TEMPLATES / 'include'}",
                f'-DLIBRARY="{library.short}"',
                f"-DIN_{block}",
                *self._device_code_options(library, target),
                TEMPLATES / "library.cpp",
                "-o",
                path,
                f"-Wl,-soname,{library.soname}",
                f"-Wl,-rpath,{library.rpath}",
                "-Wl,--no-as-needed",
                "-nodefaultlibs",
                *needed_paths,
                "-lc",
            ],
            cwd=self._scratch,
        )
        for link in dict.fromkeys((library.soname, library.file)):
            if link != path.name:
                (path.parent / link).symlink_to(path.name)

    def _device_code_options(self, library: SampleLibrary, target: str) -> list[str]:
        if library.short in self._references:
            reference = self._references[library.short]
            return [f'-D__HIP_KPACK_REF_FILE__="{reference}"', "-DHAS_FATBIN"]
        if target in self._bundles:
            return [
                f'-D__HIP_FATBIN_FILE__="{self._bundles[target]}"',
                "-DHAS_FATBIN",
            ]
        return []
