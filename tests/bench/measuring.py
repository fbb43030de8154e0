"""How figures are taken: two actions in turn, medians, their ratio."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from core import process
from core.cli.options import ROOT

RUNS = 5


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: a subject's median seconds and a baseline's, and their ratio."""

    subject: str
    baseline: str
    times: tuple[float, float]
    note: str = ""

    @property
    def row(self) -> tuple[str, str, str, str, str, str]:
        """The figure's row of the table."""
        ours, theirs = self.times
        return (
            self.subject,
            f"{ours:.2f}",
            self.baseline,
            f"{theirs:.2f}",
            f"{ours / theirs:.2f}",
            self.note,
        )


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder on the disk that the checkout is on: /tmp may be memory."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache") as folder:
        yield Path(folder)


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
