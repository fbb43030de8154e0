import ctypes
import os
import posixpath
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hypothesis import given
from hypothesis import strategies as st

from core import process
from core.binaries import elf, rpath
from core.errors import BuildError

RIGHT = ("$ORIGIN", "$ORIGIN/../../_rocm_sdk_core/lib")
FOLDERS = st.lists(st.sampled_from(["torch", "lib", "a"]), max_size=4).map("/".join)


def compiled(folder: Path, *flags: str) -> Path:
    compiler = process.which("cc") or process.which("c++")
    assert compiler is not None
    (folder / "x.c").write_text(SOURCE, encoding="utf-8")
    target = folder / "x.so"
    process.capture(
        [compiler, "-fPIC", "-shared", "-Wl,-soname,x.so.1", *flags, folder / "x.c", "-o", target]
    )
    return target


def read(path: Path) -> tuple[str, tuple[str, ...], bool]:
    facts = elf.read(path)
    assert facts is not None
    return facts.soname, facts.search, facts.is_rpath


def test_folders_of_one_machine_do_not_stay() -> None:
    entries = ("$ORIGIN/", "/opt/rocm/lib", "${ORIGIN}/../lib", "", "lib", "$ORIGINAL/lib")
    assert rpath.relative(entries) == ("$ORIGIN", "${ORIGIN}/../lib")


@given(folder=FOLDERS, other=FOLDERS)
def test_a_way_leads_from_a_file_to_a_folder(folder: str, other: str) -> None:
    (way,) = rpath.ways(posixpath.join(folder, "x.so"), [other])
    assert way.startswith("$ORIGIN")
    assert posixpath.normpath(way.replace("$ORIGIN", f"/site/{folder}")) == posixpath.normpath(
        f"/site/{other}"
    )


@pytest.mark.processes
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("search", [("/build",), RIGHT, ()])
def test_a_file_gets_its_search_path_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: tuple[str, ...], *, large: bool
) -> None:
    monkeypatch.setattr(rpath, "LARGE", 0 if large else 1 << 30)
    path = compiled(
        tmp_path, "-Wl,--enable-new-dtags", *(["-Wl,-rpath," + ":".join(search)] if search else [])
    )
    assert read(path) == ("x.so.1", search, False)
    rpath.rewrite(path, RIGHT)
    assert read(path) == ("x.so.1", RIGHT, True)
    assert ctypes.CDLL(os.fspath(path)).x() == 7


@pytest.mark.processes
def test_a_runpath_that_is_right_changes_by_one_number(tmp_path: Path) -> None:
    path = compiled(tmp_path, "-Wl,--enable-new-dtags", "-Wl,-rpath," + ":".join(RIGHT))
    change = rpath.edited(path, RIGHT)
    assert change is not None
    assert [data for _, data in change.edits] == [b"\x0f\0\0\0\0\0\0\0"]
    assert rpath.edited(path, RIGHT[:1]) is None


@pytest.mark.processes
def test_a_search_path_can_be_taken_away_and_the_source_stays(tmp_path: Path) -> None:
    path = compiled(tmp_path, "-Wl,-rpath,/build")
    before = path.read_bytes()
    assert read(rpath.patched(path, (), tmp_path / "deep" / "none.so")) == ("x.so.1", (), False)
    assert path.read_bytes() == before


@pytest.mark.processes
def test_a_search_path_that_did_not_come_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, does_nothing = compiled(tmp_path), process.which("true")
    assert does_nothing is not None
    monkeypatch.setattr(rpath, "patchelf", lambda: does_nothing)
    with pytest.raises(BuildError, match="did not leave the RPATH"):
        rpath.patched(path, RIGHT, path)


pytestmark = pytest.mark.processes
RPATH = "$ORIGIN:$ORIGIN/../../_rocm_sdk_core/lib:$ORIGIN/../../_rocm_sdk_core/lib/llvm/lib"
SOURCE = """
#include <stdio.h>
static int zeros[5000];
const char *text = "seven";
int x(void) { fflush(stdout); return zeros[17] + 7; }
"""


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
    source = compiled(tmp_path, "-Wl,-soname,libx.so.1", f"-Wl,{dtags}", "-Wl,-rpath,$ORIGIN")
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
    source = compiled(tmp_path, "-Wl,-rpath,$ORIGIN")
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
    assert rpath.extended(compiled(tmp_path), RPATH) is None
    assert rpath.extended(compiled(tmp_path, "-nostdlib"), RPATH) is None
    program = tmp_path / "program"
    (tmp_path / "m.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    compiler = process.which("cc") or process.which("c++")
    assert compiler is not None
    process.capture([compiler, "-Wl,-rpath,$ORIGIN", tmp_path / "m.c", "-o", program])
    assert rpath.extended(program, RPATH) is None
