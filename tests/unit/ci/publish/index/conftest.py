from __future__ import annotations

import pytest

from ci.publish import index
from tests.unit.ci.memory_store import MemoryStore


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_LONGEST_PAUSE", 0.02)


@pytest.fixture(name="memory")
def memory_fixture() -> MemoryStore:
    return MemoryStore(folder_pages=False)
