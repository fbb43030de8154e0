"""A split of real fat binaries: libraries of ROCm 7, with the bundles and wrappers of real compilers."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from core.wheel_record import require_sound
from core.wheel_writer import Member, WheelSpec, write_wheel
from pytorch_build.split.libraries import MAGICS, reference_of, side_of
from pytorch_build.split.making import split

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "2.10.0+rocm7.2.4"
METADATA = f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\nRequires-Dist: rocm[libraries]==7.2.4\n"
MOST = 250 << 20


@pytest.fixture(name="fat", scope="module")
def fat_fixture(rocm7_artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a wheel around the fat libraries."""
    found: dict[str, Path] = {}
    for path in sorted((rocm7_artifacts / "unsplit").rglob("lib*.so.*")):
        if path.is_symlink() or path.stat().st_size > MOST:
            continue
        data = path.read_bytes()
        if data[:4] == MAGICS[0] and side_of(data).read(data) is not None:
            found.setdefault(f"torch/lib/{path.name.partition('.so')[0]}.so", path)
    if not found:
        pytest.skip("the unsplit artifacts hold no fat library")
    spec = WheelSpec(
        distribution="torch", version=VERSION, tag="py3-none-linux_x86_64", metadata=METADATA, purelib=False
    )
    members = [Member(name=name, source=path) for name, path in found.items()]
    return write_wheel(tmp_path_factory.mktemp("fat"), spec, members).path


def test_real_libraries_are_split_and_held_against_the_fat_ones(fat: Path, tmp_path: Path) -> None:
    host, *devices = split(fat, tmp_path / "parts")
    assert len(devices) > 1
    require_sound(host)
    with zipfile.ZipFile(host) as archive, zipfile.ZipFile(fat) as old:
        for info in old.infolist():
            if info.filename.startswith("torch/"):
                assert archive.getinfo(info.filename).file_size < info.file_size
                (tmp_path / "library").write_bytes(archive.read(info.filename))
                found = reference_of(tmp_path / "library")
                assert found is not None
                assert f"torch/{found.binary}" == info.filename
