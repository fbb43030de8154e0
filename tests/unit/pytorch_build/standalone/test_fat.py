import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.archive import Edited
from core.errors import FatalError, MissingInputError, RocmError, UsageError, WheelError
from core.files import made
from core.wheel import read_metadata
from core.wheel.record import verify_record
from pytorch_build.standalone.fat import Request, make
from pytorch_build.standalone.libraries import RocmFile
from tests.kit.binaries import pe_file
from tests.kit.wheels import read_members
from tests.unit.pytorch_build.check.conftest import elf_file, write_wheel
from tests.unit.pytorch_build.standalone.fat_inputs import (
    CORE,
    MATH,
    WINDOWS,
    device_wheel,
    libraries,
    rocm_tree,
    rocm_wheels,
    torch,
    windows_tree,
)

ROCM = "torch/lib/rocm"


def request_for(tmp_path: Path, wheel: Path, rocm: Path, **more: object) -> Request:
    return Request(wheel=wheel, rocm=rocm, output=tmp_path / "made", **more)  # type: ignore[arg-type]


def inside(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name.removeprefix(f"{ROCM}/") for name in archive.namelist() if name.startswith(ROCM))


@pytest.fixture(name="unpatched")
def unpatched_fixture(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """Note search paths instead of setting them, as files of tests have no room for patchelf."""
    noted: list[tuple[str, tuple[str, ...]]] = []

    def note(file: RocmFile, search: tuple[str, ...], _scratch: Path) -> Edited | Path:
        noted.append((file.path, search))
        return file.source

    monkeypatch.setattr("pytorch_build.standalone.libraries.with_search_path", note)
    return noted


def test_a_wheel_takes_what_it_needs_from_rocms_wheels_as_it_is_compressed_there(tmp_path: Path) -> None:
    rocm = rocm_wheels(tmp_path / "rocm")
    wheel = torch(tmp_path)
    result = make(request_for(tmp_path, wheel, rocm, targets=("gfx942",)))
    made = result.file.path
    assert made.name == "torch-2.10.0+rocm7.1.standalone-cp312-cp312-linux_x86_64.whl"
    assert verify_record(made) == ()
    assert inside(made) == [
        f"{CORE}/lib/libamdhip64.so.7",
        f"{CORE}/lib/libhsa-runtime64.so.1",
        f"{CORE}/lib/libroctx64.so.4",
        f"{MATH}/lib/libhipblas.so.3",
        f"{MATH}/lib/librocblas.so.5",
        f"{MATH}/lib/rocblas/library/K_gfx942.co",
        f"{MATH}/lib/rocblas/library/all.dat",
    ]
    metadata = read_metadata(made)
    assert str(metadata.version) == "2.10.0+rocm7.1.standalone"
    assert metadata.requires_dist == ("triton==3.6",)
    assert read_members(made)["torch/version.py"].decode() == "__version__ = '2.10.0+rocm7.1.standalone'\n"
    loader = read_members(made)["torch/_rocm_init.py"].decode()
    assert "rocm_sdk" not in loader.replace(CORE, "").replace(MATH, "")
    first = [line.strip(' ",') for line in loader.splitlines() if line.startswith('    "')]
    expected = [f"{CORE}/lib/libamdhip64.so.7", f"{MATH}/lib/libhipblas.so.3", f"{CORE}/lib/libroctx64.so.4"]
    assert first == expected
    assert result.bundle.machine == {"libnuma.so.1": (f"{CORE}/lib/libhsa-runtime64.so.1",)}
    with zipfile.ZipFile(made) as archive, zipfile.ZipFile(wheel) as old:
        for name in ("torch/lib/libtorch_hip.so", "torch/include/a.h"):
            assert archive.read(name) == old.read(name)
            assert archive.getinfo(name).compress_size == old.getinfo(name).compress_size


def test_the_licences_of_rocm_come_with_it(tmp_path: Path) -> None:
    rocm = rocm_wheels(tmp_path / "rocm")
    core = {f"_rocm_sdk_core/{path}": data for path, data in libraries().items()}
    core["rocm_sdk_core-7.1.dist-info/licenses/share/doc/hip/LICENSE.md"] = b"MIT, in full"
    said = "License-Expression: Apache-2.0 WITH LLVM-exception AND MIT"
    write_wheel(rocm, "rocm_sdk_core-7.1-py3-none-linux_x86_64.whl", core, licensed=said)
    own = torch(tmp_path)
    with zipfile.ZipFile(own) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name.startswith("torch/")}
    wheel = write_wheel(
        tmp_path,
        own.name,
        files,
        requires=("rocm[libraries]==7.1",),
        licensed="License-Expression: BSD-3-Clause",
    )
    made = make(request_for(tmp_path, wheel, rocm)).file.path
    assert verify_record(made) == ()
    assert read_metadata(made).license == "Apache-2.0 WITH LLVM-exception AND BSD-3-Clause AND MIT"
    info = "torch-2.10.0+rocm7.1.standalone.dist-info"
    place = "rocm-sdk-core/share/doc/hip/LICENSE.md"
    assert f"License-File: {place}" in read_members(made)[f"{info}/METADATA"].decode().splitlines()
    assert read_members(made)[f"{info}/licenses/{place}"].decode() == "MIT, in full"


def test_a_host_wheel_gets_its_device_code_back(tmp_path: Path) -> None:
    wheel = torch(tmp_path, targets=("gfx942", "gfx1100"))
    devices = tuple(device_wheel(tmp_path, one) for one in ("gfx942", "gfx1100"))
    asked = request_for(tmp_path, wheel, rocm_wheels(tmp_path / "rocm"), devices=devices[:1])
    made = make(replace(asked, targets=("gfx942", "gfx950"))).file.path
    assert verify_record(made) == ()
    assert read_metadata(made).requires_dist == ("triton==3.6",)
    info = "torch-2.10.0+rocm7.1.standalone.dist-info"
    assert re.findall("Provides-Extra: (.*)", read_members(made)[f"{info}/METADATA"].decode()) == ["optree"]
    with zipfile.ZipFile(made) as archive:
        assert [one for one in archive.namelist() if "kpack" in one] == ["torch/.kpack/torch_gfx942.kpack"]
        with zipfile.ZipFile(devices[0]) as device:
            name = "torch/.kpack/torch_gfx942.kpack"
            assert archive.read(name) == device.read(name)


@pytest.mark.parametrize(
    ("host", "targets", "device", "said"),
    [
        (True, (), "gfx942", "is a host wheel, and its device code for gfx1100 is not given"),
        (True, ("gfx1100", "gfx1101"), "gfx942", "for gfx1100 is not given"),
        (True, ("gfx942",), "", "for gfx942 is not given"),
        (True, ("gfx942",), "gfx942 2.9.0", "amd_torch_device_gfx942-2.9.0-.* holds no device code of torch"),
        (False, ("gfx942",), "gfx942", "holds no device code of torch"),
    ],
)
def test_device_code_that_does_not_fit_is_refused(
    tmp_path: Path, host: Any, targets: tuple[str, ...], device: str, said: str
) -> None:
    wheel = torch(tmp_path, targets=("gfx942", "gfx1100") if host else ())
    devices = (device_wheel(tmp_path, *device.split()),) if device else ()
    asked = request_for(tmp_path, wheel, rocm_wheels(tmp_path / "rocm"), targets=targets, devices=devices)
    with pytest.raises(WheelError, match=said) as caught:
        make(asked)
    assert caught.value.hint
    assert not (tmp_path / "made").exists()


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    wheel, rocm = torch(tmp_path), rocm_wheels(tmp_path / "rocm")
    first, second = (make(Request(wheel=wheel, rocm=rocm, output=tmp_path / name)) for name in "ab")
    assert first.file.path.read_bytes() == second.file.path.read_bytes()
    with pytest.raises(WheelError, match="stand-alone wheel already"):
        make(Request(wheel=first.file.path, rocm=rocm, output=tmp_path / "again"))
    # without targets all of the data goes in
    expected = [f"{MATH}/lib/rocblas/library/K_gfx1100.co", f"{MATH}/lib/rocblas/library/K_gfx942.co"]
    assert [path for path in first.bundle.data if "/K_" in path] == expected


def test_a_trees_libraries_have_sonames(tmp_path: Path, unpatched: list[tuple[str, tuple[str, ...]]]) -> None:
    result = make(request_for(tmp_path, torch(tmp_path), rocm_tree(tmp_path / "rocm"), targets=("gfx1100",)))
    assert verify_record(result.file.path) == ()
    assert inside(result.file.path) == [
        "lib/libamdhip64.so.7",
        "lib/libhipblas.so.3",
        "lib/libhsa-runtime64.so.1",
        "lib/librocblas.so.5",
        "lib/libroctx64.so.4",
        "lib/rocblas/library/K_gfx1100.co",
        "lib/rocblas/library/all.dat",
    ]
    assert unpatched == []
    assert read_members(result.file.path)["torch/lib/rocm/lib/rocblas/library/all.dat"].decode() == "for all"
    # a library without a search path gets one
    needing = elf_file(needed=("libamdhip64.so.7", "librocblas.so.5"), soname="libhipblas.so.3")
    (tmp_path / "rocm" / "lib" / "libhipblas.so.3").write_bytes(needing)
    make(Request(wheel=torch(tmp_path), rocm=tmp_path / "rocm", output=tmp_path / "again"))
    assert unpatched == [("lib/libhipblas.so.3", ("$ORIGIN",))]


def test_on_windows_dlls_go_into_one_folder_and_both_loaders_look_there(tmp_path: Path) -> None:
    wheel = torch(tmp_path, WINDOWS, {"x.pyd": pe_file(needed=("C10.DLL", "AMDHIP64_7.dll"))})
    result = make(request_for(tmp_path, wheel, windows_tree(tmp_path / "rocm"), targets=("gfx942",)))
    made = result.file.path
    assert verify_record(made) == ()
    assert inside(made) == [
        "bin/amd_comgr.dll",
        "bin/amdhip64_7.dll",
        "bin/hipblas.dll",
        "bin/rocblas.dll",
        "bin/rocblas/library/K_gfx942.co",
        "bin/roctx64.dll",
    ]
    assert (
        'dll_paths.insert(0, os.path.join(th_dll_path, "rocm", "bin"))'
        in read_members(made)["torch/__init__.py"].decode()
    )
    assert '"bin/hipblas.dll",' in read_members(made)["torch/_rocm_init.py"].decode()
    assert read_metadata(made).requires_dist == ("triton==3.6",)


@pytest.mark.parametrize(
    ("wheel", "rocm", "more", "error", "said"),
    [
        ({"changed": {"_rocm_init.py": None}}, {}, {}, WheelError, r"has 0 files _rocm_init\.py"),
        (
            {"changed": {"_rocm_init.py": b"x = 1\n"}},
            {},
            {},
            WheelError,
            r"torch/_rocm_init\.py cannot be made stand-alone",
        ),
        (
            {"filename": WINDOWS, "changed": {"__init__.py": b""}},
            windows_tree,
            {},
            WheelError,
            "no line 'for dll_path in dll_paths:'",
        ),
        ({}, {"version": "7.2"}, {}, RocmError, r"ROCm 7\.1, which the wheel was built with; there is 7\.2"),
        (
            {},
            {},
            {"family": "gfx110X-all"},
            RocmError,
            "the libraries of gfx110X-all; there is rocm-sdk-libraries-gfx94x-dcgpu",
        ),
        ({}, {"family": ""}, {"targets": ("gfx942",)}, RocmError, "no rocm-sdk-device-gfx942"),
        ({}, made, {}, MissingInputError, "neither rocm-sdk wheels nor a ROCm tree"),
        ({}, lambda path: path, {}, MissingInputError, "is not a folder"),
        (None, made, {}, UsageError, "neither for Linux nor for Windows"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    tmp_path: Path, wheel: Any, rocm: Any, more: Any, error: type[FatalError], said: str
) -> None:
    name = "torch-1.0-py3-none-any.whl"
    source = write_wheel(tmp_path, name, {"torch/a.py": b""}) if wheel is None else torch(tmp_path, **wheel)
    place = tmp_path / "rocm"
    place = rocm(place) if callable(rocm) else rocm_wheels(place, **rocm)
    with pytest.raises(error, match=said):
        make(request_for(tmp_path, source, place, **more))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("libroctx64.so.4", b"", r"libroctx64\.so\.4, which torch/lib/libtorch_hip\.so needs"),
        ("libhipblas.so.3", b"", r"lacks libraries that torch-.* loads first: hipblas \(lib/libhipblas\.so"),
        ("librocblas.so.5", elf_file()[:100], r"lib/librocblas\.so\.5 is a damaged ELF file"),
    ],
)
def test_a_tree_with_a_library_less_is_refused(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    rocm = rocm_tree(tmp_path / "rocm")
    (rocm / "lib" / name).unlink()
    if data:
        (rocm / "lib" / name).write_bytes(data)
    with pytest.raises(FatalError, match=said):
        make(request_for(tmp_path, torch(tmp_path), rocm))
    assert not (tmp_path / "made").exists()
    if name.startswith("libroctx64"):
        make(request_for(tmp_path, torch(tmp_path), rocm, system_libraries=("libroctx64.so.*",)))
