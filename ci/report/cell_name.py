"""What names a cell on a run's page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, order=True)
class CellName:
    """What a stage ran on; "" where it does not apply."""

    group: str = ""
    torch_ref: str = ""
    python: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.group, self.torch_ref, self.python) if part)
