"""What `rocm_sdk` says of this machine's GPUs, from its templates on written installations."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.families import target_of_version

KNOWN = ("gfx942", "gfx1100")


@pytest.fixture
def site(installed_sdk: Callable[..., Path]) -> Path:
    return installed_sdk({target: (target,) for target in KNOWN}, split=True)


def gpus_of(site: Path, libraries: str = "_rocm_sdk_libraries") -> Any:
    (site / libraries).mkdir()
    (site / libraries / "__init__.py").touch()
    importlib.invalidate_caches()
    return importlib.import_module("rocm_sdk._gpus")


def machine(gpus: Any, folder: Path, *versions: int) -> None:
    for number, version in enumerate(versions):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "properties").write_text(f"a 1\ngfx_target_version {version}\n")
    (folder / str(len(versions))).mkdir(parents=True)  # a node that cannot be read
    gpus.NODES = str(folder)


def device(site: Path, target: str, text: str) -> None:
    path = site / "_rocm_sdk_libraries/.devel_links" / f"{target}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_targets_are_spelt_as_the_tool_spells_them(site: Path, tmp_path: Path) -> None:
    gpus = gpus_of(site)
    numbers = (90402, 110501, 90010, 120000, 100306)
    machine(gpus, tmp_path / "nodes", 0, *numbers, 90402)
    assert gpus.targets() == [target_of_version(number) for number in numbers]
    gpus.NODES = str(tmp_path / "absent")
    assert gpus.targets() == []
    assert gpus.device_problems() == []


def test_a_damaged_device_package_has_no_version(site: Path, tmp_path: Path) -> None:
    gpus = gpus_of(site)
    machine(gpus, tmp_path / "nodes", 110000)
    device(site, "gfx1100", "damaged")
    assert "of gfx1100 has version ?" in gpus.device_problems()[0]


def test_libraries_with_own_device_code_need_none(installed_sdk: Callable[..., Path], tmp_path: Path) -> None:
    gpus = gpus_of(installed_sdk({"gfx94X-dcgpu": ("gfx942",)}), "_rocm_sdk_libraries_gfx94X_dcgpu")
    machine(gpus, tmp_path / "nodes", 110000)
    assert gpus.device_problems() == []
