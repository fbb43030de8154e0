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

Codes = dict[tuple[str, str], bytes]

TARGET = "gfx942"
BINARY = "lib/x.so#0"
HEADER_SIZE = 64

codes_of_libraries = st.dictionaries(
    st.tuples(
        st.builds(
            "lib/{}.so#{}".format,
            st.sampled_from(["a", "b", "rocblas"]),
            st.integers(0, 999),
        ),
        st.sampled_from((TARGET, "gfx942:xnack+", "gfx942:xnack-")),
    ),
    st.binary(max_size=300),
    min_size=1,
    max_size=12,
)


def write_archive(codes: Codes, *, part_size: int = 7) -> bytes:
    """Return an archive of codes, by library and target, whose frames come in parts."""
    compressor = zstandard.ZstdCompressor()
    parts: list[bytes] = []
    kernels: list[tuple[Kernel, int]] = []
    for (binary, target), code in codes.items():
        frame = compressor.compress(code)
        kernels.append((Kernel(binary=binary, target=target, size=len(code)), len(frame)))
        parts += [frame[start : start + part_size] for start in range(0, len(frame), part_size)]

    stream = io.BytesIO()
    kpack.write(stream, "torch", TARGET, parts, kernels)
    return stream.getvalue()


def read_codes(content: bytes) -> Codes:
    """Return the codes in an archive, by library and target."""
    stream = io.BytesIO(content)
    archive = kpack.read(stream)
    return {(kernel.binary, kernel.target): archive.content(stream, kernel) for kernel in archive.kernels}


# Archives


@given(codes_of_libraries)
def test_reads_the_codes_that_were_written(codes: Codes) -> None:
    assert read_codes(write_archive(codes)).items() >= codes.items()


@given(codes_of_libraries)
def test_offers_general_code_of_a_library_for_each_mode_of_the_gpu(
    codes: Codes,
) -> None:
    archived_targets = {target for _, target in codes}
    expected_codes = dict(codes)
    for (binary, target), code in codes.items():
        if target == TARGET:
            for mode in archived_targets:
                expected_codes.setdefault((binary, mode), code)

    assert read_codes(write_archive(codes)) == expected_codes


def test_knows_the_group_and_the_targets_of_an_archive() -> None:
    content = write_archive({(BINARY, "gfx942:xnack+"): b"code", (BINARY, TARGET): b"code"})

    archive = kpack.read(io.BytesIO(content))

    assert archive.group == "torch"
    assert archive.targets == (TARGET, "gfx942:xnack+")
    assert archive.packed


FIRST_CODE = b"code" * 50
TWO_KERNELS = write_archive({(BINARY, TARGET): FIRST_CODE, ("lib/x.so#1", TARGET): b"more"})


def test_writes_the_header_that_the_runtime_reads() -> None:
    magic, version, _table_offset = struct.unpack_from("<4sIQ", TWO_KERNELS)

    assert magic == b"KPAK"
    assert version == 1
    assert TWO_KERNELS[16:HEADER_SIZE] == bytes(48)


def test_writes_the_table_that_the_runtime_reads() -> None:
    (table_offset,) = struct.unpack_from("<Q", TWO_KERNELS, 8)

    table = msgpack.unpackb(TWO_KERNELS[table_offset:])

    assert table["compression_scheme"] == "zstd-per-kernel"
    assert table["zstd_offset"] == HEADER_SIZE
    assert table["zstd_size"] == table_offset - HEADER_SIZE
    assert table["toc"]["lib/x.so#1"][TARGET] == {
        "type": "hsaco",
        "ordinal": 1,
        "original_size": 4,
    }


def test_writes_a_frame_for_each_kernel_behind_its_size() -> None:
    frame_count, first_size = struct.unpack_from("<II", TWO_KERNELS, HEADER_SIZE)
    first_frame = TWO_KERNELS[HEADER_SIZE + 8 : HEADER_SIZE + 8 + first_size]

    assert frame_count == 2
    assert zstandard.ZstdDecompressor().decompress(first_frame) == FIRST_CODE


def test_reads_an_archive_that_is_not_compressed() -> None:
    table = {
        "group_name": "blas",
        "gfx_arches": [TARGET],
        "compression_scheme": "none",
        "blobs": [{"offset": HEADER_SIZE, "size": 4}],
        "toc": {BINARY: {TARGET: {"type": "hsaco", "ordinal": 0, "original_size": 4}}},
    }
    header = struct.pack("<4sIQ", b"KPAK", 1, HEADER_SIZE + 4).ljust(HEADER_SIZE, b"\0")

    codes = read_codes(header + b"code" + msgpack.packb(table))

    assert codes == {(BINARY, TARGET): b"code"}


SMALL_ARCHIVE = write_archive({(BINARY, TARGET): b"code" * 50})


@given(st.integers(0, len(SMALL_ARCHIVE) - 1))
def test_refuses_an_archive_that_is_cut_anywhere(size: int) -> None:
    with pytest.raises(KpackError):
        kpack.read(io.BytesIO(SMALL_ARCHIVE[:size]))


@given(offset=st.integers(0, len(SMALL_ARCHIVE) - 1), change=st.integers(1, 255))
@example(offset=276, change=160)  # makes an offset negative
def test_reads_or_refuses_an_archive_with_a_changed_byte(offset: int, change: int) -> None:
    content = bytearray(SMALL_ARCHIVE)
    content[offset] ^= change

    with contextlib.suppress(KpackError):
        read_codes(bytes(content))


def test_refuses_to_write_more_than_the_runtime_reads() -> None:
    kernel = Kernel(binary=BINARY, target=TARGET, size=1)

    with pytest.raises(KpackError, match="limit"):
        kpack.write(io.BytesIO(), "torch", TARGET, [], [(kernel, kpack.MAX_FRAMES)])


# References from a library to the archives


@pytest.mark.parametrize(
    ("package", "library", "path"),
    [
        ("torch", "lib/deep/libx.so", "../../.kpack/torch_@GFXARCH@.kpack"),
        ("torchvision", "_C.so", ".kpack/torchvision_@GFXARCH@.kpack"),
    ],
)
def test_leads_from_a_library_to_its_archives(package: str, library: str, path: str) -> None:
    assert kpack.reference(package, library).paths == (path,)


def test_reads_a_reference_that_padding_follows() -> None:
    reference = kpack.reference("torch", "lib/libx.so")

    packed_reference = reference.packed()

    assert kpack.read_reference(packed_reference + b"\0" * 99) == reference
    assert msgpack.unpackb(packed_reference) == {
        "kpack_search_paths": list(reference.paths),
        "kernel_name": reference.binary,
    }


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x82",
        b"\x80",
        b"\xc1",
        msgpack.packb({"kpack_search_paths": [], "kernel_name": "x"}),
    ],
)
def test_refuses_a_damaged_reference(content: bytes) -> None:
    with pytest.raises(KpackError):
        kpack.read_reference(content)
