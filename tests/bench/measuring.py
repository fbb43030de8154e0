"""How figures are taken: two actions in turn, medians, their ratio."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core import process
from core.cli.options import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

RUNS = 5


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: a subject's median seconds, a baseline's, and their ratio."""

    subject: str
    baseline: str
    seconds: float
    baseline_seconds: float
    note: str = ""

    @property
    def row(self) -> tuple[str, str, str, str, str, str]:
        """The figure's row of the table."""
        ratio = self.seconds / self.baseline_seconds
        return (
            self.subject,
            f"{self.seconds:.2f}",
            self.baseline,
            f"{self.baseline_seconds:.2f}",
            f"{ratio:.2f}",
            self.note,
        )


def paired(
    subject: Callable[[], object], baseline: Callable[[], object], *, runs: int = RUNS
) -> tuple[float, float]:
    """Run both in turn after a warm-up, and give the medians, so that a machine's drift hits both."""
    subject(), baseline()
    times = [(seconds(subject), seconds(baseline)) for _ in range(runs)]
    return statistics.median(one[0] for one in times), statistics.median(one[1] for one in times)


def seconds(action: Callable[[], object]) -> float:
    """Time one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def quiet(argv: Sequence[str], cwd: Path = ROOT) -> None:
    """Run a command for its time alone."""
    process.capture(argv, cwd=cwd)
