import contextlib
import io
import struct

import msgpack
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from rocm_packaging.packages import kpack
from rocm_packaging.packages.kpack import Kernel, KpackError

PARTS = st.dictionaries(
    st.tuples(
        st.from_regex(r"lib/[a-z]{1,6}\.so#[0-9]{1,3}", fullmatch=True),
        st.sampled_from(("gfx942", "gfx942:xnack+", "gfx942:xnack-")),
    ),
    st.binary(max_size=300),
    min_size=1,
    max_size=12,
)


def written(parts: dict[tuple[str, str], bytes], *, piece: int = 7) -> bytes:
    frames = [zstandard.ZstdCompressor().compress(data) for data in parts.values()]
    kernels = [
        (Kernel(binary=binary, target=target, size=len(data)), len(frame))
        for ((binary, target), data), frame in zip(parts.items(), frames, strict=True)
    ]
    pieces = [frame[at : at + piece] for frame in frames for at in range(0, len(frame), piece)]
    stream = io.BytesIO()
    kpack.write(stream, "torch", "gfx942", pieces, kernels)
    return stream.getvalue()


@given(PARTS)
def test_what_is_written_is_read(parts: dict[tuple[str, str], bytes]) -> None:
    stream = io.BytesIO(written(parts))
    archive = kpack.read(stream)
    found = {(one.binary, one.target): archive.content(stream, one) for one in archive.kernels}
    assert found.items() >= parts.items()
    # a library without code for one mode of the GPU has its general code under that mode, too
    for binary, target in found.keys() - parts.keys():
        assert target != "gfx942"
        assert found[binary, target] == parts[binary, "gfx942"]
    general = {binary for binary, target in parts if target == "gfx942"}
    assert all((binary, target) in found for binary in general for target in archive.targets)
    assert archive.targets == tuple(sorted({target for _, target in parts}))
    assert (archive.group, archive.packed) == ("torch", True)


def test_the_layout_is_the_one_that_the_runtime_reads() -> None:
    data = written({("lib/x.so#0", "gfx942"): b"code" * 50, ("lib/x.so#1", "gfx942"): b"more"})
    magic, version, at = struct.unpack_from("<4sIQ", data)
    table = msgpack.unpackb(data[at:])
    assert (magic, version, data[16:64]) == (b"KPAK", 1, bytes(48))
    assert table["compression_scheme"] == "zstd-per-kernel"
    assert (table["zstd_offset"], table["zstd_offset"] + table["zstd_size"]) == (64, at)
    assert table["toc"]["lib/x.so#1"]["gfx942"] == {"type": "hsaco", "ordinal": 1, "original_size": 4}
    count, first = struct.unpack_from("<II", data, 64)
    assert count == 2
    assert zstandard.ZstdDecompressor().decompress(data[72 : 72 + first]) == b"code" * 50


def test_uncompressed_archives_are_read_too() -> None:
    table = {
        "group_name": "blas",
        "gfx_arches": ["gfx942"],
        "compression_scheme": "none",
        "blobs": [{"offset": 64, "size": 4}],
        "toc": {"lib/x.so#0": {"gfx942": {"type": "hsaco", "ordinal": 0, "original_size": 4}}},
    }
    data = struct.pack("<4sIQ", b"KPAK", 1, 68).ljust(64, b"\0") + b"code" + msgpack.packb(table)
    stream = io.BytesIO(data)
    archive = kpack.read(stream)
    assert [archive.content(stream, one) for one in archive.kernels] == [b"code"]


@given(st.data())
def test_a_cut_off_archive_is_refused(data: st.DataObject) -> None:
    whole = written({("lib/x.so#0", "gfx942"): b"code" * 50})
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(KpackError):
        kpack.read(io.BytesIO(whole[:cut]))


@given(place=st.integers(0), change=st.integers(1, 255))
@example(place=276, change=160)  # a negative offset
def test_a_damaged_archive_is_refused_or_read(place: int, change: int) -> None:
    whole = bytearray(written({("lib/x.so#0", "gfx942"): b"code" * 50}))
    whole[place % len(whole)] ^= change
    stream = io.BytesIO(bytes(whole))
    with contextlib.suppress(KpackError):
        archive = kpack.read(stream)
        for one in archive.kernels:
            archive.content(stream, one)


def test_too_much_for_the_runtime_is_refused_before_it_is_written() -> None:
    kernel = Kernel(binary="lib/x.so#0", target="gfx942", size=1)
    with pytest.raises(KpackError, match="is the limit"):
        kpack.write(io.BytesIO(), "torch", "gfx942", [], [(kernel, kpack.MAX_FRAMES)])


def test_references_lead_from_a_library_to_the_archives() -> None:
    one = kpack.reference("torch", "lib/deep/libx.so")
    assert one.paths == ("../../.kpack/torch_@GFXARCH@.kpack",)
    assert kpack.reference("torchvision", "_C.so").paths == (".kpack/torchvision_@GFXARCH@.kpack",)
    packed = one.packed()
    assert msgpack.unpackb(packed) == {"kpack_search_paths": list(one.paths), "kernel_name": one.binary}
    assert kpack.read_reference(packed + b"\0" * 99) == one


@pytest.mark.parametrize(
    "data", [b"", b"\x82", b"\x80", b"\xc1", msgpack.packb({"kpack_search_paths": [], "kernel_name": "x"})]
)
def test_damaged_references(data: bytes) -> None:
    with pytest.raises(KpackError):
        kpack.read_reference(data)
