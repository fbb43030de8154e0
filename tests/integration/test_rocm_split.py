"""The sample's split artifacts, packaged, installed beside each other and removed in any order."""

import itertools
import json
import re
import sys
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from core import process
from rocm_packaging.packages.build import BuildRequest, BuiltPackages, build
from rocm_packaging.sample import ROCM_VERSION
from tests.kit.rocm_environments import RocmEnvironment

PAYLOAD = "_rocm_sdk_libraries"
CK = "lib/libMIOpenCKGroupedConv_{}.so"
KPACK = ".kpack/blas_lib_gfx942.kpack"
NAMES = (
    "rocm",
    "rocm-sdk-core",
    "rocm-sdk-libraries",
    "rocm-sdk-device-gfx942",
    "rocm-sdk-devel",
)


class Environment(RocmEnvironment):
    family = "gfx942"
    setting = "split-family"

    @property
    def tree(self) -> Path:
        """The development tree."""
        return self.site / "_rocm_sdk_devel"

    def find(self, name: str) -> Path:
        """Return the path of a library by its short name."""
        code = "import sys, rocm_sdk; print(rocm_sdk.find_libraries(sys.argv[1])[0])"
        return Path(self.run("-c", code, name).stdout.strip())


@pytest.fixture(scope="session")
def packages(split_artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> BuiltPackages:
    """Return the packages of the split sample."""
    return build(
        BuildRequest(
            artifact_dir=split_artifacts,
            output_dir=tmp_path_factory.mktemp("packages"),
        )
    )


@pytest.fixture
def environment(tmp_path: Path, packages: BuiltPackages, setuptools: Path) -> Environment:
    return Environment.create(tmp_path / "venv", packages, setuptools)


@pytest.fixture
def installed(environment: Environment) -> Environment:
    environment.install(f"rocm[libraries,devel,device]=={ROCM_VERSION}")
    return environment


def test_a_whole_installation_works(installed: Environment) -> None:
    root = installed.devel_root()

    assert installed.rocm_sdk("targets").stdout == "gfx942\n"
    assert installed.find("hipblas") == installed.site / PAYLOAD / "lib" / "libhipblas.so.3"
    assert (root / KPACK).samefile(installed.site / PAYLOAD / KPACK)
    assert not (root / ".devel_links").exists()


@pytest.mark.nightly
def test_a_whole_installation_passes_its_checks_beside_another_rocm(
    installed: Environment,
) -> None:
    tested = installed.rocm_sdk("test", check=False, ROCM_PATH="/opt/rocm", HIP_PATH="/opt/rocm")

    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "ok    core: a kernel is compiled for gfx942" in tested.stdout
    assert f"ok    libraries: {CK.format('gfx942')} loads" in tested.stdout


@pytest.mark.nightly
def test_a_compiler_without_device_libraries_fails(installed: Environment) -> None:
    installed.install(f"rocm-sdk-device-gfx1100=={ROCM_VERSION}")
    bitcode = "lib/llvm/amdgcn/bitcode/oclc_isa_version_1100.bc"
    installed.rocm_sdk("init")
    for folder in ("_rocm_sdk_core", "_rocm_sdk_devel"):
        (installed.site / folder / bitcode).unlink()

    printed = installed.rocm_sdk("test", check=False).stdout

    assert "ok    core: a kernel is compiled for gfx942" in printed
    assert "FAIL  core: a kernel is compiled for gfx1100" in printed
    assert "hipcc: error: cannot find ROCm device library for gfx1100" in printed


# The device code that this machine needs

LOAD_TWICE = """
import sys
from rocm_sdk import _gpus
import rocm_sdk
_gpus.NODES = sys.argv[1]
for _ in range(2):
    rocm_sdk.initialize_process(preload_shortnames=["hipblas"])
"""


@pytest.fixture
def gpu_nodes(tmp_path: Path) -> str:
    """Return the kernel's files about a processor (version 0) and GPUs: gfx942, gfx1101, gfx900."""
    for number, version in enumerate([0, 90402, 110001, 90000]):
        properties = tmp_path / "nodes" / str(number) / "properties"
        properties.parent.mkdir(parents=True)
        properties.write_text(f"simd_count 4\ngfx_target_version {version}\n", encoding="utf-8")
    return str(tmp_path / "nodes")


def test_warns_once_of_missing_device_code_before_any_kernel(installed: Environment, gpu_nodes: str) -> None:
    printed = installed.run("-c", LOAD_TWICE, gpu_nodes).stderr

    # gfx942 is there, and of gfx900 there is nothing to install
    assert printed.count("UserWarning") == 1
    assert "The device code of gfx1101 is not installed, and its first kernel will fail" in printed
    assert f'pip install "rocm[device-gfx1101]=={ROCM_VERSION}"' in printed


def test_warns_of_device_code_of_another_version(installed: Environment, gpu_nodes: str) -> None:
    installed.install(f"rocm[device-gfx1101]=={ROCM_VERSION}")
    assert installed.run("-c", LOAD_TWICE, gpu_nodes).stderr == ""

    change_version(installed, "7.0.0")
    assert (
        "The device package of gfx942 has version 7.0.0" in installed.run("-c", LOAD_TWICE, gpu_nodes).stderr
    )

    change_version(installed, f"{ROCM_VERSION}.post1")
    assert installed.run("-c", LOAD_TWICE, gpu_nodes).stderr == ""


def change_version(environment: Environment, version: str) -> None:
    """Let the device package of gfx942 have another version."""
    path = environment.site / PAYLOAD / ".devel_links" / "gfx942.json"
    listing = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()  # hard-linked to the installer's cache
    path.write_text(json.dumps({**listing, "version": version}), encoding="utf-8")


def test_every_rpath_leads_to_core(installed: Environment) -> None:
    libraries = list((installed.site / PAYLOAD / "lib").glob("*.so.*"))

    assert len(libraries) > 5
    for library in libraries:
        folders = [part.replace("$ORIGIN", str(library.parent)) for part in read_rpath(library).split(":")]
        assert installed.site / "_rocm_sdk_core" / "lib" in [Path(folder).resolve() for folder in folders]


def read_rpath(library: Path) -> str:
    """Return the DT_RPATH of a library, which may have no DT_RUNPATH beside it."""
    with library.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        tags = {tag.entry.d_tag: tag for tag in section.iter_tags()}
    assert "DT_RUNPATH" not in tags
    rpath: str = vars(tags["DT_RPATH"])["rpath"]
    return rpath


# Device packages in the development tree


def test_without_a_device_package_the_libraries_still_work(
    installed: Environment,
) -> None:
    installed.rocm_sdk("init")
    assert (installed.tree / KPACK).exists()

    installed.uninstall("rocm-sdk-device-gfx942")

    assert installed.find("hipblas").is_file()
    assert not (installed.tree / KPACK).exists(), "a device package takes its links along"
    assert not list(installed.site.rglob("*gfx942*"))
    installed.rocm_sdk("init")
    assert (installed.tree / "lib/libhipblas.so").exists()


def test_a_device_package_that_comes_later_joins_the_devel_tree(
    installed: Environment,
) -> None:
    installed.rocm_sdk("init")
    installed.install(f"rocm-sdk-device-gfx1100=={ROCM_VERSION}")

    installed.rocm_sdk("path", "--root")

    name = "lib/rocblas/library/TensileLibrary_gfx1100.dat"
    assert (installed.tree / name).samefile(installed.site / PAYLOAD / name)
    record = next(installed.site.glob("rocm_sdk_device_gfx1100-*.dist-info")) / "RECORD"
    assert f"_rocm_sdk_devel/{name},," in record.read_text(encoding="utf-8").splitlines()
    assert installed.rocm_sdk("targets").stdout == "gfx1100;gfx942\n"


def test_refuses_a_device_package_of_another_version(
    installed: Environment,
) -> None:
    change_version(installed, "7.0.0")

    refused = installed.rocm_sdk("init", check=False)

    assert refused.returncode == 1
    assert "The device package of gfx942 has version 7.0.0" in refused.stderr
    assert f'pip install "rocm[device-gfx942]=={ROCM_VERSION}"' in refused.stderr
    assert not (installed.tree / KPACK).exists()
    change_version(installed, ROCM_VERSION)
    installed.rocm_sdk("init")
    assert (installed.tree / KPACK).exists()


def test_a_device_package_that_was_removed_and_comes_again_joins_the_devel_tree(
    installed: Environment,
) -> None:
    installed.rocm_sdk("init")
    installed.uninstall("rocm-sdk-device-gfx942")
    installed.install(f"rocm-sdk-device-gfx942=={ROCM_VERSION}")

    installed.rocm_sdk("path", "--root")

    assert (installed.tree / KPACK).exists()


def test_reinstalled_devel_packages_expand_beside_device_packages(
    installed: Environment,
) -> None:
    installed.rocm_sdk("init")
    installed.uninstall("rocm-sdk-devel")
    assert not installed.tree.exists()

    installed.install(f"rocm-sdk-devel=={ROCM_VERSION}")
    root = installed.devel_root()

    assert (root / "include/hip/hip_runtime.h").is_file()
    assert (root / KPACK).exists()


@pytest.mark.parametrize("order", list(itertools.permutations(NAMES[1:]))[::5], ids=str)
@pytest.mark.nightly
def test_an_uninstall_in_any_order_leaves_nothing(installed: Environment, order: tuple[str, ...]) -> None:
    installed.rocm_sdk("init")

    for name in (*order, "rocm"):
        installed.uninstall(name)

    assert installed.rocm_files() == []


# Plans


@pytest.fixture
def planning_command(split_artifacts: Path, tmp_path: Path) -> list[str]:
    """Return the command that plans the packages for a store that is not there."""
    options = [
        "--artifact-dir",
        str(split_artifacts),
        "--gpu-family",
        "gfx942",
        "--dry-run",
    ]
    return [
        sys.executable,
        "-m",
        "rocm_packaging",
        "build",
        *options,
        "--store",
        str(tmp_path / "out"),
    ]


def test_the_plan_is_printed_and_nothing_is_written(planning_command: list[str], tmp_path: Path) -> None:
    completed = process.capture(planning_command)

    text = completed.stdout + completed.stderr
    assert re.search(r"(?m)^package +as it is.*\n(.*\n)*rocm-sdk-device-gfx942 +\d", text)
    assert not (tmp_path / "out").exists()


def test_the_plan_says_what_becomes_of_each_file(
    planning_command: list[str],
) -> None:
    plan = json.loads(process.capture([*planning_command, "--json"]).stdout)

    files = {(file["package"], file["path"]): file for file in plan["files"]}
    hipblas = files["rocm-sdk-libraries", "lib/libhipblas.so.3"]
    assert hipblas["how"] == "patched"
    assert hipblas["soname"] == "libhipblas.so.3"
    assert hipblas["aliases"] == ["lib/libhipblas.so", "lib/libhipblas.so.3.1.0"]
    assert "$ORIGIN/../../_rocm_sdk_core/lib" in hipblas["rpath"].split(":")
    assert files["rocm-sdk-core", "bin/offload-arch"]["how"] == "stub"
