"""Fat wheels of real libraries, split: loaded by the real loader, installed and taken out by pip and uv."""

import io
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from core import process
from core.archive import Member
from core.archive.zips import read_archive
from core.binaries import elf, rpath
from core.env.installer import uv_program
from core.errors import CheckError, WheelError
from core.files import path_pattern
from core.wheel import read_metadata
from core.wheel.writer import WheelSpec, write_wheel
from pytorch_build.build.search_paths import find_search_paths, rocm_folders, set_search_paths
from pytorch_build.check import Finding
from pytorch_build.check.run import check_wheels, loader_libraries
from pytorch_build.split.split_wheel import plan_split, split_wheel
from pytorch_build.split.verify import require_whole
from rocm_packaging.packages import kpack
from tests.kit.binaries import compressed_bundle, offload_bundle
from tests.kit.environments import create_environment
from tests.kit.findings import errors_among
from tests.kit.wheels import sha256
from tests.kit.wheels import write_wheel as write_plain_wheel

VERSION = "2.10.0+rocm7.1"
EPOCH = 1_700_000_000
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


def bundle_of(name: str, *targets: str) -> bytes:
    """Return a bundle with code of its own for each target."""
    bundle = bytearray(offload_bundle(*targets, code=b"\x7fELF" + name.encode().ljust(9000, b".")))
    for number, _ in enumerate(targets):
        bundle[4096 + 12288 * number + 8000] = number
    return bytes(bundle)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a compiled library with two bundles of device code."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "first.hipfb").write_bytes(bundle_of("first", "gfx942:xnack+", "gfx942:xnack-", "gfx1100"))
    (folder / "second.hipfb").write_bytes(compressed_bundle(bundle_of("second", "gfx942", "gfx1151")))
    (folder / "source.c").write_text(SOURCE)
    process.capture(["cc", "-shared", "-fPIC", "-O1", "source.c", "-o", "libtorch_hip.so"], cwd=folder)
    return folder / "libtorch_hip.so"


def write_fat_wheel(folder: Path, library: Path) -> Path:
    """Write a fat wheel with a library, and with files that are for some GPUs."""
    spec = WheelSpec(
        distribution="torch", version=VERSION, tag="py3-none-linux_x86_64", metadata=METADATA, purelib=False
    )
    files: Mapping[str, bytes | Path] = {
        "torch/__init__.py": b"answer = 42\n",
        "torch/_rocm_init.py": b"def initialize(): ...\n",
        "torch/lib/libtorch_hip.so": library,
        "torch/lib/aotriton.images/amd-gfx942/x.aks2": b"images of gfx942",
        "torch/lib/aotriton.images/amd-gfx11xx/x.aks2": b"images of gfx11",
        "torch/lib/aotriton.images/amd-gfx950/x.aks2": b"images of a GPU that has no kernels here",
        f"torch-{VERSION}.dist-info/licenses/LICENSE": b"BSD",
    }
    members = [Member(name=name, source=source) for name, source in files.items()]
    return write_wheel(folder, spec, members).path


@pytest.fixture(scope="module")
def fat(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fat_wheel(tmp_path_factory.mktemp("fat"), library)


@pytest.fixture(scope="module")
def parts(fat: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    return split_wheel(fat, tmp_path_factory.mktemp("parts"))


def load(library: Path) -> list[str]:
    """Load a library in a process of its own; return what its wrappers say."""
    return process.capture([sys.executable, "-I", "-c", USE, library]).stdout.splitlines()


def unpack(wheel: Path, member: str, folder: Path) -> Path:
    """Unpack one member of a wheel; return its path."""
    with zipfile.ZipFile(wheel) as archive:
        (folder / "unpacked").write_bytes(archive.read(member))
    return folder / "unpacked"


def test_the_loader_sees_references_instead(library: Path, parts: tuple[Path, ...], tmp_path: Path) -> None:
    assert load(library) == [
        "0x48495046 0 43434f42",
        "0x48495046 0 5f5f434c",
        "0x48495046 0 5f5f434c",
        "data that follows",
    ]
    host = unpack(parts[0], "torch/lib/libtorch_hip.so", tmp_path)
    reference = kpack.reference("torch", "lib/libtorch_hip.so").packed()[:4].hex()
    assert load(host) == [
        f"0x4b504948 1 {reference}",
        f"0x4b504948 0 {reference}",
        f"0x4b504948 0 {reference}",
        "data that follows",
    ]
    assert host.stat().st_size < library.stat().st_size - 30_000


def test_each_wheel_holds_the_code_of_its_target(parts: tuple[Path, ...]) -> None:
    names: dict[str, set[str]] = {}
    for wheel in parts:
        in_package = path_pattern("torch/**")
        names[read_metadata(wheel).name] = set(filter(in_package.fullmatch, read_archive(wheel).by_name))
    images = "torch/lib/aotriton.images"
    assert names == {
        "torch": {
            "torch/__init__.py",
            "torch/_rocm_init.py",
            "torch/lib/libtorch_hip.so",
            f"{images}/amd-gfx950/x.aks2",
        },
        "amd-torch-device-gfx1100": {"torch/.kpack/torch_gfx1100.kpack"},
        "amd-torch-device-gfx1151": {"torch/.kpack/torch_gfx1151.kpack"},
        "amd-torch-device-gfx942": {"torch/.kpack/torch_gfx942.kpack", f"{images}/amd-gfx942/x.aks2"},
        "amd-torch-device-gfx11": {f"{images}/amd-gfx11xx/x.aks2"},
    }
    with zipfile.ZipFile(parts[3]) as archive:
        stream = io.BytesIO(archive.read("torch/.kpack/torch_gfx942.kpack"))
        info = f"amd_torch_device_gfx942-{VERSION}.dist-info"
        assert archive.read(f"{info}/licenses/LICENSE") == b"BSD"
    table = kpack.read(stream)
    assert sorted((kernel.binary, kernel.target) for kernel in table.kernels) == [
        ("lib/libtorch_hip.so#0", "gfx942:xnack+"),
        ("lib/libtorch_hip.so#0", "gfx942:xnack-"),
        ("lib/libtorch_hip.so#1", "gfx942"),
        ("lib/libtorch_hip.so#1", "gfx942:xnack+"),
        ("lib/libtorch_hip.so#1", "gfx942:xnack-"),
    ]
    assert len(set(table.kernels.values())) == 3


def test_the_wheels_pass_checks_and_are_always_the_same(
    fat: Path, parts: tuple[Path, ...], tmp_path: Path
) -> None:
    checks_with_errors = {finding.check for finding in errors_among(check_wheels(parts))}
    # A torch of some kilobytes is no torch.
    assert checks_with_errors == {"size"}

    split_wheel(fat, tmp_path)

    assert digests_in(tmp_path) == digests_in(parts[0].parent)


def digests_in(folder: Path) -> dict[str, str]:
    """Return the digest of each file in a folder."""
    return {path.name: sha256(path) for path in folder.iterdir()}


def test_sets_search_paths_as_it_splits(fat: Path, library: Path, tmp_path: Path) -> None:
    search_path = ("$ORIGIN/../../_rocm_sdk_core/lib",)

    wheels = split_wheel(fat, tmp_path, new_search_paths={"torch/lib/libtorch_hip.so": search_path})

    host = unpack(wheels[0], "torch/lib/libtorch_hip.so", tmp_path)
    facts = elf.read(host)
    assert facts is not None
    assert facts.search == search_path
    assert load(host)[-1] == load(library)[-1]


def test_one_write_makes_the_same_wheels_as_two(library: Path, tmp_path: Path) -> None:
    built_library = Path(shutil.copy(library, tmp_path))
    rpath.set_search_path(built_library, ("/of/the/build/machine",))
    fat_wheel = write_fat_wheel(tmp_path, built_library)
    folders = rocm_folders("split", "")

    search_paths = find_search_paths(fat_wheel, folders)
    at_once = split_wheel(fat_wheel, tmp_path / "at once", new_search_paths=search_paths, epoch=EPOCH)
    patched_wheel = set_search_paths(fat_wheel, folders, epoch=EPOCH)
    in_two_steps = split_wheel(patched_wheel, tmp_path / "two steps")

    assert search_paths.keys() == {"torch/lib/libtorch_hip.so"}
    assert [sha256(wheel) for wheel in at_once] == [sha256(wheel) for wheel in in_two_steps]


@pytest.mark.parametrize("installer", [pytest.param("pip", marks=pytest.mark.nightly), "uv"])
def test_wheels_are_installed_and_taken_out(installer: str, parts: tuple[Path, ...], tmp_path: Path) -> None:
    environment = create_environment(tmp_path / "venv", "pip")
    torch = environment.site / "torch"
    device_distributions = [read_metadata(wheel).name for wheel in parts[1:]]

    def run_installer(verb: str, *words: str | Path) -> None:
        command: list[str | Path] = [environment.python, "-m", "pip", verb]
        if installer == "uv":
            command = [uv_program(), "pip", verb, "--python", environment.python]
        process.capture([*command, *words], env=process.inherited())

    run_installer("install", "--no-deps", "--no-index", *parts)
    assert (torch / ".kpack/torch_gfx1151.kpack").is_file()
    assert load(torch / "lib/libtorch_hip.so")[0].startswith("0x4b504948")

    confirmed = ["--yes"] if installer == "pip" else []
    run_installer("uninstall", *confirmed, *device_distributions)
    files = [path.name for path in torch.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sorted(files) == ["__init__.py", "_rocm_init.py", "libtorch_hip.so", "x.aks2"]

    run_installer("uninstall", *confirmed, "torch")
    assert not torch.exists()


def test_refuses_a_wheel_that_is_split_already(parts: tuple[Path, ...], tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="libtorch_hip"):
        split_wheel(parts[0], tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_refuses_a_broken_archive(fat: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / fat.name
    broken.parent.mkdir()
    broken.write_bytes(fat.read_bytes()[:-100])

    with pytest.raises(WheelError, match="zip file"):
        split_wheel(broken, tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


@pytest.mark.parametrize(
    ("positions", "name"),
    [
        ((0, 1), "for gfx942:xnack-"),
        ((1, 2, 3, 4), "libtorch_hip.so"),
        ((0, 1, 2, 3, 4, 1), "in 2 wheels"),
    ],
    ids=["code is missing", "no host", "one twice"],
)
def test_refuses_parts_that_are_not_the_whole(
    fat: Path, parts: tuple[Path, ...], tmp_path: Path, positions: tuple[int, ...], name: str
) -> None:
    code = plan_split(fat, tmp_path).code_objects
    require_whole(fat, parts, code)

    with pytest.raises(CheckError) as raised:
        require_whole(fat, [parts[position] for position in positions], code)

    assert name in raised.value.message


def test_a_check_says_that_an_archive_of_kernels_is_cut_off(parts: tuple[Path, ...], tmp_path: Path) -> None:
    member = "torch/.kpack/torch_gfx942.kpack"
    with zipfile.ZipFile(parts[3]) as archive:
        kernels = archive.read(member)
    wheel = write_device_wheel(tmp_path, {member: kernels[:-9]})

    (finding,) = findings_of_device_code([wheel])

    assert "cut off" in finding.message


def findings_of_device_code(wheels: Sequence[Path]) -> list[Finding]:
    """Return what checks say of the wheels' device code, but for notes."""
    findings = check_wheels(wheels)
    return [finding for finding in findings if finding.check == "device_code" and finding.severity != "note"]


def write_device_wheel(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write a wheel of device code for one target."""
    return write_plain_wheel(
        folder,
        name="amd-torch-device-gfx942",
        version=VERSION,
        tag="py3-none-linux_x86_64",
        files=files,
        is_pure=False,
    )


def test_a_check_of_the_host_alone_names_its_device_code(parts: tuple[Path, ...]) -> None:
    (finding,) = findings_of_device_code(parts[:1])

    assert "amd-torch-device-gfx942" in finding.message


def test_knows_the_libraries_of_this_machines_loader() -> None:
    assert "libc.so.6" in loader_libraries()
