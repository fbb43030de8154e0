"""The matrices of CI and of releases, as `matrix.toml` and files of downstreams have them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from core.data import Model
from core.run.outputs import Platform  # noqa: TC001 - pydantic reads it

MATRIX_FILE = Path(__file__).parents[1] / "matrix.toml"


class Exclusion(Model):
    """Cells that GPU families do not have on a platform; a key that is left out stands for all."""

    gpu_families: tuple[str, ...] = Field(min_length=1)
    platform: Platform
    torch_refs: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    reason: str = Field(min_length=1)

    def covers(self, gpu_family: str, platform: str, torch_ref: str, python: str) -> bool:
        """Say whether a cell is one of these."""
        return (
            (gpu_family in self.gpu_families and platform == self.platform)
            and (not self.torch_refs or torch_ref in self.torch_refs)
            and (not self.pythons or python in self.pythons)
        )


class Matrix(Model):
    """One table of the matrix file: a product of Pythons, refs and families."""

    pythons: tuple[str, ...] = Field(min_length=1)
    torch_refs: tuple[str, ...] = Field(min_length=1)
    tool_pythons: tuple[str, ...] = Field(min_length=1)
    tier: Literal["presubmit", "postsubmit", "nightly"] | None = None
    gpu_families: dict[Platform, tuple[str, ...]] = Field(default_factory=dict)
    test_type: Literal["quick", "standard", "comprehensive", "full"] = "quick"
    exclude: tuple[Exclusion, ...] = ()


class MatrixFile(Model):
    """The embedded matrices."""

    ci: Matrix
    release: Matrix
