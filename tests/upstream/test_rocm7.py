"""Real ROCm 7 in both layouts: packaged, installed, compared, and its programs run in a root of their own."""

import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pytest
from packaging.metadata import Metadata

from core import process
from core.env import installer
from core.errors import ArtifactError
from core.files import sha256
from core.wheel import read_metadata
from core.wheel.record import require_sound
from pytorch_build.check.device_code import file_facts
from pytorch_build.check.run import check_wheels
from pytorch_build.split.split_wheel import split_wheel
from rocm_packaging.artifacts import build_info, scan
from rocm_packaging.packages.build import BuildRequest, BuiltPackages, build
from rocm_packaging.packages.plan import make_plan
from tests.kit.environments import Venv, create_environment
from tests.kit.findings import errors_among
from tests.kit.hip_libraries import write_sources, write_wheel_around
from tests.kit.upstream_inputs import distributions_of

Layout = Literal["split", "unsplit"]
# Quick runs package the split layout alone.
LAYOUTS = ["split", pytest.param("unsplit", marks=pytest.mark.nightly)]
TARGET = "gfx942"
OTHER_TARGET = "gfx1100"
# The artifacts are a part of ROCm: the compilers, HIP, rocBLAS, hipBLASLt and rocFFT.
ABSENT_LIBRARIES = (
    "hipblas",
    "hipblaslt-kernels",
    "hipsolver",
    "hipsparse",
    "hipsparselt",
    "miopen",
    "origami",
    "rand",
    "rocprofiler-*",
    "rocsolver",
    "rocsparse",
)
# What a build says of itself, and what an expanded tree does, differ by layout.
FILES_OF_A_LAYOUT = ("share/therock/", ".rocm_sdk_devel.json", ".devel_links")
TEXTS = Path(__file__).with_name("texts")


@dataclass(frozen=True, kw_only=True)
class Packages:
    """The packages of one layout."""

    layout: Layout
    folder: Path
    output: BuiltPackages

    @property
    def version(self) -> str:
        """ROCm's version."""
        return self.output.plan.dist_info.version

    @property
    def requirement(self) -> str:
        """What a user of one target installs: everything."""
        extras = ["libraries", "devel", "profiler"]
        if self.layout == "split":
            extras.append(f"device-{TARGET}")
        return f"rocm[{','.join(extras)}]=={self.version}"

    @property
    def files(self) -> list[Path]:
        """The sdist and the wheels."""
        return [file.path for file in self.output.files]

    @property
    def wheels(self) -> list[Path]:
        """All files but the sdist."""
        return [path for path in self.files if path.suffix == ".whl"]


PackagesOf = Callable[[Layout], Packages]
EnvironmentOf = Callable[[Layout], Venv]


def build_request(artifacts: Path, folder: Path, jobs: int | None = None) -> BuildRequest:
    return BuildRequest(artifact_dir=artifacts, output_dir=folder, jobs=jobs, without=ABSENT_LIBRARIES)


@pytest.fixture(scope="module")
def find_rocm_packages(rocm7_artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> PackagesOf:
    """Return a function that gives the packages of a layout, which it builds when first asked for them."""

    @cache
    def build_packages(layout: Layout) -> Packages:
        folder = tmp_path_factory.mktemp(layout)
        output = build(build_request(rocm7_artifacts / layout, folder))
        return Packages(layout=layout, folder=folder, output=output)

    return build_packages


def clean_environment() -> dict[str, str]:
    """Return this process's environment, without what leads to another ROCm."""
    return process.inherited(
        HIP_PATH=None,
        LD_LIBRARY_PATH=None,
        PYTHONPATH=None,
        ROCM_PATH=None,
        ROCM_SDK_TARGET_FAMILY=None,
    )


def install_packages(root: Path, packages: Packages, backend: Literal["pip", "uv"]) -> Venv:
    """Create an environment with everything that a user of one target installs."""
    venv = create_environment(root, "setuptools")
    command: list[str | Path] = [installer.uv_program(), "pip", "install", "--no-config"]
    command += ["--python", venv.python]
    if backend == "pip":
        command = [sys.executable, "-m", "pip", "--isolated", "--python", venv.python, "install"]
        command.append("--no-cache-dir")
    command += ["--no-index", "--no-build-isolation", "--find-links", packages.folder]

    completed = process.capture([*command, packages.requirement], env=clean_environment())

    assert "does not provide the extra" not in completed.stdout + completed.stderr
    return venv


def run_program(venv: Venv, program: str, *arguments: str) -> str:
    """Run a program of an environment; return what it prints."""
    command: list[str | Path] = [venv.root / "bin" / program, *arguments]
    return process.capture(command, env=clean_environment()).stdout.strip()


@pytest.fixture(scope="module")
def environment_of(find_rocm_packages: PackagesOf, tmp_path_factory: pytest.TempPathFactory) -> EnvironmentOf:
    """Return a function that gives an environment with the packages of a layout, installed by uv."""
    folder = tmp_path_factory.mktemp("installed")

    @cache
    def install_layout(layout: Layout) -> Venv:
        venv = install_packages(folder / layout, find_rocm_packages(layout), "uv")
        run_program(venv, "rocm-sdk", "init", "--quiet")
        return venv

    return install_layout


# Packages


def library_packages(layout: Layout, targets: tuple[str, ...]) -> set[str]:
    """Return the packages that a layout has for libraries."""
    if layout == "unsplit":
        return {"rocm_sdk_libraries_gfx94x_dcgpu"}
    device_packages = {f"rocm_sdk_device_{target}" for target in targets}
    return {"rocm_sdk_libraries", *device_packages}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_artifacts_become_the_packages_of_their_layout(
    rocm7_artifacts: Path, find_rocm_packages: PackagesOf, layout: Layout
) -> None:
    targets = build_info(scan(rocm7_artifacts / layout)).targets
    packages = find_rocm_packages(layout)

    shared_packages = {"rocm", "rocm_sdk_core", "rocm_sdk_devel", "rocm_profiler"}
    assert set(distributions_of(packages.files)) == shared_packages | library_packages(layout, tuple(targets))
    assert packages.output.plan.unused_artifacts == ()

    assert errors_among(check_wheels(packages.wheels)) == []
    for wheel in packages.wheels:
        require_sound(wheel)
        require_license(wheel)


def require_license(wheel: Path) -> None:
    """Hold that a wheel names its licenses, and brings the file that Debian has of them."""
    metadata = Metadata.from_email(read_metadata(wheel).raw)
    assert "MIT" in str(metadata.license_expression)

    license_files = {Path(name).name for name in metadata.license_files or []}
    is_empty_package = wheel.name.startswith("rocm_profiler")
    assert license_files == (set() if is_empty_package else {"copyright"})


@pytest.mark.parametrize(
    ("artifact", "removed_files", "fault"),
    [
        ("amd-llvm_run_generic", None, "lib/llvm/bin/lld of amd-llvm_run_generic"),
        ("amd-llvm_lib_generic", None, "oclc_isa_version_942.bc of amd-llvm_lib_generic"),
        ("core-hip_dev_generic", None, "include/hip/hip_runtime.h of core-hip_dev_generic"),
        ("blas_lib_generic", "librocblas.so*", "lib/librocblas.so* of blas_lib_generic"),
        ("fft_lib_generic", "librocfft.so*", "lib/librocfft.so* of fft_lib_generic"),
        ("blas_lib_gfx942", "*gfx942*", "of gfx942 are incomplete"),
    ],
)
def test_a_set_that_lacks_something_is_refused_with_its_name(
    rocm7_artifacts: Path, tmp_path: Path, artifact: str, removed_files: str | None, fault: str
) -> None:
    """Where no files are named, the artifact's manifest is empty."""
    incomplete_artifact = tmp_path / artifact
    for source in (rocm7_artifacts / "split").iterdir():
        if source.name != artifact:
            (tmp_path / source.name).symlink_to(source)
        elif removed_files is None:
            incomplete_artifact.mkdir()
            (incomplete_artifact / "artifact_manifest.txt").write_text("")
        else:
            ignored = shutil.ignore_patterns(removed_files)
            shutil.copytree(source, incomplete_artifact, symlinks=True, ignore=ignored)

    with pytest.raises(ArtifactError, match="incomplete") as raised:
        make_plan(build_request(tmp_path, tmp_path / "out"))

    assert fault in raised.value.message


@pytest.mark.nightly
def test_one_job_gives_the_same_bytes_as_many(
    rocm7_artifacts: Path, find_rocm_packages: PackagesOf, tmp_path: Path
) -> None:
    built_by_one_job = build(build_request(rocm7_artifacts / "split", tmp_path, jobs=1))

    assert built_by_one_job.digests == find_rocm_packages("split").output.digests


# Installation


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["split", "unsplit"])
def test_pip_installs_everything_and_uninstalls_it_whole(
    find_rocm_packages: PackagesOf, layout: Layout, tmp_path: Path
) -> None:
    packages = find_rocm_packages(layout)
    venv = install_packages(tmp_path / "venv", packages, "pip")

    assert run_program(venv, "rocm-sdk", "version") == packages.version
    assert TARGET in run_program(venv, "rocm-sdk", "targets").split()
    root = Path(run_program(venv, "rocm-sdk", "path", "--root"))
    assert root.is_relative_to(venv.site)

    distributions = distributions_of(venv.site.glob("roc*.dist-info"))
    has_device_package = f"rocm_sdk_device_{TARGET}" in distributions
    assert has_device_package == (layout == "split")

    process.capture([sys.executable, "-m", "pip", "--python", venv.python, "uninstall", "-y", *distributions])
    assert [path for path in venv.site.rglob("*") if "rocm" in path.name.lower()] == []


def file_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that layouts share, by its path; a link counts as what it leads to."""
    digests: dict[str, str] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or "__pycache__" in name or name.startswith(FILES_OF_A_LAYOUT):
            continue
        digests[name] = sha256(path)
    return digests


@pytest.mark.nightly
def test_both_layouts_install_the_same_tree(environment_of: EnvironmentOf) -> None:
    split_tree = file_digests(environment_of("split").site / "_rocm_sdk_devel")
    unsplit_tree = file_digests(environment_of("unsplit").site / "_rocm_sdk_devel")

    assert len(split_tree) > 1000
    assert split_tree == unsplit_tree


@pytest.mark.nightly
def test_libraries_and_a_device_package_are_the_libraries_of_its_family(
    environment_of: EnvironmentOf,
) -> None:
    libraries = file_digests(environment_of("split").site / "_rocm_sdk_libraries")
    libraries_of_family = file_digests(environment_of("unsplit").site / "_rocm_sdk_libraries_gfx94X_dcgpu")

    assert [name for name in libraries if TARGET in name]
    assert libraries == libraries_of_family


# In a root where its programs run


@dataclass(frozen=True, kw_only=True)
class VenvInRoot:
    """A virtual environment within a root folder.

    Attributes:
        root: The root folder, as this machine has it.
        folder: The environment's folder within the root.
    """

    root: Path
    folder: str

    @property
    def path(self) -> Path:
        """Where the folder lies on this machine."""
        return self.outside(self.folder)

    def outside(self, path: str) -> Path:
        """Return where a path of the root lies on this machine."""
        return self.root / path.lstrip("/")

    def program(self, name: str) -> str:
        """Return the path of a program in the environment."""
        return f"{self.folder}/venv/bin/{name}"

    def run(self, *command: str, cwd: str = "/") -> str:
        """Run a command in the root; return what it prints."""
        environment = ("HOME=/root", "PATH=/usr/bin:/usr/sbin", "HIP_PLATFORM=amd")
        prefix = ("chroot", self.root, "env", "-i", "-C", cwd, *environment)
        return process.capture([*prefix, *command]).stdout.strip()

    def sdk_root(self) -> str:
        """Return the development tree's folder."""
        return self.run(self.program("rocm-sdk"), "path", "--root")


@pytest.fixture(scope="module", params=LAYOUTS)
def rooted_venv(
    request: pytest.FixtureRequest, linux_root: Path, find_rocm_packages: PackagesOf
) -> Iterator[VenvInRoot]:
    """Install everything in the root; take it out at the end."""
    if os.geteuid():
        pytest.skip("only root may change its root folder")
    packages = find_rocm_packages(request.param)
    venv = VenvInRoot(root=linux_root, folder=f"/opt/rocm7-{request.param}-{os.getpid()}")
    (venv.path / "wheels").mkdir(parents=True)
    for path in packages.files:
        shutil.copy2(path, venv.path / "wheels")

    try:
        venv.run("python3", "-m", "venv", f"{venv.folder}/venv")
        find_links = ("--find-links", "/usr/share/python-wheels", "--find-links", f"{venv.folder}/wheels")
        venv.run(venv.program("pip"), "install", "--no-index", *find_links, packages.requirement)
        yield venv
    finally:
        shutil.rmtree(venv.path)


def test_rocm_sdk_test_passes_where_its_programs_run(rooted_venv: VenvInRoot) -> None:
    *lines, summary = rooted_venv.run(rooted_venv.program("rocm-sdk"), "test").splitlines()

    assert " 0 failed" in summary
    assert "ok    core: hipcc runs" in lines
    # A part of ROCm has no profiler to promise anything.
    assert [line for line in lines if line.startswith("skip ") and "instruments" not in line] == [
        "skip  profiler: what it promises is there (this distribution was packaged without them)",
        "skip  profiler: there are shared libraries (this distribution was packaged without them)",
    ]


@dataclass(frozen=True, kw_only=True)
class OptionalLibrary:
    """A library that a small set of artifacts lacks, with a call of it."""

    name: str
    header: str
    call: str


OPTIONAL_LIBRARIES = (
    OptionalLibrary(
        name="rocrand",
        header="rocrand/rocrand.h",
        call="rocrand_generator g; rocrand_create_generator(&g, ROCRAND_RNG_PSEUDO_XORWOW);",
    ),
    OptionalLibrary(
        name="MIOpen",
        header="miopen/miopen.h",
        call="miopenHandle_t nn; miopenCreate(&nn);",
    ),
)


def write_program(path: Path, libraries: list[OptionalLibrary]) -> None:
    """Write a HIP program that calls libraries, beside those that each set of artifacts has."""
    includes = "\n".join(f"#include <{library.header}>" for library in libraries)
    calls = " ".join(library.call for library in libraries)
    template = (TEXTS / "libraries.hip").read_text()
    path.write_text(template.replace("@INCLUDES@", includes).replace("@CALLS@", calls))


def require_wheels_libraries(venv: VenvInRoot, sdk_root: str, loaded: list[str]) -> None:
    """Hold that a program loads the wheels' libraries, and none of their names from elsewhere."""
    library_folder = venv.outside(sdk_root) / "lib"
    wheels_libraries = {path.name for path in library_folder.rglob("*.so*")}

    names: set[str] = set()
    for path in map(Path, loaded):
        if path.name in wheels_libraries:
            assert path.is_relative_to(venv.folder), path
            names.add(path.name.partition(".")[0])

    assert names >= {"librocblas", "libamdhip64", "libhsa-runtime64"}


def test_hipcc_links_libraries_into_a_program_for_two_targets(rooted_venv: VenvInRoot) -> None:
    sdk_root = rooted_venv.sdk_root()
    headers = rooted_venv.outside(sdk_root) / "include"
    libraries = [library for library in OPTIONAL_LIBRARIES if (headers / library.header).is_file()]
    write_program(rooted_venv.path / "two.hip", libraries)

    command = [rooted_venv.program("hipcc"), "two.hip", "-o", "two"]
    command += [f"--offload-arch={TARGET}", f"--offload-arch={OTHER_TARGET}"]
    command += [f"-L{sdk_root}/lib", f"-Wl,-rpath,{sdk_root}/lib", "-lrocblas", "-lhipblaslt"]
    command += [f"-l{library.name}" for library in libraries]
    rooted_venv.run(*command, cwd=rooted_venv.folder)

    device_code = file_facts(rooted_venv.path / "two")
    assert device_code is not None
    assert device_code.targets == {TARGET, OTHER_TARGET}
    program = f"{rooted_venv.folder}/two"
    assert rooted_venv.run(program) in {"", "hipErrorNoDevice"}
    loaded = re.findall(r"=> (\S+)", rooted_venv.run("ldd", program))
    require_wheels_libraries(rooted_venv, sdk_root, loaded)


def test_a_program_of_the_systems_compiler_finds_the_wheels_libraries(rooted_venv: VenvInRoot) -> None:
    sdk_root = rooted_venv.sdk_root()
    shutil.copyfile(TEXTS / "maps.cpp", rooted_venv.path / "maps.cpp")
    link_options = (f"-L{sdk_root}/lib", f"-Wl,-rpath,{sdk_root}/lib", "-lrocblas", "-lamdhip64")
    rooted_venv.run("c++", "maps.cpp", "-o", "maps", *link_options, cwd=rooted_venv.folder)

    loaded = rooted_venv.run(f"{rooted_venv.folder}/maps").splitlines()

    require_wheels_libraries(rooted_venv, sdk_root, loaded)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_library_that_its_hipcc_compiles_is_split(
    rooted_venv: VenvInRoot, tmp_path: Path, *, compressed: bool
) -> None:
    """Bundles of today's clang, plain and compressed: read, moved, and compared with the fat library."""
    command = [rooted_venv.program("hipcc"), "-fPIC", "-shared", "-o", "library.so"]
    command += [f"--offload-arch={TARGET}", f"--offload-arch={OTHER_TARGET}"]
    if compressed:
        command.append("--offload-compress")
    rooted_venv.run(*command, *write_sources(rooted_venv.path), cwd=rooted_venv.folder)
    library = rooted_venv.path / "library.so"

    device_code = file_facts(library)
    assert device_code is not None
    assert device_code.bundles
    for bundle in device_code.bundles:
        assert bundle.form == ("zstd" if compressed else "plain")

    host, *device_wheels = split_wheel(write_wheel_around(library, tmp_path / "fat"), tmp_path / "parts")

    device_packages = {f"amd_torch_device_{TARGET}", f"amd_torch_device_{OTHER_TARGET}"}
    assert set(distributions_of(device_wheels)) == device_packages
    assert len(device_wheels) == len(device_packages)
    with zipfile.ZipFile(host) as archive:
        host_library = archive.getinfo("torch/lib/libtorch_hip.so")
    assert host_library.file_size < library.stat().st_size
