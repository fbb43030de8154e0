"""What is real, and lies in folders that options of the test run name."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

# Option -> what it names
OPTIONS = {
    "--sources": "folder of upstream repositories",
    "--torch": "interpreter of an environment with torch",
    "--torch-wheel": "wheel of torch 2.13.0 for CPU and Python 3.11",
    "--rocm7": "folder of ROCm 7's artifacts, split and unsplit",
    "--root": "root folder in which programs of ROCm 7 run",
    "--therock": "work tree of TheRock",
    "--torch-root": "root folder of a Debian in which torch compiles",
}


def distributions_of(files: Iterable[Path]) -> list[str]:
    """Return the distribution of each file or folder, as its name begins."""
    return [path.name.partition("-")[0] for path in files]


def named_by(option: str) -> Any:
    """Make a fixture of what an option names; a test is skipped where it names nothing."""

    @pytest.fixture(scope="session")
    def fixture(pytestconfig: pytest.Config) -> Path:
        path: Path | None = pytestconfig.getoption(option)
        if path is None:
            pytest.skip(f"{option} names no {OPTIONS[option]}")
        # An interpreter's link leads out of its environment
        return path.absolute() if option == "--torch" else path.resolve()

    return fixture
