from dataclasses import replace
from types import ModuleType

import pytest

from rocm_packaging.packages import wheels
from rocm_packaging.packages.layouts import packages
from rocm_packaging.packages.plan import DistInfo
from tests.kit.artifacts import run_dist_info

FAMILY = "gfx94X-dcgpu"
DIST_INFO = DistInfo(
    version="10.1.0",
    platform="linux",
    families={
        FAMILY: ("gfx942",),
        "gfx110X-all": ("gfx1100", "gfx1101"),
        "gfx1100": ("gfx1100",),
    },
    libraries=("amdhip64",),
    linux_families=(FAMILY, "gfx110X-all", "gfx1100"),
)


def dist_info(
    build_info: DistInfo = DIST_INFO,
    *,
    package: str = "",
    family: str = "",
) -> ModuleType:
    """Return the ``_dist_info`` module of a package of a family; of none, that of the sdist."""
    return run_dist_info(wheels.dist_info_module(build_info, package, family))


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing say which GPU the machine has."""
    monkeypatch.delenv("ROCM_SDK_TARGET_FAMILY", raising=False)
    monkeypatch.setenv("PATH", "")


def test_writes_values_as_literals_whatever_they_hold() -> None:
    version = "1'; import os #"
    family = "a\"b'"

    module = dist_info(replace(DIST_INFO, version=version, families={family: ()}))

    assert module.__version__ == version
    assert list(module.AVAILABLE_TARGET_FAMILIES) == [family]


def test_names_the_packages_of_each_family() -> None:
    entry = dist_info(package="libraries", family=FAMILY).THIS_PACKAGE_ENTRY

    assert entry.get_dist_package_name(FAMILY) == "rocm-sdk-libraries-gfx94X-dcgpu"
    assert entry.get_py_package_name(FAMILY) == "_rocm_sdk_libraries_gfx94X_dcgpu"
    assert entry.get_pure_py_package_name(FAMILY).isidentifier()
    assert entry.get_dist_package_require("gfx1100") == "rocm-sdk-libraries-gfx1100==10.1.0"


def test_knows_the_family_of_its_package() -> None:
    assert dist_info(package="libraries", family=FAMILY).THIS_TARGET_FAMILY == FAMILY


def test_belongs_to_no_package_in_the_sdist() -> None:
    assert dist_info().THIS_PACKAGE_ENTRY is None


def test_lists_the_families_of_each_platform() -> None:
    module = dist_info()

    assert module.LINUX_TARGET_FAMILIES == module.AVAILABLE_TARGET_FAMILIES
    assert module.WINDOWS_TARGET_FAMILIES == []


@pytest.mark.parametrize(
    ("variable", "installed_families", "family"),
    [
        pytest.param(None, [], "gfx110X-all", id="GPU"),
        pytest.param(None, [FAMILY], FAMILY, id="installed before GPU"),
        pytest.param("gfx1100", [FAMILY], "gfx1100", id="variable before installed"),
    ],
)
def test_determines_the_family_of_an_environment(
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    installed_families: list[str],
    family: str,
) -> None:
    module = dist_info()
    monkeypatch.setattr(module, "installed_target_families", lambda: installed_families)
    monkeypatch.setattr(module, "discover_current_target_family", lambda: "gfx110X-all")
    if variable is not None:
        monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", variable)

    assert module.determine_target_family() == family


def test_refuses_a_family_that_is_not_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", "gfx900-dgpu")

    with pytest.raises(ValueError, match="gfx900-dgpu"):
        dist_info().determine_target_family()


@pytest.mark.parametrize(
    ("target", "families"),
    [("gfx1100:sramecc+", ["gfx1100", "gfx110X-all"]), ("gfx900", [])],
)
def test_lists_the_families_of_a_target_smallest_first(target: str, families: list[str]) -> None:
    assert dist_info().families_of_target(target) == families


# The programs of LLVM that have console scripts in TheRock's packages.
LLVM_PROGRAMS = (
    "amdclang",
    "amdclang++",
    "amdclang-cl",
    "amdclang-cpp",
    "amdflang",
    "amdlld",
    "offload-arch",
)


@pytest.mark.parametrize("name", LLVM_PROGRAMS)
def test_has_console_scripts_for_programs_of_llvm_on_windows(name: str) -> None:
    path = f"lib/llvm/bin/{name}.exe"

    assert wheels.scripts(packages().programs, [path], "windows") == {name: path}


def test_prefers_the_program_in_bin_for_a_console_script() -> None:
    paths = ["lib/llvm/bin/amdclang", "bin/amdclang"]

    assert wheels.scripts(packages().programs, paths, "linux") == {"amdclang": "bin/amdclang"}


def test_has_no_console_scripts_for_programs_of_another_platform() -> None:
    assert wheels.scripts(packages().programs, ["bin/hipcc"], "windows") == {}
