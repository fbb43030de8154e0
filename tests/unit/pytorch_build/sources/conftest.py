import shutil
from pathlib import Path

import pytest

from tests.kit.checkouts import CheckoutWorld, write_upstream


@pytest.fixture(scope="session")
def upstream_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return upstream repositories that tests copy."""
    return write_upstream(tmp_path_factory.mktemp("upstream")).root


@pytest.fixture(scope="session")
def finished_folder(upstream_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return upstream repositories and a finished checkout, which tests copy."""
    folder = tmp_path_factory.mktemp("finished")
    shutil.copytree(upstream_folder, folder, symlinks=True, dirs_exist_ok=True)
    CheckoutWorld(root=folder).checkout()
    return folder


@pytest.fixture
def world(upstream_folder: Path, tmp_path: Path) -> CheckoutWorld:
    """Return upstream repositories without a tree."""
    shutil.copytree(upstream_folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    return CheckoutWorld(root=tmp_path)


@pytest.fixture
def finished_world(finished_folder: Path, tmp_path: Path) -> CheckoutWorld:
    """Return upstream repositories with a tree whose checkout is finished."""
    shutil.copytree(finished_folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    return CheckoutWorld(root=tmp_path)
