"""What `rocm_sdk` says of this machine's GPUs, from its templates on written installations."""

import importlib
from pathlib import Path
from typing import Any

from core.families import target_of_version
from tests.kit.rocm_sdk import install_files, install_runtime

TARGETS = ("gfx942", "gfx1100")
GFX1100_VERSION = 110000


def load_gpus() -> Any:
    """Return the module that knows the GPUs."""
    return importlib.import_module("rocm_sdk._gpus")


def install_split(site: Path) -> Any:
    """Install split packages without device code; return the module that knows the GPUs."""
    install_runtime(site, families={target: (target,) for target in TARGETS}, is_split=True)
    install_files(site, {"_rocm_sdk_libraries/__init__.py": ""})
    return load_gpus()


def write_nodes(folder: Path, versions: list[int]) -> str:
    """Write the nodes of a machine as its kernel shows them, and one that cannot be read."""
    for number, version in enumerate(versions):
        node = folder / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(f"a 1\ngfx_target_version {version}\n")
    (folder / str(len(versions))).mkdir(parents=True)
    return str(folder)


def test_spells_targets_as_the_tool_spells_them(sdk_site: Path, tmp_path: Path) -> None:
    gpus = install_split(sdk_site)
    versions = [90402, 110501, 90010, 120000, 100306]
    processor = 0
    gpus.NODES = write_nodes(tmp_path / "nodes", [processor, *versions, versions[0]])

    assert gpus.targets() == [target_of_version(version) for version in versions]


def test_finds_no_gpu_without_nodes(sdk_site: Path, tmp_path: Path) -> None:
    gpus = install_split(sdk_site)
    gpus.NODES = str(tmp_path / "absent")

    assert gpus.targets() == []
    assert gpus.device_problems() == []


def test_knows_no_version_of_a_damaged_device_package(sdk_site: Path, tmp_path: Path) -> None:
    gpus = install_split(sdk_site)
    gpus.NODES = write_nodes(tmp_path / "nodes", [GFX1100_VERSION])
    install_files(sdk_site, {"_rocm_sdk_libraries/.devel_links/gfx1100.json": "damaged"})

    (problem,) = gpus.device_problems()

    assert "gfx1100 has version ?" in problem


def test_needs_no_device_packages_for_unsplit_libraries(sdk_site: Path, tmp_path: Path) -> None:
    install_runtime(sdk_site, families={"gfx94X-dcgpu": ("gfx942",)})
    install_files(sdk_site, {"_rocm_sdk_libraries_gfx94X_dcgpu/__init__.py": ""})
    gpus = load_gpus()
    gpus.NODES = write_nodes(tmp_path / "nodes", [GFX1100_VERSION])

    assert gpus.device_problems() == []
