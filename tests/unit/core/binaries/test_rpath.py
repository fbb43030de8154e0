import ctypes
import os
import posixpath
from dataclasses import dataclass
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

ORIGIN = "$ORIGIN"
SEARCH_PATH = (ORIGIN, "$ORIGIN/../../_rocm_sdk_core/lib")
LONG_SEARCH_PATH = (*SEARCH_PATH, "$ORIGIN/../../_rocm_sdk_core/lib/llvm/lib")

NEW_TAGS = "-Wl,--enable-new-dtags"  # DT_RUNPATH
OLD_TAGS = "-Wl,--disable-new-dtags"  # DT_RPATH

FOLDERS = st.lists(st.sampled_from(["torch", "lib", "a"]), max_size=4).map("/".join)

# A library with zeroed memory, a relocated pointer and a function of another library.
SOURCE = """
#include <stdio.h>
static int zeros[5000];
const char *text = "seven";
int x(void) { fflush(stdout); return zeros[17] + 7; }
"""


# Paths


def test_drops_folders_of_one_machine() -> None:
    entries = ("$ORIGIN/", "/opt/rocm/lib", "${ORIGIN}/../lib", "", "lib", "$ORIGINAL/lib")

    assert rpath.relative_entries(entries) == (ORIGIN, "${ORIGIN}/../lib")


@given(folder=FOLDERS, other=FOLDERS)
def test_leads_from_a_file_to_a_folder(folder: str, other: str) -> None:
    (entry,) = rpath.entries_to_folders(posixpath.join(folder, "x.so"), [other])

    assert entry.startswith(ORIGIN)
    target = posixpath.normpath(entry.replace(ORIGIN, f"/site/{folder}"))
    assert target == posixpath.normpath(f"/site/{other}")


# Compiled libraries


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a library says of itself and of where the libraries lie that it needs."""

    soname: str
    folders: tuple[str, ...]
    is_rpath: bool


def read_search(path: Path) -> Search:
    """Return how a library searches for others."""
    facts = elf.read(path)
    assert facts is not None
    return Search(
        soname=facts.soname,
        folders=facts.search,
        is_rpath=facts.is_rpath,
    )


def run_compiler(*arguments: str | Path) -> None:
    """Run the machine's compiler."""
    compiler = process.which("cc") or process.which("c++")
    assert compiler is not None
    process.capture([compiler, *arguments])


def compile_library(folder: Path, *flags: str, search_path: tuple[str, ...] = ()) -> Path:
    """Compile a library with a search path."""
    (folder / "x.c").write_text(SOURCE, encoding="utf-8")
    library_path = folder / "x.so"
    search_flags = [f"-Wl,-rpath,{':'.join(search_path)}"] if search_path else []
    options = ["-fPIC", "-shared", "-Wl,-soname,x.so.1", *flags, *search_flags]
    run_compiler(*options, folder / "x.c", "-o", library_path)
    return library_path


def call_library(path: Path) -> int:
    """Load a library and call its function."""
    number: int = ctypes.CDLL(os.fspath(path)).x()
    return number


@pytest.mark.processes
@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("search_path", [("/build",), SEARCH_PATH, ()], ids=["other", "same", "none"])
def test_rewrites_the_search_path_of_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search_path: tuple[str, ...], *, is_large: bool
) -> None:
    monkeypatch.setattr(rpath, "LARGE", 0 if is_large else 1 << 30)
    path = compile_library(tmp_path, NEW_TAGS, search_path=search_path)
    assert read_search(path) == Search(
        soname="x.so.1",
        folders=search_path,
        is_rpath=False,
    )

    rpath.set_search_path(path, SEARCH_PATH)

    assert read_search(path) == Search(
        soname="x.so.1",
        folders=SEARCH_PATH,
        is_rpath=True,
    )
    assert call_library(path) == 7


@pytest.mark.processes
def test_changes_one_number_where_only_the_kind_of_the_search_path_is_wrong(tmp_path: Path) -> None:
    path = compile_library(tmp_path, NEW_TAGS, search_path=SEARCH_PATH)

    edited = rpath.edit_without_patchelf(path, SEARCH_PATH)

    assert edited is not None
    dt_rpath = (15).to_bytes(8, "little")
    assert [content for _offset, content in edited.edits] == [dt_rpath]


@pytest.mark.processes
def test_edits_no_other_search_path(tmp_path: Path) -> None:
    path = compile_library(tmp_path, NEW_TAGS, search_path=SEARCH_PATH)

    assert rpath.edit_without_patchelf(path, SEARCH_PATH[:1]) is None


@pytest.mark.processes
def test_removes_a_search_path_and_leaves_the_source_as_it_is(tmp_path: Path) -> None:
    path = compile_library(tmp_path, search_path=("/build",))
    content = path.read_bytes()

    patched = rpath.write_by_patchelf(path, (), tmp_path / "deep" / "none.so")

    assert read_search(patched) == Search(
        soname="x.so.1",
        folders=(),
        is_rpath=False,
    )
    assert path.read_bytes() == content


@pytest.mark.processes
def test_notices_a_search_path_that_was_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compile_library(tmp_path)
    program_without_effect = process.which("true")

    monkeypatch.setattr(rpath, "patchelf", lambda: program_without_effect)
    with pytest.raises(BuildError, match="RPATH"):
        rpath.write_by_patchelf(path, SEARCH_PATH, path)


# Longer search paths


def extend_library(path: Path) -> Path:
    """Write a library with the long search path; return it."""
    edited = rpath.edit_by_extending(path, ":".join(LONG_SEARCH_PATH))
    assert edited is not None

    content = bytearray(path.read_bytes())
    for offset, replacement in edited.edits:
        content[offset : offset + len(replacement)] = replacement
    extended = path.with_name("extended.so")
    extended.write_bytes(content + edited.tail)
    return extended


@pytest.mark.processes
@pytest.mark.parametrize("tags", [NEW_TAGS, OLD_TAGS], ids=["runpath", "rpath"])
def test_extends_the_search_path_of_a_library(tmp_path: Path, tags: str) -> None:
    path = compile_library(tmp_path, tags, search_path=(ORIGIN,))
    content = path.read_bytes()

    extended = extend_library(path)

    assert read_search(extended) == Search(
        soname="x.so.1",
        folders=LONG_SEARCH_PATH,
        is_rpath=True,
    )
    printed = process.capture([rpath.patchelf(), "--print-rpath", extended]).stdout.strip()
    assert printed == ":".join(LONG_SEARCH_PATH)
    assert path.read_bytes() == content


@pytest.mark.processes
def test_an_extended_library_works(tmp_path: Path) -> None:
    extended = extend_library(compile_library(tmp_path, search_path=(ORIGIN,)))

    assert call_library(extended) == 7
    library = ctypes.CDLL(os.fspath(extended))
    assert ctypes.c_char_p.in_dll(library, "text").value == b"seven"


@pytest.fixture
def extended_file(tmp_path: Path) -> Any:
    """Return an extended library as pyelftools reads it."""
    extended = extend_library(compile_library(tmp_path, search_path=(ORIGIN,)))
    with extended.open("rb") as stream:
        yield ELFFile(stream)


@pytest.mark.processes
def test_the_sections_of_an_extended_library_have_its_search_path(extended_file: Any) -> None:
    tags = extended_file.get_section_by_name(".dynamic").iter_tags()

    assert [tag.rpath for tag in tags if tag.entry.d_tag == "DT_RPATH"] == [":".join(LONG_SEARCH_PATH)]


@pytest.mark.processes
def test_the_sections_of_an_extended_library_have_its_symbols(extended_file: Any) -> None:
    symbols = extended_file.get_section_by_name(".dynsym").iter_symbols()
    versions = next(
        section for section in extended_file.iter_sections() if isinstance(section, GNUVerNeedSection)
    )

    assert {"x", "text", "fflush"} <= {symbol.name for symbol in symbols}
    assert "libc.so.6" in {version.name for version, _symbols in versions.iter_versions()}


@pytest.mark.processes
def test_the_segments_of_an_extended_library_are_in_order(extended_file: Any) -> None:
    addresses = [segment["p_vaddr"] for segment in extended_file.iter_segments("PT_LOAD")]

    assert addresses == sorted(addresses)


@pytest.mark.processes
@pytest.mark.parametrize("flags", [[], ["-nostdlib"]], ids=["no search path", "no dynamic strings"])
def test_leaves_libraries_without_a_search_path_to_patchelf(tmp_path: Path, flags: list[str]) -> None:
    path = compile_library(tmp_path, *flags)

    assert rpath.edit_by_extending(path, ":".join(LONG_SEARCH_PATH)) is None


@pytest.mark.processes
def test_leaves_programs_to_patchelf(tmp_path: Path) -> None:
    (tmp_path / "m.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    program = tmp_path / "program"
    run_compiler("-Wl,-rpath,$ORIGIN", tmp_path / "m.c", "-o", program)

    assert rpath.edit_by_extending(program, ":".join(LONG_SEARCH_PATH)) is None
