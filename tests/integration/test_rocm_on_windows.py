"""The sample's packages for Windows: made on this machine, and used by a Windows Python under Wine."""

import fnmatch
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

import pytest

from core import process
from core.errors import MissingInputError
from pytorch_build.check.run import check_wheels
from rocm_packaging.packages.build import BuildRequest, BuiltPackages, build
from rocm_packaging.sample import FAMILIES, ROCM_VERSION, ensure_artifacts
from tests.kit.clones import printed_by
from tests.kit.windows_python import WindowsPython, windows_python

__all__ = ["windows_python"]

COMPILER = "x86_64-w64-mingw32-g++"
COMPILERS_OF_LLVM = {"amdclang", "amdclang++", "amdclang-cl", "amdclang-cpp", "amdflang", "amdlld"}
# All of ROCm, by layout.
REQUIREMENTS = {
    "split": f"rocm[libraries,devel,device]=={ROCM_VERSION}",
    "unsplit": f"rocm[libraries,devel]=={ROCM_VERSION}",
}
# The GPU or the family, by layout, for which the sdist of rocm requires packages.
TARGET_FAMILIES = {"split": "gfx942", "unsplit": "gfx94X-dcgpu"}


def make_artifacts(folder: Path, layout: str) -> Path:
    """Make the sample's artifacts for Windows; skip where this machine cannot compile for it."""
    try:
        return ensure_artifacts(folder, split=layout == "split", platform="windows")
    except MissingInputError as problem:
        pytest.skip(problem.message)


def make_packages(folder: Path, layout: str) -> BuiltPackages:
    """Make the sample's packages for Windows, of both families."""
    request = BuildRequest(
        artifact_dir=make_artifacts(folder / "artifacts", layout),
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

    for wheel in wheels:
        assert wheel.name.endswith("-py3-none-win_amd64.whl")
    for finding in check_wheels(wheels):
        assert finding.severity != "error", finding


@pytest.mark.nightly
def test_packages_are_always_the_same(packages: BuiltPackages, layout: str, tmp_path: Path) -> None:
    assert make_packages(tmp_path, layout).digests == packages.digests


def test_compilers_have_console_scripts_though_windows_has_no_links(packages: BuiltPackages) -> None:
    (core_wheel,) = [wheel for wheel in wheels_of(packages) if wheel.name.startswith("rocm_sdk_core-")]

    with zipfile.ZipFile(core_wheel) as archive:
        members = archive.namelist()
        (entry_points,) = fnmatch.filter(members, "*/entry_points.txt")
        lines = archive.read(entry_points).decode().splitlines()

    scripts = {line.partition(" =")[0] for line in lines}
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

    def install(self, requirement: str) -> None:
        """Install from the folder of packages alone."""
        options: list[str | Path] = ["--no-index", "--no-build-isolation", "--no-cache"]
        options += ["--find-links", self.packages, "--python", self.root]
        variables = {"ROCM_SDK_TARGET_FAMILY": self.family}
        self.windows.uv("pip", "install", *options, requirement, cwd=self.root, variables=variables)

    def uninstall(self, *names: str) -> None:
        """Remove distributions."""
        self.windows.uv("pip", "uninstall", "--python", self.root, *names, cwd=self.root)

    def run(self, *arguments: str | Path, check: bool = True) -> process.Completed:
        """Run the environment's Python."""
        python = self.root / "Scripts" / "python.exe"
        return self.windows.run(python, *arguments, cwd=self.root, check=check)

    def rocm_sdk(self, command: str, *, check: bool = True) -> process.Completed:
        """Run a command of ROCm's own command line."""
        return self.run("-m", "rocm_sdk", command, check=check)


@pytest.fixture(scope="module")
def make_environment(
    windows_python: WindowsPython, packages: BuiltPackages, layout: str, setuptools: Path
) -> Callable[[Path], Environment]:
    """Return what makes an environment in a folder, without ROCm, for the packages of a layout."""
    python = windows_python.drive / "py" / "python.exe"

    def make(folder: Path) -> Environment:
        root = folder / "an environment"
        windows_python.uv("venv", "--python", python, root, cwd=folder)
        environment = Environment(
            windows=windows_python,
            root=root,
            packages=packages.files[0].path.parent,
            family=TARGET_FAMILIES[layout],
        )
        # The sdist of rocm is built without isolation, and this machine's setuptools builds it.
        setuptools_path = environment.site / "setuptools.pth"
        setuptools_path.write_text(windows_python.path(setuptools), encoding="utf-8")
        return environment

    return make


@pytest.fixture(scope="module")
def installed(
    make_environment: Callable[[Path], Environment],
    layout: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Environment:
    """Return an environment with all of ROCm, which tests leave as it is."""
    environment = make_environment(tmp_path_factory.mktemp("installed"))
    environment.install(REQUIREMENTS[layout])
    return environment


@pytest.mark.nightly
def test_an_installation_passes_its_checks(installed: Environment, layout: str) -> None:
    completed = installed.rocm_sdk("test", check=False)

    assert completed.returncode == 0, printed_by(completed)
    lines = completed.stdout.splitlines()
    passed_checks = {line.removeprefix("ok    ") for line in lines if line.startswith("ok ")}
    assert "core: amdclang++ runs" in passed_checks
    assert "core: a kernel is compiled for gfx942" in passed_checks
    assert "libraries: bin/hipblas.dll loads" in passed_checks
    assert "libraries: initialize_process loads hipblas" in passed_checks
    assert "devel: the files of libraries are in it" in passed_checks
    assert ("device: the code for gfx942 is there" in passed_checks) == (layout == "split")


# Loads a library, and prints the paths of all DLLs of the process.
LOAD = """
import sys, rocm_sdk
from rocm_sdk import _dlls
rocm_sdk.preload_libraries(sys.argv[1])
print(*_dlls.loaded_files(), sep="\\n")
"""


@pytest.mark.nightly
def test_a_library_brings_what_it_needs_of_another_package(installed: Environment) -> None:
    lines = installed.run("-c", LOAD, "hipblas").stdout.splitlines()

    packages_by_dll: dict[str, str] = {}
    for line in lines:
        if "_rocm_sdk" in line:
            # As in PACKAGE\bin\hipblas.dll.
            dll = PureWindowsPath(line)
            packages_by_dll[dll.name] = dll.parts[-3]
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
    sample_program = offload_arch.rename(tmp_path / offload_arch.name)
    program.rename(offload_arch)

    code = "from rocm_sdk import _dist_info; print(_dist_info.discover_current_target_family())"
    try:
        family = installed.run("-c", code).stdout.strip()
    finally:
        sample_program.replace(offload_arch)

    assert family in {"gfx1100", "gfx110X-all"}


@pytest.mark.nightly
def test_the_development_tree_is_made_of_hard_links_and_goes_with_its_package(
    make_environment: Callable[[Path], Environment], layout: str, tmp_path: Path
) -> None:
    environment = make_environment(tmp_path)
    files_before = environment.files()
    environment.install(REQUIREMENTS[layout])
    environment.rocm_sdk("init")

    core_library = environment.site / "_rocm_sdk_core" / "bin" / "amdhip64_7.dll"
    assert (environment.tree / "bin" / "amdhip64_7.dll").samefile(core_library)
    (blas_library,) = environment.site.glob("_rocm_sdk_libraries*/bin/hipblas.dll")
    assert (environment.tree / "bin" / "hipblas.dll").samefile(blas_library)

    names = [path.name.partition("-")[0] for path in environment.site.glob("rocm*.dist-info")]
    environment.uninstall(*names)

    assert environment.files() == files_before
