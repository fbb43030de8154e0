"""The sample's packages for Windows: made on this machine, and used by a Windows Python under Wine."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from core import process
from core.errors import MissingInputError
from pytorch_build.check.run import check_wheels
from rocm_packaging.packages.build import BuildRequest, BuiltPackages, build
from rocm_packaging.sample import FAMILIES, ROCM_VERSION, ensure_artifacts
from tests.kit.windows_python import WindowsPython, windows_python

__all__ = ["windows_python"]

COMPILER = "x86_64-w64-mingw32-g++"
COMPILERS_OF_LLVM = {"amdclang", "amdclang++", "amdclang-cl", "amdclang-cpp", "amdflang", "amdlld"}
REQUIREMENTS = {"split": "rocm[libraries,devel,device]", "unsplit": "rocm[libraries,devel]"}
# What decides about the requirements of the sdist, by layout.
TARGET_FAMILIES = {"split": "gfx942", "unsplit": "gfx94X-dcgpu"}


def make_artifacts(folder: Path, layout: str) -> Path:
    """Make the sample's artifacts for Windows; skip where this machine cannot compile for it."""
    try:
        return ensure_artifacts(folder, split=layout == "split", platform="windows")
    except MissingInputError as problem:
        pytest.skip(problem.message)


def make_packages(folder: Path, layout: str) -> BuiltPackages:
    """Make the sample's packages for Windows, of both families."""
    artifacts = make_artifacts(folder / "artifacts", layout)
    request = BuildRequest(
        artifact_dir=artifacts,
        output_dir=folder / "packages",
        families=FAMILIES,
        platform="windows",
    )
    return build(request)


@pytest.fixture(scope="module", params=["split", "unsplit"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def packages(layout: str, tmp_path_factory: pytest.TempPathFactory) -> BuiltPackages:
    return make_packages(tmp_path_factory.mktemp(layout), layout)


def wheels_of(packages: BuiltPackages) -> list[Path]:
    """Return the wheels among packages."""
    return [file.path for file in packages.files if file.path.suffix == ".whl"]


# On any machine


def test_packages_are_made_for_windows_and_nothing_else(packages: BuiltPackages) -> None:
    wheels = wheels_of(packages)

    assert all(wheel.name.endswith("-py3-none-win_amd64.whl") for wheel in wheels)
    assert [finding for finding in check_wheels(wheels) if finding.severity == "error"] == []


@pytest.mark.nightly
def test_packages_are_always_the_same(packages: BuiltPackages, layout: str, tmp_path: Path) -> None:
    assert make_packages(tmp_path, layout).digests == packages.digests


def test_compilers_have_console_scripts_though_windows_has_no_links(packages: BuiltPackages) -> None:
    (core,) = [wheel for wheel in wheels_of(packages) if wheel.name.startswith("rocm_sdk_core-")]

    with zipfile.ZipFile(core) as archive:
        (entry_points,) = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        text = archive.read(entry_points).decode()
        members = set(archive.namelist())

    scripts = {line.partition(" =")[0] for line in text.splitlines()}
    assert {*COMPILERS_OF_LLVM, "offload-arch", "hipcc", "hipInfo"} <= scripts
    assert "_rocm_sdk_core/lib/llvm/bin/offload-arch.exe" in members
    assert "_rocm_sdk_core/bin/offload-arch.exe" not in members


# Under Wine


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment of Windows' Python, whose path holds a space, with the packages of a folder."""

    windows: WindowsPython
    root: Path
    packages: Path
    family: str

    @property
    def site(self) -> Path:
        """Where packages lie."""
        return self.root / "Lib" / "site-packages"

    @property
    def tree(self) -> Path:
        """The development tree."""
        return self.site / "_rocm_sdk_devel"

    def files(self) -> set[Path]:
        """Return the paths of what is installed."""
        return {*self.site.rglob("*"), *(self.root / "Scripts").iterdir()}

    def install(self, *requirements: str) -> None:
        """Install from the folder of packages alone."""
        options: list[str | Path] = ["--no-index", "--no-build-isolation", "--no-cache"]
        options += ["--find-links", self.packages, "--python", self.root]
        self.windows.uv(
            "pip",
            "install",
            *options,
            *requirements,
            cwd=self.root,
            variables={"ROCM_SDK_TARGET_FAMILY": self.family},
        )

    def run(self, *words: str | Path, check: bool = True) -> process.Completed:
        """Run the environment's Python."""
        python = self.root / "Scripts" / "python.exe"
        return self.windows.run(python, *words, cwd=self.root, check=check)

    def rocm_sdk(self, *words: str, check: bool = True) -> process.Completed:
        """Run ROCm's own command line."""
        return self.run("-m", "rocm_sdk", *words, check=check)


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Makes environments of Windows' Python for the packages of a layout."""

    windows: WindowsPython
    packages: Path
    layout: str
    setuptools: Path

    def make(self, folder: Path) -> Environment:
        """Make an environment without ROCm."""
        root = folder / "an environment"
        python = self.windows.drive / "py" / "python.exe"
        self.windows.uv("venv", "--python", python, root, cwd=folder)
        environment = Environment(
            windows=self.windows,
            root=root,
            packages=self.packages,
            family=TARGET_FAMILIES[self.layout],
        )
        setuptools_path = environment.site / "setuptools.pth"
        setuptools_path.write_text(self.windows.path(self.setuptools), encoding="utf-8")
        return environment


@pytest.fixture(scope="module")
def maker(windows_python: WindowsPython, packages: BuiltPackages, layout: str, setuptools: Path) -> Maker:
    folder = packages.files[0].path.parent
    return Maker(windows=windows_python, packages=folder, layout=layout, setuptools=setuptools)


@pytest.fixture(scope="module")
def installed(maker: Maker, layout: str, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with all of ROCm, which tests leave as it is."""
    environment = maker.make(tmp_path_factory.mktemp("installed"))
    environment.install(f"{REQUIREMENTS[layout]}=={ROCM_VERSION}")
    return environment


@pytest.mark.nightly
def test_an_installation_passes_its_checks(installed: Environment, layout: str) -> None:
    tested = installed.rocm_sdk("test", check=False)

    assert tested.returncode == 0, tested.stdout + tested.stderr
    passed = {line.removeprefix("ok    ") for line in tested.stdout.splitlines() if line.startswith("ok ")}
    assert "core: amdclang++ runs" in passed
    assert "core: a kernel is compiled for gfx942" in passed
    assert "libraries: bin/hipblas.dll loads" in passed
    assert "libraries: initialize_process loads hipblas" in passed
    assert "devel: the files of libraries are in it" in passed
    assert ("device: the code for gfx942 is there" in passed) == (layout == "split")


LOAD = """
import sys, rocm_sdk
from rocm_sdk import _dlls
rocm_sdk.preload_libraries(sys.argv[1])
print(*_dlls.loaded_files(), sep="\\n")
"""


@pytest.mark.nightly
def test_a_library_brings_what_it_needs_of_another_package(installed: Environment) -> None:
    lines = installed.run("-c", LOAD, "hipblas").stdout.splitlines()

    packages_by_dll = {
        line.rpartition("\\")[2]: line.split("\\")[-3] for line in lines if "_rocm_sdk" in line
    }
    assert packages_by_dll["hipblas.dll"].startswith("_rocm_sdk_libraries")
    assert packages_by_dll["amdhip64_7.dll"] == "_rocm_sdk_core"
    assert packages_by_dll["hiprtc0799.dll"] == "_rocm_sdk_core"


@pytest.mark.nightly
def test_the_gpu_of_the_machine_is_found_by_offload_arch(installed: Environment, tmp_path: Path) -> None:
    source = tmp_path / "gpu.cpp"
    source.write_text('#include <stdio.h>\nint main() { return puts("gfx1100"), 0; }\n', encoding="utf-8")
    program = tmp_path / "gpu.exe"
    process.capture([COMPILER, "-static", source, "-o", program])
    offload_arch = installed.site / "_rocm_sdk_core" / "lib" / "llvm" / "bin" / "offload-arch.exe"
    program_of_sample = offload_arch.rename(tmp_path / offload_arch.name)
    program.rename(offload_arch)

    code = "from rocm_sdk import _dist_info; print(_dist_info.discover_current_target_family())"
    family = installed.run("-c", code).stdout.strip()

    program_of_sample.replace(offload_arch)
    assert family in {"gfx1100", "gfx110X-all"}


@pytest.mark.nightly
def test_the_development_tree_is_made_of_hard_links_and_goes_with_its_package(
    maker: Maker, layout: str, tmp_path: Path
) -> None:
    environment = maker.make(tmp_path)
    files_before = environment.files()
    environment.install(f"{REQUIREMENTS[layout]}=={ROCM_VERSION}")
    environment.rocm_sdk("init")

    core_file = environment.site / "_rocm_sdk_core" / "bin" / "amdhip64_7.dll"
    assert (environment.tree / "bin" / "amdhip64_7.dll").samefile(core_file)
    (library,) = environment.site.glob("_rocm_sdk_libraries*/bin/hipblas.dll")
    assert (environment.tree / "bin" / "hipblas.dll").samefile(library)

    metadata = environment.site.glob("rocm*.dist-info")
    names = [path.name.partition("-")[0] for path in metadata]
    environment.windows.uv("pip", "uninstall", "--python", environment.root, *names, cwd=environment.root)

    assert environment.files() == files_before
