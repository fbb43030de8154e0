from collections.abc import Generator
from pathlib import Path

import pytest

from tests.kit.aws import aws, s3
from tests.kit.guards import guarded

__all__ = ["aws", "s3"]

FIELD = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Guard every test of this folder as unit tests are."""
    if not item.path.is_relative_to(FIELD):
        return (yield)

    with guarded(item):
        return (yield)
