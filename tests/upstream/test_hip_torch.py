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

FAMILY, TARGET, ROCM = "gfx94X-dcgpu", "gfx942", "/srv/rocm"
BUILD = f"{PROJECT}/src/hip/torch/build"
SITE = f"{PROJECT}/.nox/build_torch-3-13/lib/python3.13/site-packages"
REF = f"""
[refs.hip.torch]
origin = "{TREE}"
ref = "main"
env = {{ CMAKE_MAKE_PROGRAM = "{SCRIPTS}/some.sh" }}
"""
# Debian has no profiler, no kernels of hipBLASLt for the target, and no Fortran library of hipSOLVER
WITHOUT = ("rocprofiler-*", "origami", "hipblaslt-kernels")
FORTRAN = re.compile(r".*_for_roc::hipsolver_fortran .*\n")


def whole(artifacts: Path, folder: Path) -> Path:
    """Give ROCm's artifacts, without what a CMake package of theirs wants in vain."""
    for one in artifacts.iterdir():
        (folder / one.name).symlink_to(one)
    headers = folder / f"blas_dev_{FAMILY}"
    headers.unlink()
    shutil.copytree(artifacts / headers.name, headers, symlinks=True)
    (targets,) = headers.rglob("hipsolver-targets-release.cmake")
    targets.write_text(FORTRAN.sub("", targets.read_text()))
    return folder


@pytest.fixture(name="root", scope="module")
def root_fixture(
    linux_root: Path, rocm7_artifacts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """Build in the root, as far as some.sh goes."""
    if not (rocm7_artifacts / "unsplit" / f"miopen_dev_{FAMILY}").is_dir():
        pytest.skip("--rocm7 has not all libraries that torch asks for")
    if not (linux_root / "srv" / "torch").is_dir():
        pytest.skip("--root has no packages of torch: torch_root/hip.sh brings them")
    made = machine(linux_root)
    artifacts = whole(rocm7_artifacts / "unsplit", tmp_path_factory.mktemp("artifacts"))
    try:
        build(BuildRequest(artifact_dir=artifacts, output_dir=made.path(ROCM), level=1, without=WITHOUT))
        made.path(f"{ROCM}/refs.toml").write_text(REF)
        options = ("--torch-ref=hip", f"--config-file={ROCM}/refs.toml", f"--gpu-family={FAMILY}")
        env = {**SETTINGS, "UV_CACHE_DIR": f"{ROCM}/cache"}
        # a part is compiled, which takes less than the whole
        made.nox("build_torch", *options, "--rocm-find-links", ROCM, "--ignore-needs", env=env, check=False)
        yield made
    finally:
        for path in (ROCM, PROJECT, TREE):
            shutil.rmtree(made.path(path))


def test_the_tree_is_configured_for_the_packages_and_compiled_by_them(root: Machine) -> None:
    (log,) = root.path(PROJECT).glob(f".cache/logs/*/{FAMILY}/build_torch-*.log")
    said = log.read_text()
    assert f"Building PyTorch for GPU arch: {TARGET}" in said
    assert "a part of torch is compiled" in said, said[-5000:]
    cache = root.path(f"{BUILD}/CMakeCache.txt").read_text()
    places = re.findall(r"^(?:hip|rocblas|miopen|rccl)_DIR:PATH=(.*)/", cache, re.MULTILINE)
    assert places == [f"{SITE}/_rocm_sdk_devel/lib/cmake"] * 4
    kernels = [file_facts(one) for one in root.path(BUILD).rglob("torch_hip_generated_*.hip.o")]
    assert [facts and facts.targets for facts in kernels] == [frozenset({TARGET})] * 2


def test_libc10_hip_finds_hip_beside_it(root: Machine, tmp_path: Path) -> None:
    """Without the development tree, and with nothing loaded before."""
    libraries = {
        f"torch/lib/{name}": root.path(f"{BUILD}/lib/{name}") for name in ("libc10.so", "libc10_hip.so")
    }
    wheel = set_search_paths(write_wheel_of(libraries, tmp_path), rocm_folders("unsplit", FAMILY))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root.path(SITE), members=libraries)
    said = root.run("ldd", f"{SITE}/torch/lib/libc10_hip.so").stdout
    loaded = [posixpath.normpath(path) for path in re.findall(r"=> (\S+)", said)]
    assert f"{SITE}/torch/lib/libc10.so" in loaded
    assert f"{SITE}/_rocm_sdk_core/lib/libamdhip64.so.7" in loaded
