import itertools
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytorch_build.check.bundles import BundleError, parse_entry_id, read_bundles
from tests.kit.binaries import align, compressed_bundle, offload_bundle

COMPRESSED_FORMS = list(itertools.product((2, 3), (False, True)))
INCOMPRESSIBLE_CODE = random.Random(7).randbytes(50_000)  # noqa: S311 - an input, not a secret
PADDING = bytes(10_000)


@pytest.mark.parametrize(("version", "is_zstd"), COMPRESSED_FORMS)
def test_reads_a_compressed_bundle(version: int, *, is_zstd: bool) -> None:
    plain_bundle = offload_bundle("gfx90a:sramecc+:xnack-", "gfx9-4-generic", code=INCOMPRESSIBLE_CODE)
    content = compressed_bundle(plain_bundle, version=version, is_zstd=is_zstd)

    (bundle,) = read_bundles(content)

    assert bundle.form == ("zstd" if is_zstd else "zlib")
    assert bundle.version == version
    assert bundle.size == len(content)
    assert bundle.targets == {"gfx90a:sramecc+:xnack-", "gfx9-4-generic"}


def test_inflates_the_table_alone() -> None:
    code = random.Random(8).randbytes(1_000_000)  # noqa: S311 - an input, not a secret
    content = compressed_bundle(offload_bundle("gfx900", code=code))
    damaged_behind_the_table = content[:-300_000] + b"\xff" * 300_000

    (bundle,) = read_bundles(damaged_behind_the_table)

    assert bundle.targets == {"gfx900"}


@pytest.mark.parametrize(
    ("entry_id", "kind", "target"),
    [
        ("hipv4-amdgcn-amd-amdhsa--gfx942:xnack+", "hipv4", "gfx942:xnack+"),
        ("hipv4-amdgcn-amd-amdhsa--gfx9-4-generic", "hipv4", "gfx9-4-generic"),
        ("hip-amdgcn-amd-amdhsa-gfx906", "hip", "gfx906"),
        ("hip-spirv64-amd-amdhsa--amdgcnspirv", "hip", "amdgcnspirv"),
        ("host-x86_64-unknown-linux-gnu-", "host", ""),
        ("host-x86_64-unknown-linux--", "host", ""),
        ("openmp-amdgcn-amd-amdhsa--gfx90a", "openmp", "gfx90a"),
        ("hip-amdgcn-amd-amdhsa-", "hip", ""),
    ],
)
def test_splits_the_id_of_an_entry(entry_id: str, kind: str, target: str) -> None:
    assert parse_entry_id(entry_id) == (kind, target)


BUNDLE = offload_bundle("gfx900")
COMPRESSED = compressed_bundle(offload_bundle("gfx900", code=INCOMPRESSIBLE_CODE))


def claim_entries(count: int) -> bytes:
    """Return a bundle that claims to have this many entries."""
    return BUNDLE[:24] + struct.pack("<Q", count) + BUNDLE[32:]


def compressed_header(*, version: int, method: int) -> bytes:
    """Return a compressed bundle of zeros."""
    return b"CCOB" + struct.pack("<HH", version, method) + bytes(24)


DAMAGED_BUNDLES = {
    "garbage": (b"garbage", "offset 0"),
    "garbage behind a bundle": (BUNDLE + b"x", f"offset {len(BUNDLE)}"),
    "cut in the table": (BUNDLE[:40], "table"),
    "cut behind the table": (BUNDLE[:100], "offset 0"),
    "cut in the code": (BUNDLE[:4100], "cut off"),
    "too many entries": (claim_entries(1 << 40), str(1 << 40)),
    "an entry too many": (claim_entries(3), "offset 0"),
    "a long id": (offload_bundle("g" * 2000), "id of"),
    "compressed and cut": (COMPRESSED[:-1], "cut off"),
    "compressed and cut in the sizes": (COMPRESSED[:10], "cut off"),
    "compressed and cut in the header": (COMPRESSED[:6], "cut off"),
    "future version": (compressed_header(version=9, method=1), "version 9"),
    "first version": (compressed_header(version=1, method=1), "version 1"),
    "unknown method": (COMPRESSED[:6] + struct.pack("<H", 7) + COMPRESSED[8:], "method 7"),
    "damaged zstd": (COMPRESSED[:32] + b"\xff" * 60 + COMPRESSED[92:], "damaged"),
    "damaged zlib": (compressed_bundle(BUNDLE, is_zstd=False)[:32] + bytes(400), "damaged"),
    "compressed text": (compressed_bundle(b"not a bundle at all" * 10), "not a bundle"),
    "compressed part": (compressed_bundle(BUNDLE[:40]), "table"),
    "larger than it says": (COMPRESSED[:16] + struct.pack("<Q", 50) + COMPRESSED[24:], "beyond"),
}


@pytest.mark.parametrize(("content", "subject"), DAMAGED_BUNDLES.values(), ids=DAMAGED_BUNDLES)
def test_refuses_a_damaged_bundle(content: bytes, subject: str) -> None:
    with pytest.raises(BundleError, match=subject):
        read_bundles(content)


@given(
    content=st.binary(max_size=200),
    magic=st.sampled_from([b"", b"CCOB\2\0\0\0", b"CCOB\3\0\1\0", b"__CLANG_OFFLOAD_BUNDLE__"]),
)
def test_reads_or_refuses_any_bytes(content: bytes, magic: bytes) -> None:
    section = magic + content
    try:
        bundles = read_bundles(section)
    except BundleError:
        return

    for bundle in bundles:
        assert bundle.offset + bundle.size <= len(section)


@given(
    target_lists=st.lists(
        st.lists(st.from_regex(r"gfx[0-9a-f]{3,4}(:xnack[+-])?", fullmatch=True), min_size=1, max_size=5),
        min_size=1,
        max_size=5,
    ),
    forms=st.lists(st.sampled_from([None, *COMPRESSED_FORMS]), min_size=5, max_size=5),
    alignment=st.sampled_from([1, 8, 4096]),
)
def test_reads_bundles_of_any_form_in_a_row(
    target_lists: list[list[str]], forms: list[tuple[int, bool] | None], alignment: int
) -> None:
    section = b""
    offsets: list[int] = []
    versions: list[int] = []
    for targets, form in zip(target_lists, forms, strict=False):
        content = offload_bundle(*targets)
        version = 0
        if form is not None:
            version, is_zstd = form
            content = compressed_bundle(content, version=version, is_zstd=is_zstd)
        section = align(section, alignment)
        offsets.append(len(section))
        versions.append(version)
        section += content

    bundles = read_bundles(section + PADDING)

    assert [bundle.targets for bundle in bundles] == [set(targets) for targets in target_lists]
    assert [bundle.version for bundle in bundles] == versions
    assert [bundle.offset for bundle in bundles] == offsets
