from pathlib import Path

import pytest

from tests.kit.builds import LocalRun
from tests.kit.builds import LocalRun as Run

# The name of before is for tests/unit/ci/test_flow.py, which is still to take it from the kit.
__all__ = ["Run"]


@pytest.fixture
def run(tmp_path: Path) -> LocalRun:
    """Return an empty run in a folder."""
    return LocalRun(root=tmp_path)
