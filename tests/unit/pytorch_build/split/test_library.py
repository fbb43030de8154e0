import struct
from pathlib import Path

import pytest

from core.binaries.pe import read_needs
from pytorch_build.check.bundles import read_bundles
from pytorch_build.split.library import AlreadySplitError, PeLibrary, SplitError
from rocm_packaging.packages import kpack
from tests.unit.pytorch_build.check.conftest import plain_bundle

BASE, PAGE, ALIGNMENT = 0x180000000, 0x1000, 0x200
FIRST, SECOND = plain_bundle("gfx1100", "gfx1151"), plain_bundle("gfx1100")


def up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def dll(pointers: list[int], *, room: bool = True, extra_pointer: int | None = None) -> bytes:
    """Write a DLL as lld-link does: aligned sections, base relocations, a debug directory."""
    fatbin = FIRST + SECOND
    names = (".rdata", ".data", ".hip_fat", ".hipFatB", ".reloc", ".debug")
    sizes = (64, 16, len(fatbin), 24 * len(pointers), 64, 32)
    places, address = {}, PAGE
    for name, size in zip(names, sizes, strict=True):
        places[name] = address
        address = up(address + size, PAGE)
    wrappers = b"".join(
        struct.pack("<4sIQQ", b"FPIH", 1, BASE + places[".hip_fat"] + one, 0) for one in pointers
    )
    relocated = [places[".hipFatB"] + 24 * index + 8 for index in range(len(pointers))]
    page = struct.pack("<II", places[".hipFatB"], 8 + 2 * len(relocated))
    page += b"".join(struct.pack("<H", 10 << 12 | (one & 0xFFF)) for one in relocated)
    if extra_pointer is not None:
        page += struct.pack("<IIHH", places[".data"], 12, 10 << 12, 0)
    own = BASE + places[".hip_fat"] + extra_pointer if extra_pointer is not None else 0
    headers = 0x400 if room else 0x40 + 4 + 20 + 240 + 40 * len(names)
    offset, rows, body = headers, b"", b""
    contents = {
        ".rdata": struct.pack("<IIHHIIII", 0, 0, 0, 0, 2, 32, places[".debug"], 0).ljust(64, b"\0"),
        ".data": struct.pack("<QQ", own, 0),
        ".hip_fat": fatbin,
        ".hipFatB": wrappers,
        ".reloc": page,
        ".debug": b"RSDS a path".ljust(32, b"\0"),
    }
    for name, data in contents.items():
        filled = data.ljust(up(len(data), ALIGNMENT), b"\0")
        rows += struct.pack(
            "<8sIIIIIIHHI", name.encode(), len(data), places[name], len(filled), offset, *[0] * 5
        )
        if name == ".debug":
            at = headers
            body = body[: at - headers + 24] + struct.pack("<I", offset) + body[at - headers + 28 :]
        body += filled
        offset += len(filled)
    directories = [(0, 0)] * 16
    directories[5], directories[6] = (places[".reloc"], len(page)), (places[".rdata"], 28)
    optional = bytearray(112)
    struct.pack_into("<H", optional, 0, 0x20B)
    struct.pack_into("<QII", optional, 24, BASE, PAGE, ALIGNMENT)
    struct.pack_into("<II", optional, 56, address, headers)
    struct.pack_into("<I", optional, 108, 16)
    table = b"".join(struct.pack("<II", *one) for one in directories)
    head = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40) + b"PE\0\0"
    head += struct.pack("<HHIIIHH", 0x8664, len(names), 0, 0, 0, 240, 0x2022) + bytes(optional) + table + rows
    return head.ljust(headers, b"\0") + body


def split(data: bytes, tmp_path: Path) -> bytes:
    fat = PeLibrary(data).fat()
    assert fat is not None
    bundles = read_bundles(memoryview(data)[fat.start : fat.start + fat.size])
    indexes = {bundle.offset: index for index, bundle in enumerate(bundles)}
    reference = kpack.reference("torch", "lib/x.dll").packed()
    source, target = tmp_path / "fat.dll", tmp_path / "host.dll"
    source.write_bytes(data)
    PeLibrary(data).without_code(fat, indexes, reference).written(source, target)
    return target.read_bytes()


def test_a_dll_loses_its_device_code_and_says_where_it_is(tmp_path: Path) -> None:
    fat = dll([len(FIRST), 0, 0])
    host = split(fat, tmp_path)
    (tmp_path / "host.dll").write_bytes(host)
    with (tmp_path / "host.dll").open("rb") as stream:
        facts = read_needs(stream, "host.dll")
    assert facts is not None
    assert [*facts.sections][-1] == ".kpackrf"
    assert facts.sections[".hip_fat"] == (0, 0)
    assert len(fat) - len(host) == up(len(FIRST + SECOND), ALIGNMENT) - ALIGNMENT
    found = PeLibrary(host).reference()
    assert found is not None
    assert kpack.read_reference(found) == kpack.reference("torch", "lib/x.dll")
    start, size = facts.sections[".hipFatB"]
    rows = list(struct.iter_unpack("<4sIQQ", host[start : start + size]))
    assert [(magic, index) for magic, _, _, index in rows] == [(b"HIPK", 1), (b"HIPK", 0), (b"HIPK", 0)]
    debug, _ = facts.sections[".debug"]
    assert host[debug : debug + 4] == b"RSDS"
    assert struct.unpack_from("<I", host, facts.sections[".rdata"][0] + 24)[0] == debug
    with pytest.raises(AlreadySplitError):
        PeLibrary(host).fat()


def test_what_cannot_be_moved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match="something besides its wrappers"):
        PeLibrary(dll([0], extra_pointer=16)).fat()
    with pytest.raises(SplitError, match="points outside"):
        PeLibrary(dll([1 << 30])).fat()
    with pytest.raises(SplitError, match="no room for another section"):
        split(dll([0], room=False), tmp_path)
    with pytest.raises(SplitError, match="damaged"):
        PeLibrary(dll([0])[:0x60]).fat()


def test_a_dll_without_device_code_is_left_alone() -> None:
    assert PeLibrary(dll([0]).replace(b".hip_fat", b".hip_fax", 1)).fat() is None
