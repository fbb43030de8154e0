"""What target environments are made from: locked build requirements, ROCm, our own wheels."""

from __future__ import annotations

from core.target_locks import UNLOCKED, locked_call, pinned_file, target_lock

__all__ = ["SMOKE_REQUIREMENTS", "UNLOCKED", "locked_call", "pinned_file", "target_lock"]

SMOKE_REQUIREMENTS = ("pytest", "setuptools")
