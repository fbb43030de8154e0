"""What is real, and lies in folders that options of the test run name."""

from pathlib import Path
from typing import Any

import pytest

# Option -> what it names
OPTIONS = {
    "--sources": "folder of upstream repositories",
    "--torch": "interpreter of an environment with torch",
    "--rocm7": "folder of ROCm 7's artifacts, split and unsplit",
    "--root": "root folder in which programs of ROCm 7 run",
    "--therock": "work tree of TheRock",
    "--torch-root": "root folder of a Debian in which torch compiles",
}


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
