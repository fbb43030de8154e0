from __future__ import annotations

from tests.unit.ci.conftest import common, outputs, publish, record_of, store

__all__ = ["common", "outputs", "publish", "record_of", "store"]
