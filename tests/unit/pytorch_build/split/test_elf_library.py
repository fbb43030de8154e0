"""Libraries of Linux with device code that no compiler lays out so."""

import struct
from pathlib import Path

import pytest

from pytorch_build.split.library import SplitError
from pytorch_build.split.take_apart import open_library
from tests.kit.binaries import EM_X86_64, elf_file, offload_bundle

EM_AARCH64 = 183
EM_RISCV = 243
BUNDLE = offload_bundle("gfx942", code=b"\x7fELF-code")
FOLLOWING_DATA = b"data that follows"


def write_library(folder: Path, *, machine: int = EM_X86_64) -> Path:
    """Write a library with one bundle that is registered; addresses are offsets."""
    unregistered = library_content(machine=machine, bundle_address=0)
    path = folder / "libx.so"
    path.write_bytes(library_content(machine=machine, bundle_address=unregistered.index(BUNDLE)))
    return path


def library_content(*, machine: int, bundle_address: int) -> bytes:
    sections = {
        ".hip_fatbin": BUNDLE,
        ".hipFatBinSegment": struct.pack("<4sIQQ", b"FPIH", 1, bundle_address, 0),
        ".data": FOLLOWING_DATA,
    }
    return elf_file(machine=machine, sections=sections)


# Pages of x86-64 have 4 KiB, those of AArch64 have 64 KiB, and the bundle fills none of these.
@pytest.mark.parametrize("machine", [EM_X86_64, EM_AARCH64], ids=["x86-64", "AArch64"])
def test_keeps_what_follows_device_code_in_its_page(machine: int, tmp_path: Path) -> None:
    path = write_library(tmp_path, machine=machine)
    library = open_library(path)
    code = library.device_code()
    assert code is not None

    library.without_device_code(code, {0: 0}, b"reference").write(path, tmp_path / "host.so")

    host = (tmp_path / "host.so").read_bytes()
    assert FOLLOWING_DATA in host
    assert b"\x7fELF-code" not in host
    assert open_library(tmp_path / "host.so").reference() == b"reference"


def test_refuses_a_library_for_another_processor(tmp_path: Path) -> None:
    path = write_library(tmp_path, machine=EM_RISCV)

    with pytest.raises(SplitError, match="processor"):
        open_library(path)
