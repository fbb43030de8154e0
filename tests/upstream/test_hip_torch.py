"""PyTorch's tree hipified, configured and in part compiled against packages of real ROCm 7.

The packages are made here of `--rocm7`, with all libraries that torch asks for. The rest is `nox -s
build_torch` in `--root`, where hipcc runs, and which `torch_root/hip.sh` has prepared.
"""

import posixpath
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytorch_build.build.search_paths import rocm_folders, set_search_paths
from pytorch_build.check.device_code import file_facts
from rocm_packaging.packages.build import BuildRequest, build
from tests.kit.debian_root import PROJECT, SCRIPTS, SETTINGS, TREE, Machine, machine
from tests.kit.hip_libraries import write_wheel_of

FAMILY = "gfx94X-dcgpu"
TARGET = "gfx942"
ROCM = "/srv/rocm"
BUILD = f"{PROJECT}/src/hip/torch/build"
SITE = f"{PROJECT}/.nox/build_torch-3-13/lib/python3.13/site-packages"
REF = f"""
[refs.hip.torch]
origin = "{TREE}"
ref = "main"
env = {{ CMAKE_MAKE_PROGRAM = "{SCRIPTS}/some.sh" }}
"""
# Debian has no profiler, no kernels of hipBLASLt for the target, and no Fortran library of hipSOLVER.
ABSENT_LIBRARIES = ("rocprofiler-*", "origami", "hipblaslt-kernels")
FORTRAN_TARGET = re.compile(r".*_for_roc::hipsolver_fortran .*\n")
CMAKE_PACKAGES = re.compile(r"^(?:hip|rocblas|miopen|rccl)_DIR:PATH=(.*)/", re.MULTILINE)


def link_artifacts(artifacts: Path, folder: Path) -> Path:
    """Return a folder with ROCm's artifacts, without a target of CMake that Debian has no library for."""
    headers = folder / f"blas_dev_{FAMILY}"
    for artifact in artifacts.iterdir():
        if artifact.name == headers.name:
            shutil.copytree(artifact, headers, symlinks=True)
        else:
            (folder / artifact.name).symlink_to(artifact)

    (targets,) = headers.rglob("hipsolver-targets-release.cmake")
    targets.write_text(FORTRAN_TARGET.sub("", targets.read_text()))
    return folder


def build_torch(root: Machine, artifacts: Path) -> None:
    """Package the artifacts in the root, and build torch against them, as far as some.sh goes."""
    output = root.path(ROCM)
    build(BuildRequest(artifact_dir=artifacts, output_dir=output, level=1, without=ABSENT_LIBRARIES))
    (output / "refs.toml").write_text(REF)

    options = ["--torch-ref=hip", f"--config-file={ROCM}/refs.toml", f"--gpu-family={FAMILY}"]
    # A part is compiled, which takes less than the whole.
    options += ["--rocm-find-links", ROCM, "--ignore-needs"]
    environment = {**SETTINGS, "UV_CACHE_DIR": f"{ROCM}/cache"}
    root.nox("build_torch", *options, env=environment, check=False)


@pytest.fixture(scope="module")
def root(
    linux_root: Path, rocm7_artifacts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """Return a root in which torch was built; what was put into it goes at the end."""
    if not (rocm7_artifacts / "unsplit" / f"miopen_dev_{FAMILY}").is_dir():
        pytest.skip("--rocm7 has not all libraries that torch asks for")
    if not (linux_root / "srv" / "torch").is_dir():
        pytest.skip("--root has no packages of torch: torch_root/hip.sh brings them")
    debian = machine(linux_root)
    artifacts = link_artifacts(rocm7_artifacts / "unsplit", tmp_path_factory.mktemp("artifacts"))

    try:
        build_torch(debian, artifacts)
        yield debian
    finally:
        for path in (ROCM, PROJECT, TREE):
            shutil.rmtree(debian.path(path))


def test_the_tree_is_configured_for_the_packages_and_compiled_by_them(root: Machine) -> None:
    (log_file,) = root.path(PROJECT).glob(f".cache/logs/*/{FAMILY}/build_torch-*.log")
    log = log_file.read_text()
    assert f"Building PyTorch for GPU arch: {TARGET}" in log
    assert "a part of torch is compiled" in log, log[-5000:]

    cmake_cache = root.path(f"{BUILD}/CMakeCache.txt").read_text()
    assert CMAKE_PACKAGES.findall(cmake_cache) == [f"{SITE}/_rocm_sdk_devel/lib/cmake"] * 4

    objects = list(root.path(BUILD).rglob("torch_hip_generated_*.hip.o"))
    assert len(objects) == 2
    for path in objects:
        device_code = file_facts(path)
        assert device_code is not None
        assert device_code.targets == {TARGET}


def test_libc10_hip_finds_hip_beside_it(root: Machine, tmp_path: Path) -> None:
    """Without the development tree, and with nothing loaded before."""
    names = ("libc10.so", "libc10_hip.so")
    libraries = {f"torch/lib/{name}": root.path(f"{BUILD}/lib/{name}") for name in names}
    wheel = set_search_paths(write_wheel_of(libraries, tmp_path), rocm_folders("unsplit", FAMILY))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root.path(SITE), members=libraries)

    dependencies = root.run("ldd", f"{SITE}/torch/lib/libc10_hip.so").stdout

    loaded = {posixpath.normpath(path) for path in re.findall(r"=> (\S+)", dependencies)}
    assert f"{SITE}/torch/lib/libc10.so" in loaded
    assert f"{SITE}/_rocm_sdk_core/lib/libamdhip64.so.7" in loaded
