"""Longer RPATHs without patchelf, seen by the readers and the loader that there are."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from core import process
from core.binaries import elf, rpath

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes
RPATH = "$ORIGIN:$ORIGIN/../../_rocm_sdk_core/lib:$ORIGIN/../../_rocm_sdk_core/lib/llvm/lib"
SOURCE = """
#include <stdio.h>
static int zeros[5000];
const char *text = "seven";
int x(void) { fflush(stdout); return zeros[17] + 7; }
"""


def compiled(folder: Path, *flags: str) -> Path:
    compiler = process.which("cc") or process.which("c++")
    assert compiler is not None
    (folder / "x.c").write_text(SOURCE, encoding="utf-8")
    target = folder / "x.so"
    process.capture([compiler, "-fPIC", *flags, folder / "x.c", "-o", target])
    return target


def written(source: Path, search: str) -> Path:
    edited = rpath.extended(source, search)
    assert edited is not None
    data = bytearray(source.read_bytes())
    for offset, new in edited.edits:
        data[offset : offset + len(new)] = new
    target = source.with_name("grown.so")
    target.write_bytes(data + edited.tail)
    return target


@pytest.mark.parametrize("dtags", ["--enable-new-dtags", "--disable-new-dtags"])
def test_a_library_gets_a_longer_rpath(tmp_path: Path, dtags: str) -> None:
    source = compiled(tmp_path, "-shared", "-Wl,-soname,libx.so.1", f"-Wl,{dtags}", "-Wl,-rpath,$ORIGIN")
    before = source.read_bytes()
    grown = written(source, RPATH)
    facts = elf.read(grown)
    assert facts is not None
    assert (facts.soname, facts.search, facts.is_rpath) == ("libx.so.1", tuple(RPATH.split(":")), True)
    assert process.capture([rpath.patchelf(), "--print-rpath", grown]).stdout.strip() == RPATH
    loaded = ctypes.CDLL(os.fspath(grown))
    assert loaded.x() == 7
    assert ctypes.c_char_p.in_dll(loaded, "text").value == b"seven"
    assert source.read_bytes() == before


def test_sections_tell_the_same_as_segments(tmp_path: Path) -> None:
    source = compiled(tmp_path, "-shared", "-Wl,-rpath,$ORIGIN")
    with written(source, RPATH).open("rb") as stream:
        file = ELFFile(stream)
        section: Any = file.get_section_by_name(".dynamic")
        symbols: Any = file.get_section_by_name(".dynsym")
        paths = [vars(tag)["rpath"] for tag in section.iter_tags() if tag.entry.d_tag == "DT_RPATH"]
        names = {symbol.name for symbol in symbols.iter_symbols()}
        needed = next(one for one in file.iter_sections() if isinstance(one, GNUVerNeedSection))
        libraries = {version.name for version, _ in needed.iter_versions()}
        loads = [segment["p_vaddr"] for segment in file.iter_segments("PT_LOAD")]
    assert paths == [RPATH]
    assert {"x", "text", "fflush"} <= names
    assert "libc.so.6" in libraries
    assert loads == sorted(loads)


def test_programs_and_libraries_without_a_path_are_left_to_patchelf(tmp_path: Path) -> None:
    assert rpath.extended(compiled(tmp_path, "-shared"), RPATH) is None
    assert rpath.extended(compiled(tmp_path, "-DMAIN", "-shared", "-nostdlib"), RPATH) is None
    program = tmp_path / "program"
    (tmp_path / "m.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    compiler = process.which("cc") or process.which("c++")
    assert compiler is not None
    process.capture([compiler, "-Wl,-rpath,$ORIGIN", tmp_path / "m.c", "-o", program])
    assert rpath.extended(program, RPATH) is None
