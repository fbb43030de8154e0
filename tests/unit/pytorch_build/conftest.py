from pathlib import Path

import pytest

from tests.kit.builds import ROCM_VERSION as ROCM
from tests.kit.builds import LocalRun
from tests.kit.builds import LocalRun as Run

# The names of before are for tests that are still to be rewritten.
__all__ = ["ROCM", "Run"]


@pytest.fixture
def run(tmp_path: Path) -> LocalRun:
    """Return an empty run in a folder."""
    return LocalRun(root=tmp_path)
