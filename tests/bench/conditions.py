"""The machine, and what else it does while figures are taken (Linux)."""

import datetime as dt
import os
import platform
import re
import time
from pathlib import Path

PROCESSOR = re.compile(r"^model name\s*: (.*)$", re.MULTILINE)


class Conditions:
    """What the machine does from now on."""

    def __init__(self) -> None:
        self.cores = os.cpu_count() or 1
        self.load_before = os.getloadavg()[0]
        self._start = time.monotonic()
        self._other_seconds = _cpu_seconds_of_others()

    def cores_of_others(self) -> float:
        """Return how many cores other work has taken since the beginning."""
        other_seconds = _cpu_seconds_of_others() - self._other_seconds
        elapsed_seconds = time.monotonic() - self._start
        return max(other_seconds / elapsed_seconds, 0.0)

    def describe(self, *, runs: int, cores_of_others: float) -> str:
        """Return when, where and how figures were taken, as the page says it."""
        today = dt.datetime.now(dt.UTC)
        load_after = os.getloadavg()[0]
        repetition = f"medians of {runs} runs in turn (least to most)" if runs > 1 else "once each"
        return (
            f"{today.day} {today:%B %Y}, {self.cores} cores ({_processor()}), "
            f"Python {platform.python_version()}; "
            f"load {self.load_before:.1f} before, {load_after:.1f} after, "
            f"other work took {cores_of_others:.1f} cores; {repetition}."
        )


def _cpu_seconds_of_others() -> float:
    """Return the seconds that processors gave to all but this process and its children so far."""
    fields = Path("/proc/stat").read_text("ascii").split()
    user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, fields[1:9])
    ticks = user + nice + system + sum(interrupts_and_stolen)
    seconds_of_all = ticks / os.sysconf("SC_CLK_TCK")

    usage = os.times()
    own_seconds = usage.user + usage.system + usage.children_user + usage.children_system
    return seconds_of_all - own_seconds


def _processor() -> str:
    model = PROCESSOR.search(Path("/proc/cpuinfo").read_text("utf-8"))
    return model[1] if model else platform.machine()
