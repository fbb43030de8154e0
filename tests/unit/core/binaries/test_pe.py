import io
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import process
from core.binaries import pe
from core.errors import ArtifactError
from tests.kit.binaries import pe_file

LIBRARY = pe_file(needed=("a.dll", "b.dll"), delayed=("c.dll",))


def read_facts(content: bytes) -> pe.PeFacts:
    """Return what a PE file says of itself."""
    facts = pe.read_needs(io.BytesIO(content), "demo.dll")
    assert facts is not None
    return facts


def test_reads_the_imports_and_the_name_of_a_library() -> None:
    content = pe_file(
        needed=("amdhip64_7.dll", "KERNEL32.dll"),
        delayed=("rocblas.dll",),
        name="c10.dll",
    )

    facts = read_facts(content)

    assert facts.needed == ("amdhip64_7.dll", "KERNEL32.dll")
    assert facts.delayed == ("rocblas.dll",)
    assert facts.name == "c10.dll"
    assert facts.machine == pe.AMD64
    assert facts.dll


def test_a_file_without_tables_needs_nothing() -> None:
    facts = read_facts(pe_file(dll=False))

    assert facts == pe.PeFacts(
        machine=pe.AMD64,
        dll=False,
        sections={".rdata": (0x400, 0)},
    )


def test_finds_sections_by_name() -> None:
    content = pe_file(needed=("a.dll",), sections={".hip_fat": b"device code"})

    offset, size = read_facts(content).sections[".hip_fat"]

    assert content[offset : offset + size] == b"device code"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"MZ", id="short"),
        pytest.param(b"MZ" + bytes(200), id="DOS program"),
        pytest.param(b"\x7fELF" + bytes(100), id="ELF"),
        pytest.param(pe_file(magic=0x10B), id="32 bits"),
    ],
)
def test_reads_nothing_of_other_files(content: bytes) -> None:
    assert pe.read_needs(io.BytesIO(content), "demo.dll") is None


@given(st.integers(0x80, len(LIBRARY)), st.data())
def test_reads_or_rejects_a_damaged_file(length: int, draw: st.DataObject) -> None:
    content = bytearray(LIBRARY[:length])
    position = draw.draw(st.integers(0, len(content) - 1))
    content[position] = draw.draw(st.integers(0, 255))

    with suppress(ArtifactError):
        pe.read_needs(io.BytesIO(content), "demo.dll")


# A real linker

LINKER = next((path for path in sorted(Path("/usr/lib").glob("llvm-*/bin/lld-link"), reverse=True)), None)
BASE = "__declspec(dllexport) int base(void) { return 1; }\n"
USER = "int base(void); __declspec(dllexport) int user(void) { return base(); }\n"


def link_library(folder: Path, name: str, source: str, *libraries: str) -> bytes:
    """Compile and link a DLL for Windows; return it."""
    assert LINKER is not None
    clang = LINKER.with_name("clang")
    (folder / f"{name}.c").write_text(source)

    target_flag = "--target=x86_64-pc-windows-msvc"
    process.capture([clang, target_flag, "-c", f"{name}.c", "-o", f"{name}.obj"], cwd=folder)
    options = ["/dll", "/noentry", "/nodefaultlib", f"/out:{name}.dll"]
    process.capture([LINKER, *options, f"{name}.obj", *libraries], cwd=folder)
    return (folder / f"{name}.dll").read_bytes()


@pytest.mark.processes
@pytest.mark.skipif(LINKER is None, reason="lld-link is not installed")
def test_reads_libraries_of_a_real_linker(tmp_path: Path) -> None:
    base = read_facts(link_library(tmp_path, "base", BASE))
    user = read_facts(link_library(tmp_path, "user", USER, "base.lib"))

    assert base == pe.PeFacts(
        machine=pe.AMD64,
        dll=True,
        name="base.dll",
        sections=base.sections,
    )
    assert {".text", ".rdata"} <= set(base.sections)
    assert user.needed == ("base.dll",)
