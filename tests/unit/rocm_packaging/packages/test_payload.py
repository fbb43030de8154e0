import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.licenses import canonicalize_license_expression
from pydantic import ValidationError

from core.binaries.elf import ElfFacts
from rocm_packaging.artifacts import TreeEntry, scan
from rocm_packaging.packages.build import build
from rocm_packaging.packages.layouts import LicenseData, packages
from rocm_packaging.packages.payload import (
    PayloadFile,
    devel_only,
    join_expressions,
    licenses_of,
    plan,
    usual_links,
    with_rpath,
)
from tests.kit.artifacts import (
    STAGE,
    build_request,
    write_artifact,
    write_base_artifact,
)
from tests.kit.wheels import read_members

SOURCES = Path("/a")
PROGRAM = ElfFacts(soname="", is_rpath=False, dynamic=True, program=True)


def make_tree(*files: str, links: Mapping[str, str] | None = None) -> dict[str, TreeEntry]:
    """Return a tree of files and links (path to target)."""
    entries = [TreeEntry(path=path, source=SOURCES / path) for path in files]
    for path, target in (links or {}).items():
        entries.append(TreeEntry(path=path, source=SOURCES / path, link=target))
    return {entry.path: entry for entry in sorted(entries, key=lambda entry: entry.path)}


def library(soname: str) -> ElfFacts:
    """Return the facts of a library."""
    return ElfFacts(soname=soname, is_rpath=False, dynamic=True, program=False)


# Runtime wheels


@pytest.mark.parametrize(("name", "globs"), [("x", ()), ("librocprof-sys", packages().profiler.include)])
def test_writes_a_library_once_under_its_soname(name: str, globs: tuple[str, ...]) -> None:
    tree = make_tree(
        f"lib/{name}.so.1.2",
        links={
            f"lib/{name}.so": f"{name}.so.1",
            f"lib/{name}.so.1": f"{name}.so.1.2",
        },
    )

    payload = plan(tree, {f"lib/{name}.so.1.2": library(f"{name}.so.1")}, include=globs)

    assert list(payload.files) == [f"lib/{name}.so.1"]
    assert payload.files[f"lib/{name}.so.1"].entry.source == SOURCES / f"lib/{name}.so.1.2"
    assert payload.aliases == {
        f"lib/{name}.so": f"{name}.so.1",
        f"lib/{name}.so.1.2": f"{name}.so.1",
    }


@pytest.mark.parametrize("links", [{}, {"lib/librocprof-sys.so": "librocprof-sys.so.1"}])
def test_copies_a_library_to_the_unversioned_name_that_programs_open(
    links: Mapping[str, str],
) -> None:
    tree = make_tree("lib/libother.so.1", "lib/librocprof-sys.so.1", links=links)
    facts = {path: library(path.removeprefix("lib/")) for path in tree}

    payload = plan(tree, facts, unversioned=packages().profiler.unversioned)

    assert list(payload.files) == [
        "lib/libother.so.1",
        "lib/librocprof-sys.so",
        "lib/librocprof-sys.so.1",
    ]
    copy = payload.files["lib/librocprof-sys.so"]
    assert copy.entry == payload.files["lib/librocprof-sys.so.1"].entry


def test_links_to_a_library_under_a_second_name_in_the_development_tree() -> None:
    tree = make_tree("lib/libamd_smi.so.26", links={"lib/libamd_smi.so": "libamd_smi.so.26"})
    facts = {"lib/libamd_smi.so.26": library("libamd_smi.so.26")}
    payload = plan(tree, facts, unversioned=packages().core.unversioned)

    files, links = devel_only(tree, [payload])

    assert files == {}
    assert links == {"lib/libamd_smi.so": "libamd_smi.so.26"}


# What programs open by its unversioned name: of ROCm itself, by upstream's reports, and of PyTorch.
OPENED_LIBRARIES = {
    "core": [
        "lib/libamd_smi.so",
        "lib/libhsa-amd-aqlprofile64.so",
        "lib/librocdxg.so",
        "lib/rocprofiler-sdk/librocprofv3-list-avail.so",
    ],
    "profiler": [
        "lib/libprofiler-hub.so",
        "lib/librocprof-sys.so",
        "lib/librocprof-sys-dl.so",
    ],
}


@pytest.mark.parametrize("package", OPENED_LIBRARIES)
def test_packages_libraries_under_the_names_that_programs_open(
    package: str,
) -> None:
    data = packages().core if package == "core" else packages().profiler
    paths = OPENED_LIBRARIES[package]
    tree = make_tree(*(f"{path}.1" for path in paths))
    facts = {path: library(path.rpartition("/")[2]) for path in tree}

    payload = plan(tree, facts, unversioned=data.unversioned)

    assert set(paths) <= set(payload.files)


def test_keeps_the_name_of_a_library_where_no_file_has_its_soname() -> None:
    payload = plan(make_tree("lib/plugin.so"), {"lib/plugin.so": library("libplugin.so.3")})

    assert list(payload.files) == ["lib/plugin.so"]
    assert payload.aliases == {}


def test_keeps_two_libraries_with_one_soname() -> None:
    facts = {"lib/x.so.1": library("x.so.1"), "lib/x-debug.so": library("x.so.1")}

    payload = plan(make_tree("lib/x.so.1", "lib/x-debug.so"), facts)

    assert list(payload.files) == ["lib/x-debug.so", "lib/x.so.1"]


def test_copies_a_library_that_is_linked_into_another_folder() -> None:
    tree = make_tree("lib/x.so.1", links={"plugins/x.so": "../lib/x.so.1"})

    payload = plan(tree, {"lib/x.so.1": library("x.so.1")})

    assert list(payload.files) == ["lib/x.so.1", "plugins/x.so"]


def test_replaces_links_to_programs_by_stubs() -> None:
    tree = make_tree(
        "lib/llvm/bin/clang",
        links={"bin/clang": "../lib/llvm/bin/clang", "run": "bin/clang"},
    )

    payload = plan(tree, {"lib/llvm/bin/clang": PROGRAM})

    assert {path: file.stub_for for path, file in payload.files.items()} == {
        "bin/clang": "../lib/llvm/bin/clang",
        "lib/llvm/bin/clang": "",
        "run": "lib/llvm/bin/clang",
    }


def test_leaves_out_links_to_folders_and_dangling_ones() -> None:
    tree = make_tree("lib/llvm/x", links={"llvm": "lib/llvm", "gone": "nowhere", "loop": "loop"})

    assert list(plan(tree, {}).files) == ["lib/llvm/x"]


def test_leaves_out_excluded_paths() -> None:
    tree = make_tree(
        "lib/cmake/hip/a.cmake",
        "cmake/b",
        "lib/cmakex/c",
        "share/x.txt",
        "share/xy.txt",
    )

    payload = plan(tree, {}, exclude=("**/cmake/**", "share/?.txt"))

    assert list(payload.files) == ["lib/cmakex/c", "share/xy.txt"]


# The development tree


def test_puts_what_no_runtime_wheel_has_into_the_development_tree() -> None:
    runtime_tree = make_tree(
        "lib/x.so.1.2",
        "lib/llvm/bin/clang",
        links={
            "lib/x.so": "x.so.1",
            "lib/x.so.1": "x.so.1.2",
            "bin/clang": "../lib/llvm/bin/clang",
            "llvm": "lib/llvm",
            "gone": "nowhere",
        },
    )
    payload = plan(
        runtime_tree,
        {"lib/x.so.1.2": library("x.so.1"), "lib/llvm/bin/clang": PROGRAM},
    )

    files, links = devel_only({**runtime_tree, **make_tree("include/x.h")}, [payload])

    assert list(files) == ["include/x.h"]
    assert links == {
        "bin/clang": "../lib/llvm/bin/clang",
        "lib/x.so": "x.so.1",
        "lib/x.so.1.2": "x.so.1",
        "llvm": "lib/llvm",
    }


@pytest.mark.parametrize(
    ("tree", "is_added"),
    [
        pytest.param(make_tree("lib/llvm/bin/clang"), True, id="missing"),
        pytest.param(
            make_tree("lib/llvm/bin/clang", links={"llvm": "lib/llvm"}),
            False,
            id="there",
        ),
        pytest.param(
            make_tree("lib/llvm/bin/clang", "llvm/bin/clang"),
            False,
            id="folder in its place",
        ),
        pytest.param(make_tree("lib/x.so"), False, id="without its target"),
    ],
)
def test_adds_the_usual_links_that_a_tree_lacks(tree: dict[str, TreeEntry], *, is_added: bool) -> None:
    links = {"llvm": "lib/llvm"}

    assert usual_links(tree, links) == (links if is_added else {})


# RPATH

CORE = "_rocm_sdk_core"
LIBRARIES = "_rocm_sdk_libraries_gfx94X_dcgpu"
LIBRARY_RPATH = (
    "$ORIGIN",
    "$ORIGIN/../../_rocm_sdk_core/lib",
    "$ORIGIN/../../_rocm_sdk_core/lib/rocm_sysdeps/lib",
)


def payload_file(
    path: str,
    *,
    rpath: tuple[str, ...] = (),
    is_rpath: bool = False,
    dynamic: bool = True,
) -> PayloadFile:
    """Return a file with an RPATH, or with a RUNPATH."""
    facts = ElfFacts(
        soname="x.so.1",
        rpath=rpath,
        is_rpath=is_rpath,
        dynamic=dynamic,
        program=False,
    )
    return PayloadFile(path=path, entry=TreeEntry(path=path, source=Path(path)), facts=facts)


def rpath_in_libraries(file: PayloadFile) -> tuple[str, ...] | None:
    """Return the RPATH that a file gets in the libraries package; None where its own stays."""
    core_folders = (f"{CORE}/lib", f"{CORE}/lib/rocm_sysdeps/lib")
    return with_rpath(file, LIBRARIES, core_folders).rpath


def test_lets_libraries_look_into_core_after_their_own_folder() -> None:
    file = payload_file("lib/x.so.1", rpath=("$ORIGIN", "/build/lib"))

    assert rpath_in_libraries(file) == LIBRARY_RPATH


def test_lets_libraries_in_deeper_folders_look_into_core() -> None:
    rpath = rpath_in_libraries(payload_file("lib/deep/x.so.1"))

    assert rpath is not None
    assert rpath[0] == "$ORIGIN/../../../_rocm_sdk_core/lib"


@pytest.mark.parametrize(
    ("file", "rpath"),
    [
        (
            payload_file("lib/x.so.1", rpath=("$ORIGIN",)),
            ("$ORIGIN", "$ORIGIN/llvm/lib"),
        ),
        (payload_file("lib/llvm/lib/x.so.1"), ("$ORIGIN",)),
    ],
    ids=["lib", "lib/llvm/lib"],
)
def test_keeps_the_rpath_of_core_inside_core(file: PayloadFile, rpath: tuple[str, ...]) -> None:
    assert with_rpath(file, CORE, (f"{CORE}/lib/llvm/lib",)).rpath == rpath


@pytest.mark.parametrize(
    ("file", "rpath"),
    [
        pytest.param(
            payload_file("lib/x.so.1", rpath=LIBRARY_RPATH, is_rpath=True),
            None,
            id="right",
        ),
        pytest.param(
            payload_file("lib/x.so.1", rpath=LIBRARY_RPATH),
            LIBRARY_RPATH,
            id="RUNPATH",
        ),
        pytest.param(
            payload_file("lib/x.so.1", rpath=("$ORIGIN",), is_rpath=True),
            LIBRARY_RPATH,
            id="without core",
        ),
        pytest.param(payload_file("bin/static", dynamic=False), None, id="static program"),
        pytest.param(
            PayloadFile(path="a.txt", entry=TreeEntry(path="a", source=Path("a"))),
            None,
            id="no compiled code",
        ),
    ],
)
def test_changes_only_an_rpath_that_is_not_right(file: PayloadFile, rpath: tuple[str, ...] | None) -> None:
    assert rpath_in_libraries(file) == rpath


# Licences


def write_licensed_set(root: Path) -> Path:
    """Write a split set whose artifacts bring licences, under several names and in several places."""
    write_base_artifact(root, targets=("gfx942",), is_split=True)
    write_artifact(
        root,
        "amd-llvm_lib_generic",
        {"lib/llvm/lib/a": "x", "lib/llvm/LICENSE.TXT": "llvm"},
    )
    write_artifact(root, "core-hip_lib_generic", {"lib/hip": "x", "lib/license.py": "print()"})
    write_artifact(
        root,
        "core-hip_doc_generic",
        {"share/doc/hip/LICENSE.md": "MIT", "share/doc/x": "y"},
    )
    write_artifact(root, "blas_lib_generic", {"lib/blas": "x"})
    write_artifact(root, "blas_doc_generic", {"share/doc/rocblas/copyright": "AMD"})
    write_artifact(root, "blas_lib_gfx942", {"lib/kernels": "x"})
    write_artifact(root, "prim_dev_generic", {"include/prim.h": "x"})
    return root


@pytest.fixture(scope="module")
def licensed_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the packages of the licensed set."""
    artifacts = write_licensed_set(tmp_path_factory.mktemp("licensed") / "artifacts")
    request = build_request(artifacts)
    build(request)
    return request.output_dir


def read_license_fields(folder: Path, package: str) -> dict[str, list[str]]:
    """Return the fields of a package's METADATA."""
    fields: dict[str, list[str]] = {}
    members = read_package(folder, package)
    (metadata,) = [text.decode() for name, text in members.items() if name.endswith(".dist-info/METADATA")]
    for name, value in re.findall(r"^([\w-]+): (.*)$", metadata, re.MULTILINE):
        fields.setdefault(name, []).append(value)
    return fields


def read_license_files(folder: Path, package: str) -> dict[str, str]:
    """Return the licences in a package."""
    return {
        name.partition("/licenses/")[2]: content.decode()
        for name, content in read_package(folder, package).items()
        if ".dist-info/licenses/" in name
    }


def read_package(folder: Path, package: str) -> dict[str, bytes]:
    """Return the members of a package."""
    (wheel,) = folder.glob(f"rocm_sdk_{package}-*.whl")
    return read_members(wheel)


@pytest.mark.parametrize(
    ("package", "expression", "files"),
    [
        (
            "core",
            "Apache-2.0 WITH LLVM-exception AND MIT AND NCSA",
            {"lib/llvm/LICENSE.TXT": "llvm", "share/doc/hip/LICENSE.md": "MIT"},
        ),
        (
            "libraries",
            packages().licenses.of("blas"),
            {"share/doc/rocblas/copyright": "AMD"},
        ),
        (
            "device_gfx942",
            packages().licenses.of("blas"),
            {"share/doc/rocblas/copyright": "AMD"},
        ),
    ],
)
def test_puts_the_licences_of_its_artifacts_into_a_package(
    licensed_packages: Path, package: str, expression: str, files: dict[str, str]
) -> None:
    fields = read_license_fields(licensed_packages, package)

    assert fields["Metadata-Version"] == ["2.4"]
    assert fields["License-Expression"] == [expression]
    assert fields["License-File"] == sorted(files)
    assert read_license_files(licensed_packages, package) == files


@pytest.mark.parametrize("artifact", ["amd-llvm", "blas", "prim"])
def test_puts_all_licences_into_the_development_package(licensed_packages: Path, artifact: str) -> None:
    (expression,) = read_license_fields(licensed_packages, "devel")["License-Expression"]

    assert set(packages().licenses.of(artifact).split(" AND ")) <= set(expression.split(" AND "))
    assert len(read_license_files(licensed_packages, "devel")) == 3


@pytest.mark.usefixtures("needs_links")
def test_reads_the_text_behind_a_link_to_a_licence(tmp_path: Path) -> None:
    root = write_licensed_set(tmp_path)
    folder = root / "core-hip_doc_generic" / STAGE / "share" / "doc" / "hip"
    (folder / "COPYING").symlink_to("LICENSE.md")
    (folder / "NOTICE").symlink_to("missing")
    artifacts = scan(root)

    licenses = licenses_of(
        [artifact for artifact in artifacts if artifact.name == "core-hip"],
        artifacts,
    )

    assert {path: entry.source.read_text() for path, entry in licenses.files.items()} == {
        "share/doc/hip/COPYING": "MIT",
        "share/doc/hip/LICENSE.md": "MIT",
    }


@given(st.lists(st.sampled_from(sorted(packages().licenses.artifacts.values())), min_size=1))
def test_joins_licences_to_one_expression(expressions: list[str]) -> None:
    licenses = {license_ for expression in expressions for license_ in expression.split(" AND ")}

    joined_expression = join_expressions(expressions)

    assert canonicalize_license_expression(joined_expression) == joined_expression
    assert set(joined_expression.split(" AND ")) == licenses


@pytest.mark.parametrize("text", ["MIT License", "mit", "GPL", "MIT AND", ""])
def test_refuses_data_that_is_no_licence_expression(text: str) -> None:
    with pytest.raises(ValidationError, match="default"):
        LicenseData(default=text, artifacts={})


def test_names_the_licences_of_packaged_artifacts_alone() -> None:
    data = packages()

    packaged_artifacts = {
        *data.core.artifacts,
        *data.profiler.artifacts,
        *data.devel.artifacts,
        *data.libraries.artifacts,
    }

    assert set(data.licenses.artifacts) <= packaged_artifacts
