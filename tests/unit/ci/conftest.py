from pathlib import Path

import pytest

from core.cli.options import Common
from core.run import RunOutputs
from core.stores import Store


@pytest.fixture
def common(tmp_path: Path) -> Common:
    """Run 17 of a checkout without sources."""
    return Common(root=tmp_path, run_id="17")


@pytest.fixture
def store(common: Common) -> Store:
    """The store of that run, in the checkout's ``out``."""
    return common.open_store()


@pytest.fixture
def outputs(common: Common) -> RunOutputs:
    """The keys of what that run leaves."""
    return common.outputs
