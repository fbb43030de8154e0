"""Fixtures of promotion."""

from pathlib import Path

import pytest

from tests.kit.release_desk import ReleaseDesk, open_desk


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> ReleaseDesk:
    """Return empty stores, and the verbs that work on them."""
    return open_desk(tmp_path, capsys)
