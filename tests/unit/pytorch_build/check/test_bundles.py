import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytorch_build.check.bundles import BundleError, parse_entry_id, read_bundles
from tests.unit.pytorch_build.check.conftest import compressed_bundle, plain_bundle

ALL = [(version, method) for version in (2, 3) for method in (0, 1)]
NOISE = random.Random(7).randbytes(50_000)  # noqa: S311 - a fixture, not a secret


@pytest.mark.parametrize(("version", "method"), ALL)
def test_a_compressed_bundle(version: int, method: int) -> None:
    inner = plain_bundle("gfx90a:sramecc+:xnack-", "gfx9-4-generic", code=NOISE)
    data = compressed_bundle(inner, version=version, method=method)

    (bundle,) = read_bundles(data)

    assert bundle.form == ("zlib", "zstd")[method]
    assert bundle.version == version
    assert bundle.size == len(data)
    assert bundle.targets == {"gfx90a:sramecc+:xnack-", "gfx9-4-generic"}


def test_only_the_table_is_inflated() -> None:
    code = random.Random(8).randbytes(3_000_000)  # noqa: S311 - a fixture, not a secret
    data = compressed_bundle(plain_bundle("gfx900", code=code))

    (bundle,) = read_bundles(data[:-1_000_000] + b"\xff" * 1_000_000)

    assert bundle.targets == {"gfx900"}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hipv4-amdgcn-amd-amdhsa--gfx942:xnack+", ("hipv4", "gfx942:xnack+")),
        ("hipv4-amdgcn-amd-amdhsa--gfx9-4-generic", ("hipv4", "gfx9-4-generic")),
        ("hip-amdgcn-amd-amdhsa-gfx906", ("hip", "gfx906")),
        ("hip-spirv64-amd-amdhsa--amdgcnspirv", ("hip", "amdgcnspirv")),
        ("host-x86_64-unknown-linux-gnu-", ("host", "")),
        ("host-x86_64-unknown-linux--", ("host", "")),
        ("openmp-amdgcn-amd-amdhsa--gfx90a", ("openmp", "gfx90a")),
        ("hip-amdgcn-amd-amdhsa-", ("hip", "")),
    ],
)
def test_entry_ids(text: str, parts: tuple[str, str]) -> None:
    assert parse_entry_id(text) == parts


def entry_count(data: bytes, count: int) -> bytes:
    return data[:24] + struct.pack("<Q", count) + data[32:]


def test_damaged_bundles() -> None:
    good, whole = plain_bundle("gfx900"), compressed_bundle(plain_bundle("gfx900", code=NOISE))
    cases = {
        b"garbage": "neither a bundle nor padding at offset 0",
        good + b"x": "neither a bundle nor padding",
        good[:100]: "ends within its table|cut off",
        good[:4100]: "cut off",
        entry_count(good, 1 << 40): "claims",
        entry_count(good, 3): "has an id of|ends within",
        plain_bundle("g" * 2000): "id of",
        whole[:-1]: "cut off",
        whole[:10]: "cut off",
        whole[:6]: "cut off",
        b"CCOB" + struct.pack("<HH", 9, 1) + bytes(24): "unknown version 9",
        b"CCOB" + struct.pack("<HH", 1, 1) + bytes(24): "unknown version 1",
        whole[:6] + struct.pack("<H", 7) + whole[8:]: "unknown method 7",
        whole[:32] + b"\xff" * 60 + whole[92:]: "is damaged",
        compressed_bundle(b"not a bundle at all" * 10): "is not a bundle",
        compressed_bundle(good[:40]): "ends within its table",
        compressed_bundle(good, method=0)[:32] + bytes(400): "is damaged",
        whole[:16] + struct.pack("<Q", 50) + whole[24:]: "beyond its end",
    }
    for data, words in cases.items():
        with pytest.raises(BundleError, match=words):
            read_bundles(data)


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"CCOB\2\0\0\0", b"CCOB\3\0\1\0", b"__CLANG_OFFLOAD_BUNDLE__"]),
)
def test_hostile_bytes_give_bundles_or_a_bundle_error(data: bytes, prefix: bytes) -> None:
    try:
        bundles = read_bundles(prefix + data)
    except BundleError:
        return
    assert all(bundle.offset + bundle.size <= len(prefix + data) for bundle in bundles)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.from_regex(r"gfx[0-9a-f]{3,4}(:xnack[+-])?", fullmatch=True), min_size=1, max_size=5),
            st.sampled_from([None, *ALL]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([1, 8, 4096]),
)
def test_what_is_written_is_read(
    wanted: list[tuple[list[str], tuple[int, int] | None]], alignment: int
) -> None:
    section = b""
    for targets, form in wanted:
        inner = plain_bundle(*targets)
        section = section.ljust(-(-len(section) // alignment) * alignment, b"\0")
        section += inner if form is None else compressed_bundle(inner, version=form[0], method=form[1])
    found = read_bundles(section + bytes(10_000))
    assert [bundle.targets for bundle in found] == [set(targets) for targets, _ in wanted]
    assert [one.version for one in found] == [form[0] if form else 0 for _, form in wanted]
    assert all(section[one.offset : one.offset + 4] in {b"CCOB", b"__CL"} for one in found)
