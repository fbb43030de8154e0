from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ci.cleanup.units import is_page, units
from core.stores import Stored

if TYPE_CHECKING:
    from collections.abc import Callable

SEGMENT = st.sampled_from(
    [
        "v2",
        "v2-staging",
        "python-deps",
        "17-linux",
        "18-windows",
        "ROCm-TheRock",
        "amd-linux",
        "python",
        "simple",
    ]
)
NAMES = st.sampled_from(["torch-2.10.0-py3-none-any.whl", "index.html", "a.json", "x.tar.gz", "weird.whl"])
KEYS = st.builds(lambda parts, name: "/".join([*parts, name]), st.lists(SEGMENT, max_size=4), NAMES)


def test_runs_are_put_together_by_repository_and_platform(stored: Callable[..., Stored]) -> None:
    keys = [
        "17-linux/python/g/torch-1-py3-none-any.whl",
        "17-linux/logs/g/build.log",
        "17-windows/a_lib_generic.tar.zst",
        "me-TheRock/17-linux/x",
    ]
    found = units([stored(key) for key in keys])
    assert {unit.name: (unit.series, len(unit.objects), unit.run_id) for unit in found} == {
        "17-linux": ("*-linux", 2, "17"),
        "17-windows": ("*-windows", 1, "17"),
        "me-TheRock/17-linux": ("me-TheRock/*-linux", 1, "17"),
    }


def test_a_repository_that_is_named_as_a_run_is_no_run(stored: Callable[..., Stored]) -> None:
    found = units([stored("amd-linux/17-linux/x"), stored("amd-linux/18-linux/x")])
    assert sorted(unit.name for unit in found) == ["amd-linux/17-linux", "amd-linux/18-linux"]


def test_versions_of_staging_are_put_together_with_their_sidecars(stored: Callable[..., Stored]) -> None:
    wheel = "torch-2.10.0%2Brocm7.1-cp312-cp312-linux_x86_64.whl".replace("%2B", "+")
    keys = [
        f"v2-staging/gfx94X-dcgpu/{wheel}",
        f"v2-staging/gfx94X-dcgpu/{wheel}.metadata",
        f"v2-staging/gfx94X-dcgpu/{wheel.replace('cp312', 'cp311')}",
        "v2-staging/gfx94X-dcgpu/torch-2.9.0-cp312-cp312-linux_x86_64.whl",
        "v2-staging/gfx94X-dcgpu/rocm-7.1.0.tar.gz",
        "v2-staging/gfx94X-dcgpu/index.html",
        "v2-staging/gfx94X-dcgpu/simple/torch/index.html",
    ]
    found = units([stored(key) for key in keys])
    assert [(unit.name, len(unit.objects)) for unit in found] == [
        ("v2-staging/gfx94X-dcgpu/torch 2.10.0+rocm7.1", 3),
        ("v2-staging/gfx94X-dcgpu/torch 2.9.0", 1),
        ("v2-staging/gfx94X-dcgpu/rocm 7.1.0", 1),
    ]


def test_versions_count_by_pep_440_and_runs_by_their_date(stored: Callable[..., Stored]) -> None:
    staged = [
        stored(f"v2-staging/g/torch-{version}-py3-none-any.whl", days)
        for version, days in (("2.9.0", 0), ("2.10.0", 9), ("2.10.0rc1", 3))
    ]
    assert [str(unit.version) for unit in units(staged)] == ["2.10.0", "2.10.0rc1", "2.9.0"]
    runs = [stored("9-linux/x", 5), stored("10-linux/x", 7), stored("8-linux/x", 1)]
    assert [unit.run_id for unit in units(runs)] == ["8", "9", "10"]


def test_pages_that_are_written_again_make_no_run_younger(stored: Callable[..., Stored]) -> None:
    run = [stored("17-linux/python/g/index.html", 0), stored("17-linux/python/g/simple/index.html", 0)]
    assert units([*run, stored("17-linux/python/g/x.whl", 50)])[0].modified == stored("x", 50).modified
    assert units(run)[0].modified == stored("x", 0).modified


@given(st.sets(KEYS, max_size=12))
def test_no_object_is_in_two_units_and_protected_folders_are_in_none(keys: set[str]) -> None:
    found = units([Stored(key=key, size=1, etag="", modified=0.0) for key in keys])
    inside = [one.key for unit in found for one in unit.objects]
    assert len(inside) == len(set(inside))
    assert not [key for key in inside if key.startswith(("v2/", "python-deps/"))]
    assert not [key for key in inside if key.startswith("v2-staging/") and is_page(key)]
    assert len({unit.name for unit in found}) == len(found)
    order = [unit.series for unit in found]
    assert order == sorted(order, reverse=True)
