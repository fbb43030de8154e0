"""How much of the machine's memory was in use while a build ran: what decides how many jobs it can take."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMINFO = Path("/proc/meminfo")
MOST_SAMPLES = 100
_PERIOD = 1.0  # seconds between two looks, doubled whenever there are too many of them
_KIB = 1024
_FIELD = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", re.MULTILINE)


class Samples:
    """Memory in use, looked at from time to time; at most `MOST_SAMPLES` of them, evenly spread."""

    def __init__(self) -> None:
        self.total = 0
        self.peak = 0
        self.period = _PERIOD
        self._sums: list[int] = []

    def add(self, used: int, total: int) -> None:
        """Take a look's result, in bytes."""
        self.total, self.peak = total, max(self.peak, used)
        self._sums.append(used)
        if len(self._sums) >= 2 * MOST_SAMPLES:
            # the higher of two, because peaks are what is asked for
            self._sums = [max(pair) for pair in zip(self._sums[::2], self._sums[1::2], strict=True)]
            self.period *= 2

    @property
    def details(self) -> dict[str, Any] | None:
        """What a record keeps as ``details.memory``; None where nothing was seen."""
        if not self._sums:
            return None
        used = self._sums
        if len(used) > MOST_SAMPLES:
            used = [max(used[at : at + 2]) for at in range(0, len(used), 2)]
        return {"peak": self.peak, "total": self.total, "used": used}


def memory_use(text: str) -> tuple[int, int] | None:
    """Read ``/proc/meminfo``: bytes in use and bytes there are; None where it does not say."""
    said = {name: int(count) * _KIB for name, count in _FIELD.findall(text)}
    if said.keys() != {"MemTotal", "MemAvailable"}:
        return None
    return said["MemTotal"] - said["MemAvailable"], said["MemTotal"]


@contextmanager
def watched(meminfo: Path = MEMINFO) -> Iterator[Samples]:
    """Look at the machine's memory while the block runs; where it cannot be seen, there are no samples."""
    samples, ended = Samples(), threading.Event()

    def look() -> bool:
        try:
            found = memory_use(meminfo.read_text(encoding="ascii", errors="replace"))
        except OSError:
            return False
        if found is not None:
            samples.add(*found)
        return found is not None

    def look_on() -> None:
        while not ended.wait(samples.period) and look():
            pass

    look()  # so that the shortest build is seen
    thread = threading.Thread(target=look_on, name="memory", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
