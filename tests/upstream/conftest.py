"""What is real comes from folders that are named.

`--sources DIR` holds repositories of upstream sources (pytorch, torchaudio, torchvision), `--rocm DIR`
the artifacts of a real ROCm build, `--rocm7 DIR` those of ROCm 7 in both layouts (DIR/unsplit,
DIR/split). `--root DIR` is the root folder of a Linux in which programs of that ROCm run, `--therock DIR`
a work tree of TheRock, whose own builder makes packages. `--torch PYTHON` is the interpreter of an
environment that has torch, and the pytest that those sources' tests need (7 or 8 for those of torch 2.6).
"""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORIES = {"torch": "pytorch", "audio": "torchaudio", "vision": "torchvision"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sources", type=Path, metavar="DIR", help="folder of upstream repositories")
    parser.addoption("--torch", type=Path, metavar="PYTHON", help="interpreter of an environment with torch")
    parser.addoption("--rocm", type=Path, metavar="DIR", help="artifact directory of a real ROCm build")
    parser.addoption(
        "--rocm7", type=Path, metavar="DIR", help="folder of ROCm 7's artifacts, split and unsplit"
    )
    parser.addoption("--root", type=Path, metavar="DIR", help="root folder in which programs of ROCm 7 run")
    parser.addoption("--therock", type=Path, metavar="DIR", help="work tree of TheRock")


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


@pytest.fixture(scope="session")
def rocm7_artifacts(pytestconfig: pytest.Config) -> Path:
    """The folder of ROCm 7's artifacts: an artifact directory a layout."""
    folder: Path | None = pytestconfig.getoption("--rocm7")
    if folder is None:
        pytest.skip("--rocm7 names no folder of ROCm 7's artifacts")
    return folder.resolve()


@pytest.fixture(scope="session")
def linux_root(pytestconfig: pytest.Config) -> Path:
    """The root folder of a Linux with Python, its wheel of setuptools, and a C++ compiler."""
    folder: Path | None = pytestconfig.getoption("--root")
    if folder is None:
        pytest.skip("--root names no root folder in which programs of ROCm 7 run")
    return folder.resolve()


@pytest.fixture(scope="session")
def therock_tree(pytestconfig: pytest.Config) -> Path:
    """The work tree of TheRock."""
    folder: Path | None = pytestconfig.getoption("--therock")
    if folder is None:
        pytest.skip("--therock names no work tree of TheRock")
    return folder.resolve()


@pytest.fixture(scope="session")
def torch_python(pytestconfig: pytest.Config) -> Path:
    """The interpreter of an environment with torch and pytest."""
    python: Path | None = pytestconfig.getoption("--torch")
    if python is None:
        pytest.skip("--torch names no interpreter of an environment with torch")
    return python.absolute()
