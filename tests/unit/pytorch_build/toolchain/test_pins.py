from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from packaging.version import Version

from core.cli.options import ROOT
from pytorch_build.build.needs import load_needs
from pytorch_build.platforms import windows
from pytorch_build.toolchain.pins import load_toolchain, places

LISTINGS = Path(__file__).with_name("listings")


def listing(name: str) -> tuple[str, ...]:
    return tuple((LISTINGS / f"{name}.txt").read_text(encoding="utf-8").splitlines())


def test_a_changed_pin_is_another_folder(tmp_path: Path) -> None:
    linux, other = places(tmp_path, "linux"), places(tmp_path, "windows")
    assert linux.libuv != other.libuv, "what is compiled is for one platform"
    assert linux.openmp == other.openmp
    assert load_toolchain().libuv.commit[:12] in linux.libuv.name


def test_nothing_is_taken_first_that_may_not_be_redistributed() -> None:
    data = load_toolchain().openmp
    first = data.download if data.order[0] == "download" else data.visual_studio
    assert first.redistributable
    assert not data.visual_studio.redistributable


def test_the_locks_ninja_works_on_windows() -> None:
    oldest = Version(load_needs().tools.ninja_windows)
    locks = sorted((ROOT / "requirements").glob("target-windows-*.txt"))
    pinned = [re.search(r"^ninja==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE) for lock in locks]
    assert len(pinned) >= 3
    assert all(found and Version(found[1]) >= oldest for found in pinned)


def test_what_torch_loads_first_is_in_rocm_for_windows() -> None:
    there = {Path(path).name for path in listing("rocm-10.0.0-windows")}
    libraries = import_module("rocm_packaging.templates.dist_info").ALL_LIBRARIES  # which has no types
    patterns = {name: libraries[name].windows for name in windows.PRELOADS}
    assert all(patterns.values())
    lacking = [name for name, glob in patterns.items() if not any(Path(dll).match(glob) for dll in there)]
    # the listing is of what another program loads, and that has no use for these two
    assert lacking == ["hipsparselt", "hipdnn"]
