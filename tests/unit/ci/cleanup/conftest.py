from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.stores import Stored

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = 1_800_000_000.0


@pytest.fixture
def stored() -> Callable[..., Stored]:
    """Make an object of a listing that was written some days ago."""

    def make(key: str, days: float = 0) -> Stored:
        return Stored(key=key, size=10, etag=key, modified=NOW - days * 86_400)

    return make
