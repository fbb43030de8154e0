"""Wheels with DLLs, split by a Windows Python under Wine as on this machine."""

from pathlib import Path

import pytest

from core.archive import Member
from core.errors import MissingInputError
from core.files import sha256
from core.wheel.writer import WheelSpec, write_wheel
from rocm_packaging.sample import ensure_artifacts
from tests.kit.clones import Clone
from tests.kit.hip_libraries import METADATA, TORCH_VERSION
from tests.kit.windows_python import WindowsPython, windows_python

__all__ = ["windows_python"]

EPOCH = "1700000000"
HIPBLAS = "blas_lib_gfx110X-all/math-libs/BLAS/hipBLAS/stage/bin/hipblas.dll"


@pytest.fixture
def fat_wheel(tmp_path: Path) -> Path:
    """Return a torch wheel whose torch_hip.dll is the sample's hipblas.dll, with code for four targets."""
    try:
        artifacts = ensure_artifacts(tmp_path / "artifacts", platform="windows")
    except MissingInputError as problem:
        # This machine has no compiler for Windows.
        pytest.skip(problem.message)

    spec = WheelSpec(
        distribution="torch",
        version=TORCH_VERSION,
        tag="cp313-cp313-win_amd64",
        metadata=METADATA,
        purelib=False,
    )
    members = [
        Member(name="torch/_rocm_init.py", source=b"def initialize(): ...\n"),
        Member(name="torch/lib/torch_hip.dll", source=artifacts / HIPBLAS),
    ]
    return write_wheel(tmp_path / "fat", spec, members).path


def wheel_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each wheel in a folder."""
    return {path.name: sha256(path) for path in sorted(folder.glob("*.whl"))}


@pytest.mark.nightly
def test_a_wheel_with_dlls_is_split_into_the_same_bytes(
    windows_python: WindowsPython, fat_wheel: Path, tmp_path: Path
) -> None:
    clone = Clone.create(tmp_path / "clone")
    command: list[str | Path] = ["pytorch_build", "split-wheel", fat_wheel, "--output-dir"]
    linux_folder = tmp_path / "linux"
    windows_folder = tmp_path / "windows"
    python = windows_python.drive / "py" / "python.exe"
    variables = {"SOURCE_DATE_EPOCH": EPOCH}

    clone.run_checked(*command, linux_folder, SOURCE_DATE_EPOCH=EPOCH)
    windows_python.run(python, "-m", *command, windows_folder, cwd=clone.path, variables=variables)

    digests = wheel_digests(windows_folder)
    # The host wheel, and one for each target.
    assert len(digests) == 5
    assert digests == wheel_digests(linux_folder)
