import json

import pytest
from hypothesis import strategies as st

from ci.cleanup import listed, required, units
from ci.publish.index.pages import Entry
from core.errors import DataError
from tests.unit.ci.cleanup.test_plan import stored
from tests.unit.ci.publish.index.indexed import render

SEGMENT = st.sampled_from(
    [
        *("v2", "v2-staging", "python-deps", "17-linux", "18-windows"),
        *("ROCm-TheRock", "amd-linux", "python", "simple"),
    ]
)
NAMES = st.sampled_from(["torch-2.10.0-py3-none-any.whl", "index.html", "a.json", "x.tar.gz", "weird.whl"])
KEYS = st.builds(lambda parts, name: "/".join([*parts, name]), st.lists(SEGMENT, max_size=4), NAMES)
WHEEL = "torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl"


def test_runs_are_put_together_by_repository_and_platform() -> None:
    keys = [
        *("17-linux/python/g/torch-1-py3-none-any.whl", "17-linux/logs/g/build.log"),
        *("17-windows/a_lib_generic.tar.zst", "me-TheRock/17-linux/x"),
        # a repository that is named as a run
        *("amd-linux/17-linux/x", "amd-linux/18-linux/x"),
    ]
    found = units([stored(key) for key in keys])
    assert {unit.name: (unit.series, len(unit.objects), unit.run_id) for unit in found} == {
        "17-linux": ("*-linux", 2, "17"),
        "17-windows": ("*-windows", 1, "17"),
        "me-TheRock/17-linux": ("me-TheRock/*-linux", 1, "17"),
        "amd-linux/17-linux": ("amd-linux/*-linux", 1, "17"),
        "amd-linux/18-linux": ("amd-linux/*-linux", 1, "18"),
    }


def test_versions_of_staging_are_put_together_with_their_sidecars() -> None:
    names = [
        *(WHEEL, f"{WHEEL}.metadata", WHEEL.replace("cp312", "cp311"), "rocm-7.1.0.tar.gz"),
        *("torch-2.9.0-cp312-cp312-linux_x86_64.whl", "index.html", "simple/torch/index.html"),
    ]
    found = units([stored(f"v2-staging/gfx94X-dcgpu/{name}") for name in names])
    assert [(unit.name, len(unit.objects)) for unit in found] == [
        ("v2-staging/gfx94X-dcgpu/torch 2.10.0+rocm7.1", 3),
        ("v2-staging/gfx94X-dcgpu/torch 2.9.0", 1),
        ("v2-staging/gfx94X-dcgpu/rocm 7.1.0", 1),
    ]


def test_versions_count_by_pep_440_and_runs_by_their_date() -> None:
    staged = [
        stored(f"v2-staging/g/torch-{version}-py3-none-any.whl", days)
        for version, days in (("2.9.0", 0), ("2.10.0", 9), ("2.10.0rc1", 3))
    ]
    assert [str(unit.version) for unit in units(staged)] == ["2.10.0", "2.10.0rc1", "2.9.0"]
    runs = [stored("9-linux/x", 5), stored("10-linux/x", 7), stored("8-linux/x", 1)]
    assert [unit.run_id for unit in units(runs)] == ["8", "9", "10"]


def test_pages_that_are_written_again_make_a_run_no_younger() -> None:
    run = [stored("17-linux/python/g/index.html", 0), stored("17-linux/python/g/simple/index.html", 0)]
    assert units([*run, stored("17-linux/python/g/x.whl", 50)])[0].modified == stored("x", 50).modified
    assert units(run)[0].modified == stored("x", 0).modified


@pytest.mark.parametrize("page", ["index.html", "simple/torch/index.html", "simple/torch/index.json"])
def test_our_own_pages_list_what_lies_beside_them(page: str) -> None:
    digests = {"sha256": "0" * 64, "metadata_sha256": "1" * 64}
    entry = Entry(filename=WHEEL, name="torch", version="2.10.0+rocm7.1", size=1, modified=0, **digests)
    assert f"v2/g/{WHEEL}" in listed(f"v2/g/{page}", render("v2/g", [entry])[page].encode())


def test_links_to_elsewhere_count_only_for_the_bucket_that_is_meant() -> None:
    page = b"""<a href="https://b.s3.amazonaws.com/17-linux/a%2Bb.whl#sha256=0">x</a>
        <a href="https://s3.us-east-2.amazonaws.com/b/18-linux/c.whl">x</a>
        <a href="https://other.s3.amazonaws.com/19-linux/d.whl">x</a>
        <A HREF="../../v2-staging/g/e.whl">x</A> <link href="../f.whl">"""
    assert listed("v2/g/index.html", page) == {"v2-staging/g/e.whl"}
    ours = {"17-linux/a+b.whl", "18-linux/c.whl"}
    assert listed("v2/g/index.html", page, bucket="b") == ours | {"v2-staging/g/e.whl"}
    assert listed("v2/g/index.html", page, bucket="b", own=False) == ours


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("index.html", b"\xff"),
        *(
            ("simple/torch/index.json", page)
            for page in (b"{", b"[]", b'["files"]', b"7", json.dumps({"files": [{}]}).encode())
        ),
    ],
)
def test_a_page_that_cannot_be_read_stops_everything(name: str, page: bytes) -> None:
    with pytest.raises(DataError, match="is not a page of an index"):
        listed(f"v2/g/{name}", page)


def test_versions_that_a_kept_wheel_pins_are_named() -> None:
    versions = ("7.1.0a1", "7.1.0a2", "7.2")
    going = units([stored(f"v2-staging/g/rocm-{version}-py3-none-any.whl") for version in versions])
    metadata = (
        b"Metadata-Version: 2.1\nName: torch\nRequires-Dist: rocm[libraries]==7.1.0a1\n"
        b"Requires-Dist: ROCm>=7; extra == 'x'\nRequires-Dist: not a requirement !\n\n"
        b"Requires-Dist: rocm==7.2\n"
    )
    for folder, found in (("g", {"v2-staging/g/rocm 7.1.0a1"}), ("h", set())):
        sidecar = f"v2-staging/{folder}/{WHEEL}.metadata"
        assert required(units([stored(sidecar)]), going, {sidecar: metadata}) == found
        assert required(units([stored(sidecar)]), going, {}) == frozenset()
