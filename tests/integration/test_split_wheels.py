"""Fat wheels of real libraries, split: loaded by the real loader, installed and taken out by pip and uv."""

import hashlib
import io
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from core import process
from core.archive import Member
from core.env.installer import uv_program
from core.errors import CheckError, WheelError
from core.wheel import read_metadata
from core.wheel.writer import WheelSpec, write_wheel
from pytorch_build.check.run import check_wheels, loader_libraries
from pytorch_build.split.kernels import require_whole
from pytorch_build.split.parts import plan, split
from rocm_packaging.packages import kpack
from tests.unit.pytorch_build.check.conftest import compressed_bundle, plain_bundle

pytestmark = pytest.mark.processes
VERSION = "2.10.0+rocm7.1"
METADATA = f"""\
Metadata-Version: 2.4
Name: torch
Version: {VERSION}
License-Expression: BSD-3-Clause
License-File: LICENSE
Requires-Python: >=3.10
Requires-Dist: rocm[libraries]==7.1

Tensors.
"""
# Two wrappers for the first bundle, one for the second, which is not the order of the bundles.
SOURCE = Path(__file__).with_name("texts").joinpath("wrappers.cpp").read_text()
USE = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.wrapper_code.restype = lib.after.restype = ctypes.c_void_p
lib.after.restype = ctypes.c_char_p
for i in range(3):
    print(hex(lib.wrapper_magic(i)), lib.wrapper_index(i), ctypes.string_at(lib.wrapper_code(i), 4).hex())
print(lib.after().decode())
"""


def code_for(name: str, *targets: str) -> bytes:
    bundle = bytearray(plain_bundle(*targets, code=b"\x7fELF" + name.encode().ljust(9000, b".")))
    for number, _ in enumerate(targets):
        bundle[4096 + 12288 * number + 8000] = number
    return bytes(bundle)


@pytest.fixture(name="library", scope="module")
def library_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (folder / "first.hipfb").write_bytes(code_for("first", "gfx942:xnack+", "gfx942:xnack-", "gfx1100"))
    (folder / "second.hipfb").write_bytes(compressed_bundle(code_for("second", "gfx942", "gfx1151")))
    (folder / "source.c").write_text(SOURCE)
    process.capture(["cc", "-shared", "-fPIC", "-O1", "source.c", "-o", "libtorch_hip.so"], cwd=folder)
    return folder / "libtorch_hip.so"


@pytest.fixture(name="fat", scope="module")
def fat_fixture(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = WheelSpec(
        distribution="torch", version=VERSION, tag="py3-none-linux_x86_64", metadata=METADATA, purelib=False
    )
    files: Mapping[str, bytes | Path] = {
        "torch/__init__.py": b"answer = 42\n",
        "torch/lib/libtorch_hip.so": library,
        "torch/lib/aotriton.images/amd-gfx942/x.aks2": b"images of gfx942",
        "torch/lib/aotriton.images/amd-gfx11xx/x.aks2": b"images of gfx11",
        "torch/lib/aotriton.images/amd-gfx950/x.aks2": b"images of a GPU that has no kernels here",
        f"torch-{VERSION}.dist-info/licenses/LICENSE": b"BSD",
    }
    members = [Member(name=name, source=source) for name, source in files.items()]
    return write_wheel(tmp_path_factory.mktemp("fat"), spec, members).path


@pytest.fixture(name="parts", scope="module")
def parts_fixture(fat: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    return split(fat, tmp_path_factory.mktemp("parts"))


def loaded(library: Path) -> list[str]:
    return process.capture([sys.executable, "-I", "-c", USE, library]).stdout.splitlines()


def unpacked(wheel: Path, member: str, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        (folder / "unpacked").write_bytes(archive.read(member))
    return folder / "unpacked"


def test_the_loader_sees_references_instead(library: Path, parts: tuple[Path, ...], tmp_path: Path) -> None:
    assert loaded(library) == [
        *("0x48495046 0 43434f42", "0x48495046 0 5f5f434c", "0x48495046 0 5f5f434c"),
        "data that follows",
    ]
    host = unpacked(parts[0], "torch/lib/libtorch_hip.so", tmp_path)
    reference = kpack.reference("torch", "lib/libtorch_hip.so").packed()[:4].hex()
    assert loaded(host) == [*(f"0x4b504948 {index} {reference}" for index in (1, 0, 0)), "data that follows"]
    assert host.stat().st_size < library.stat().st_size - 30_000


def test_each_wheel_holds_its_own(parts: tuple[Path, ...]) -> None:
    names = {}
    for wheel in parts:
        with zipfile.ZipFile(wheel) as archive:
            names[read_metadata(wheel).name] = {
                name for name in archive.namelist() if name.startswith("torch/")
            }
    images = "torch/lib/aotriton.images"
    assert names == {
        "torch": {"torch/__init__.py", "torch/lib/libtorch_hip.so", f"{images}/amd-gfx950/x.aks2"},
        "amd-torch-device-gfx1100": {"torch/.kpack/torch_gfx1100.kpack"},
        "amd-torch-device-gfx1151": {"torch/.kpack/torch_gfx1151.kpack"},
        "amd-torch-device-gfx942": {"torch/.kpack/torch_gfx942.kpack", f"{images}/amd-gfx942/x.aks2"},
        "amd-torch-device-gfx11": {f"{images}/amd-gfx11xx/x.aks2"},
    }
    with zipfile.ZipFile(parts[3]) as archive:
        stream = io.BytesIO(archive.read("torch/.kpack/torch_gfx942.kpack"))
        licence = next(name for name in archive.namelist() if name.endswith("licenses/LICENSE"))
        assert archive.read(licence) == b"BSD"
    found = kpack.read(stream)
    assert sorted((one.binary, one.target) for one in found.kernels) == [
        ("lib/libtorch_hip.so#0", "gfx942:xnack+"),
        ("lib/libtorch_hip.so#0", "gfx942:xnack-"),
        *(("lib/libtorch_hip.so#1", target) for target in ("gfx942", "gfx942:xnack+", "gfx942:xnack-")),
    ]
    assert len(set(found.kernels.values())) == 3


def test_the_wheels_pass_checks_and_are_the_same(fat: Path, parts: tuple[Path, ...], tmp_path: Path) -> None:
    findings = check_wheels(parts)
    assert [one for one in findings if one.severity == "error" and one.check != "size"] == []
    again = split(fat, tmp_path)
    assert [one.name for one in again] == [one.name for one in parts]
    for one, other in zip(again, parts, strict=True):
        assert hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(one.name for one in parts)


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_wheels_are_installed_and_taken_out(installer: str, parts: tuple[Path, ...], tmp_path: Path) -> None:
    root = tmp_path / "venv"
    process.capture([sys.executable, "-m", "virtualenv", "--quiet", root])
    python = root / "bin" / "python"
    pip: list[str | Path] = (
        [sys.executable, "-m", "pip", "--python", python] if installer == "pip" else [uv_program(), "pip"]
    )
    where: list[str | Path] = ["--python", python] if installer == "uv" else []
    process.capture([*pip, "install", *where, "--no-deps", "--no-index", *parts])
    site = next((root / "lib").glob("python*")) / "site-packages"
    assert (site / "torch/.kpack/torch_gfx1151.kpack").is_file()
    assert loaded(site / "torch/lib/libtorch_hip.so")[0].startswith("0x4b504948")
    yes = ["--yes"] if installer == "pip" else []
    devices = [read_metadata(one).name for one in parts[1:]]
    process.capture([*pip, "uninstall", *where, *yes, *devices])
    assert sorted(
        path.name for path in (site / "torch").rglob("*") if path.is_file() and path.suffix != ".pyc"
    ) == [*("__init__.py", "libtorch_hip.so", "x.aks2")]
    process.capture([*pip, "uninstall", *where, *yes, "torch"])
    assert not (site / "torch").exists()


def test_bad_input_is_named(fat: Path, parts: tuple[Path, ...], tmp_path: Path) -> None:
    with pytest.raises(WheelError, match=r"is split already: the device code of torch/lib/libtorch_hip\.so"):
        split(parts[0], tmp_path)
    broken = tmp_path / "broken" / fat.name
    broken.parent.mkdir()
    broken.write_bytes(fat.read_bytes()[:-100])
    with pytest.raises(WheelError, match="not a readable zip file"):
        split(broken, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_parts_that_are_not_the_whole_are_refused(fat: Path, parts: tuple[Path, ...], tmp_path: Path) -> None:
    code = plan(fat, tmp_path).contents.code
    require_whole(fat, parts, code)
    for left, words in (
        (parts[:2], "The code of lib/libtorch_hip.so#0 for gfx942:xnack-"),
        (parts[1:], "libtorch_hip.so does not say where its code is"),
        ((*parts, parts[1]), "is in 2 wheels"),
    ):
        with pytest.raises(CheckError, match=words.replace("+", r"\+")):
            require_whole(fat, left, code)


def test_what_a_person_has_cut_off_is_said(parts: tuple[Path, ...], tmp_path: Path) -> None:
    """A wheel whose archive ends early says so, and a host alone says what to install."""
    spec = WheelSpec(
        distribution="amd-torch-device-gfx942",
        version=VERSION,
        tag="py3-none-linux_x86_64",
        metadata=f"Metadata-Version: 2.1\nName: amd-torch-device-gfx942\nVersion: {VERSION}\n",
        purelib=False,
    )
    with zipfile.ZipFile(parts[3]) as archive:
        whole = archive.read("torch/.kpack/torch_gfx942.kpack")
    cut = write_wheel(tmp_path, spec, [Member(name="torch/.kpack/torch_gfx942.kpack", source=whole[:-9])])
    said = [one.message for one in check_wheels([cut.path]) if one.check == "device_code"]
    assert len(said) == 1
    assert said[0].startswith("Its device code cannot be read: its table is cut off")
    (missing,) = [
        one for one in check_wheels(parts[:1]) if one.check == "device_code" and one.severity != "note"
    ]
    assert "amd-torch-device-gfx942, not among these wheels" in missing.message


def test_this_machines_loader_is_asked() -> None:
    assert "libc.so.6" in loader_libraries()
