"""DLLs with device code: how they lose it, and which ones cannot."""

import io
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from core.binaries.pe import PeFacts, read_needs
from pytorch_build.check.bundles import read_bundles
from pytorch_build.split.library import Library, SplitError
from pytorch_build.split.take_apart import open_library
from rocm_packaging.packages import kpack
from tests.kit.binaries import PE_MACHINE_X86_64, PE_MAGIC_64, align, dos_header, offload_bundle

IMAGE_BASE = 0x180000000
PAGE = 0x1000
ALIGNMENT = 0x200
HEADERS_SIZE = 0x400
OPTIONAL_HEADER_SIZE = 240
SECTION_HEADER_SIZE = 40
WRAPPER_SIZE = 24
DEBUG_ENTRY_SIZE = 28
RELOCATIONS = 5  # indexes of directories
DEBUG = 6
RELOCATION_OF_64_BITS = 10 << 12

FIRST_BUNDLE = offload_bundle("gfx1100", "gfx1151")
SECOND_BUNDLE = offload_bundle("gfx1100")
DEVICE_CODE = FIRST_BUNDLE + SECOND_BUNDLE
DEBUG_DATA = b"RSDS a path".ljust(32, b"\0")
REFERENCE = kpack.reference("torch", "lib/x.dll")


def round_up(value: int, multiple: int) -> int:
    """Round a number up to a multiple of another."""
    return -(-value // multiple) * multiple


def dll(
    pointers: Sequence[int],
    *,
    has_room: bool = True,
    stray_pointer: int | None = None,
    name: str = ".hip_fat",
) -> bytes:
    """Return a DLL as lld-link writes it: aligned sections, base relocations, a debug directory.

    `pointers` are the offsets in the device code that its wrappers register, a `stray_pointer` is one of a
    variable. `has_room` is whether another section's header has room. `name` is the device code's section.
    """
    sizes = {
        ".rdata": 64,
        ".data": 16,
        name: len(DEVICE_CODE),
        ".hipFatB": WRAPPER_SIZE * len(pointers),
        ".reloc": 64,
        ".debug": len(DEBUG_DATA),
    }
    headers_size = HEADERS_SIZE
    if not has_room:
        headers_size = 0x40 + 4 + 20 + OPTIONAL_HEADER_SIZE + SECTION_HEADER_SIZE * len(sizes)

    addresses: dict[str, int] = {}
    offsets: dict[str, int] = {}
    next_address = PAGE
    next_offset = headers_size
    for section, size in sizes.items():
        addresses[section] = next_address
        offsets[section] = next_offset
        next_address = round_up(next_address + size, PAGE)
        next_offset += round_up(size, ALIGNMENT)

    code_address = IMAGE_BASE + addresses[name]
    wrappers = b""
    for pointer in pointers:
        wrappers += struct.pack("<4sIQQ", b"FPIH", 1, code_address + pointer, 0)
    variable = 0 if stray_pointer is None else code_address + stray_pointer
    pointer_places = range(8, sizes[".hipFatB"], WRAPPER_SIZE)
    relocations = relocation_block(addresses[".hipFatB"], pointer_places)
    if stray_pointer is not None:
        relocations += relocation_block(addresses[".data"], [0])
    debug_entry = struct.pack("<IIHHII", 0, 0, 0, 0, 2, len(DEBUG_DATA))
    debug_entry += struct.pack("<II", addresses[".debug"], offsets[".debug"])

    contents = {
        ".rdata": debug_entry.ljust(64, b"\0"),
        ".data": struct.pack("<QQ", variable, 0),
        name: DEVICE_CODE,
        ".hipFatB": wrappers,
        ".reloc": relocations,
        ".debug": DEBUG_DATA,
    }
    directories = {
        RELOCATIONS: (addresses[".reloc"], len(relocations)),
        DEBUG: (addresses[".rdata"], DEBUG_ENTRY_SIZE),
    }
    headers = dos_header() + b"PE\0\0"
    headers += struct.pack("<HHIIIHH", PE_MACHINE_X86_64, len(sizes), 0, 0, 0, OPTIONAL_HEADER_SIZE, 0x2022)
    headers += optional_header(directories, image_size=next_address, headers_size=headers_size)
    body = b""
    for section, content in contents.items():
        headers += section_header(
            section, size=len(content), address=addresses[section], offset=offsets[section]
        )
        body += align(content, ALIGNMENT)
    return headers.ljust(headers_size, b"\0") + body


def relocation_block(page: int, offsets: Sequence[int]) -> bytes:
    """Return the relocations of a page: 64-bit addresses at these offsets."""
    block = struct.pack("<II", page, 8 + 2 * len(offsets))
    for offset in offsets:
        block += struct.pack("<H", RELOCATION_OF_64_BITS | offset)
    return block


def optional_header(
    directories: Mapping[int, tuple[int, int]], *, image_size: int, headers_size: int
) -> bytes:
    """Return the optional header, with address and size of each directory."""
    header = bytearray(112)
    struct.pack_into("<H", header, 0, PE_MAGIC_64)
    struct.pack_into("<QII", header, 24, IMAGE_BASE, PAGE, ALIGNMENT)
    struct.pack_into("<II", header, 56, image_size, headers_size)
    struct.pack_into("<I", header, 108, 16)
    for index in range(16):
        header += struct.pack("<II", *directories.get(index, (0, 0)))
    return bytes(header)


def section_header(name: str, *, size: int, address: int, offset: int) -> bytes:
    """Return the header of a section."""
    places = struct.pack("<IIII", size, address, round_up(size, ALIGNMENT), offset)
    return name.encode().ljust(8, b"\0") + places + bytes(16)


def open_dll(content: bytes, folder: Path) -> Library:
    """Write a DLL and open it."""
    path = folder / "fat.dll"
    path.write_bytes(content)
    return open_library(path)


def split(content: bytes, folder: Path) -> bytes:
    """Return a DLL without its device code."""
    library = open_dll(content, folder)
    code = library.device_code()
    assert code is not None
    bundles = read_bundles(memoryview(content)[code.offset : code.end])
    index_by_bundle_offset = {bundle.offset: index for index, bundle in enumerate(bundles)}
    target = folder / "host.dll"
    library.without_device_code(code, index_by_bundle_offset, REFERENCE.packed()).write(
        folder / "fat.dll", target
    )
    return target.read_bytes()


def read_facts(content: bytes) -> PeFacts:
    """Return the facts of a DLL."""
    facts = read_needs(io.BytesIO(content), "host.dll")
    assert facts is not None
    return facts


# Splitting

FAT_DLL = dll([len(FIRST_BUNDLE), 0, 0])


@pytest.fixture(scope="module")
def host_dll(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a DLL whose device code was moved."""
    return split(FAT_DLL, tmp_path_factory.mktemp("split"))


def test_takes_device_code_out_of_a_dll(host_dll: bytes) -> None:
    saved_bytes = round_up(len(DEVICE_CODE), ALIGNMENT)
    added_bytes = ALIGNMENT  # the section of the reference

    assert read_facts(host_dll).sections[".hip_fat"] == (0, 0)
    assert len(host_dll) == len(FAT_DLL) - saved_bytes + added_bytes


def test_adds_a_reference_to_the_device_code(host_dll: bytes, tmp_path: Path) -> None:
    reference = open_dll(host_dll, tmp_path).reference()

    assert reference is not None
    assert kpack.read_reference(reference) == REFERENCE
    assert list(read_facts(host_dll).sections)[-1] == ".kpackrf"


def test_leads_each_wrapper_to_its_bundle_by_index(host_dll: bytes) -> None:
    offset, size = read_facts(host_dll).sections[".hipFatB"]

    magics: list[bytes] = []
    indexes: list[int] = []
    for magic, _version, _address, index in struct.iter_unpack("<4sIQQ", host_dll[offset : offset + size]):
        magics.append(magic)
        indexes.append(index)

    assert magics == [b"HIPK"] * 3
    assert indexes == [1, 0, 0]


def test_moves_the_debug_directory_with_its_data(host_dll: bytes) -> None:
    sections = read_facts(host_dll).sections
    data_offset, _ = sections[".debug"]
    entry_offset, _ = sections[".rdata"]

    (named_offset,) = struct.unpack_from("<I", host_dll, entry_offset + 24)

    assert named_offset == data_offset
    assert host_dll[data_offset:].startswith(b"RSDS")


# DLLs that are not split


def test_refuses_a_dll_that_was_split(host_dll: bytes, tmp_path: Path) -> None:
    library = open_dll(host_dll, tmp_path)

    with pytest.raises(SplitError, match="already"):
        library.device_code()


def test_finds_no_device_code_in_a_dll_without_its_section(tmp_path: Path) -> None:
    library = open_dll(dll([0], name=".hip_fax"), tmp_path)

    assert library.device_code() is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(dll([0], stray_pointer=16), "besides its wrappers", id="used by others"),
        pytest.param(dll([1 << 30]), "points outside", id="pointer outside"),
        pytest.param(dll([0])[:0x60], "damaged", id="headers are cut off"),
        pytest.param(dll([0])[: HEADERS_SIZE + 3 * ALIGNMENT], "beyond the end", id="code is cut off"),
    ],
)
def test_refuses_device_code_that_cannot_be_moved(content: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(SplitError, match=reason):
        open_dll(content, tmp_path).device_code()


def test_refuses_a_dll_without_room_for_the_reference(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match="no room"):
        split(dll([0], has_room=False), tmp_path)
