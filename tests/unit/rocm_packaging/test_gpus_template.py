"""What `rocm_sdk` says of this machine's GPUs, from its templates on written installations."""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from core.families import target_of_version
from rocm_packaging.packages import wheels
from rocm_packaging.packages.plan import Distribution

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KNOWN = ("gfx942", "gfx1100")


def installation(site: Path, *, split: bool) -> Any:
    for name, source in wheels.runtime_sources():
        if name.startswith("src/") and "/tests/" not in name:
            target = site / name.removeprefix("src/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    of = {target: (target,) for target in KNOWN} if split else {"gfx94X-dcgpu": ("gfx942",)}
    made = Distribution(version="1.0.0", platform="linux", families=of, libraries=(), split=split)
    (site / "rocm_sdk" / "_dist_info.py").write_bytes(wheels.dist_info(made, ""))
    folder = site / ("_rocm_sdk_libraries" if split else "_rocm_sdk_libraries_gfx94X_dcgpu")
    folder.mkdir()
    (folder / "__init__.py").touch()
    importlib.invalidate_caches()
    return importlib.import_module("rocm_sdk._gpus")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / "site"
    for name in [name for name in sys.modules if name.partition(".")[0] == "rocm_sdk"]:
        del sys.modules[name]


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
    gpus = installation(site, split=True)
    numbers = (90402, 110501, 90010, 120000, 100306)
    machine(gpus, tmp_path / "nodes", 0, *numbers, 90402)
    assert gpus.targets() == [target_of_version(number) for number in numbers]
    gpus.NODES = str(tmp_path / "absent")
    assert gpus.targets() == []
    assert gpus.device_problems() == []


def test_each_gpu_without_fitting_device_code_is_named_with_what_to_install(
    site: Path, tmp_path: Path
) -> None:
    gpus = installation(site, split=True)
    machine(gpus, tmp_path / "nodes", 90402, 110000, 90000)  # of the last one there is no package at all
    assert [problem.partition(" is not")[0] for problem in gpus.device_problems()] == [
        f"The device code of {target}" for target in KNOWN
    ]
    device(site, "gfx942", json.dumps({"version": "1.0.0.post2"}))
    device(site, "gfx1100", json.dumps({"version": "0.9.0"}))
    (problem,) = gpus.device_problems()
    assert "of gfx1100 has version 0.9.0, and rocm has 1.0.0" in problem
    assert problem.endswith('pip install "rocm[device-gfx1100]==1.0.0"')
    device(site, "gfx1100", "damaged")
    assert "has version ?" in gpus.device_problems()[0]


def test_libraries_that_hold_their_device_code_need_none(site: Path, tmp_path: Path) -> None:
    gpus = installation(site, split=False)
    machine(gpus, tmp_path / "nodes", 110000)
    assert gpus.device_problems() == []
