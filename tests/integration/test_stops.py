"""Stops at any moment, of flows and of sessions: nothing runs on, nothing stays, the next run completes.

A stop comes with a line of the output, so that it does not depend on how fast the machine is. `DRAWN_STOPS`
are drawn, which the nightly tests run; the quick ones are those that once went wrong.
"""

import os
import random
import re
import signal
import subprocess  # noqa: TID251 - to be stopped
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from core import files, process, temporary
from core.process import linux
from tests.kit import sample
from tests.kit.clones import Clone
from tests.kit.sample import SampleRun

# The command that completes what stops have left, and whose output says how many lines there are.
PIPELINE = ("invoke", "ci", "--torch-ref", "sample")
RELEASE = ("invoke", "release", "--type", "rehearsal", "--torch-ref", "sample", "--gpu-family", "cpu")
SESSIONS = (
    "build_rocm",
    "build_triton",
    "build_torch",
    "build_audio",
    "check_wheels",
    "test_smoke",
    "upload",
    "index",
)

DRAWN_STOPS = 200
STOPS_OF_A_TEST = 10
MOST_LINES = 60

# The last line of a session that ends by itself.
SAYS_ITS_END = re.compile(r"^nox > Session \S+ (?:was successful|failed)", re.MULTILINE)

# Generous, as machines of CI are shared.
LONG = 180.0


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A command, and the line of its output at which a signal stops it."""

    command: tuple[str, ...]
    line: int
    number: signal.Signals
    is_group: bool

    def __str__(self) -> str:
        target = "group" if self.is_group else "process"
        return f"{self.number.name} to the {target} of {' '.join(self.command)} at line {self.line}"


def of_session(name: str) -> tuple[str, ...]:
    """Return the command that does a session's work again."""
    return ("nox", "-s", name, "--", "--torch-ref", "sample", "--force")


# What once went wrong: a flow that died alone, a wheel that was half written;
QUICK_STOPS = (
    Stop(command=(*PIPELINE, "--force"), line=8, number=signal.SIGTERM, is_group=False),
    Stop(command=of_session("build_torch"), line=4, number=signal.SIGKILL, is_group=True),
)
# a flow that went on, one whose sessions outlived it, a session that nox left running, packages half written.
OTHER_STOPS = (
    Stop(command=(*PIPELINE, "--force"), line=12, number=signal.SIGINT, is_group=False),
    Stop(command=(*PIPELINE, "--force"), line=10, number=signal.SIGKILL, is_group=False),
    Stop(command=of_session("build_torch"), line=4, number=signal.SIGTERM, is_group=False),
    Stop(command=of_session("build_rocm"), line=1, number=signal.SIGKILL, is_group=True),
)


def draw_stop(seed: int) -> Stop:
    """Draw a stop: a fifth of them of flows, which take longest."""
    draw = random.Random(seed)  # noqa: S311 - the same stops each time
    flows = [(*PIPELINE, "--force"), (*RELEASE, "--force")]
    is_flow = draw.random() < 0.2
    command = draw.choice(flows) if is_flow else of_session(draw.choice(SESSIONS))
    return Stop(
        command=command,
        line=draw.randint(1, MOST_LINES if is_flow else 8),
        number=draw.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]),
        is_group=draw.random() < 0.5,
    )


def draw_batch(start: int) -> Sequence[Stop]:
    """Return as many of the drawn stops as one completing run follows."""
    return [draw_stop(seed) for seed in range(start, start + STOPS_OF_A_TEST)]


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """The clone in which the sample's pipeline ran, and a folder for temporary files."""

    clone: Clone
    temporary: Path

    def variables(self, mark: str) -> dict[str, str]:
        """Return the variables of a command, with a mark that all of its processes inherit."""
        return self.clone.variables(TMPDIR=str(self.temporary), SUPERVISED_BY=mark, NOX_CURRENT_SESSION=None)

    @property
    def log(self) -> Path:
        """Return the file with the output of the command that ran last."""
        return self.temporary.parent / "log"

    def stop(self, stop: Stop, mark: str) -> int | None:
        """Run a command and stop it at its line; return its status, or None where it ended before."""
        with self.log.open("wb") as stream:
            running = subprocess.Popen(
                [sys.executable, "-m", *stop.command],
                cwd=self.clone.path,
                env=self.variables(mark),
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while self.log.read_bytes().count(b"\n") < stop.line and running.poll() is None:
            time.sleep(0.01)
        if running.poll() is not None:
            return None

        if stop.is_group:
            os.killpg(running.pid, stop.number)
        else:
            running.send_signal(stop.number)
        return running.wait(timeout=LONG)

    def processes(self, mark: str) -> dict[int, str]:
        """Return the processes that a command has started and that still run, or that work in the clone."""
        found: dict[int, str] = {}
        for path in Path("/proc").glob("[0-9]*"):
            process_id = int(path.name)
            if linux.is_running(process_id) and (mark in linux.marks_of(process_id) or self.holds(path)):
                found[process_id] = linux.name_of(process_id)
        return found

    def holds(self, process_folder: Path) -> bool:
        """Return whether a process works in the clone."""
        try:
            return (process_folder / "cwd").resolve().is_relative_to(self.clone.path)
        except OSError:
            return False

    def wheels(self) -> dict[str, str]:
        """Return the SHA-256 of the run's wheels by name."""
        return {path.name: files.sha256(path) for path in self.clone.wheels().glob("*.whl")}

    def leftovers(self) -> list[str]:
        """Return the temporary folders that are left, in the clone and among the system's."""
        folders = [path for name in sample.STATE for path in (self.clone.path / name).rglob(".*.part")]
        folders += self.temporary.glob(".*.part")
        folders += temporary.leftovers(self.clone.path / ".cache")
        return [str(path) for path in folders]


@pytest.fixture
def workshop(sample_run: SampleRun, tmp_path: Path) -> Iterator[Workshop]:
    with sample.lend_workshop(sample_run) as path:
        yield Workshop(clone=Clone(path=path), temporary=files.ensure_folder(tmp_path / "temporary"))


def hold_stops(workshop: Workshop, stops: Sequence[Stop]) -> None:
    """Stop commands one after another; require that nothing runs after each, and that a run completes all."""
    undisturbed_wheels = workshop.wheels()
    assert undisturbed_wheels

    for number, stop in enumerate(stops):
        mark = f"stop-{os.getpid()}-{number}"
        status = workshop.stop(stop, mark)
        output = workshop.log.read_text(errors="replace")
        # What was done ends with 0.
        expected = {None, 0}
        if stop.number == signal.SIGKILL:
            expected.add(-signal.SIGKILL)
        else:
            # A flow and a session end with 130, as a shell counts it: Python ends itself by SIGINT where the
            # stop came while it ran a text, as the making of a dataclass does.
            expected |= {130, -signal.SIGINT}
        # Python gives signals back to the system before a process ends, when all has been done and said.
        if SAYS_ITS_END.search(output):
            expected.add(-stop.number)
        assert status in expected, f"{stop}: {status}\n{output[-2000:]}"
        end = time.monotonic() + LONG
        while (left := workshop.processes(mark)) and time.monotonic() < end:
            time.sleep(0.1)
        assert not left, f"{stop}: {left}"

    completing = process.capture(
        [sys.executable, "-m", *PIPELINE],
        cwd=workshop.clone.path,
        env=workshop.variables("completing"),
        check=False,
    )
    assert completing.returncode == 0, (completing.stdout + completing.stderr)[-4000:]
    assert workshop.wheels() == undisturbed_wheels
    assert workshop.leftovers() == []


@pytest.mark.parametrize(
    "stops",
    [
        pytest.param(QUICK_STOPS, id="two"),
        pytest.param(OTHER_STOPS, marks=pytest.mark.nightly, id="the others"),
    ],
)
def test_stops_that_once_went_wrong_leave_nothing(workshop: Workshop, stops: Sequence[Stop]) -> None:
    hold_stops(workshop, stops)


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(0, DRAWN_STOPS, STOPS_OF_A_TEST))
def test_drawn_stops_leave_nothing(workshop: Workshop, start: int) -> None:
    hold_stops(workshop, draw_batch(start))
