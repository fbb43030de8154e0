from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from core.errors import DataError, ServiceError
from pytorch_build.toolchain import pins, providing
from pytorch_build.toolchain.pins import load_toolchain, places
from pytorch_build.toolchain.providing import plan, provide
from tests.folders import served
from tests.unit.pytorch_build.toolchain.conftest import LIBRARY, LICENSE, sha256

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOST = "https://conda.anaconda.org/conda-forge/"


def test_what_each_platform_needs(tmp_path: Path) -> None:
    assert plan(tmp_path, "linux") == ()
    libuv, openmp = plan(tmp_path, "windows")
    assert (libuv.name, libuv.digest) == ("libuv", "be6b81a352d17513c95be153afcb3148f1a451cd")
    assert "-DBUILD_TESTING=OFF" in libuv.commands[0]
    assert f"-DCMAKE_INSTALL_PREFIX={places(tmp_path, 'windows').libuv}" in libuv.commands[0]
    assert (openmp.license, openmp.commands) == ("Apache-2.0 WITH LLVM-exception", ())
    assert [one.name for one in plan(tmp_path, "linux", only=["libuv"])] == ["libuv"]


def provided(cache: Path, mirror: str) -> Path:
    """Provide the OpenMP runtime, which needs no environment."""
    nobody: Any = None
    provide(plan(cache, "windows", only=["openmp"]), "windows", target=nobody, mirrors={HOST: mirror})
    return pins.places(cache, "windows").openmp


def test_the_runtime_is_unpacked_under_the_name_that_is_asked_for(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(archive.parents[1]) as address:
        folder = provided(tmp_path / "cache", f"{address}/")
        assert (folder / "libomp140.x86_64.dll").read_bytes() == LIBRARY
        assert (folder / "LICENSE").read_bytes() == LICENSE
        archive.unlink()
        assert provided(tmp_path / "cache", f"{address}/") == folder
    assert "is there" in capsys.readouterr().err
    assert sorted(path.name for path in folder.parent.iterdir()) == [f".{folder.name}.lock", folder.name]


def test_what_was_interrupted_is_done_again(archive: Path, tmp_path: Path) -> None:
    folder = pins.places(tmp_path / "cache", "windows").openmp
    folder.mkdir(parents=True)
    (folder / "libomp140.x86_64.dll").write_bytes(b"half")
    with served(archive.parents[1]) as address:
        assert (provided(tmp_path / "cache", f"{address}/") / "libomp140.x86_64.dll").read_bytes() == LIBRARY


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes() + b"!"), ServiceError, "the data says"),
        (lambda path: path.unlink(), ServiceError, "404|File not found"),
    ],
)
def test_other_bytes_are_refused(
    archive: Path, tmp_path: Path, spoil: Callable[[Path], None], error: type[Exception], said: str
) -> None:
    spoil(archive)
    with served(archive.parents[1]) as address, pytest.raises(error, match=said):
        provided(tmp_path / "cache", f"{address}/")
    assert not pins.places(tmp_path / "cache", "windows").openmp.exists()


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
    member = pins.load_toolchain().openmp.download.library.model_copy(update=changes)
    with pytest.raises(DataError, match=said):
        providing._member(archive, member)


def test_the_real_data_is_not_the_tests(archive: Path) -> None:
    assert load_toolchain().openmp.download.sha256 != sha256(archive.read_bytes())
