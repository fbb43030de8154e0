import ctypes
import os
import posixpath
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import process
from core.archive.zips import read_archive
from core.wheel.record import verify_record
from pytorch_build.build.search_paths import (
    changed_search_paths,
    rocm_folders,
    search_paths,
    set_search_paths,
)
from pytorch_build.check import Finding
from pytorch_build.check.policy import load_policy, matches
from pytorch_build.check.run import check_wheel
from pytorch_build.standalone.libraries import BinaryNeeds, read_members
from rocm_packaging.packages.layouts import Layout
from tests.kit.wheels import write_wheel

FAMILY = "gfx94X-dcgpu"
CORE_FOLDERS = (
    "lib",
    "lib/rocm_sysdeps/lib",
    "lib/host-math/lib",
    "lib/llvm/lib",
    "lib/llvm/lib/x86_64-unknown-linux-gnu",
)
DEVEL = "/opt/python/lib/python3.12/site-packages/_rocm_sdk_devel/lib"
EPOCH = 1_700_000_000

FOLDERS = st.sampled_from(["torch", "lib", "torchaudio", "bin", "a"])
MEMBERS = st.lists(FOLDERS, max_size=5).map(lambda folders: "/".join((*folders, "x.so")))
LAYOUTS: st.SearchStrategy[Layout] = st.sampled_from(["split", "unsplit"])

ROCM_FOLDERS = rocm_folders("split", FAMILY)
each_layout = pytest.mark.parametrize(
    ("layout", "libraries"),
    [("split", "_rocm_sdk_libraries"), ("unsplit", "_rocm_sdk_libraries_gfx94X_dcgpu")],
)


# Search paths


def folders_of(member: str, search_path: tuple[str, ...]) -> list[str]:
    """Return the folders below site-packages that a file's search path leads to."""
    origin = f"/{posixpath.dirname(member)}"
    return [posixpath.normpath(entry.replace("$ORIGIN", origin)).lstrip("/") for entry in search_path]


@pytest.mark.parametrize(
    ("member", "up", "own_entries"),
    [
        ("torch/lib/libtorch_hip.so", "../..", ["$ORIGIN"]),
        ("torch/bin/torch_shm_manager", "../..", ["$ORIGIN", "$ORIGIN/../lib"]),
        ("torch/_C.cpython-312-x86_64-linux-gnu.so", "..", ["$ORIGIN", "$ORIGIN/lib"]),
        ("torchvision/_C.so", "..", ["$ORIGIN"]),
        ("torchaudio/lib/libtorchaudio.so", "../..", ["$ORIGIN", "$ORIGIN/../../torch/lib"]),
        ("amp_C.so", "", ["$ORIGIN"]),
    ],
)
@each_layout
def test_files_look_into_rocms_run_time_packages_then_beside_themselves(
    member: str, up: str, own_entries: list[str], layout: Layout, libraries: str
) -> None:
    # CMake leaves ROCm's development tree; torch's own lib folder is added where it is missing.
    built_entries = (DEVEL, *(entry for entry in own_entries if entry != "$ORIGIN/lib"))

    search_path = search_paths(member, rocm_folders(layout, FAMILY), built_entries)

    site_packages = f"$ORIGIN/{up}" if up else "$ORIGIN"
    rocm_entries = [f"{site_packages}/_rocm_sdk_core/{folder}" for folder in CORE_FOLDERS]
    rocm_entries.append(f"{site_packages}/{libraries}/lib")
    assert list(search_path) == rocm_entries + own_entries


@given(
    member=MEMBERS,
    layout=LAYOUTS,
    built_entries=st.lists(st.sampled_from([DEVEL, "$ORIGIN", "", "/usr/lib", "x"])),
)
def test_a_search_path_reaches_rocm_from_any_depth_and_stays_in_site_packages(
    member: str, layout: Layout, built_entries: list[str]
) -> None:
    search_path = search_paths(member, rocm_folders(layout, FAMILY), built_entries)

    assert all(entry.partition("/")[0] == "$ORIGIN" for entry in search_path)
    assert len(set(search_path)) == len(search_path)
    assert "_rocm_sdk_devel" not in "".join(search_path)
    folders = folders_of(member, search_path)
    assert folders[:6] == list(rocm_folders(layout, FAMILY))
    assert posixpath.dirname(member) in folders[6:]


@given(member=MEMBERS, layout=LAYOUTS)
def test_a_search_path_is_right_after_the_first_time(member: str, layout: Layout) -> None:
    search_path = search_paths(member, rocm_folders(layout, FAMILY), (DEVEL, "$ORIGIN"))

    assert search_paths(member, rocm_folders(layout, FAMILY), search_path) == search_path


def test_keeps_only_relative_entries_without_rocm() -> None:
    assert search_paths("torch/lib/a.so", (), ("/usr/lib", "$ORIGIN")) == ("$ORIGIN",)


def test_keeps_only_relative_entries_outside_of_site_packages() -> None:
    assert search_paths("", ROCM_FOLDERS, ("/usr/lib", "$ORIGIN/../lib")) == ("$ORIGIN/../lib",)


@each_layout
def test_every_library_of_rocm_that_wheels_may_need_lies_in_the_search_path(
    layout: Layout, libraries: str
) -> None:
    folders = rocm_folders(layout, FAMILY)

    assert f"{libraries}/lib" in folders
    for pattern in load_policy().providers["rocm"].folders:
        assert any(matches(folder, [pattern]) for folder in folders), pattern


LIBC = ("libc.so.6",)
RIGHT_PATH = search_paths("torch/lib/a.so", ROCM_FOLDERS)


@pytest.mark.parametrize(
    ("path", "binary", "change"),
    [
        pytest.param(
            "torch/lib/a.so",
            BinaryNeeds(name="", needed=LIBC, search=RIGHT_PATH, is_rpath=True),
            None,
            id="right RPATH",
        ),
        pytest.param(
            "torch/lib/a.so", BinaryNeeds(name="", needed=LIBC, search=RIGHT_PATH), RIGHT_PATH, id="RUNPATH"
        ),
        pytest.param("torch/lib/static", BinaryNeeds(name="", needed=()), None, id="static program"),
        pytest.param(
            "torch-1.data/purelib/torch/_C.so",
            BinaryNeeds(name="", needed=LIBC),
            search_paths("torch/_C.so", ROCM_FOLDERS),
            id="installed into site-packages",
        ),
        pytest.param(
            "torch-1.data/scripts/a", BinaryNeeds(name="", needed=LIBC), None, id="installed elsewhere"
        ),
        pytest.param(
            "torch-1.data/scripts/a",
            BinaryNeeds(name="", needed=LIBC, search=("/usr/lib",)),
            (),
            id="absolute path elsewhere",
        ),
    ],
)
def test_changes_only_search_paths_that_differ(
    path: str, binary: BinaryNeeds, change: tuple[str, ...] | None
) -> None:
    changes = {} if change is None else {path: change}

    assert changed_search_paths({path: binary}, ROCM_FOLDERS) == changes


# A wheel that CMake built


def compile_c(target: Path, code: str, *flags: str | Path) -> bytes:
    """Compile a C program or library; return its content."""
    compiler = process.which("cc") or process.which("c++")
    assert compiler is not None
    source = target.with_suffix(".c")
    source.write_text(code, encoding="utf-8")
    process.capture([compiler, "-O1", source, "-o", target, *flags])
    return target.read_bytes()


@pytest.fixture(scope="module")
def machine_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a machine that built a library of ROCm, and files that need it."""
    folder = tmp_path_factory.mktemp("machine")
    devel = folder / "_rocm_sdk_devel" / "lib"
    devel.mkdir(parents=True)
    shared = ("-shared", "-fPIC")
    hip_code = "int hip(void) { return 7; }\n"
    compile_c(devel / "libamdhip64.so", hip_code, *shared, "-Wl,-soname,libamdhip64.so.7")
    torch_code = "int hip(void); int x(void) { return hip(); }\n"
    links = ("-L", devel, "-lamdhip64", f"-Wl,-rpath,$ORIGIN:{devel}")
    compile_c(folder / "libtorch_hip.so", torch_code, *shared, *links)
    compile_c(folder / "libplain.so", "int y;\n", *shared)
    compile_c(folder / "program", "int main(void) { return 0; }\n")
    return folder


@pytest.fixture
def built_wheel(machine_folder: Path, tmp_path: Path) -> Path:
    """Return a wheel as CMake leaves it: linked to a library in a folder of the machine that built it."""
    return write_wheel(
        tmp_path / "dist",
        version="2.10.0+rocm7",
        tag="cp312-cp312-linux_x86_64",
        files={
            "torch/lib/libtorch_hip.so": (machine_folder / "libtorch_hip.so").read_bytes(),
            "torch/lib/libplain.so": (machine_folder / "libplain.so").read_bytes(),
            "torch/bin/program": (machine_folder / "program").read_bytes(),
            "torch/__init__.py": b"print('torch')\n",
        },
    )


def rpath_findings(wheel: Path) -> list[Finding]:
    """Return what checks say of a wheel's search paths."""
    return [finding for finding in check_wheel(wheel) if "RPATH" in finding.message]


@pytest.mark.processes
def test_corrects_the_search_paths_of_a_built_wheel(built_wheel: Path) -> None:
    assert "error" in {finding.severity for finding in rpath_findings(built_wheel)}

    assert set_search_paths(built_wheel, ROCM_FOLDERS) == built_wheel

    assert rpath_findings(built_wheel) == []
    assert verify_record(built_wheel) == ()
    assert [path.name for path in built_wheel.parent.iterdir()] == [built_wheel.name]


@pytest.mark.processes
def test_changes_only_files_that_load_others(built_wheel: Path) -> None:
    set_search_paths(built_wheel, ROCM_FOLDERS)

    binaries = read_members(built_wheel, read_archive(built_wheel).members)
    without_rpath = {path for path, binary in binaries.items() if not binary.is_rpath}
    assert without_rpath == {"torch/lib/libplain.so"}


@pytest.mark.processes
def test_changes_no_wheel_a_second_time(built_wheel: Path) -> None:
    set_search_paths(built_wheel, ROCM_FOLDERS)
    content = built_wheel.read_bytes()

    set_search_paths(built_wheel, ROCM_FOLDERS)

    assert built_wheel.read_bytes() == content


@pytest.mark.processes
def test_writes_the_same_bytes_from_the_same_wheel(built_wheel: Path) -> None:
    built_content = built_wheel.read_bytes()
    set_search_paths(built_wheel, ROCM_FOLDERS, epoch=EPOCH)
    changed_content = built_wheel.read_bytes()

    built_wheel.write_bytes(built_content)
    set_search_paths(built_wheel, ROCM_FOLDERS, epoch=EPOCH)

    assert built_wheel.read_bytes() == changed_content


@pytest.mark.processes
def test_a_corrected_wheel_finds_rocm_where_it_is_installed_and_nowhere_else(
    built_wheel: Path, machine_folder: Path, tmp_path: Path
) -> None:
    set_search_paths(built_wheel, ROCM_FOLDERS)
    site_packages = tmp_path / "site-packages"
    with zipfile.ZipFile(built_wheel) as archive:
        archive.extractall(site_packages)
    library = os.fspath(site_packages / "torch" / "lib" / "libtorch_hip.so")
    rocm_library = site_packages / "_rocm_sdk_core" / "lib" / "libamdhip64.so.7"
    # The loader remembers folders that it did not find.
    rocm_library.parent.mkdir(parents=True)

    # The machine's library is still where CMake found it.
    with pytest.raises(OSError, match=r"libamdhip64\.so\.7"):
        ctypes.CDLL(library)

    rocm_library.write_bytes((machine_folder / "_rocm_sdk_devel/lib/libamdhip64.so").read_bytes())
    assert ctypes.CDLL(library).x() == 7
