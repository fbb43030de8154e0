"""What is real comes from folders that are named.

`--sources DIR` holds repositories of upstream sources (pytorch, torchaudio, torchvision), `--rocm7 DIR`
the artifacts of a real ROCm 7 in both layouts (DIR/unsplit, DIR/split). `--root DIR` is the root folder of a
Linux in which programs of that ROCm run, `--therock DIR` a work tree of TheRock, whose own builder makes
packages. `--torch-root DIR` is the root folder of a Debian that `torch_root/root.sh` made fit for compiling
torch, which `--compile` does. `--torch PYTHON` is the interpreter of an environment that has torch, and the
pytest that those sources' tests need (7 or 8 for those of torch 2.6).
"""

from pathlib import Path
from typing import Any

import pytest

REPOSITORIES = {"torch": "pytorch", "audio": "torchaudio", "vision": "torchvision"}
# option -> what it names
OPTIONS = {
    "--sources": "folder of upstream repositories",
    "--torch": "interpreter of an environment with torch",
    "--rocm7": "folder of ROCm 7's artifacts, split and unsplit",
    "--root": "root folder in which programs of ROCm 7 run",
    "--therock": "work tree of TheRock",
    "--torch-root": "root folder of a Debian in which torch compiles",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    for option, what in OPTIONS.items():
        parser.addoption(option, type=Path, metavar="PYTHON" if option == "--torch" else "DIR", help=what)
    parser.addoption(
        "--compile", action="store_true", help="compile all of torch: 40 to 100 minutes on two cores"
    )


def named(option: str) -> Any:
    """Make a fixture of what an option names; a test is skipped where it names nothing."""

    @pytest.fixture(scope="session")
    def fixture(pytestconfig: pytest.Config) -> Path:
        path: Path | None = pytestconfig.getoption(option)
        if path is None:
            pytest.skip(f"{option} names no {OPTIONS[option]}")
        # an interpreter's link leads out of its environment
        return path.absolute() if option == "--torch" else path.resolve()

    return fixture


rocm7_artifacts = named("--rocm7")
linux_root = named("--root")
therock_tree = named("--therock")
torch_python = named("--torch")
torch_root = named("--torch-root")
sources = named("--sources")


@pytest.fixture(scope="session")
def upstream_sources(sources: Path) -> dict[str, Path]:
    """Map projects to repositories, of those that are there."""
    found = {project: sources / name for project, name in REPOSITORIES.items()}
    return {project: path for project, path in found.items() if path.is_dir()}


@pytest.fixture(scope="session")
def torch_sources(upstream_sources: dict[str, Path]) -> Path:
    """Return torch's repository; a test is skipped where it is not there."""
    if "torch" not in upstream_sources:
        pytest.skip("--sources has no pytorch")
    return upstream_sources["torch"]
