"""What was measured, and how the documentation shows it."""

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from core.errors import DataError
from docs.markdown import table

COLUMNS = ("", "wall, s", "CPU, s", "MiB", "ratio by wall", "by CPU", "")
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one run took.

    Attributes:
        wall: Seconds of the clock.
        cpu: Seconds of processors, those of child processes, too.
        memory: Bytes of the largest process; None where nothing can tell.
    """

    wall: float
    cpu: float
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The samples of a workload."""

    name: str
    samples: Sequence[Sample]
    note: str = ""

    @property
    def walls(self) -> list[float]:
        """Return the seconds of the clock, run by run."""
        return [sample.wall for sample in self.samples]

    @property
    def cpus(self) -> list[float]:
        """Return the seconds of processors, run by run."""
        return [sample.cpu for sample in self.samples]

    def cells(self) -> tuple[str, str, str]:
        """Return what the table says of its times and its memory."""
        memory = [sample.memory for sample in self.samples if sample.memory is not None]
        mib = f"{max(memory) / MIB:.0f}" if memory else ""
        return format_spread(self.walls), format_spread(self.cpus), mib


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A measurement of ours, and those of the baselines that took turns with it."""

    subject: Measurement
    baselines: Sequence[Measurement] = ()
    note: str = ""

    def rows(self, *, busy: bool) -> Iterator[tuple[str, ...]]:
        """Yield the rows of the table. The ratio that counts is bold: on a busy machine, that by CPU."""
        notes = [note for note in (self.note, self.subject.note) if note]
        yield (f"**{self.subject.name}**", *self.subject.cells(), "", "", "; ".join(notes))

        for baseline in self.baselines:
            wall_ratio = format_ratio(self.subject.walls, baseline.walls)
            cpu_ratio = format_ratio(self.subject.cpus, baseline.cpus)
            if busy:
                cpu_ratio = f"**{cpu_ratio}**"
            else:
                wall_ratio = f"**{wall_ratio}**"
            yield (baseline.name, *baseline.cells(), wall_ratio, cpu_ratio, baseline.note)


def format_spread(seconds: Sequence[float]) -> str:
    """Return the median, with the least and the most where there are several."""
    digits = 2 if max(seconds) < 10 else 1
    median = f"{statistics.median(seconds):.{digits}f}"
    if len(seconds) == 1:
        return median
    return f"{median} ({min(seconds):.{digits}f} to {max(seconds):.{digits}f})"


def format_ratio(our_seconds: Sequence[float], their_seconds: Sequence[float]) -> str:
    """Return the ratio of the medians: below 1, ours is faster."""
    ratio = statistics.median(our_seconds) / statistics.median(their_seconds)
    return f"{ratio:.2f}"


def replace_table(page: str, part: str, rows: Sequence[Sequence[str]], circumstances: str) -> str:
    """Return a page with a part's table, and the line that says how it was measured, in place of the old.

    Raises:
        DataError: The page has no place for the part.
    """
    first_mark = f"<!-- bench: {part} -->"
    last_mark = "<!-- end -->"
    pattern = re.compile(f"({re.escape(first_mark)}\n).*?({last_mark})", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise DataError(
            f"The page has no place for {part}.",
            hint=f"{first_mark} begins it, {last_mark} ends it.",
        )

    lines = ["", *table(COLUMNS, rows), "", circumstances, "", ""]
    text = "\n".join(lines)
    return pattern.sub(lambda match: f"{match[1]}{text}{match[2]}", page)
