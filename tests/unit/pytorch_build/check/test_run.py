import zipfile
from collections.abc import Callable
from pathlib import Path

import deflate
import pip
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import MissingInputError
from pytorch_build.check import Expectation, Finding, Policy
from pytorch_build.check.run import (
    CheckOptions,
    check_wheel,
    check_wheels,
    examined,
    find_wheels,
)
from tests.unit.pytorch_build.check.conftest import compressed_bundle, elf_file, plain_bundle, write_wheel
from tests.unit.rocm_packaging.pe_files import pe_file

NAME = "torch-2.10.0a0+devrocm7.99.0.dev0.sample-cp312-cp312-linux_x86_64.whl"
REQUIRES = ["rocm[libraries]==7.99.0.dev0+sample"]
BASE = ["libc.so.6", "libstdc++.so.6", "libgcc_s.so.1"]
PROMISED = Expectation(
    distribution="torch",
    version="2.10.0a0+devrocm7.99.0.dev0.sample",
    python_tag="cp312",
    requires=tuple(REQUIRES),
    gpu_targets=("gfx942",),
    local_label="sample",
)


def said(findings: tuple[Finding, ...]) -> list[tuple[str, str, str]]:
    return [(one.severity, one.check, one.where) for one in findings]


@pytest.fixture
def files() -> dict[str, bytes]:
    device = {".hip_fatbin": compressed_bundle(plain_bundle("gfx942"), version=2, method=0)}
    return {
        "torch/__init__.py": b"__version__ = '2.10.0a0'\n",
        "torch/lib/libc10.so": elf_file(soname="libc10.so", needed=BASE, runpath="$ORIGIN"),
        "torch/lib/libtorch_hip.so": elf_file(
            needed=["libc10.so", "libamdhip64.so.7"],
            runpath="$ORIGIN:$ORIGIN/../../_rocm_sdk_core/lib",
            sections=device,
        ),
    }


def test_a_sound_wheel(tmp_path: Path, files: dict[str, bytes]) -> None:
    path = write_wheel(tmp_path, NAME, files, requires=REQUIRES)
    assert check_wheel(path, PROMISED) == ()
    assert check_wheels([tmp_path], {"Torch": PROMISED}) == ()


def test_every_subject_is_asked(tmp_path: Path) -> None:
    files = {
        "torch/x.pyc": b"",
        "torch/lib/a.so": elf_file(
            needed=["libnone.so"], rpath="/home/me", sections={".hip_fatbin": plain_bundle("gfx900")}
        ),
        "torch/lib/broken.so": elf_file()[:70],
        "torch/lib/damaged.so": elf_file(sections={".hip_fatbin": b"garbage"}),
        "torch/lib/damaged.hipfb": b"CCOB" + bytes(40),
    }
    path = write_wheel(tmp_path, NAME, files, requires=["a =="], purelib=True)
    found = check_wheel(path, PROMISED)

    assert set(said(found)) == {
        ("error", "contents", "torch/x.pyc"),
        ("error", "device_code", ""),
        ("error", "elf", "torch/lib/a.so"),
        ("error", "elf", "torch/lib/broken.so"),
        ("error", "elf", "torch/lib/damaged.so"),
        ("error", "elf", "torch/lib/damaged.hipfb"),
        ("error", "expected", ""),
        ("error", "metadata", ""),
        ("warning", "device_code", ""),
        ("warning", "tags", "torch/lib/a.so"),
    }


LIBRARY = min(Path(deflate.__file__).parent.glob("*.so"), key=lambda path: path.stat().st_size).read_bytes()
PROGRAM = (Path(pip.__file__).parent / "_vendor/distlib/w64.exe").read_bytes()
# name, content, tag
REAL = {
    "library": ("demo/lib/libdemo.so.1", LIBRARY, "cp312-cp312-linux_x86_64"),
    "linux program": ("demo/bin/demo", LIBRARY, "cp312-cp312-linux_x86_64"),
    "windows program": ("demo/demo.exe", PROGRAM, "cp312-cp312-win_amd64"),
    "dll": ("demo/demo.dll", pe_file(needed=("KERNEL32.dll",)), "cp312-cp312-win_amd64"),
}
LINKER_SCRIPT = b"""/* GNU ld script
   Use the shared library, but some functions are only in the static library. */
OUTPUT_FORMAT(elf64-x86-64)
GROUP ( /lib/x86_64-linux-gnu/libc.so.6 libc_nonshared.a  AS_NEEDED ( /lib64/ld-linux-x86-64.so.2 ) )
"""


@pytest.fixture(scope="session")
def errors_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Check a wheel of one file, and return the errors about it."""

    def checked(name: str, content: bytes, tag: str) -> list[str]:
        files = {name: content, "demo/__init__.py": b""}
        path = write_wheel(tmp_path_factory.mktemp("one"), f"demo-1-{tag}.whl", files)
        return [one.message for one in check_wheel(path) if one.severity == "error" and one.where == name]

    return checked


@pytest.mark.parametrize("what", REAL)
@given(data=st.data())
@settings(max_examples=10)
def test_real_code_that_is_cut_or_is_none_is_an_error(
    what: str, data: st.DataObject, errors_of: Callable[..., list[str]]
) -> None:
    name, content, tag = REAL[what]
    assert errors_of(name, content, tag) == []
    cut = data.draw(st.integers(0, len(content) - 1) | st.integers(len(content) - 80, len(content) - 1))
    text = data.draw(st.binary(max_size=200).filter(lambda one: not one.startswith(b"#!")))
    for broken in (content[:cut], content[:1], content[:-1], text):
        assert errors_of(name, broken, tag)


@pytest.mark.parametrize("what", REAL)
@given(at=st.integers(0, 1023), value=st.integers(0, 255))
@settings(max_examples=20)
def test_a_changed_byte_is_a_finding_at_most(
    what: str, at: int, value: int, errors_of: Callable[..., list[str]]
) -> None:
    name, content, tag = REAL[what]
    at %= len(content)
    errors_of(name, content[:at] + bytes([value]) + content[at + 1 :], tag)


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (4, b"\x01"),  # of 32 bits
        (5, b"\x02"),  # big-endian
        (16, b"\x01"),  # an object
        (18, b"\xb7"),  # for another processor
        (18, b"\xe0"),  # for a GPU
        (32, b"\xff" * 8),  # program headers far away
        (40, b"\xff" * 8),  # section headers far away
        (56, b"\0\0"),  # no program headers
    ],
)
def test_a_library_whose_header_lies_is_an_error(
    at: int, data: bytes, errors_of: Callable[..., list[str]]
) -> None:
    name, content, tag = REAL["library"]
    assert errors_of(name, content[:at] + data + content[at + len(data) :], tag)


def test_scripts_are_known_by_what_they_are(errors_of: Callable[..., list[str]]) -> None:
    linux = REAL["library"][2]
    for script in (LINKER_SCRIPT, b"INPUT(libc++.so.1 -lc++abi -lunwind)\n", b"GROUP(a AS_NEEDED(b) c)"):
        assert errors_of("demo/lib/libdemo.so", script, linux) == []
    for text in (b"/* GNU ld script */", b"INPUT(", b"libdemo.so.1", b"#!/bin/sh\n", b"\n" * 200 + b"x"):
        assert errors_of("demo/lib/libdemo.so", text, linux)
    assert errors_of("demo/bin/demo", b"#!/usr/bin/env python3\n", linux) == []
    assert errors_of("demo/bin/demo.txt", b"text", linux) == []


def test_a_broken_record_is_found_with_everything_else(tmp_path: Path, files: dict[str, bytes]) -> None:
    path = write_wheel(tmp_path, NAME, files, requires=REQUIRES)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("torch/extra.pyc", b"")
    assert said(check_wheel(path, PROMISED)) == [
        ("error", "contents", "torch/extra.pyc"),
        ("error", "record", "torch/extra.pyc"),
    ]


@pytest.mark.parametrize(("name", "data"), [("torch.whl", b""), (NAME, b"<html>")])
def test_files_that_are_no_wheels_are_findings(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert said(check_wheels([tmp_path])) == [("error", "record", "")]
    # nor is one without metadata
    (tmp_path / name).unlink()
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        archive.writestr("torch/__init__.py", b"")
    found = check_wheels([tmp_path])
    assert ("error", "record", "") in said(found)
    assert any("exactly one .dist-info" in one.message for one in found)


def test_many_wheels_in_one_order(tmp_path: Path) -> None:
    for index in range(6):
        write_wheel(
            tmp_path / f"{index}",
            f"demo{index}-1-py3-none-any.whl",
            {"x.pyc": b"", "y.py": b""},
            purelib=True,
        )
    found = check_wheels([tmp_path / "3", tmp_path], options=CheckOptions(jobs=3))
    assert [one.wheel for one in found] == [f"demo{index}-1-py3-none-any.whl" for index in range(6)]
    assert found == check_wheels([tmp_path], options=CheckOptions(jobs=1))


def test_folders_of_the_build_machine(tmp_path: Path) -> None:
    files = {"a.cmake": b"set(X /src/mine/torch/build)", "b.py": b"", "c.bin": b"/src/mine/torch"}
    path = write_wheel(tmp_path, "demo-1-py3-none-any.whl", files, purelib=True)
    found = check_wheel(path, options=CheckOptions(build_paths=("/src/mine",), scratch=tmp_path))
    assert said(found) == [("warning", "contents", "a.cmake")]
    assert found[0].message == "a.cmake mentions /src/mine, a folder of the build machine."
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_folders_are_searched_at_any_depth(tmp_path: Path) -> None:
    for name in ("b/c/x.whl", "a.whl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert find_wheels([tmp_path, tmp_path / "a.whl"]) == (tmp_path / "a.whl", tmp_path / "b/c/x.whl")
    (tmp_path / "empty").mkdir()
    for paths in ([tmp_path / "empty"], [tmp_path / "none.whl"]):
        with pytest.raises(MissingInputError):
            check_wheels(paths)
    with pytest.raises(MissingInputError):
        check_wheel(tmp_path / "torch-1-py3-none-any.whl")


TAG = "7.2.4-py3-none-linux_x86_64.whl"
CORE = "_rocm_sdk_core/lib"


@pytest.mark.parametrize(
    ("up", "hub", "unresolved"),
    [
        ("$ORIGIN/../..", True, []),
        ("$ORIGIN/../..", False, ["libprofiler-hub.so.0"]),
        # not where the loader looks
        ("$ORIGIN/..", True, ["libamdhip64.so.7", "libsqlite3.so.0"]),
    ],
)
def test_what_rocms_wheels_need_is_in_one_that_they_find(
    tmp_path: Path, up: str, unresolved: list[str], *, hub: bool
) -> None:
    needed = ["libprofiler-hub.so.0", "libamdhip64.so.7", "libsqlite3.so.0", "libc.so.6"]
    rpath = f"$ORIGIN:{up}/{CORE}:{up}/{CORE}/rocm_sysdeps/lib"
    profiler = {"_rocm_profiler/lib/librocprof-sys.so.1": elf_file(needed=needed, rpath=rpath)}
    if hub:
        profiler["_rocm_profiler/lib/libprofiler-hub.so.0"] = elf_file()
    write_wheel(tmp_path, f"rocm_profiler-{TAG}", profiler)
    core = {f"{CORE}/libamdhip64.so.7": elf_file(), f"{CORE}/rocm_sysdeps/lib/libsqlite3.so.0": elf_file()}
    write_wheel(tmp_path, f"rocm_sdk_core-{TAG}", core)
    errors = " ".join(one.message for one in check_wheels([tmp_path]) if one.severity == "error")
    assert [name for name in needed if name in errors] == unresolved


def test_a_library_that_rocm_is_known_for_and_no_wheel_of_the_set_has_is_an_error(tmp_path: Path) -> None:
    needy = {"_rocm_sdk_libraries/lib/libhipblas.so.3": elf_file(needed=["librocblas.so.5"])}
    write_wheel(tmp_path, f"rocm_sdk_libraries-{TAG}", needy, requires=["rocm-sdk-core==7.2.4"])
    assert not [one for one in check_wheels([tmp_path]) if "librocblas" in one.message]
    write_wheel(tmp_path, f"rocm_sdk_core-{TAG}", {f"{CORE}/libamdhip64.so.7": elf_file()})
    (found,) = (one for one in check_wheels([tmp_path]) if "librocblas" in one.message)
    assert (found.severity, found.message) == ("error", "It needs librocblas.so.5: unresolved dependency.")


def test_device_packages_hold_kernels_in_whatever_form(tmp_path: Path) -> None:
    note = b"amdhsa.target: amdgcn-amd-amdhsa--gfx942"
    name = f"rocm_sdk_device_gfx942-{TAG}"
    kernel = "_rocm_sdk_libraries/lib/rocblas/library/Kernels.so-000-gfx942.hsaco"
    for machine, expected in ((224, []), (62, ["It holds no kernels for gfx942."])):
        made = write_wheel(tmp_path / str(machine), name, {kernel: elf_file(machine=machine, note=note)})
        assert [one.message for one in check_wheel(made) if one.check == "device_code"] == expected


def test_a_wheel_is_checked_by_ones_own_policy_or_by_the_loader(tmp_path: Path) -> None:
    needs = elf_file(needed=["libfmt.so.10", "libc.so.6"])
    path = write_wheel(tmp_path, "torchaudio-1-py3-none-linux_x86_64.whl", {"a.so": needs})
    policy = Policy(machine_libraries=("libfmt.*",), system_libraries=("libc.so.6",), source="mine.toml")
    found = check_wheel(path, options=CheckOptions(policy=policy))
    assert said(found) == [("warning", "elf", "a.so"), ("note", "policy", "")]
    assert "mine.toml" in found[-1].message
    found, needed = examined(path, None, CheckOptions(loader=frozenset({"libfmt.so.10", "libc.so.6"})))
    assert said(found)[-1] == ("warning", "elf", "a.so")
    assert needed == {"libfmt.so.10"}
