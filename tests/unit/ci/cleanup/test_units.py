"""What is deleted as a unit, and what pages and metadata say of it."""

import json
from operator import attrgetter

import pytest

from ci.cleanup.pages import keys_on_page
from ci.cleanup.units import DeletionUnit, find_units, pinned_units
from core.errors import DataError
from tests.kit.index_pages import page_file, render_pages
from tests.kit.stores import stored_object

DAY = 86_400
NOW = 1_800_000_000
NAME = attrgetter("name")
WHEEL = "torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl"


def units_of(*keys: str) -> list[DeletionUnit]:
    """Return the units of a bucket with these objects."""
    return list(find_units([stored_object(key) for key in keys]))


def units_by_age(days_old: dict[str, float]) -> list[DeletionUnit]:
    """Return the units of a bucket with objects of these ages."""
    return list(find_units([stored_object(key, modified=NOW - days * DAY) for key, days in days_old.items()]))


def staged_rocm(*versions: str) -> list[DeletionUnit]:
    """Return staged versions of ROCm."""
    return units_of(*map("v2-staging/g/rocm-{}-py3-none-any.whl".format, versions))


# Units


def test_puts_runs_together_by_repository_and_platform() -> None:
    found_units = units_of(
        "17-linux/python/g/torch-1-py3-none-any.whl",
        "17-linux/logs/g/build.log",
        "17-windows/a_lib_generic.tar.zst",
        "me-TheRock/17-linux/x",
    )

    assert [(unit.name, unit.series, len(unit.objects)) for unit in sorted(found_units, key=NAME)] == [
        ("17-linux", "*-linux", 2),
        ("17-windows", "*-windows", 1),
        ("me-TheRock/17-linux", "me-TheRock/*-linux", 1),
    ]


def test_takes_a_repository_that_is_named_as_a_run_for_none() -> None:
    found_units = units_of("amd-linux/17-linux/x", "amd-linux/18-linux/x")

    assert sorted(map(NAME, found_units)) == ["amd-linux/17-linux", "amd-linux/18-linux"]
    assert sorted(map(attrgetter("run_id"), found_units)) == ["17", "18"]


def test_puts_versions_of_staging_together_with_their_sidecars() -> None:
    names = [
        WHEEL,
        f"{WHEEL}.metadata",
        WHEEL.replace("cp312", "cp311"),
        "rocm-7.1.0.tar.gz",
        "torch-2.9.0-cp312-cp312-linux_x86_64.whl",
        "index.html",
        "simple/torch/index.html",
    ]

    found_units = units_of(*map("v2-staging/gfx94X-dcgpu/{}".format, names))

    assert [(unit.name, len(unit.objects)) for unit in found_units] == [
        ("v2-staging/gfx94X-dcgpu/torch 2.10.0+rocm7.1", 3),
        ("v2-staging/gfx94X-dcgpu/torch 2.9.0", 1),
        ("v2-staging/gfx94X-dcgpu/rocm 7.1.0", 1),
    ]


def test_orders_versions_by_pep_440() -> None:
    found_units = staged_rocm("2.9.0", "2.10.0", "2.10.0rc1")

    assert list(map(NAME, found_units)) == [
        "v2-staging/g/rocm 2.10.0",
        "v2-staging/g/rocm 2.10.0rc1",
        "v2-staging/g/rocm 2.9.0",
    ]


def test_orders_runs_by_their_date() -> None:
    found_units = units_by_age({"9-linux/x": 5, "10-linux/x": 7, "8-linux/x": 1})

    assert list(map(NAME, found_units)) == ["8-linux", "9-linux", "10-linux"]


def test_pages_make_a_run_no_younger() -> None:
    pages = {"17-linux/python/g/index.html": 0, "17-linux/python/g/simple/index.html": 0}

    (unit,) = units_by_age({**pages, "17-linux/python/g/x.whl": 50})

    assert unit.modified == NOW - 50 * DAY


def test_takes_the_date_of_its_pages_for_a_run_without_anything_else() -> None:
    (unit,) = units_by_age({"17-linux/python/g/index.html": 3})

    assert unit.modified == NOW - 3 * DAY


# What pages list


@pytest.mark.parametrize("page", ["index.html", "simple/torch/index.html", "simple/torch/index.json"])
def test_finds_what_an_indexs_own_pages_list(page: str) -> None:
    torch = page_file(filename=WHEEL, metadata_sha256="1" * 64)

    content = render_pages("v2/g", [torch])[page].encode()

    assert f"v2/g/{WHEEL}" in keys_on_page(f"v2/g/{page}", content)


PAGE = b"""<a href="https://b.s3.amazonaws.com/17-linux/a%2Bb.whl#sha256=0">x</a>
    <a href="https://s3.us-east-2.amazonaws.com/b/18-linux/c.whl">x</a>
    <a href="https://other.s3.amazonaws.com/19-linux/d.whl">x</a>
    <A HREF="../../v2-staging/g/e.whl">x</A> <link href="../f.whl">"""
LINKS_WITHIN = {"v2-staging/g/e.whl"}
LINKS_TO_BUCKET = {"17-linux/a+b.whl", "18-linux/c.whl"}


def test_counts_no_links_to_a_bucket_where_none_is_meant() -> None:
    assert keys_on_page("v2/g/index.html", PAGE) == LINKS_WITHIN


def test_counts_links_to_the_bucket_that_is_meant() -> None:
    assert keys_on_page("v2/g/index.html", PAGE, bucket="b") == LINKS_TO_BUCKET | LINKS_WITHIN


def test_counts_only_links_to_the_bucket_where_the_page_lies_elsewhere() -> None:
    assert keys_on_page("v2/g/index.html", PAGE, bucket="b", is_own=False) == LINKS_TO_BUCKET


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("index.html", b"\xff"),
        ("simple/torch/index.json", b"{"),
        ("simple/torch/index.json", b"[]"),
        ("simple/torch/index.json", b'["files"]'),
        ("simple/torch/index.json", b"7"),
        ("simple/torch/index.json", json.dumps({"files": [{}]}).encode()),
    ],
    ids=["not UTF-8", "no JSON", "a list", "a list of keys", "a number", "a file without an address"],
)
def test_rejects_a_page_that_cannot_be_read(name: str, content: bytes) -> None:
    with pytest.raises(DataError) as raised:
        keys_on_page(f"v2/g/{name}", content)

    assert f"v2/g/{name}" in raised.value.message


# What a version that stays requires


METADATA = b"""\
Metadata-Version: 2.1
Name: torch
Requires-Dist: rocm[libraries]==7.1.0a1
Requires-Dist: ROCm>=7; extra == 'x'
Requires-Dist: not a requirement !

Requires-Dist: rocm==7.2
"""


@pytest.fixture
def going() -> list[DeletionUnit]:
    """Return three versions of ROCm that would go."""
    return staged_rocm("7.1.0a1", "7.1.0a2", "7.2")


def test_names_the_versions_that_a_wheel_pins(going: list[DeletionUnit]) -> None:
    sidecar = f"v2-staging/g/{WHEEL}.metadata"

    assert pinned_units(units_of(sidecar), going, {sidecar: METADATA}) == {"v2-staging/g/rocm 7.1.0a1"}


def test_names_no_version_of_another_index(going: list[DeletionUnit]) -> None:
    sidecar = f"v2-staging/h/{WHEEL}.metadata"

    assert pinned_units(units_of(sidecar), going, {sidecar: METADATA}) == set()


def test_names_no_version_where_no_metadata_is_there(going: list[DeletionUnit]) -> None:
    sidecar = f"v2-staging/g/{WHEEL}.metadata"

    assert pinned_units(units_of(sidecar), going, {}) == set()
