import re
import zipfile
from pathlib import Path

import pytest

from core.archive import EditedFile
from core.errors import FatalError, MissingInputError, RocmError, UsageError, WheelError
from core.wheel import read_metadata
from core.wheel.record import verify_record
from pytorch_build.standalone.fat import FatWheel, FatWheelRequest, make_fat_wheel
from pytorch_build.standalone.libraries import RocmFile
from tests.kit.binaries import elf_file, pe_file
from tests.kit.standalone import (
    CORE,
    MATH,
    Platform,
    write_device_wheel,
    write_rocm_core,
    write_rocm_tree,
    write_rocm_wheels,
    write_torch,
    write_windows_tree,
)
from tests.kit.wheels import read_members, write_wheel

ROCM_FOLDER = "torch/lib/rocm/"
INFO = "torch-2.10.0+rocm7.1.standalone.dist-info"
KERNELS = f"{MATH}/lib/rocblas/library"


def make_wheel(
    folder: Path,
    wheel: Path,
    rocm: Path,
    *,
    family: str = "",
    targets: tuple[str, ...] = (),
    device_wheels: tuple[Path, ...] = (),
    system_libraries: tuple[str, ...] = (),
) -> FatWheel:
    """Make a stand-alone wheel in the folder ``made``."""
    return make_fat_wheel(
        FatWheelRequest(
            wheel=wheel,
            rocm=rocm,
            output=folder / "made",
            family=family,
            targets=targets,
            device_wheels=device_wheels,
            system_libraries=system_libraries,
        )
    )


def rocm_files(wheel: Path) -> list[str]:
    """Return the files of ROCm in a wheel, by their paths there."""
    members = sorted(read_members(wheel))
    return [name.removeprefix(ROCM_FOLDER) for name in members if name.startswith(ROCM_FOLDER)]


def read_text(wheel: Path, member: str) -> str:
    """Return the text of a member of a wheel."""
    return read_members(wheel)[member].decode()


def compressed_size(wheel: Path, member: str) -> int:
    """Return the size of a member as it is compressed."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.getinfo(member).compress_size


@pytest.fixture(scope="module")
def torch_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a torch wheel for Linux."""
    return write_torch(tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def rocm_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of ROCm's wheels, which no test changes."""
    return write_rocm_wheels(tmp_path_factory.mktemp("rocm"))


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory, torch_wheel: Path, rocm_wheels: Path) -> FatWheel:
    """Return a stand-alone wheel of ROCm's wheels for gfx942."""
    folder = tmp_path_factory.mktemp("standalone")
    return make_wheel(folder, torch_wheel, rocm_wheels, targets=("gfx942",))


# ROCm's wheels


def test_marks_the_version_of_the_wheel(standalone: FatWheel) -> None:
    wheel = standalone.file.path

    assert wheel.name == "torch-2.10.0+rocm7.1.standalone-cp312-cp312-linux_x86_64.whl"
    assert str(read_metadata(wheel).version) == "2.10.0+rocm7.1.standalone"
    assert read_text(wheel, "torch/version.py") == "__version__ = '2.10.0+rocm7.1.standalone'\n"


def test_writes_a_correct_wheel(standalone: FatWheel) -> None:
    assert verify_record(standalone.file.path) == ()


def test_takes_what_the_wheel_needs_from_rocms_wheels(standalone: FatWheel) -> None:
    assert rocm_files(standalone.file.path) == [
        f"{CORE}/lib/libamdhip64.so.7",
        f"{CORE}/lib/libhsa-runtime64.so.1",
        f"{CORE}/lib/libroctx64.so.4",
        f"{MATH}/lib/libhipblas.so.3",
        f"{MATH}/lib/librocblas.so.5",
        f"{KERNELS}/K_gfx942.co",
        f"{KERNELS}/all.dat",
    ]


def test_requires_no_rocm_any_more(standalone: FatWheel) -> None:
    assert read_metadata(standalone.file.path).requires_dist == ("triton==3.6",)


def test_loads_the_wheels_own_libraries(standalone: FatWheel) -> None:
    loader = read_text(standalone.file.path, "torch/_rocm_init.py")

    libraries = [line.strip(' ",') for line in loader.splitlines() if line.startswith('    "')]
    assert libraries == [
        f"{CORE}/lib/libamdhip64.so.7",
        f"{MATH}/lib/libhipblas.so.3",
        f"{CORE}/lib/libroctx64.so.4",
    ]
    assert "rocm_sdk" not in loader.replace(CORE, "").replace(MATH, "")


def test_names_what_the_machine_must_have(standalone: FatWheel) -> None:
    assert standalone.bundle.machine_libraries == {"libnuma.so.1": (f"{CORE}/lib/libhsa-runtime64.so.1",)}


@pytest.mark.parametrize("member", ["torch/lib/libtorch_hip.so", "torch/include/a.h"])
def test_takes_unchanged_files_as_they_are_compressed(
    standalone: FatWheel, torch_wheel: Path, member: str
) -> None:
    wheel = standalone.file.path

    assert read_members(wheel)[member] == read_members(torch_wheel)[member]
    assert compressed_size(wheel, member) == compressed_size(torch_wheel, member)


def test_takes_the_data_of_all_targets_where_none_is_named(
    tmp_path: Path, torch_wheel: Path, rocm_wheels: Path
) -> None:
    bundle = make_wheel(tmp_path, torch_wheel, rocm_wheels).bundle

    kernels = [path for path in bundle.data if "/K_" in path]
    assert kernels == [f"{KERNELS}/K_gfx1100.co", f"{KERNELS}/K_gfx942.co"]


def test_makes_the_same_bytes_of_the_same_inputs(
    tmp_path: Path, torch_wheel: Path, rocm_wheels: Path, standalone: FatWheel
) -> None:
    result = make_wheel(tmp_path, torch_wheel, rocm_wheels, targets=("gfx942",))

    assert result.file.path.read_bytes() == standalone.file.path.read_bytes()


def test_refuses_a_standalone_wheel(tmp_path: Path, standalone: FatWheel, rocm_wheels: Path) -> None:
    with pytest.raises(WheelError, match=r"rocm7\.1\.standalone"):
        make_wheel(tmp_path, standalone.file.path, rocm_wheels)


# Licences


@pytest.fixture(scope="module")
def licensed_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a stand-alone wheel of a torch and a ROCm with licence expressions."""
    folder = tmp_path_factory.mktemp("licensed")
    rocm = write_rocm_wheels(folder / "rocm")
    write_rocm_core(
        rocm,
        licenses={"share/doc/hip/LICENSE.md": b"MIT, in full"},
        license_field=("License-Expression", "Apache-2.0 WITH LLVM-exception AND MIT"),
    )
    torch = write_torch(folder, license_field=("License-Expression", "BSD-3-Clause"))
    return make_wheel(folder, torch, rocm).file.path


def test_joins_the_licences_of_torch_and_rocm(licensed_wheel: Path) -> None:
    metadata = read_metadata(licensed_wheel)

    assert metadata.license == "Apache-2.0 WITH LLVM-exception AND BSD-3-Clause AND MIT"


def test_takes_the_licence_files_of_rocm(licensed_wheel: Path) -> None:
    license_file = "rocm-sdk-core/share/doc/hip/LICENSE.md"

    assert f"License-File: {license_file}" in read_text(licensed_wheel, f"{INFO}/METADATA").splitlines()
    assert read_text(licensed_wheel, f"{INFO}/licenses/{license_file}") == "MIT, in full"
    assert verify_record(licensed_wheel) == ()


# Host wheels, whose device code is in wheels of its own


def test_takes_device_code_into_a_host_wheel(tmp_path: Path, rocm_wheels: Path) -> None:
    host = write_torch(tmp_path, split_targets=("gfx942", "gfx1100"))
    device = write_device_wheel(tmp_path, "gfx942")

    # Of a family's targets, gfx950 is one that the wheel was not built for.
    result = make_wheel(tmp_path, host, rocm_wheels, targets=("gfx942", "gfx950"), device_wheels=(device,))

    members = read_members(result.file.path)
    kernels = {name: content for name, content in members.items() if ".kpack" in name}
    assert kernels == {"torch/.kpack/torch_gfx942.kpack": b"gfx942" * 99}
    assert verify_record(result.file.path) == ()


def test_drops_the_extras_and_requirements_of_device_code(tmp_path: Path, rocm_wheels: Path) -> None:
    host = write_torch(tmp_path, split_targets=("gfx942",))
    device = write_device_wheel(tmp_path, "gfx942")

    wheel = make_wheel(tmp_path, host, rocm_wheels, device_wheels=(device,)).file.path

    assert read_metadata(wheel).requires_dist == ("triton==3.6",)
    assert re.findall("Provides-Extra: (.*)", read_text(wheel, f"{INFO}/METADATA")) == ["optree"]


@pytest.mark.parametrize(
    ("targets", "missing_target"),
    [
        pytest.param((), "gfx1100", id="all targets"),
        pytest.param(("gfx1100", "gfx1101"), "gfx1100", id="target"),
    ],
)
def test_refuses_a_host_wheel_without_device_code_for_a_target(
    tmp_path: Path, rocm_wheels: Path, targets: tuple[str, ...], missing_target: str
) -> None:
    host = write_torch(tmp_path, split_targets=("gfx942", "gfx1100"))
    device = write_device_wheel(tmp_path, "gfx942")

    with pytest.raises(WheelError) as raised:
        make_wheel(tmp_path, host, rocm_wheels, targets=targets, device_wheels=(device,))

    assert missing_target in raised.value.message
    assert "--gpu-targets" in raised.value.hint
    assert not (tmp_path / "made").exists()


def test_refuses_a_host_wheel_without_any_device_code(tmp_path: Path, rocm_wheels: Path) -> None:
    host = write_torch(tmp_path, split_targets=("gfx942", "gfx1100"))

    with pytest.raises(WheelError, match="gfx942"):
        make_wheel(tmp_path, host, rocm_wheels, targets=("gfx942",))


@pytest.mark.parametrize(
    ("split_targets", "device_version"),
    [
        pytest.param(("gfx942", "gfx1100"), "2.9.0", id="another version"),
        pytest.param((), "2.10.0+rocm7.1", id="no host wheel"),
    ],
)
def test_refuses_device_code_of_another_wheel(
    tmp_path: Path, rocm_wheels: Path, split_targets: tuple[str, ...], device_version: str
) -> None:
    wheel = write_torch(tmp_path, split_targets=split_targets)
    device = write_device_wheel(tmp_path, "gfx942", version=device_version)

    with pytest.raises(WheelError) as raised:
        make_wheel(tmp_path, wheel, rocm_wheels, targets=("gfx942",), device_wheels=(device,))

    assert device.name in raised.value.message
    assert not (tmp_path / "made").exists()


# Trees of ROCm


@pytest.fixture
def search_paths(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, ...]]:
    """Return the search paths that libraries get, as files of tests have no room for patchelf."""
    search_paths: dict[str, tuple[str, ...]] = {}

    def note(file: RocmFile, search: tuple[str, ...], _scratch: Path) -> EditedFile | Path:
        search_paths[file.path_in_bundle] = search
        return file.wheel_or_file

    monkeypatch.setattr("pytorch_build.standalone.libraries.with_search_path", note)
    return search_paths


def test_takes_the_libraries_of_a_tree_under_their_sonames(
    tmp_path: Path, torch_wheel: Path, search_paths: dict[str, tuple[str, ...]]
) -> None:
    rocm = write_rocm_tree(tmp_path / "rocm")

    wheel = make_wheel(tmp_path, torch_wheel, rocm, targets=("gfx1100",)).file.path

    assert rocm_files(wheel) == [
        "lib/libamdhip64.so.7",
        "lib/libhipblas.so.3",
        "lib/libhsa-runtime64.so.1",
        "lib/librocblas.so.5",
        "lib/libroctx64.so.4",
        "lib/rocblas/library/K_gfx1100.co",
        "lib/rocblas/library/all.dat",
    ]
    assert read_text(wheel, f"{ROCM_FOLDER}lib/rocblas/library/all.dat") == "for all"
    assert verify_record(wheel) == ()
    assert search_paths == {}


def test_gives_a_search_path_to_a_library_that_has_none(
    tmp_path: Path, torch_wheel: Path, search_paths: dict[str, tuple[str, ...]]
) -> None:
    rocm = write_rocm_tree(tmp_path / "rocm")
    library = elf_file(needed=("libamdhip64.so.7", "librocblas.so.5"), soname="libhipblas.so.3")
    (rocm / "lib" / "libhipblas.so.3").write_bytes(library)

    make_wheel(tmp_path, torch_wheel, rocm)

    assert search_paths == {"lib/libhipblas.so.3": ("$ORIGIN",)}


@pytest.mark.parametrize(
    ("name", "content", "subjects"),
    [
        pytest.param("libroctx64.so.4", None, ("torch/lib/libtorch_hip.so",), id="needed"),
        pytest.param("libhipblas.so.3", None, ("hipblas (lib/libhipblas.so",), id="loaded first"),
        pytest.param("librocblas.so.5", elf_file()[:100], ("lib/librocblas.so.5",), id="damaged"),
    ],
)
def test_refuses_a_tree_that_lacks_a_library(
    tmp_path: Path, torch_wheel: Path, name: str, content: bytes | None, subjects: tuple[str, ...]
) -> None:
    rocm = write_rocm_tree(tmp_path / "rocm")
    library = rocm / "lib" / name
    library.unlink()
    if content is not None:
        library.write_bytes(content)

    with pytest.raises(FatalError) as raised:
        make_wheel(tmp_path, torch_wheel, rocm)

    for subject in (name.partition(".")[0], *subjects):
        assert subject in raised.value.message
    assert not (tmp_path / "made").exists()


def test_accepts_a_missing_library_that_every_machine_has(tmp_path: Path, torch_wheel: Path) -> None:
    rocm = write_rocm_tree(tmp_path / "rocm")
    (rocm / "lib" / "libroctx64.so.4").unlink()

    wheel = make_wheel(tmp_path, torch_wheel, rocm, system_libraries=("libroctx64.so.*",)).file.path

    assert "lib/libroctx64.so.4" not in rocm_files(wheel)


# Windows


@pytest.fixture(scope="module")
def windows_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a stand-alone wheel for Windows."""
    folder = tmp_path_factory.mktemp("windows")
    extension = pe_file(needed=("C10.DLL", "AMDHIP64_7.dll"))
    torch = write_torch(folder, platform="windows", changed_files={"x.pyd": extension})
    return make_wheel(folder, torch, write_windows_tree(folder / "rocm"), targets=("gfx942",)).file.path


def test_puts_dlls_into_one_folder_on_windows(windows_wheel: Path) -> None:
    assert rocm_files(windows_wheel) == [
        "bin/amd_comgr.dll",
        "bin/amdhip64_7.dll",
        "bin/hipblas.dll",
        "bin/rocblas.dll",
        "bin/rocblas/library/K_gfx942.co",
        "bin/roctx64.dll",
    ]
    assert verify_record(windows_wheel) == ()


def test_lets_both_loaders_look_into_that_folder_on_windows(windows_wheel: Path) -> None:
    insertion = 'dll_paths.insert(0, os.path.join(th_dll_path, "rocm", "bin"))'

    assert insertion in read_text(windows_wheel, "torch/__init__.py")
    assert '"bin/hipblas.dll",' in read_text(windows_wheel, "torch/_rocm_init.py")


def test_requires_no_rocm_any_more_on_windows(windows_wheel: Path) -> None:
    assert read_metadata(windows_wheel).requires_dist == ("triton==3.6",)


# Bad inputs


@pytest.mark.parametrize(
    ("platform", "changed_files", "subject"),
    [
        pytest.param("linux", {"_rocm_init.py": None}, "_rocm_init.py", id="no loader"),
        pytest.param("linux", {"_rocm_init.py": b"x = 1\n"}, "torch/_rocm_init.py", id="other loader"),
        pytest.param("windows", {"__init__.py": b""}, "torch/__init__.py", id="no loop over DLL folders"),
    ],
)
def test_refuses_a_wheel_that_loads_rocm_in_another_way(
    tmp_path: Path, platform: Platform, changed_files: dict[str, bytes | None], subject: str
) -> None:
    wheel = write_torch(tmp_path, platform=platform, changed_files=changed_files)
    if platform == "windows":
        rocm = write_windows_tree(tmp_path / "rocm")
    else:
        rocm = write_rocm_wheels(tmp_path / "rocm")

    with pytest.raises(WheelError) as raised:
        make_wheel(tmp_path, wheel, rocm)

    assert subject in raised.value.message
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("version", "rocm_family", "family", "targets", "subject"),
    [
        pytest.param("7.2", "gfx94x-dcgpu", "", (), "7.2", id="another version"),
        pytest.param(
            "7.1", "gfx94x-dcgpu", "gfx110X-all", (), "rocm-sdk-libraries-gfx94x-dcgpu", id="another family"
        ),
        pytest.param("7.1", None, "", ("gfx942",), "rocm-sdk-device-gfx942", id="no device code"),
    ],
)
def test_refuses_a_rocm_that_does_not_fit(
    tmp_path: Path,
    torch_wheel: Path,
    version: str,
    rocm_family: str | None,
    family: str,
    targets: tuple[str, ...],
    subject: str,
) -> None:
    rocm = write_rocm_wheels(tmp_path / "rocm", version=version, family=rocm_family)

    with pytest.raises(RocmError) as raised:
        make_wheel(tmp_path, torch_wheel, rocm, family=family, targets=targets)

    assert subject in raised.value.message
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("folder", ["empty", "absent"])
def test_refuses_a_folder_without_rocm(tmp_path: Path, torch_wheel: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(MissingInputError, match=folder):
        make_wheel(tmp_path, torch_wheel, tmp_path / folder)


def test_refuses_a_wheel_for_any_platform(tmp_path: Path, rocm_wheels: Path) -> None:
    wheel = write_wheel(tmp_path, version="1.0")

    with pytest.raises(UsageError) as raised:
        make_wheel(tmp_path, wheel, rocm_wheels)

    assert wheel.name in raised.value.message
    assert not (tmp_path / "made").exists()
