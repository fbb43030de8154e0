"""PyTorch's tree hipified, configured and in part compiled against packages of real ROCm 7.

The packages are made here of `--rocm7` (with all libraries that torch asks for). The rest is `nox -s
build_torch` in `--root`, where hipcc runs, up to `libc10_hip.so` and two kernels, with the tree of
`--torch-root`. The root needs python3.13-dev python3-venv g++ git patch patchelf xz-utils, and what torch's
parts are replaced by: flatbuffers-compiler libblas-dev libcpp-httplib-dev libcpuinfo-dev libdrm-dev
libeigen3-dev libelf-dev libfmt-dev libfp16-dev libfxdiv-dev libonnx-dev libprotobuf-dev libpsimd-dev
libpthreadpool-dev libsleef-dev nlohmann-json3-dev protobuf-compiler pybind11-dev.
"""

import posixpath
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytorch_build.build.stage import set_search_paths
from pytorch_build.check.device_code import file_facts
from rocm_packaging.packages.build import BuildRequest, build
from tests.upstream.debian import PROJECT, SCRIPTS, SETTINGS, TREE, Machine, machine
from tests.upstream.test_split import wheel_of

FAMILY, TARGET, ROCM = "gfx94X-dcgpu", "gfx942", "/root/rocm"
# of ROCm's whole set, which Debian has not
WITHOUT = ("rocprofiler-*", "origami", "hipblaslt-kernels")
BUILD, SITE = (
    f"{PROJECT}/src/hip/torch/build",
    f"{PROJECT}/.nox/build_torch-3-13/lib/python3.13/site-packages",
)
REF = f"""
[refs.hip]
components = ["torch"]

[refs.hip.torch]
origin = "{TREE}"
ref = "main"
env = {{ CMAKE_MAKE_PROGRAM = "{SCRIPTS}/some.sh" }}
"""
# in ROCm's release, and not in Debian's packages of it
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


@pytest.fixture(name="built", scope="module")
def built_fixture(
    linux_root: Path, torch_root: Path, rocm7_artifacts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Machine, str]]:
    """Build as far as it is meant to go, and give the log."""
    if not (rocm7_artifacts / "unsplit" / f"miopen_dev_{FAMILY}").is_dir():
        pytest.skip("--rocm7 has not all libraries that torch asks for")
    shutil.copytree(torch_root / "srv" / "torch", linux_root / "srv" / "torch", dirs_exist_ok=True)
    made = machine(linux_root)
    artifacts = whole(rocm7_artifacts / "unsplit", tmp_path_factory.mktemp("artifacts"))
    try:
        build(BuildRequest(artifact_dir=artifacts, output_dir=made.path(ROCM), level=1, without=WITHOUT))
        made.path(f"{ROCM}/refs.toml").write_text(REF)
        options = ("--torch-ref", "hip", "--config-file", f"{ROCM}/refs.toml", "--gpu-family", FAMILY)
        env = {**SETTINGS, "UV_CACHE_DIR": f"{ROCM}/cache"}
        made.nox("build_torch", *options, "--rocm-find-links", ROCM, env=env, check=False)
        (log,) = made.path(PROJECT).glob(f".cache/logs/*/{FAMILY}/build_torch-*.log")
        yield made, log.read_text()
    finally:
        for path in (ROCM, PROJECT, TREE):
            shutil.rmtree(made.path(path))


def test_the_tree_is_configured_for_the_packages(built: tuple[Machine, str]) -> None:
    made, log = built
    assert f"Building PyTorch for GPU arch: {TARGET}" in log
    found = dict(re.findall(r"^(\w+) VERSION: (\S+)$", log, re.MULTILINE))
    assert {"HIP", "rocblas", "hipblaslt", "hipsolver", "miopen", "rccl", "hiprtc"} <= {*found}
    cache = made.path(f"{BUILD}/CMakeCache.txt").read_text()
    places = dict(re.findall(r"^(hip|rocblas|miopen|rccl)_DIR:PATH=(.*)$", cache, re.MULTILINE))
    assert len(places) == 4
    assert all(one.startswith(f"{SITE}/_rocm_sdk_devel/lib/cmake/") for one in places.values()), places


def test_kernels_are_compiled_for_the_target(built: tuple[Machine, str]) -> None:
    made, log = built
    assert "a part of torch is compiled" in log, log[-5000:]
    objects = [*made.path(BUILD).rglob("torch_hip_generated_*.hip.o")]
    assert len(objects) == 2
    assert all(facts and facts.targets == {TARGET} for facts in map(file_facts, objects))


def test_libc10_hip_finds_hip_beside_it(built: tuple[Machine, str], tmp_path: Path) -> None:
    """Without the development tree, and with nothing loaded before."""
    made, _ = built
    names = ("libc10.so", "libc10_hip.so")
    wheel = wheel_of({f"torch/lib/{one}": made.path(f"{BUILD}/lib/{one}") for one in names}, tmp_path)
    with zipfile.ZipFile(set_search_paths(wheel, "unsplit", FAMILY)) as archive:
        archive.extractall(made.path(SITE), members=[f"torch/lib/{one}" for one in names])
    said = made.run("ldd", f"{SITE}/torch/lib/libc10_hip.so").stdout
    loaded = dict(re.findall(r"(\S+)\.so\S* => (\S+)", said))
    loaded = {name: posixpath.dirname(posixpath.normpath(path)) for name, path in loaded.items()}
    assert loaded["libamdhip64"] == f"{SITE}/_rocm_sdk_core/lib"
    assert loaded["libc10"] == f"{SITE}/torch/lib"
