import ctypes
import os
import posixpath
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import process
from core.wheel import parse_wheel_name
from core.wheel.record import verify_record
from pytorch_build.build.stage import planned, rocm_folders, search_paths, set_search_paths
from pytorch_build.check import load_policy, matches
from pytorch_build.check.run import check_wheel
from pytorch_build.standalone.libraries import Binary, read_members
from rocm_packaging.packages.layouts import Layout
from tests.unit.pytorch_build.check.conftest import write_wheel

FAMILY = "gfx94X-dcgpu"
CORE = (
    "lib",
    "lib/rocm_sysdeps/lib",
    "lib/host-math/lib",
    "lib/llvm/lib",
    "lib/llvm/lib/x86_64-unknown-linux-gnu",
)
DEVEL = "/opt/python/lib/python3.12/site-packages/_rocm_sdk_devel/lib"
NAMES = st.sampled_from(["torch", "lib", "torchaudio", "bin", "a"])
MEMBERS = st.lists(NAMES, max_size=5).map(lambda folders: "/".join((*folders, "x.so")))
LAYOUTS: st.SearchStrategy[Layout] = st.sampled_from(["split", "unsplit"])


def folders(member: str, entries: tuple[str, ...]) -> list[str]:
    here = f"/{posixpath.dirname(member)}"
    return [posixpath.normpath(entry.replace("$ORIGIN", here)).lstrip("/") for entry in entries]


@pytest.mark.parametrize(
    ("member", "up", "own"),
    [
        ("torch/lib/libtorch_hip.so", "../..", ["$ORIGIN"]),
        ("torch/bin/torch_shm_manager", "../..", ["$ORIGIN", "$ORIGIN/../lib"]),
        ("torch/_C.cpython-312-x86_64-linux-gnu.so", "..", ["$ORIGIN", "$ORIGIN/lib"]),
        ("torchvision/_C.so", "..", ["$ORIGIN"]),
        ("torchaudio/lib/libtorchaudio.so", "../..", ["$ORIGIN", "$ORIGIN/../../torch/lib"]),
        ("amp_C.so", ".", ["$ORIGIN"]),
    ],
)
@pytest.mark.parametrize(
    ("layout", "libraries"),
    [("split", "_rocm_sdk_libraries"), ("unsplit", "_rocm_sdk_libraries_gfx94X_dcgpu")],
)
def test_files_look_into_rocms_run_time_packages_then_beside_themselves(
    member: str, up: str, own: list[str], layout: Layout, libraries: str
) -> None:
    left = (DEVEL, *(entry for entry in own if entry != "$ORIGIN/lib"))
    rocm = [f"$ORIGIN/{up}/_rocm_sdk_core/{folder}" for folder in CORE] + [f"$ORIGIN/{up}/{libraries}/lib"]
    found = search_paths(member, layout, FAMILY, left)
    assert list(found) == [entry.replace("/./", "/") for entry in rocm] + own


@given(member=MEMBERS, layout=LAYOUTS, own=st.lists(st.sampled_from([DEVEL, "$ORIGIN", "", "/usr/lib", "x"])))
def test_a_search_path_reaches_rocm_from_any_depth_and_stays_in_site_packages(
    member: str, layout: Layout, own: list[str]
) -> None:
    found = search_paths(member, layout, FAMILY, own)
    assert all(entry.partition("/")[0] == "$ORIGIN" for entry in found)
    assert len(set(found)) == len(found)
    assert folders(member, found)[:6] == list(rocm_folders(layout, FAMILY))
    assert "_rocm_sdk_devel" not in "".join(found)
    assert posixpath.dirname(member) in folders(member, found)[6:]
    assert search_paths(member, layout, FAMILY, found) == found


def test_without_rocm_and_outside_of_site_packages_only_relative_entries_stay() -> None:
    assert search_paths("torch/lib/a.so", None, "cpu", ("/usr/lib", "$ORIGIN")) == ("$ORIGIN",)
    assert search_paths("", "split", FAMILY, ("/usr/lib", "$ORIGIN/../lib")) == ("$ORIGIN/../lib",)


@pytest.mark.parametrize("layout", ["split", "unsplit"])
def test_every_library_of_rocm_that_wheels_may_need_lies_in_a_folder_of_the_search_path(
    layout: Layout,
) -> None:
    for pattern in load_policy().providers["rocm"].folders:
        assert any(matches(folder, [pattern]) for folder in rocm_folders(layout, FAMILY)), pattern


def test_only_what_differs_changes() -> None:
    right = search_paths("torch/lib/a.so", "split", "")
    needs = ("libc.so.6",)
    binaries = {
        "torch/lib/a.so": Binary(name="", needed=needs, search=right, is_rpath=True),
        "torch/lib/b.so": Binary(name="", needed=needs, search=right),
        "torch/lib/static": Binary(name="", needed=()),
        "torch-1.data/purelib/torch/_C.so": Binary(name="", needed=needs),
        "torch-1.data/scripts/tool": Binary(name="", needed=needs),
        "torch-1.data/scripts/other": Binary(name="", needed=needs, search=("/usr/lib",)),
    }
    assert planned(binaries, "split", "") == {
        "torch/lib/b.so": right,
        "torch-1.data/purelib/torch/_C.so": search_paths("torch/_C.so", "split", ""),
        "torch-1.data/scripts/other": (),
    }


def compiled(folder: Path, name: str, code: str, *flags: str | Path) -> bytes:
    compiler = process.which("cc") or process.which("c++")
    assert compiler is not None
    (folder / "source.c").write_text(code, encoding="utf-8")
    target = folder / name
    process.capture([compiler, "-O1", folder / "source.c", "-o", target, *flags])
    return target.read_bytes()


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Return a wheel as CMake leaves it: linked to a library of ROCm in a folder of the build machine."""
    devel = tmp_path / "_rocm_sdk_devel" / "lib"
    devel.mkdir(parents=True)
    shared = ("-shared", "-fPIC")
    compiled(
        devel, "libamdhip64.so", "int hip(void) { return 7; }\n", *shared, "-Wl,-soname,libamdhip64.so.7"
    )
    uses = "int hip(void); int x(void) { return hip(); }\n"
    links = ("-L", devel, "-lamdhip64", f"-Wl,-rpath,$ORIGIN:{devel}")
    members = {
        "torch/lib/libtorch_hip.so": compiled(tmp_path, "h.so", uses, *shared, *links),
        "torch/lib/libplain.so": compiled(tmp_path, "p.so", "int y;\n", *shared),
        "torch/bin/program": compiled(tmp_path, "program", "int main(void) { return 0; }\n"),
        "torch/__init__.py": b"print('torch')\n",
    }
    return write_wheel(tmp_path / "dist", "torch-2.10.0+rocm7-cp312-cp312-linux_x86_64.whl", members)


@pytest.mark.processes
def test_a_built_wheel_finds_rocm_where_it_is_installed_and_nowhere_else(built: Path, tmp_path: Path) -> None:
    before = built.read_bytes()
    messages = [one.message for one in check_wheel(built) if one.severity == "error"]
    assert any("Its RPATH names folders of one machine" in message for message in messages)
    version = str(parse_wheel_name(built.name).version)
    assert set_search_paths(built, "split", FAMILY, epoch=1_700_000_000) == built
    assert verify_record(built) == ()
    assert not [one for one in check_wheel(built) if "RPATH" in one.message]
    after = built.read_bytes()
    assert set_search_paths(built, "split", FAMILY) == built
    assert built.read_bytes() == after, "a second time nothing changes"
    built.write_bytes(before)
    set_search_paths(built, "split", FAMILY, epoch=1_700_000_000)
    assert built.read_bytes() == after, "the same bytes come from the same wheel"
    assert [path.name for path in built.parent.iterdir()] == [built.name]

    site = tmp_path / "site-packages"
    with zipfile.ZipFile(built) as archive:
        found = read_members(built, archive.infolist())
        archive.extractall(site)
        assert f"torch-{version}.dist-info/RECORD" in archive.namelist()
    assert {path for path, one in found.items() if not one.is_rpath} == {"torch/lib/libplain.so"}
    library = site / "torch" / "lib" / "libtorch_hip.so"
    devel, core = tmp_path / "_rocm_sdk_devel" / "lib", site / "_rocm_sdk_core" / "lib"
    core.mkdir(parents=True)
    hip = devel / "libamdhip64.so"
    with pytest.raises(OSError, match=r"libamdhip64\.so\.7"):
        ctypes.CDLL(os.fspath(library))
    hip.rename(core / "libamdhip64.so.7")
    assert ctypes.CDLL(os.fspath(library)).x() == 7
