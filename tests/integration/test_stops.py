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
from tests.kit.clones import Clone, printed_by
from tests.kit.sample import SampleRun

# The command that completes what stops have left, and whose output says how many lines there are.
PIPELINE = ("invoke", "ci", "--torch-ref", "sample")
RELEASE = ("invoke", "release", "--type", "rehearsal", "--torch-ref", "sample", "--gpu-family", "cpu")
FORCED_PIPELINE = (*PIPELINE, "--force")
FORCED_RELEASE = (*RELEASE, "--force")
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

# The last lines of their output at which commands are stopped.
LAST_LINE_OF_FLOWS = 60
LAST_LINE_OF_SESSIONS = 8

# The last line of a session that ends by itself.
END_OF_SESSION = re.compile(r"^nox > Session \S+ (?:was successful|failed)", re.MULTILINE)

# Generous, as machines of CI are shared.
TIMEOUT_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A command, and the line of its output at which a signal stops it."""

    command: tuple[str, ...]
    line: int
    signal_number: signal.Signals
    is_sent_to_group: bool

    def __str__(self) -> str:
        receiver = "group" if self.is_sent_to_group else "process"
        return f"{self.signal_number.name} to the {receiver} of {' '.join(self.command)} at line {self.line}"


def session_command(name: str) -> tuple[str, ...]:
    """Return the command that does a session's work again."""
    return ("nox", "-s", name, "--", "--torch-ref", "sample", "--force")


# Stops that once went wrong, each with what happened.
QUICK_STOPS = (
    # The flow died alone.
    Stop(command=FORCED_PIPELINE, line=8, signal_number=signal.SIGTERM, is_sent_to_group=False),
    # A wheel was half written.
    Stop(command=session_command("build_torch"), line=4, signal_number=signal.SIGKILL, is_sent_to_group=True),
)
OTHER_STOPS = (
    # The flow went on.
    Stop(command=FORCED_PIPELINE, line=12, signal_number=signal.SIGINT, is_sent_to_group=False),
    # The flow's sessions outlived it.
    Stop(command=FORCED_PIPELINE, line=10, signal_number=signal.SIGKILL, is_sent_to_group=False),
    # nox left its session running.
    Stop(
        command=session_command("build_torch"), line=4, signal_number=signal.SIGTERM, is_sent_to_group=False
    ),
    # Packages were half written.
    Stop(command=session_command("build_rocm"), line=1, signal_number=signal.SIGKILL, is_sent_to_group=True),
)


def draw_stop(seed: int) -> Stop:
    """Draw a stop: a fifth of them of flows, which take longest."""
    generator = random.Random(seed)  # noqa: S311 - the same stops each time
    if generator.random() < 0.2:
        command = generator.choice([FORCED_PIPELINE, FORCED_RELEASE])
        last_line = LAST_LINE_OF_FLOWS
    else:
        command = session_command(generator.choice(SESSIONS))
        last_line = LAST_LINE_OF_SESSIONS
    return Stop(
        command=command,
        line=generator.randint(1, last_line),
        signal_number=generator.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]),
        is_sent_to_group=generator.random() < 0.5,
    )


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
        """Return the file with the output of the command that was stopped last."""
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

        if stop.is_sent_to_group:
            os.killpg(running.pid, stop.signal_number)
        else:
            running.send_signal(stop.signal_number)
        return running.wait(timeout=TIMEOUT_SECONDS)

    def processes(self, mark: str) -> dict[int, str]:
        """Return the running processes that a command has started, or that work in the clone, with names."""
        names: dict[int, str] = {}
        for process_folder in Path("/proc").glob("[0-9]*"):
            process_id = int(process_folder.name)
            if not linux.is_running(process_id):
                continue
            if mark in linux.marks_of(process_id) or self.is_workplace_of(process_folder):
                names[process_id] = linux.name_of(process_id)
        return names

    def is_workplace_of(self, process_folder: Path) -> bool:
        """Return whether a process, by its folder in /proc, works in the clone."""
        try:
            return (process_folder / "cwd").resolve().is_relative_to(self.clone.path)
        except OSError:
            return False

    def wait_for_processes(self, mark: str) -> dict[int, str]:
        """Wait until no process of a command runs any more; return those that run on all the same."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        processes = self.processes(mark)
        while processes and time.monotonic() < deadline:
            time.sleep(0.1)
            processes = self.processes(mark)
        return processes

    def wheels(self) -> dict[str, str]:
        """Return the SHA-256 of the run's wheels by name."""
        return {path.name: files.sha256(path) for path in self.clone.wheels().glob("*.whl")}

    def leftovers(self) -> list[str]:
        """Return the temporary files and folders that are left, in the clone and among the system's."""
        paths = [*self.temporary.glob(".*.part"), *temporary.leftovers(self.clone.path / ".cache")]
        for name in sample.STATE:
            paths += (self.clone.path / name).rglob(".*.part")
        return [str(path) for path in paths]


@pytest.fixture
def workshop(sample_run: SampleRun, tmp_path: Path) -> Iterator[Workshop]:
    with sample.lend_workshop(sample_run) as path:
        yield Workshop(clone=Clone(path=path), temporary=files.ensure_folder(tmp_path / "temporary"))


def possible_statuses(stop: Stop, output: str) -> set[int | None]:
    """Return the statuses with which a stopped command may end; None is an end before the stop."""
    # A command that has done its work ends with 0.
    statuses: set[int | None] = {None, 0}
    if stop.signal_number == signal.SIGKILL:
        statuses.add(-signal.SIGKILL)
    else:
        # A flow and a session end with 130, as a shell counts it: Python ends itself by SIGINT where the
        # stop came while it ran a text, as the making of a dataclass does.
        statuses |= {130, -signal.SIGINT}
    # Python gives signals back to the system before a process ends, when all has been done and said.
    if END_OF_SESSION.search(output):
        statuses.add(-stop.signal_number)
    return statuses


def check_stops(workshop: Workshop, stops: Sequence[Stop]) -> None:
    """Stop commands one after another; require that nothing runs after each, and that a run completes all."""
    undisturbed_wheels = workshop.wheels()
    assert undisturbed_wheels

    for number, stop in enumerate(stops):
        mark = f"stop-{os.getpid()}-{number}"
        status = workshop.stop(stop, mark)
        output = workshop.log.read_text(errors="replace")
        assert status in possible_statuses(stop, output), f"{stop}: {status}\n{output[-2000:]}"
        processes = workshop.wait_for_processes(mark)
        assert not processes, f"{stop}: {processes}"

    completing = process.capture(
        [sys.executable, "-m", *PIPELINE],
        cwd=workshop.clone.path,
        env=workshop.variables("completing"),
        check=False,
    )
    assert completing.returncode == 0, printed_by(completing)[-4000:]
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
    check_stops(workshop, stops)


@pytest.mark.nightly
@pytest.mark.parametrize("first_seed", range(0, DRAWN_STOPS, STOPS_OF_A_TEST))
def test_drawn_stops_leave_nothing(workshop: Workshop, first_seed: int) -> None:
    stops = [draw_stop(seed) for seed in range(first_seed, first_seed + STOPS_OF_A_TEST)]

    check_stops(workshop, stops)
