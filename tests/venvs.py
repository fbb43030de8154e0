"""Virtual environments that tests install into, on Linux."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Venv:
    """A virtual environment."""

    root: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / "bin" / "python"

    @property
    def site(self) -> Path:
        """Where packages lie."""
        return next((self.root / "lib").glob("python*")) / "site-packages"
