from collections.abc import Generator
from pathlib import Path

import pytest

from tests.kit.aws import aws, s3
from tests.kit.guards import guarded

__all__ = ["aws", "s3"]

UNIT = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Guard every unit test. This is a hook, as a fixture would not guard fixtures of wider scopes."""
    # pytest also calls the hook for tests of other folders.
    if not item.path.is_relative_to(UNIT):
        return (yield)

    with guarded(item):
        return (yield)
