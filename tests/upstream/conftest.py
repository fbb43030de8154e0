"""What is real comes from folders that are named.

`--sources DIR` holds repositories of upstream sources (pytorch, torchaudio, torchvision), `--rocm DIR`
the artifacts of a real ROCm build.
"""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORIES = {"torch": "pytorch", "audio": "torchaudio", "vision": "torchvision"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sources", type=Path, metavar="DIR", help="folder of upstream repositories")
    parser.addoption("--rocm", type=Path, metavar="DIR", help="artifact directory of a real ROCm build")


@pytest.fixture(scope="session")
def upstream_sources(pytestconfig: pytest.Config) -> dict[str, Path]:
    """Project -> repository, of those that are there."""
    folder: Path | None = pytestconfig.getoption("--sources")
    if folder is None:
        pytest.skip("--sources names no folder of upstream repositories")
    found = {project: folder.resolve() / name for project, name in REPOSITORIES.items()}
    return {project: path for project, path in found.items() if path.is_dir()}


@pytest.fixture(scope="session")
def rocm_artifacts(pytestconfig: pytest.Config) -> Path:
    """The artifact directory of a real ROCm build."""
    folder: Path | None = pytestconfig.getoption("--rocm")
    if folder is None:
        pytest.skip("--rocm names no artifact directory of a real ROCm build")
    return folder.resolve()
