from __future__ import annotations

import json

import pytest
from packaging.version import Version

from ci.cleanup.units import listed, required, units
from ci.publish.index.pages import Entry, render
from core.errors import DataError
from core.stores import Stored

WHEEL = "torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl"


def entry(filename: str) -> Entry:
    return Entry(
        filename=filename,
        name="torch",
        version=Version("2.10.0+rocm7.1"),
        sha256="0" * 64,
        size=1,
        modified=0,
        metadata_sha256="1" * 64,
    )


@pytest.mark.parametrize("page", ["index.html", "simple/torch/index.html", "simple/torch/index.json"])
def test_our_own_pages_list_what_lies_beside_them(page: str) -> None:
    text = render("v2/g", [entry(WHEEL)])[page]
    assert f"v2/g/{WHEEL}" in listed(f"v2/g/{page}", text.encode())


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
    ("key", "page"),
    [
        ("v2/g/index.html", b"\xff"),
        ("v2/g/simple/torch/index.json", b"{"),
        ("v2/g/simple/torch/index.json", b"[]"),
        ("v2/g/simple/torch/index.json", b'["files"]'),
        ("v2/g/simple/torch/index.json", b"7"),
        ("v2/g/simple/torch/index.json", json.dumps({"files": [{}]}).encode()),
    ],
)
def test_a_page_that_cannot_be_read_stops_everything(key: str, page: bytes) -> None:
    with pytest.raises(DataError, match="is not a page of an index"):
        listed(key, page)


def test_versions_that_a_kept_wheel_pins_are_named() -> None:
    keys = [f"v2-staging/g/rocm-{version}-py3-none-any.whl" for version in ("7.1.0a1", "7.1.0a2", "7.2")]
    going = units([Stored(key=key, size=1, etag="", modified=0) for key in keys])
    sidecar = f"v2-staging/g/{WHEEL}.metadata"
    kept = units([Stored(key=sidecar, size=1, etag="", modified=0)])
    metadata = (
        b"Metadata-Version: 2.1\nName: torch\nRequires-Dist: rocm[libraries]==7.1.0a1\n"
        b"Requires-Dist: ROCm>=7; extra == 'x'\nRequires-Dist: not a requirement !\n\n"
        b"Requires-Dist: rocm==7.2\n"
    )
    assert required(kept, going, {sidecar: metadata}) == {"v2-staging/g/rocm 7.1.0a1"}
    assert required(kept, going, {}) == frozenset()
    elsewhere = units([Stored(key=sidecar.replace("/g/", "/h/"), size=1, etag="", modified=0)])
    assert required(elsewhere, going, {sidecar.replace("/g/", "/h/"): metadata}) == frozenset()
