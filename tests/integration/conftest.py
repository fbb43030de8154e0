"""Servers and runs that every integration test may ask for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.stores import overlay
from rocm_packaging.sample import ensure_artifacts
from tests.kit import sample
from tests.kit.browsers import browser
from tests.kit.ceph_server import ceph, ceph_server
from tests.kit.clones import ROOT, Clone
from tests.kit.recorded_runs import setuptools_wheel
from tests.kit.rocm_environments import setuptools
from tests.kit.s3_servers import rclone, rclone_server
from tests.kit.sample import SampleRun

__all__ = ["browser", "ceph", "ceph_server", "rclone", "rclone_server", "setuptools", "setuptools_wheel"]

# Files that take longest start first, so that none ends alone: by their own time, those of unit tests, too.
LONGEST_FILES = (
    "test_pipeline",
    "test_workflows",
    "test_real_workflows",
    "test_release_refs",
    "test_rehearsal",
    "test_interrupted_pipeline",
    "test_checkout",
    "test_wheel_test_plugin",
    "test_misbehaving_files",
    "test_unchanged_checkouts",
    "test_copies",
    "test_test_smoke",
    "test_build_plan",
    "test_stops",
    "test_strangers",
    "test_rocm_packages",
    "test_rocm_on_windows",
    "test_two_refs",
    "test_file_run",
    "test_indexes",
    "test_s3_store",
    "test_largest_runs",
    "test_device_packages",
    "test_page",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--images", action="store_true", help="build container images: minutes, gigabytes, root")
    parser.addoption("--ceph", action="store_true", help="also test against Ceph's S3 server (20 s to start)")
    parser.addoption(
        "--windows-python", type=Path, metavar="PROGRAM", help="Windows' Python, as Wine runs it"
    )


@pytest.fixture(autouse=True)
def _forget_which_addresses_answered() -> None:
    # A server of another test may have had the same port.
    overlay.is_reachable.cache_clear()


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the sample's artifacts; no test changes them."""
    return ensure_artifacts(tmp_path_factory.mktemp("sample") / "artifacts")


@pytest.fixture(scope="session")
def split_artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the sample's artifacts with device code in artifacts of its own; no test changes them."""
    return ensure_artifacts(tmp_path_factory.mktemp("split") / "artifacts", split=True)


@pytest.fixture(scope="session")
def sample_run() -> SampleRun:
    """Return a kept run of the sample's pipeline; no test changes its clone."""
    return sample.run_sample_once(ROOT, ROOT / ".cache" / "tests")


@pytest.fixture(scope="module")
def clone(sample_run: SampleRun) -> Iterator[Clone]:
    """Return the clone in which the pipeline ran, which only one file changes at a time."""
    with sample.lend_workshop(sample_run) as path:
        yield Clone(path=path)


@pytest.fixture
def sample_clone(sample_run: SampleRun, tmp_path: Path) -> Clone:
    """Return a clone with the outputs of the sample's pipeline, which the test may change."""
    return Clone(path=sample.copy_run(sample_run, tmp_path / "checkout"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests, and sort the longest files of all folders to the front."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("processes")

    ranks = {name: rank for rank, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
