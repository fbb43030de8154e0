import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import zstandard
from packaging.version import Version

from core.cli.options import ROOT
from core.errors import DataError, MissingInputError, ServiceError
from pytorch_build.build import toolchain
from pytorch_build.build.toolchain import (
    Toolchain,
    ToolchainParts,
    find_toolchain_parts,
    load_toolchain,
    provide_part,
)
from pytorch_build.components.torch import NINJA_FOR_WINDOWS, OPENMP_DLL
from pytorch_build.platforms import Platform
from tests.kit.platforms import LINUX, WINDOWS
from tests.kit.repos import write_files
from tests.kit.servers import served
from tests.kit.windows_listings import read_listing

DLL = b"MZ, and the rest of a DLL"
LICENSE = b"Apache License v2.0 with LLVM Exceptions"
HOST = "https://conda.anaconda.org/conda-forge/"
PACKAGE = load_toolchain().openmp


# The data


def test_locks_a_ninja_that_works_on_windows() -> None:
    oldest = Version(NINJA_FOR_WINDOWS)
    locks = sorted((ROOT / "requirements").glob("target-windows-*.txt"))

    assert len(locks) >= 3
    for lock in locks:
        pin = re.search(r"^ninja==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
        assert pin, lock
        assert Version(pin[1]) >= oldest, lock


def test_provides_the_openmp_runtime_that_torch_asks_for() -> None:
    assert load_toolchain().openmp.dll == OPENMP_DLL


def test_rocm_for_windows_has_what_torch_loads_first() -> None:
    dll_names = {Path(path).name for path in read_listing("rocm-10.0.0-windows")}
    libraries = import_module("rocm_packaging.templates.dist_info").ALL_LIBRARIES  # which has no types

    lacking: list[str] = []
    for name in WINDOWS.preloads:
        pattern = libraries[name].windows
        assert pattern, name
        if not any(Path(dll).match(pattern) for dll in dll_names):
            lacking.append(name)
    # The listing is of what another program loads, and that has no use for these two.
    assert lacking == ["hipsparselt", "hipdnn"]


# Providing the OpenMP runtime


def tar_zst(members: Mapping[str, bytes]) -> bytes:
    """Return a ``.tar.zst`` with these members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return zstandard.compress(stream.getvalue())


def sha256(content: bytes) -> str:
    """Return the digest that the data pins a file by."""
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package of the OpenMP runtime, laid out like the real one, on a mirror."""
    path = tmp_path / "mirror" / "win-64" / PACKAGE.url.rpartition("/")[2]
    path.parent.mkdir(parents=True)
    libraries = {"Library/bin/omp.txt": b"", "Library/bin/libomp.dll": DLL}
    licenses = {"info/licenses/openmp/LICENSE.TXT": LICENSE}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr(PACKAGE.library.archive, tar_zst(libraries))
        archive.writestr(PACKAGE.license_file.archive, tar_zst(licenses))
    return path


def pinned_toolchain(package: Path, **library_changes: str) -> Toolchain:
    """Return the data with the digests of the mirror's package, and changes of its library."""
    data = load_toolchain()
    library = PACKAGE.library.model_copy(update={"sha256": sha256(DLL), **library_changes})
    license_file = PACKAGE.license_file.model_copy(update={"sha256": sha256(LICENSE)})
    openmp = PACKAGE.model_copy(
        update={
            "sha256": sha256(package.read_bytes()),
            "library": library,
            "license_file": license_file,
        }
    )
    return data.model_copy(update={"openmp": openmp})


@pytest.fixture
def pinned(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the data pin the mirror's package."""
    data = pinned_toolchain(package)
    monkeypatch.setattr(toolchain, "load_toolchain", lambda: data)


def provide_openmp(cache: Path, mirror: str) -> Path:
    """Provide the OpenMP runtime, which needs no environment; return its folder."""
    no_environment: Any = None
    provide_part("openmp", cache, target=no_environment, mirrors={HOST: f"{mirror}/"})
    return openmp_folder(cache)


def openmp_folder(cache: Path) -> Path:
    """Return where the OpenMP runtime lies once it is provided."""
    return Path(toolchain.load_toolchain().openmp.folder(cache))


@pytest.mark.usefixtures("pinned")
def test_unpacks_the_runtime_under_the_name_that_builds_look_for(package: Path, tmp_path: Path) -> None:
    with served(package.parents[1]) as address:
        folder = provide_openmp(tmp_path / "cache", address)

    assert (folder / OPENMP_DLL).read_bytes() == DLL
    assert (folder / "LICENSE").read_bytes() == LICENSE
    # Windows removes the file of a lock that is released.
    assert {path.name for path in folder.parent.iterdir()} - {f".{folder.name}.lock"} == {folder.name}


@pytest.mark.usefixtures("pinned")
def test_provides_the_runtime_once(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(package.parents[1]) as address:
        folder = provide_openmp(tmp_path / "cache", address)
        package.unlink()
        capsys.readouterr()

        assert provide_openmp(tmp_path / "cache", address) == folder

    assert str(folder) in capsys.readouterr().err


@pytest.mark.usefixtures("pinned")
def test_recreates_an_incomplete_runtime(package: Path, tmp_path: Path) -> None:
    folder = openmp_folder(tmp_path / "cache")
    write_files(folder, {OPENMP_DLL: "an interrupted copy"})

    with served(package.parents[1]) as address:
        provide_openmp(tmp_path / "cache", address)

    assert (folder / OPENMP_DLL).read_bytes() == DLL
    assert (folder / "LICENSE").is_file()


@pytest.mark.usefixtures("pinned")
def test_rejects_a_package_of_other_bytes(package: Path, tmp_path: Path) -> None:
    package.write_bytes(b"!")

    with served(package.parents[1]) as address, pytest.raises(ServiceError, match=package.name):
        provide_openmp(tmp_path / "cache", address)

    assert not openmp_folder(tmp_path / "cache").exists()


@pytest.mark.usefixtures("pinned")
def test_reports_a_package_that_the_mirror_lacks(package: Path, tmp_path: Path) -> None:
    package.unlink()

    with served(package.parents[1]) as address, pytest.raises(ServiceError, match=package.name) as caught:
        provide_openmp(tmp_path / "cache", address)

    # The answer of a server that refused is closed.
    assert getattr(caught.value.__cause__, "closed", True)
    assert not openmp_folder(tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"member": "Library/bin/other.dll"}, "Library/bin/other.dll"),
        ({"sha256": "0" * 64}, "0000"),
        ({"archive": "absent.tar.zst"}, "absent.tar.zst"),
        ({"archive": "metadata.json"}, "metadata.json"),
    ],
    ids=["member", "digest", "absent archive", "no archive"],
)
def test_rejects_a_package_that_does_not_hold_the_pinned_library(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], name: str
) -> None:
    data = pinned_toolchain(package, **changes)
    monkeypatch.setattr(toolchain, "load_toolchain", lambda: data)

    with served(package.parents[1]) as address, pytest.raises(DataError, match=name):
        provide_openmp(tmp_path / "cache", address)


# What a build takes from a machine


def lay_out(cache: Path, *, has_openmp: bool = False, has_libuv: bool = False) -> Path:
    """Return a cache as a build of torch leaves it."""
    if has_openmp:
        write_files(openmp_folder(cache), {OPENMP_DLL: "", "LICENSE": ""})
    if has_libuv:
        write_files(libuv_folder(cache), {"bin/uv.dll": "", "LICENSE": ""})
    return cache


def libuv_folder(cache: Path) -> Path:
    """Return where libuv lies once it is built."""
    return Path(load_toolchain().libuv.folder(cache))


def write_visual_studio(folder: Path) -> Path:
    """Write the redistributables of Visual Studio, as its own listing has them."""
    write_files(folder, dict.fromkeys(read_listing("visual-studio-14.44"), ""))
    return folder


def take_toolchain_parts(
    cache: Path,
    env: Mapping[str, str],
    *,
    platform: Platform = WINDOWS,
    redistributed: bool = False,
) -> ToolchainParts:
    """Return what a build takes."""
    return find_toolchain_parts(cache, platform=platform, base_env=env, is_redistributed=redistributed)


@pytest.mark.parametrize("redistributed", [True, False])
def test_ships_what_was_provided_for_windows(tmp_path: Path, *, redistributed: bool) -> None:
    cache = lay_out(tmp_path, has_openmp=True, has_libuv=True)
    write_files(tmp_path / "llvm", {"include/llvm.h": ""})
    visual_studio = write_visual_studio(tmp_path / "vs")
    env = {"VCTOOLSREDISTDIR": str(visual_studio), "LLVM_SYSPATH": str(tmp_path / "llvm")}

    assert take_toolchain_parts(cache, env, redistributed=redistributed) == ToolchainParts(
        openmp=openmp_folder(cache) / OPENMP_DLL,
        libuv=libuv_folder(cache) / "bin" / "uv.dll",
        licenses={
            "llvm-openmp": openmp_folder(cache) / "LICENSE",
            "libuv": libuv_folder(cache) / "LICENSE",
        },
        llvm=tmp_path / "llvm",
    )


def test_ships_nothing_on_linux(tmp_path: Path) -> None:
    cache = lay_out(tmp_path, has_openmp=True, has_libuv=True)
    env = {"libuv_ROOT": str(tmp_path)}

    assert take_toolchain_parts(cache, env, platform=LINUX) == ToolchainParts()


def test_takes_visual_studios_openmp_for_the_developer_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    visual_studio = write_visual_studio(tmp_path / "vs")
    env = {"VCToolsRedistDir": str(visual_studio)}

    libraries = take_toolchain_parts(lay_out(tmp_path), env)

    folder = visual_studio / "debug_nonredist/x64/Microsoft.VC143.OpenMP.LLVM"
    assert libraries.openmp == folder / OPENMP_DLL
    assert libraries.licenses == {}
    assert "redistributed" in capsys.readouterr().err


def test_redistributes_no_openmp_of_visual_studio(tmp_path: Path) -> None:
    env = {"VCToolsRedistDir": str(write_visual_studio(tmp_path / "vs"))}

    assert take_toolchain_parts(lay_out(tmp_path), env, redistributed=True).openmp is None


def test_takes_nothing_from_a_visual_studio_without_openmp(tmp_path: Path) -> None:
    cache = lay_out(tmp_path)

    assert take_toolchain_parts(cache, {"VCToolsRedistDir": str(tmp_path)}) == ToolchainParts()
    assert take_toolchain_parts(cache, {}) == ToolchainParts()


@pytest.mark.parametrize("variable", ["libuv_ROOT", "LLVM_SYSPATH"])
def test_names_a_variable_that_leads_nowhere(tmp_path: Path, variable: str) -> None:
    with pytest.raises(MissingInputError, match=variable):
        take_toolchain_parts(lay_out(tmp_path), {variable: str(tmp_path)})


def test_takes_the_users_own_libuv_first(tmp_path: Path) -> None:
    cache = lay_out(tmp_path, has_libuv=True)
    write_files(tmp_path / "own", {"bin/uv.dll": ""})

    libraries = take_toolchain_parts(cache, {"LIBUV_ROOT": str(tmp_path / "own")})

    assert libraries.libuv == tmp_path / "own" / "bin" / "uv.dll"
