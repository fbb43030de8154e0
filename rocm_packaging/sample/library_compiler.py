"""How the shared libraries of the miniature ROCm are compiled: ELF files for Linux, DLLs for Windows."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from core import process
from rocm_packaging.sample.facts import GENERIC, TARGETS, TEMPLATES, ArtifactName, Variant
from rocm_packaging.sample.libraries import SampleLibrary, device_library, libraries_of, library_named

_FLAGS = ("-shared", "-O1", "-s", "-fno-exceptions", "-fno-rtti")
_ELF_FLAGS = ("-fPIC", "-fvisibility=hidden")
# The same sources make the same bytes: no time of linking, no base address that follows from the path.
_DLL_FLAGS = ("-static-libgcc", "-Wl,--no-insert-timestamp", "-Wl,--disable-auto-image-base")


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
        variant: Variant,
        *,
        bundles: Mapping[str, Path],
        references: Mapping[str, Path],
    ) -> None:
        self._root = root
        self._scratch = scratch
        self._compiler = compiler
        self._variant = variant
        self._bundles = bundles
        self._references = references

    def compile_all(self, pool: ThreadPoolExecutor) -> None:
        """Compile every library, those that others link to first."""
        libraries = libraries_of(self._variant)
        needed_names: set[str] = set()
        for library in libraries:
            needed_names.update(library.needs)
        for library in libraries:
            if library.short in needed_names:
                self._compile(library, GENERIC)

        jobs: list[Future[None]] = []
        for library in libraries:
            if library.short not in needed_names:
                targets = library.targets(self._variant)
                jobs += [pool.submit(self._compile, library, target) for target in targets]
        if self._variant.split:
            jobs += [pool.submit(self._compile, device_library(target), target) for target in TARGETS]
        for job in jobs:
            job.result()

    def _compile(self, library: SampleLibrary, target: str) -> None:
        path = library.path_in(self._root, self._variant, target)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._variant.is_for_windows:
            options = self._dll_options(library, target)
        else:
            options = self._elf_options(library)

        block = library.short.replace("-", "_")
        process.capture(
            [
                self._compiler,
                *_FLAGS,
                *self._include_options(),
                f'-DLIBRARY="{library.short}"',
                f"-DIN_{block}",
                *self._device_code_options(library, target),
                TEMPLATES / "library.cpp",
                "-o",
                path,
                *options,
            ],
            cwd=self._scratch,
        )
        if not self._variant.is_for_windows:
            for link in dict.fromkeys((library.soname, library.file)):
                if link != path.name:
                    (path.parent / link).symlink_to(path.name)

    def _include_options(self) -> Iterator[str]:
        """Yield the folders of headers, the platform's before those for all."""
        if self._variant.is_for_windows:
            yield f"-I{TEMPLATES / 'windows' / 'include'}"
        yield f"-I{TEMPLATES / 'include'}"

    def _elf_options(self, library: SampleLibrary) -> list[str | Path]:
        # No start files beyond libc's: most of the sample's time is starting compilers and linkers.
        return [
            *_ELF_FLAGS,
            f"-Wl,-soname,{library.soname}",
            f"-Wl,-rpath,{library.rpath}",
            "-Wl,--no-as-needed",
            "-nodefaultlibs",
            *self._needed_paths(library),
            "-lc",
        ]

    def _dll_options(self, library: SampleLibrary, target: str) -> list[str | Path]:
        """Return how a DLL is linked, to the DLLs that it needs, and where its import library goes."""
        if target in TARGETS:  # what HIP opens by name is not linked to
            return [*_DLL_FLAGS, *self._needed_paths(library)]

        name, stage = library.artifact
        developed = ArtifactName(name=name, component="dev", target=target).folder(self._root)
        import_library = developed / stage / library.folder / f"{library.short}.lib"
        import_library.parent.mkdir(parents=True, exist_ok=True)
        return [*_DLL_FLAGS, f"-Wl,--out-implib,{import_library}", *self._needed_paths(library)]

    def _needed_paths(self, library: SampleLibrary) -> list[Path]:
        return [library_named(short).path_in(self._root, self._variant) for short in library.needs]

    def _device_code_options(self, library: SampleLibrary, target: str) -> list[str]:
        if library.short in self._references:
            reference = self._references[library.short]
            return [f'-D__HIP_KPACK_REF_FILE__="{reference.as_posix()}"', "-DHAS_FATBIN"]
        if target in self._bundles:
            return [
                f'-D__HIP_FATBIN_FILE__="{self._bundles[target].as_posix()}"',
                "-DHAS_FATBIN",
            ]
        return []
