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
from pytorch_build.build.machine import load_needs
from pytorch_build.build.toolchain import Places, Provided, load_toolchain, plan, provide, provided
from pytorch_build.platforms import LINUX, WINDOWS, Platform
from tests.kit.servers import served
from tests.unit.pytorch_build.build.windows_listings import listing

LIBRARY, LICENSE = b"MZ, and the rest of a DLL", b"Apache License v2.0 with LLVM Exceptions"


def packed(**members: bytes) -> bytes:
    """Write a ``.tar.zst``: the names' double underscores stand for slashes, single ones for dots."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("__", "/").replace("_", "."))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return zstandard.compress(stream.getvalue())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive as the real one is, served by nobody yet, and data that pins it."""
    data = load_toolchain()
    pin = data.openmp.download
    path = tmp_path / "mirror" / "win-64" / pin.url.rpartition("/")[2]
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as outer:
        outer.writestr("metadata.json", "{}")
        outer.writestr(
            pin.library.archive, packed(Library__bin__omp_txt=b"", Library__bin__libomp_dll=LIBRARY)
        )
        outer.writestr(pin.license_file.archive, packed(info__licenses__openmp__LICENSE_TXT=LICENSE))
    changed = pin.model_copy(
        update={
            "sha256": sha256(path.read_bytes()),
            "library": pin.library.model_copy(update={"sha256": sha256(LIBRARY)}),
            "license_file": pin.license_file.model_copy(update={"sha256": sha256(LICENSE)}),
        }
    )
    made = data.model_copy(update={"openmp": data.openmp.model_copy(update={"download": changed})})
    monkeypatch.setattr(toolchain, "load_toolchain", lambda: made)
    return path


def test_nothing_is_taken_first_that_may_not_be_redistributed() -> None:
    data = load_toolchain().openmp
    first = data.download if data.order[0] == "download" else data.visual_studio
    assert first.redistributable
    assert not data.visual_studio.redistributable


def test_the_locks_ninja_works_on_windows() -> None:
    oldest = Version(load_needs().tools.ninja_windows)
    locks = sorted((ROOT / "requirements").glob("target-windows-*.txt"))
    pinned = [re.search(r"^ninja==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE) for lock in locks]
    assert len(pinned) >= 3
    assert all(found and Version(found[1]) >= oldest for found in pinned)


def test_what_torch_loads_first_is_in_rocm_for_windows() -> None:
    there = {Path(path).name for path in listing("rocm-10.0.0-windows")}
    libraries = import_module("rocm_packaging.templates.dist_info").ALL_LIBRARIES  # which has no types
    patterns = {name: libraries[name].windows for name in WINDOWS.preloads}
    assert all(patterns.values())
    lacking = [name for name, glob in patterns.items() if not any(Path(dll).match(glob) for dll in there)]
    # the listing is of what another program loads, and that has no use for these two
    assert lacking == ["hipsparselt", "hipdnn"]


HOST = "https://conda.anaconda.org/conda-forge/"


def put(cache: Path, mirror: str) -> Path:
    """Provide the OpenMP runtime, which needs no environment."""
    nobody: Any = None
    provide(plan(cache, "windows", only=["openmp"]), "windows", target=nobody, mirrors={HOST: mirror})
    return toolchain.places(cache, "windows").openmp


def test_the_runtime_is_unpacked_under_the_name_that_is_asked_for(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = toolchain.places(tmp_path / "cache", "windows").openmp / "libomp140.x86_64.dll"
    write(half, "what was interrupted is done again")
    with served(archive.parents[1]) as address:
        folder = put(tmp_path / "cache", f"{address}/")
        assert (folder / "libomp140.x86_64.dll").read_bytes() == LIBRARY
        assert (folder / "LICENSE").read_bytes() == LICENSE
        archive.unlink()
        assert put(tmp_path / "cache", f"{address}/") == folder
    assert "already at" in capsys.readouterr().err
    assert sorted(path.name for path in folder.parent.iterdir()) == [f".{folder.name}.lock", folder.name]


@pytest.mark.parametrize(("text", "said"), [(b"!", "the data says"), (b"", "404|File not found")])
def test_other_bytes_are_refused(archive: Path, tmp_path: Path, text: bytes, said: str) -> None:
    archive.write_bytes(text) if text else archive.unlink()
    with served(archive.parents[1]) as address, pytest.raises(ServiceError, match=said) as caught:
        put(tmp_path / "cache", f"{address}/")
    assert getattr(caught.value.__cause__, "closed", True)  # the answer of a server that refused
    assert not toolchain.places(tmp_path / "cache", "windows").openmp.exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"member": "Library/bin/other.dll"}, "has no Library/bin/other.dll"),
        ({"sha256": "0" * 64}, "of SHA-256 0000"),
        ({"archive": "absent.tar.zst"}, "absent.tar.zst cannot be read"),
        ({"archive": "metadata.json"}, "metadata.json cannot be read"),
    ],
)
def test_archives_that_are_not_what_the_data_says(archive: Path, changes: dict[str, str], said: str) -> None:
    member = toolchain.load_toolchain().openmp.download.library.model_copy(update=changes)
    with pytest.raises(DataError, match=said):
        toolchain._member(archive, member)


OPENMP = "libomp140.x86_64.dll"


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def laid_out(folder: Path, *, openmp: bool = False, uv: bool = False) -> Places:
    """Stand for what `nox -s prepare` has provided."""
    made = Places(libuv=folder / "libuv", openmp=folder / "openmp")
    if openmp:
        write(made.openmp / OPENMP)
        write(made.openmp / "LICENSE")
    if uv:
        write(made.libuv / "bin" / "uv.dll")
        write(made.libuv / "LICENSE")
    return made


def visual_studio(folder: Path) -> Path:
    """Lay out the redistributables of Visual Studio, as its own listing has them."""
    for name in listing("visual-studio-14.44"):
        write(folder / name)
    return folder


def found(
    at: Places, env: Mapping[str, str], platform: Platform = WINDOWS, *, redistributed: bool = False
) -> Provided:
    return provided(at, platform=platform, base_env=env, redistributed=redistributed)


@pytest.mark.parametrize("redistributed", [True, False])
def test_windows_ships_what_was_provided(tmp_path: Path, *, redistributed: bool) -> None:
    made = laid_out(tmp_path, openmp=True, uv=True)
    llvm = write(tmp_path / "llvm" / "include" / "llvm.h").parents[1]
    env = {"VCTOOLSREDISTDIR": str(visual_studio(tmp_path / "vs")), "LLVM_SYSPATH": str(llvm)}
    assert found(made, {**env, "libuv_ROOT": str(tmp_path)}, LINUX) == Provided(), "Linux ships none"
    assert found(made, env, redistributed=redistributed) == Provided(
        openmp=made.openmp / OPENMP,
        uv=made.libuv / "bin" / "uv.dll",
        licenses={"llvm-openmp": made.openmp / "LICENSE", "libuv": made.libuv / "LICENSE"},
        llvm=llvm,
    )


def test_visual_studios_openmp_is_for_oneself_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, nothing = visual_studio(tmp_path / "vs"), laid_out(tmp_path)
    env = {"VCToolsRedistDir": str(folder)}
    own = found(nothing, env)
    assert own.openmp == folder / "debug_nonredist/x64/Microsoft.VC143.OpenMP.LLVM" / OPENMP
    assert own.licenses == {}
    assert "may not be redistributed" in capsys.readouterr().err
    assert found(nothing, env, redistributed=True).openmp is None


def test_windows_variables_that_lead_nowhere(tmp_path: Path) -> None:
    at = laid_out(tmp_path)
    assert found(at, {"VCToolsRedistDir": str(tmp_path)}) == found(at, {}) == Provided()
    for name, message in (("libuv_ROOT", "libuv_ROOT is"), ("LLVM_SYSPATH", "no LLVM lies there")):
        with pytest.raises(MissingInputError, match=message):
            found(at, {name: str(tmp_path)})
    own = write(tmp_path / "own" / "bin" / "uv.dll")
    assert found(at, {"LIBUV_ROOT": str(tmp_path / "own")}).uv == own, "the user's own comes first"
