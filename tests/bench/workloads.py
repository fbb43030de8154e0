"""How samples are taken: each workload in a process of its own, all of them in turn."""

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from core import console, process
from core.cli.options import ROOT
from core.errors import CheckError
from tests.bench.comparisons import Measurement, Sample

Command = Sequence[str | Path]
TIMER = Path(__file__).with_name("timer.py")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A program or a call that is timed.

    Attributes:
        name: What the first column of the table calls it.
        action: The program's command, or the call. A call runs in a fork of this process, so that the start
            of an interpreter does not count.
        note: What the last column says of it: goals, mostly.
        folder: Where a program runs.
        variables: What differs from this process's environment; None removes a variable.
        prepare: Called before each run, and not timed.
        scale: What seconds are multiplied by, for a workload that does only a part of what it stands for.
    """

    name: str
    action: Command | Callable[[], object]
    note: str = ""
    folder: Path = ROOT
    variables: Mapping[str, str | None] = field(default_factory=dict)
    prepare: Callable[[], object] | None = None
    scale: int = 1

    def take_sample(self) -> Sample:
        """Return what one run takes."""
        if self.prepare is not None:
            self.prepare()

        sample = self._time_action()
        console.say(f"  {self.name}: {sample.wall:.2f} s, CPU {sample.cpu:.2f} s")

        return Sample(
            wall=sample.wall * self.scale,
            cpu=sample.cpu * self.scale,
            memory=sample.memory,
        )

    def _time_action(self) -> Sample:
        if callable(self.action):
            return _time_call(self.action)
        return self._time_program(self.action)

    def _time_program(self, command: Command) -> Sample:
        # Python's files are compiled once, as in users' checkouts
        environment = process.inherited(**{"PYTHONDONTWRITEBYTECODE": None, **self.variables})
        timed_command = [sys.executable, "-IS", TIMER, *command]
        completed = process.capture(timed_command, cwd=self.folder, env=environment)

        usage = json.loads(completed.stdout)
        return Sample(wall=usage["wall"], cpu=usage["cpu"], memory=usage["memory"])


def _time_call(call: Callable[[], object]) -> Sample:
    start = time.perf_counter()
    child = os.fork()  # noqa: TID251 - measured without the start of an interpreter
    if child == 0:
        try:
            call()
        except BaseException:  # noqa: BLE001 - a fork ends here, whatever happens
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    _, status, usage = os.wait4(child, 0)
    if status != 0:
        raise CheckError("What was to be measured failed.")

    # its memory would be that of this process, too
    return Sample(wall=time.perf_counter() - start, cpu=usage.ru_utime + usage.ru_stime)


def measure_in_turn(workloads: Sequence[Workload], *, runs: int, warm_up: bool = True) -> list[Measurement]:
    """Return the measurements of workloads that take turns, after one run that does not count."""
    return measure_rounds(lambda: workloads, runs=runs, warm_up=warm_up)


def measure_rounds(
    new_workloads: Callable[[], Sequence[Workload]], *, runs: int, warm_up: bool = True
) -> list[Measurement]:
    """Return the measurements of workloads that take turns and are made anew for each round."""
    if warm_up:
        for workload in new_workloads():
            workload.take_sample()

    workloads: Sequence[Workload] = []
    rounds: list[list[Sample]] = []
    for _ in range(runs):
        workloads = new_workloads()
        rounds.append([workload.take_sample() for workload in workloads])

    measurements: list[Measurement] = []
    for position, workload in enumerate(workloads):
        samples = [samples_of_round[position] for samples_of_round in rounds]
        measurements.append(Measurement(name=workload.name, samples=samples, note=workload.note))
    return measurements


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder on the disk that the checkout is on: /tmp may be memory."""
    cache = ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        yield Path(folder)


def remove(*paths: Path) -> None:
    """Remove files and folders, where they exist."""
    process.capture(["rm", "-rf", *paths])
