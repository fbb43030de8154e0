"""A miniature ROCm: artifacts of the real layout, compiled from a few small sources.

`ensure_artifacts` makes an artifact directory as a ROCm build leaves it, so that packaging,
PyTorch builds and their checks run against real ELF files on any machine with a C++ compiler.
"""

from __future__ import annotations

from rocm_packaging.sample.artifacts import ensure_artifacts
from rocm_packaging.sample.layout import FAMILIES, ROCM_VERSION

__all__ = ["FAMILIES", "ROCM_VERSION", "ensure_artifacts"]
