"""Servers that every integration test may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.ceph_server import ceph, ceph_server
from tests.integration.rocm_environments import setuptools
from tests.integration.s3_servers import rclone, rclone_server

if TYPE_CHECKING:
    import pytest

__all__ = ["ceph", "ceph_server", "rclone", "rclone_server", "setuptools"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--images", action="store_true", help="build container images: minutes, gigabytes, root")
    parser.addoption("--ceph", action="store_true", help="also test against Ceph's S3 server (20 s to start)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the files that take longest first: one at the end leaves the other processes without work."""
    slow = ("test_workflows", "test_torch_tests", "test_pipeline")
    items.sort(key=lambda item: slow.index(item.path.stem) if item.path.stem in slow else len(slow))
