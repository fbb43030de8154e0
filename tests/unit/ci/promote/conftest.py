"""Fixtures of promotion."""

from collections.abc import Iterator

import pytest

from tests.kit.release_desk import ReleaseDesk, Snapshots, open_desk


@pytest.fixture(scope="session")
def desk_snapshots(tmp_path_factory: pytest.TempPathFactory) -> Snapshots:
    """Return what desks of this session's tests began with."""
    return Snapshots(
        desk_folder=tmp_path_factory.mktemp("desk"), kept_folder=tmp_path_factory.mktemp("desk-snapshots")
    )


@pytest.fixture
def desk(desk_snapshots: Snapshots, capsys: pytest.CaptureFixture[str]) -> Iterator[ReleaseDesk]:
    """Return empty stores, and the verbs that work on them."""
    yield open_desk(desk_snapshots, capsys)
    desk_snapshots.clear_desk()
