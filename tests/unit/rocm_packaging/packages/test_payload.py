from __future__ import annotations

from pathlib import Path

from core.binaries.elf import ElfFacts
from rocm_packaging.artifacts import Entry
from rocm_packaging.packages.payload import devel_only, follow, plan, usual_links


def entries(links: dict[str, str], *files: str) -> dict[str, Entry]:
    found = {path: Entry(path=path, source=Path("/a") / path) for path in files}
    found |= {path: Entry(path=path, source=Path("/a") / path, link=link) for path, link in links.items()}
    return dict(sorted(found.items()))


def library(soname: str) -> ElfFacts:
    return ElfFacts(soname=soname, is_rpath=False, dynamic=True, program=False)


PROGRAM = ElfFacts(soname="", is_rpath=False, dynamic=True, program=True)


def test_a_library_is_written_once_under_its_soname() -> None:
    found = entries({"lib/x.so": "x.so.1", "lib/x.so.1": "x.so.1.2"}, "lib/x.so.1.2")
    payload = plan(found, {"lib/x.so.1.2": library("x.so.1")})
    assert list(payload.files) == ["lib/x.so.1"]
    assert payload.files["lib/x.so.1"].entry.source == Path("/a/lib/x.so.1.2")
    assert payload.aliases == {"lib/x.so": "x.so.1", "lib/x.so.1.2": "x.so.1"}


def test_a_library_stays_where_no_file_is_named_like_its_soname() -> None:
    payload = plan(entries({}, "lib/plugin.so"), {"lib/plugin.so": library("libplugin.so.3")})
    assert list(payload.files) == ["lib/plugin.so"]
    assert payload.aliases == {}


def test_a_soname_file_that_is_another_library_swallows_nothing() -> None:
    facts = {"lib/x.so.1": library("x.so.1"), "lib/x-debug.so": library("x.so.1")}
    payload = plan(entries({}, "lib/x.so.1", "lib/x-debug.so"), facts)
    assert list(payload.files) == ["lib/x-debug.so", "lib/x.so.1"]


def test_a_library_linked_into_another_folder_is_copied_there() -> None:
    found = entries({"plugins/x.so": "../lib/x.so.1"}, "lib/x.so.1")
    payload = plan(found, {"lib/x.so.1": library("x.so.1")})
    assert list(payload.files) == ["lib/x.so.1", "plugins/x.so"]


def test_links_to_programs_become_stubs() -> None:
    found = entries({"bin/clang": "../lib/llvm/bin/clang", "run": "bin/clang"}, "lib/llvm/bin/clang")
    payload = plan(found, {"lib/llvm/bin/clang": PROGRAM})
    stubs = {path: file.stub_for for path, file in payload.files.items()}
    assert stubs == {
        "bin/clang": "../lib/llvm/bin/clang",
        "lib/llvm/bin/clang": "",
        "run": "lib/llvm/bin/clang",
    }


def test_links_to_folders_and_dangling_ones_are_left_out() -> None:
    found = entries({"llvm": "lib/llvm", "gone": "nowhere", "loop": "loop"}, "lib/llvm/x")
    assert list(plan(found, {}).files) == ["lib/llvm/x"]


def test_excluded_paths() -> None:
    found = entries({}, "lib/cmake/hip/a.cmake", "cmake/b", "lib/cmakex/c", "share/x.txt", "share/xy.txt")
    payload = plan(found, {}, exclude=("**/cmake/**", "share/?.txt"))
    assert list(payload.files) == ["lib/cmakex/c", "share/xy.txt"]


def test_follow_gives_up_on_circles() -> None:
    assert follow(entries({"a": "b", "b": "a"}), "a") is None


def test_devel_holds_what_the_runtime_does_not() -> None:
    found = entries(
        {
            "lib/x.so": "x.so.1",
            "lib/x.so.1": "x.so.1.2",
            "bin/clang": "../lib/llvm/bin/clang",
            "llvm": "lib/llvm",
            "gone": "nowhere",
        },
        "lib/x.so.1.2",
        "lib/llvm/bin/clang",
        "include/x.h",
    )
    payload = plan(
        {path: entry for path, entry in found.items() if path != "include/x.h"},
        {"lib/x.so.1.2": library("x.so.1"), "lib/llvm/bin/clang": PROGRAM},
    )
    files, links = devel_only(found, [payload])
    assert list(files) == ["include/x.h"]
    assert links == {
        "bin/clang": "../lib/llvm/bin/clang",
        "lib/x.so": "x.so.1",
        "lib/x.so.1.2": "x.so.1",
        "llvm": "lib/llvm",
    }


def test_a_tree_without_the_usual_link_gets_it() -> None:
    usual = {"llvm": "lib/llvm"}
    assert usual_links(entries({}, "lib/llvm/bin/clang"), usual) == usual
    assert usual_links(entries({"llvm": "lib/llvm"}, "lib/llvm/bin/clang"), usual) == {}
    assert usual_links(entries({}, "lib/llvm/bin/clang", "llvm/bin/clang"), usual) == {}
    assert usual_links(entries({}, "lib/x.so"), usual) == {}
