"""Real ROCm 7 in both layouts: packaged, installed, compared, and its programs run in a root of their own."""

import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

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
from tests.kit.hip_libraries import write_sources, write_wheel_around

Layout = Literal["unsplit", "split"]
LAYOUTS = get_args(Layout)
FAMILY, TARGET, OTHER_TARGET = "gfx94X-dcgpu", "gfx942", "gfx1100"
CLEAN = dict.fromkeys(("ROCM_SDK_TARGET_FAMILY", "LD_LIBRARY_PATH", "PYTHONPATH", "ROCM_PATH", "HIP_PATH"))
# a part of ROCm: the compilers, HIP, rocBLAS, hipBLASLt and rocFFT
WITHOUT = (
    *("miopen", "rand", "rocprofiler-*", "origami", "hipblaslt-kernels"),
    *("hipblas", "hipsolver", "hipsparse", "hipsparselt", "rocsolver", "rocsparse"),
)
# what a build says of itself, and what an expanded tree does, differ by layout
OF_LAYOUT = ("share/therock/", ".rocm_sdk_devel.json")


@dataclass(frozen=True, kw_only=True)
class Packages:
    folder: Path
    built: BuiltPackages

    @property
    def everything(self) -> str:
        """What a user of one target installs."""
        device = [f"device-{TARGET}"] if self.is_split else []
        version = self.built.plan.distribution.version
        return f"rocm[{','.join(['libraries', 'devel', 'profiler', *device])}]=={version}"

    @property
    def is_split(self) -> bool:
        return any(file.path.name.startswith("rocm_sdk_device_") for file in self.built.files)


@pytest.fixture(scope="module")
def packages(rocm7_artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Packages]:
    made = {}
    for layout in LAYOUTS:
        folder = tmp_path_factory.mktemp(layout)
        made[layout] = Packages(folder=folder, built=build(_request(rocm7_artifacts / layout, folder)))
    return made


def _request(artifacts: Path, folder: Path, jobs: int | None = None) -> BuildRequest:
    return BuildRequest(artifact_dir=artifacts, output_dir=folder, jobs=jobs, without=WITHOUT)


def environment(root: Path, packages: Packages, backend: str = "uv") -> Venv:
    """Create an environment with everything that a user of one target installs."""
    created = create_environment(root, "setuptools")
    front: list[str | Path] = [installer.uv_program(), "pip", "install", "--no-config"]
    front += ["--python", created.python]
    if backend == "pip":
        front = [sys.executable, "-m", "pip", "--isolated", "--python", created.python, "install"]
        front += ["--no-cache-dir"]
    where = ("--no-index", "--no-build-isolation", "--find-links", packages.folder)
    completed = process.capture([*front, *where, packages.everything], env=process.inherited(**CLEAN))
    assert "does not provide the extra" not in completed.stdout + completed.stderr
    return created


def run(venv: Venv, program: str, *words: str) -> str:
    return process.capture(
        [venv.root / "bin" / program, *words], env=process.inherited(**CLEAN)
    ).stdout.strip()


@pytest.fixture(scope="module")
def installed(
    packages: Mapping[str, Packages], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Venv]:
    folder = tmp_path_factory.mktemp("installed")
    made = {layout: environment(folder / layout, one) for layout, one in packages.items()}
    for one in made.values():
        run(one, "rocm-sdk", "init", "--quiet")
    return made


@pytest.mark.parametrize("layout", LAYOUTS)
def test_artifacts_become_the_packages_of_their_layout(
    rocm7_artifacts: Path, packages: Mapping[str, Packages], layout: Layout
) -> None:
    info = build_info(scan(rocm7_artifacts / layout))
    if layout == "split":
        libraries = {"rocm_sdk_libraries", *(f"rocm_sdk_device_{target}" for target in info.targets)}
    else:
        libraries = {"rocm_sdk_libraries_gfx94x_dcgpu"}
    files = packages[layout].built.files
    names = {file.path.name.partition("-")[0] for file in files}
    assert names == {"rocm", "rocm_sdk_core", "rocm_sdk_devel", "rocm_profiler", *libraries}
    assert packages[layout].built.plan.unused == ()
    wheels = [file.path for file in files if file.path.suffix == ".whl"]
    assert [one for one in check_wheels(wheels) if one.severity == "error"] == []
    for file in files:
        if file.path.suffix == ".whl":
            require_sound(file.path)
            metadata = Metadata.from_email(read_metadata(file.path).raw)
            assert "MIT" in str(metadata.license_expression)
            brought = [] if file.path.name.startswith("rocm_profiler") else ["copyright"]
            assert sorted({Path(name).name for name in metadata.license_files or []}) == brought


@pytest.mark.parametrize(
    ("artifact", "lost", "said"),
    [
        ("amd-llvm_run_generic", "", "lib/llvm/bin/lld of amd-llvm_run_generic"),
        ("amd-llvm_lib_generic", "", "oclc_isa_version_942.bc of amd-llvm_lib_generic"),
        ("core-hip_dev_generic", "", "include/hip/hip_runtime.h of core-hip_dev_generic"),
        ("blas_lib_generic", "librocblas.so*", "lib/librocblas.so* of blas_lib_generic"),
        ("fft_lib_generic", "librocfft.so*", "lib/librocfft.so* of fft_lib_generic"),
        ("blas_lib_gfx942", "*gfx942*", "of gfx942 are incomplete"),
    ],
)
def test_a_set_that_lacks_something_is_refused_with_its_name(
    rocm7_artifacts: Path, tmp_path: Path, artifact: str, lost: str, said: str
) -> None:
    for one in (rocm7_artifacts / "split").iterdir():
        if one.name != artifact:
            (tmp_path / one.name).symlink_to(one)
    ignored = shutil.ignore_patterns(lost)
    shutil.copytree(rocm7_artifacts / "split" / artifact, tmp_path / artifact, symlinks=True, ignore=ignored)
    if not lost:
        (tmp_path / artifact / "artifact_manifest.txt").write_text("")
    with pytest.raises(ArtifactError, match="incomplete") as raised:
        make_plan(_request(tmp_path, tmp_path / "out"))
    assert said in raised.value.message


def test_one_job_gives_the_same_bytes_as_many(
    rocm7_artifacts: Path, packages: Mapping[str, Packages], tmp_path: Path
) -> None:
    again = build(_request(rocm7_artifacts / "split", tmp_path, jobs=1))
    first = {file.path.name: file.sha256 for file in packages["split"].built.files}
    assert {file.path.name: file.sha256 for file in again.files} == first


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pip_installs_everything_and_uninstalls_it_whole(
    packages: Mapping[str, Packages], layout: Layout, tmp_path: Path
) -> None:
    made = environment(tmp_path / "venv", packages[layout], "pip")
    assert run(made, "rocm-sdk", "version") == packages[layout].built.plan.distribution.version
    assert TARGET in run(made, "rocm-sdk", "targets").split()
    root = Path(run(made, "rocm-sdk", "path", "--root"))
    assert root.is_relative_to(made.site)
    names = [path.name.split("-")[0] for path in made.site.glob("roc*.dist-info")]
    assert (f"rocm_sdk_device_{TARGET}" in names) == (layout == "split")
    process.capture([sys.executable, "-m", "pip", "--python", made.python, "uninstall", "-y", *names])
    assert [path for path in made.site.rglob("*") if "rocm" in path.name.lower()] == []


def files_below(folder: Path) -> dict[str, str]:
    """Hash each file, by its path; a link counts as what it leads to."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    kept = {name: path for name, path in found.items() if not name.startswith((*OF_LAYOUT, ".devel_links"))}
    return {name: sha256(path) for name, path in kept.items() if "__pycache__" not in name}


def test_both_layouts_install_the_same_tree(installed: Mapping[str, Venv]) -> None:
    trees = {layout: files_below(one.site / "_rocm_sdk_devel") for layout, one in installed.items()}
    assert len(trees["split"]) > 1000
    assert trees["split"] == trees["unsplit"]


def test_libraries_and_a_device_package_are_the_libraries_of_its_family(
    installed: Mapping[str, Venv],
) -> None:
    split = files_below(installed["split"].site / "_rocm_sdk_libraries")
    assert [name for name in split if TARGET in name]
    assert split == files_below(installed["unsplit"].site / "_rocm_sdk_libraries_gfx94X_dcgpu")


# in a root where its programs run


@dataclass(frozen=True, kw_only=True)
class InRoot:
    """A virtual environment within a root folder."""

    root: Path
    folder: str

    def run(self, *words: str, where: str = "/") -> str:
        clean = ("env", "-i", "-C", where, "HOME=/root", "PATH=/usr/bin:/usr/sbin", "HIP_PLATFORM=amd")
        return process.capture(["chroot", self.root, *clean, *words]).stdout.strip()

    def program(self, name: str) -> str:
        return f"{self.folder}/venv/bin/{name}"

    @property
    def path(self) -> Path:
        return self.root / self.folder.lstrip("/")


@pytest.fixture(scope="module", params=LAYOUTS)
def in_root(
    request: pytest.FixtureRequest, linux_root: Path, packages: Mapping[str, Packages]
) -> Iterator[InRoot]:
    if os.geteuid():
        pytest.skip("only root may change its root folder")
    made = InRoot(root=linux_root, folder=f"/opt/rocm7-{request.param}-{os.getpid()}")
    one = packages[request.param]
    (made.path / "wheels").mkdir(parents=True)
    for file in one.built.files:
        shutil.copy2(file.path, made.path / "wheels")
    try:
        made.run("python3", "-m", "venv", f"{made.folder}/venv")
        links = ["--find-links", "/usr/share/python-wheels", "--find-links", f"{made.folder}/wheels"]
        made.run(made.program("pip"), "install", "--no-index", *links, one.everything)
        yield made
    finally:
        shutil.rmtree(made.path)


def test_rocm_sdk_test_passes_where_its_programs_run(in_root: InRoot) -> None:
    *lines, last = in_root.run(in_root.program("rocm-sdk"), "test").splitlines()
    assert " 0 failed" in last
    assert "ok    core: hipcc runs" in lines
    skipped = [line for line in lines if line.startswith("skip ")]
    # a part of ROCm has no profiler to promise anything
    assert [line for line in skipped if "instruments" not in line] == [
        "skip  profiler: what it promises is there (this distribution was packaged without them)",
        "skip  profiler: there are shared libraries (this distribution was packaged without them)",
    ]


KERNEL = Path(__file__).with_name("texts").joinpath("libraries.hip").read_text()
FURTHER = {
    "rocrand": (
        "rocrand/rocrand.h",
        "rocrand_generator g; rocrand_create_generator(&g, ROCRAND_RNG_PSEUDO_XORWOW);",
    ),
    "MIOpen": ("miopen/miopen.h", "miopenHandle_t nn; miopenCreate(&nn);"),
}
"""Library -> its header, and a call; a small set of artifacts lacks them."""


def test_hipcc_links_libraries_into_a_program_for_two_targets(in_root: InRoot) -> None:
    root = in_root.run(in_root.program("rocm-sdk"), "path", "--root")
    outside = in_root.root / root.lstrip("/")
    further = {name: what for name, what in FURTHER.items() if (outside / "include" / what[0]).is_file()}
    text = KERNEL.replace("@INCLUDES@", "\n".join(f"#include <{header}>" for header, _ in further.values()))
    (in_root.path / "two.hip").write_text(
        text.replace("@CALLS@", " ".join(call for _, call in further.values()))
    )
    targets = (f"--offload-arch={TARGET}", f"--offload-arch={OTHER_TARGET}")
    link = (
        f"-L{root}/lib",
        f"-Wl,-rpath,{root}/lib",
        *(f"-l{name}" for name in ("rocblas", "hipblaslt", *further)),
    )
    in_root.run(in_root.program("hipcc"), *targets, "two.hip", "-o", "two", *link, where=in_root.folder)
    found = file_facts(in_root.path / "two")
    assert found is not None
    assert found.targets == {TARGET, OTHER_TARGET}
    assert in_root.run(f"{in_root.folder}/two") in {"", "hipErrorNoDevice"}
    loaded = [Path(one) for one in re.findall(r"=> (\S+)", in_root.run("ldd", f"{in_root.folder}/two"))]
    held = {path.name for path in (outside / "lib").rglob("*.so*")}
    ours = [path for path in loaded if path.name in held]
    assert {path.name.partition(".")[0] for path in ours} >= {"librocblas", "libamdhip64", "libhsa-runtime64"}
    assert not [path for path in ours if not path.is_relative_to(in_root.folder)]


MAPS = Path(__file__).with_name("texts").joinpath("maps.cpp").read_text()


def test_a_program_of_the_systems_compiler_finds_the_wheels_libraries(in_root: InRoot) -> None:
    """Linked as any program is, it loads the wheels' libraries, and none of their names from elsewhere."""
    root = in_root.run(in_root.program("rocm-sdk"), "path", "--root")
    (in_root.path / "maps.cpp").write_text(MAPS)
    link = (f"-L{root}/lib", f"-Wl,-rpath,{root}/lib", "-lrocblas", "-lamdhip64")
    in_root.run("c++", "maps.cpp", "-o", "maps", *link, where=in_root.folder)

    loaded = {Path(line) for line in in_root.run(f"{in_root.folder}/maps").splitlines()}

    wheels_libraries = {path.name for path in (in_root.root / root.lstrip("/") / "lib").rglob("*.so*")}
    named_alike = [path for path in loaded if path.name in wheels_libraries]
    names = {path.name.partition(".")[0] for path in named_alike}
    assert names >= {"librocblas", "libamdhip64", "libhsa-runtime64"}
    assert [path for path in named_alike if not path.is_relative_to(in_root.folder)] == []


@pytest.mark.parametrize("compressed", [False, True])
def test_a_library_that_its_hipcc_compiles_is_split(
    in_root: InRoot,
    tmp_path: Path,
    compressed: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Bundles of today's clang, plain and compressed: read, moved, and compared with the fat library."""
    files = write_sources(in_root.path)
    words = ["-fPIC", "-shared", f"--offload-arch={TARGET}", f"--offload-arch={OTHER_TARGET}"]
    words += ["--offload-compress"] if compressed else []
    in_root.run(in_root.program("hipcc"), *words, *files, "-o", "library.so", where=in_root.folder)
    library = in_root.path / "library.so"
    forms = {one.form for one in file_facts(library).bundles}  # type: ignore[union-attr] # it has some
    assert forms == ({"zstd"} if compressed else {"plain"})
    host, *devices = split_wheel(write_wheel_around(library, tmp_path / "fat"), tmp_path / "parts")
    targets = sorted((TARGET, OTHER_TARGET))
    assert [path.name.partition("-")[0] for path in devices] == [f"amd_torch_device_{one}" for one in targets]
    with zipfile.ZipFile(host) as archive:
        assert archive.getinfo("torch/lib/libtorch_hip.so").file_size < library.stat().st_size
