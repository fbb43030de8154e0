from types import ModuleType

import pytest

from rocm_packaging.packages import wheels
from rocm_packaging.packages.plan import Distribution
from tests.kit.artifact_sets import executed

DISTRIBUTION = Distribution(
    version="10.1.0",
    platform="linux",
    families={"gfx94X-dcgpu": ("gfx942",), "gfx110X-all": ("gfx1100", "gfx1101"), "gfx1100": ("gfx1100",)},
    libraries=("amdhip64",),
    linux=("gfx94X-dcgpu", "gfx110X-all", "gfx1100"),
)


def loaded(family: str = "", package: str = "", distribution: Distribution = DISTRIBUTION) -> ModuleType:
    return executed(wheels.dist_info(distribution, package, family))


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCM_SDK_TARGET_FAMILY", raising=False)
    monkeypatch.setenv("PATH", "")


def test_values_are_literals_whatever_they_hold() -> None:
    evil = Distribution(version="1'; import os #", platform="linux", families={"a\"b'": ()}, libraries=())
    module = loaded(distribution=evil)
    assert module.__version__ == "1'; import os #"
    assert module.AVAILABLE_TARGET_FAMILIES == ["a\"b'"]


def test_dist_info_knows_its_package() -> None:
    module = loaded(package="libraries", family="gfx94X-dcgpu")
    assert module.THIS_TARGET_FAMILY == "gfx94X-dcgpu"
    entry = module.THIS_PACKAGE_ENTRY
    assert entry.get_dist_package_name("gfx94X-dcgpu") == "rocm-sdk-libraries-gfx94X-dcgpu"
    assert entry.get_py_package_name("gfx94X-dcgpu") == "_rocm_sdk_libraries_gfx94X_dcgpu"
    assert entry.get_pure_py_package_name("gfx94X-dcgpu").isidentifier()
    assert entry.get_dist_package_require("gfx1100") == "rocm-sdk-libraries-gfx1100==10.1.0"
    assert module.LINUX_TARGET_FAMILIES == module.AVAILABLE_TARGET_FAMILIES
    assert module.WINDOWS_TARGET_FAMILIES == []
    assert loaded().THIS_PACKAGE_ENTRY is None


def test_the_variable_then_what_is_installed_then_the_gpu_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def decided(*installed: str) -> str:
        module = loaded()
        monkeypatch.setattr(module, "installed_target_families", lambda: list(installed))
        monkeypatch.setattr(module, "discover_current_target_family", lambda: "gfx110X-all")
        return str(module.determine_target_family())

    assert decided() == "gfx110X-all"
    assert decided("gfx94X-dcgpu") == "gfx94X-dcgpu"
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", "gfx1100")
    assert decided("gfx94X-dcgpu") == "gfx1100"
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", "gfx900-dgpu")
    with pytest.raises(ValueError, match="ROCM_SDK_TARGET_FAMILY=gfx900-dgpu is not available in the dist"):
        decided()


def test_the_smallest_family_of_a_target_comes_first() -> None:
    module = loaded()
    assert module.families_of_target("gfx1100:sramecc+") == ["gfx1100", "gfx110X-all"]
    assert module.families_of_target("gfx900") == []
