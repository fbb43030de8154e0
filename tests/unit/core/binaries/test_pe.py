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


def facts(data: bytes) -> pe.PeFacts | None:
    return pe.read_needs(io.BytesIO(data), "demo.dll")


def test_imports_now_and_later_and_the_own_name_are_read() -> None:
    found = facts(
        pe_file(needed=("amdhip64_7.dll", "KERNEL32.dll"), delayed=("rocblas.dll",), name="c10.dll")
    )
    assert found is not None
    expected = (("amdhip64_7.dll", "KERNEL32.dll"), ("rocblas.dll",), "c10.dll")
    assert (found.needed, found.delayed, found.name) == expected
    assert found.machine == pe.AMD64
    assert found.dll


def test_a_file_without_tables_needs_nothing() -> None:
    found = facts(pe_file(dll=False))
    assert found == pe.PeFacts(machine=pe.AMD64, dll=False, sections={".rdata": (0x400, 0)})


def test_sections_are_found_by_name() -> None:
    data = pe_file(needed=("a.dll",), sections={".hip_fat": b"device code"})
    found = facts(data)
    assert found is not None
    offset, size = found.sections[".hip_fat"]
    assert data[offset : offset + size] == b"device code"


@pytest.mark.parametrize(
    "data", [b"", b"MZ", b"MZ" + bytes(200), b"\x7fELF" + bytes(100), pe_file(magic=0x10B)]
)
def test_other_files_are_none(data: bytes) -> None:
    assert facts(data) is None


@given(st.integers(0x80, len(pe_file(needed=("a.dll", "b.dll"), delayed=("c.dll",)))), st.data())
def test_damage_is_an_artifact_error_and_nothing_else(cut: int, draw: st.DataObject) -> None:
    data = bytearray(pe_file(needed=("a.dll", "b.dll"), delayed=("c.dll",))[:cut])
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] = draw.draw(st.integers(0, 255))
    with suppress(ArtifactError):
        facts(bytes(data))


LINKER = next((path for path in sorted(Path("/usr/lib").glob("llvm-*/bin/lld-link"), reverse=True)), None)


@pytest.mark.processes
@pytest.mark.skipif(LINKER is None, reason="lld-link is not installed")
def test_a_dll_that_a_real_linker_made_is_read(tmp_path: Path) -> None:
    assert LINKER is not None
    clang = str(LINKER.with_name("clang"))
    (tmp_path / "base.c").write_text("__declspec(dllexport) int base(void) { return 1; }\n")
    (tmp_path / "user.c").write_text(
        "int base(void); __declspec(dllexport) int user(void) { return base(); }\n"
    )
    for name, libraries in (("base", ()), ("user", ("base.lib",))):
        source, made = f"{name}.c", f"{name}.obj"
        process.capture([clang, "--target=x86_64-pc-windows-msvc", "-c", source, "-o", made], cwd=tmp_path)
        options = ("/dll", "/noentry", "/nodefaultlib", f"/out:{name}.dll")
        process.capture([LINKER, *options, made, *libraries], cwd=tmp_path)
    base = facts((tmp_path / "base.dll").read_bytes())
    assert base is not None
    assert base == pe.PeFacts(machine=pe.AMD64, dll=True, name="base.dll", sections=base.sections)
    assert {".text", ".rdata"} <= set(base.sections)
    found = facts((tmp_path / "user.dll").read_bytes())
    assert found is not None
    assert found.needed == ("base.dll",)
