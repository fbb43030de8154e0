from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.licenses import canonicalize_license_expression
from pydantic import ValidationError

from core.binaries.elf import ElfFacts
from rocm_packaging.artifacts import Entry, scan
from rocm_packaging.packages.build import build
from rocm_packaging.packages.layouts import LicenseData, packages
from rocm_packaging.packages.payload import (
    PayloadFile,
    devel_only,
    joined,
    licenses_of,
    plan,
    usual_links,
    with_rpath,
)
from tests.kit import artifact_sets


def entries(links: dict[str, str], *files: str) -> dict[str, Entry]:
    found = {path: Entry(path=path, source=Path("/a") / path) for path in files}
    found |= {path: Entry(path=path, source=Path("/a") / path, link=link) for path, link in links.items()}
    return dict(sorted(found.items()))


def library(soname: str) -> ElfFacts:
    return ElfFacts(soname=soname, is_rpath=False, dynamic=True, program=False)


PROGRAM = ElfFacts(soname="", is_rpath=False, dynamic=True, program=True)


@pytest.mark.parametrize(("name", "globs"), [("x", ()), ("librocprof-sys", packages().profiler.include)])
def test_a_library_is_written_once_under_its_soname(name: str, globs: tuple[str, ...]) -> None:
    found = entries(
        {f"lib/{name}.so": f"{name}.so.1", f"lib/{name}.so.1": f"{name}.so.1.2"}, f"lib/{name}.so.1.2"
    )
    payload = plan(found, {f"lib/{name}.so.1.2": library(f"{name}.so.1")}, include=globs)
    assert list(payload.files) == [f"lib/{name}.so.1"]
    assert payload.files[f"lib/{name}.so.1"].entry.source == Path(f"/a/lib/{name}.so.1.2")
    assert payload.aliases == {f"lib/{name}.so": f"{name}.so.1", f"lib/{name}.so.1.2": f"{name}.so.1"}


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
    expected = {"bin/clang": "../lib/llvm/bin/clang", "lib/llvm/bin/clang": "", "run": "lib/llvm/bin/clang"}
    assert stubs == expected


def test_links_to_folders_and_dangling_ones_are_left_out() -> None:
    found = entries({"llvm": "lib/llvm", "gone": "nowhere", "loop": "loop"}, "lib/llvm/x")
    assert list(plan(found, {}).files) == ["lib/llvm/x"]


def test_excluded_paths() -> None:
    found = entries({}, "lib/cmake/hip/a.cmake", "cmake/b", "lib/cmakex/c", "share/x.txt", "share/xy.txt")
    payload = plan(found, {}, exclude=("**/cmake/**", "share/?.txt"))
    assert list(payload.files) == ["lib/cmakex/c", "share/xy.txt"]


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


CORE = "_rocm_sdk_core"


def file(path: str, *search: str, is_rpath: bool = False, dynamic: bool = True) -> PayloadFile:
    facts = ElfFacts(soname="x.so.1", rpath=search, is_rpath=is_rpath, dynamic=dynamic, program=False)
    return PayloadFile(path=path, entry=Entry(path=path, source=Path(path)), facts=facts)


def in_libraries(one: PayloadFile) -> tuple[str, ...] | None:
    folders = (f"{CORE}/lib", f"{CORE}/lib/rocm_sysdeps/lib")
    return with_rpath(one, "_rocm_sdk_libraries_gfx94X_dcgpu", folders).rpath


def test_libraries_look_into_core_after_their_own_folder() -> None:
    assert in_libraries(file("lib/x.so.1", "$ORIGIN", "/build/lib")) == (
        "$ORIGIN",
        "$ORIGIN/../../_rocm_sdk_core/lib",
        "$ORIGIN/../../_rocm_sdk_core/lib/rocm_sysdeps/lib",
    )
    assert (in_libraries(file("lib/deep/x.so.1")) or ())[0] == "$ORIGIN/../../../_rocm_sdk_core/lib"


def test_core_stays_inside_itself() -> None:
    folders = (f"{CORE}/lib/llvm/lib",)
    assert with_rpath(file("lib/x.so.1", "$ORIGIN"), CORE, folders).rpath == ("$ORIGIN", "$ORIGIN/llvm/lib")
    assert with_rpath(file("lib/llvm/lib/x.so.1"), CORE, folders).rpath == ("$ORIGIN",)


def test_only_what_differs_is_patched() -> None:
    right = in_libraries(file("lib/x.so.1", "$ORIGIN"))
    assert right is not None
    assert in_libraries(file("lib/x.so.1", *right, is_rpath=True)) is None
    assert in_libraries(file("lib/x.so.1", *right)) == right
    assert in_libraries(file("lib/x.so.1", "$ORIGIN", is_rpath=True)) == right
    assert in_libraries(file("bin/static", dynamic=False)) is None
    assert in_libraries(PayloadFile(path="a.txt", entry=Entry(path="a", source=Path("a")))) is None


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A split set whose artifacts bring licences; in another place, and in another spelling, too."""
    root = tmp_path / "artifacts"
    artifact_sets.write_base(root, "gfx942", split=True)
    artifact_sets.write(
        root, "amd-llvm_lib_generic", **{"lib/llvm/lib/a": "x", "lib/llvm/LICENSE.TXT": "llvm"}
    )
    artifact_sets.write(root, "core-hip_lib_generic", **{"lib/hip": "x", "lib/license.py": "print()"})
    artifact_sets.write(
        root, "core-hip_doc_generic", **{"share/doc/hip/LICENSE.md": "MIT", "share/doc/x": "y"}
    )
    artifact_sets.write(root, "blas_lib_generic", **{"lib/blas": "x"})
    artifact_sets.write(root, "blas_doc_generic", **{"share/doc/rocblas/copyright": "AMD"})
    artifact_sets.write(root, "blas_lib_gfx942", **{"lib/kernels": "x"})
    artifact_sets.write(root, "prim_dev_generic", **{"include/prim.h": "x"})
    return root


def contents(path: Path) -> tuple[Message, dict[str, bytes]]:
    with ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    info = next(name for name in held if name.endswith("/METADATA")).removesuffix("METADATA")
    licenses = {
        name.removeprefix(f"{info}licenses/"): data
        for name, data in held.items()
        if name.startswith(f"{info}licenses/")
    }
    return message_from_bytes(held[f"{info}METADATA"]), licenses


@pytest.mark.parametrize(
    ("wheel", "expression", "files"),
    [
        (
            "core",
            "Apache-2.0 WITH LLVM-exception AND MIT AND NCSA",
            {"lib/llvm/LICENSE.TXT": b"llvm", "share/doc/hip/LICENSE.md": b"MIT"},
        ),
        ("libraries", packages().licenses.of("blas"), {"share/doc/rocblas/copyright": b"AMD"}),
        ("device_gfx942", packages().licenses.of("blas"), {"share/doc/rocblas/copyright": b"AMD"}),
    ],
)
def test_a_wheel_says_what_its_artifacts_are_under(
    split: Path, tmp_path: Path, wheel: str, expression: str, files: dict[str, bytes]
) -> None:
    build(artifact_sets.request(split, output_dir=tmp_path / "out"))
    (path,) = (tmp_path / "out").glob(f"rocm_sdk_{wheel}-*.whl")
    metadata, held = contents(path)
    assert metadata["Metadata-Version"] == "2.4"
    assert metadata["License-Expression"] == expression
    assert metadata.get_all("License-File") == sorted(files)
    assert held == files


def test_the_development_package_is_under_all_of_them(split: Path, tmp_path: Path) -> None:
    build(artifact_sets.request(split, output_dir=tmp_path / "out"))
    (path,) = (tmp_path / "out").glob("rocm_sdk_devel-*.whl")
    metadata, held = contents(path)
    assert len(held) == 3
    for artifact in ("amd-llvm", "blas", "prim"):
        assert set(packages().licenses.of(artifact).split(" AND ")) <= set(
            metadata["License-Expression"].split(" AND ")
        )


def test_a_link_to_a_licence_becomes_its_text(split: Path) -> None:
    folder = split / "core-hip_doc_generic" / "x" / "stage" / "share" / "doc" / "hip"
    (folder / "COPYING").symlink_to("LICENSE.md")
    (folder / "NOTICE").symlink_to("missing")
    found = scan(split)
    files = licenses_of([one for one in found if one.name == "core-hip"], found).files
    expected = {"share/doc/hip/COPYING": "MIT", "share/doc/hip/LICENSE.md": "MIT"}
    assert {path: entry.source.read_text() for path, entry in files.items()} == expected


@given(st.lists(st.sampled_from(sorted(packages().licenses.artifacts.values())), min_size=1))
def test_licences_that_are_joined_are_an_expression(expressions: list[str]) -> None:
    made = joined(expressions)
    assert canonicalize_license_expression(made) == made
    assert set(made.split(" AND ")) == {part for one in expressions for part in one.split(" AND ")}


@pytest.mark.parametrize("text", ["MIT License", "mit", "GPL", "MIT AND", ""])
def test_data_that_is_no_expression(text: str) -> None:
    with pytest.raises(ValidationError, match="default"):
        LicenseData(default=text, artifacts={})


def test_every_artifact_that_is_named_is_packaged() -> None:
    data = packages()
    known = {*data.core.artifacts, *data.profiler.artifacts, *data.devel.artifacts}
    known |= {*data.libraries.artifacts, *data.libraries.artifacts}
    assert set(data.licenses.artifacts) <= known
