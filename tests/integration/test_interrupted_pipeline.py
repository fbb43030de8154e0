"""The sample's builds and tests, interrupted by people and servers: records say so, and nothing runs on."""

import os
import shutil
import signal
import subprocess  # noqa: TID251 - to be interrupted, which the door for processes cannot do
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from core.errors import InterruptedStageError
from tests.kit.clones import TAG, Clone

# Of every change test_stops.py holds two stops, and a quick test of the front door that each signal ends it.
pytestmark = pytest.mark.nightly

SAMPLE = ("--torch-ref", "sample")
CPU = ("--torch-ref=sample", "--gpu-family=cpu")
BUILD_RECORD = f"build_torch-sample-{TAG}"
TEST_RECORD = f"test_torch-sample-{TAG}"


@pytest.fixture(scope="module")
def cpu_torch(clone: Clone) -> None:
    """Build torch for family cpu."""
    clone.run_checked("nox", "-s", "build_torch", "--", *CPU)


def press_ctrl_c(running: subprocess.Popen[str]) -> None:
    """Interrupt as a terminal does: every process of the group."""
    os.killpg(running.pid, signal.SIGINT)


def cancel_group(running: subprocess.Popen[str]) -> None:
    """End as some servers do, so that compilers end by themselves."""
    os.killpg(running.pid, signal.SIGTERM)


def cancel_job(running: subprocess.Popen[str]) -> None:
    """End the front door alone."""
    running.terminate()


def start(clone: Clone, command: Sequence[str | Path]) -> subprocess.Popen[str]:
    """Start a module in the clone, as the head of a process group that can be interrupted."""
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=clone.path,
        env=clone.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def interrupt_while_building(
    clone: Clone,
    command: Sequence[str | Path],
    interrupt: Callable[[subprocess.Popen[str]], None],
) -> tuple[int, str]:
    """Start a build and interrupt it once it compiles; return its status and what it printed."""
    running = start(clone, command)
    watchdog = threading.Timer(120, running.kill)
    watchdog.start()
    assert running.stdout is not None

    lines = []
    for line in running.stdout:
        lines.append(line)
        if line.startswith("+ ") and "-m build --wheel" in line:
            interrupt(running)

    exit_code = running.wait()
    running.stdout.close()
    watchdog.cancel()
    return exit_code, "".join(lines)


def require_recorded_interruption(clone: Clone, printed: str) -> None:
    """Require that a build of torch for family cpu said that it was interrupted, and left a record of it."""
    assert "Traceback" not in printed
    assert "interrupted" in printed.lower(), printed
    failed_record = clone.record(f"{BUILD_RECORD}.failed", "cpu")
    assert failed_record["status"] == "failed"
    assert failed_record["exit_code"] == InterruptedStageError.exit_code


def require_complete_build(clone: Clone) -> None:
    """Require that the last build of torch for family cpu succeeded."""
    assert clone.record(BUILD_RECORD, "cpu")["status"] == "ok"
    assert not clone.manifest(f"{BUILD_RECORD}.failed", "cpu").exists()


@pytest.mark.usefixtures("cpu_torch")
def test_records_an_interrupted_build_and_completes_the_next(clone: Clone) -> None:
    command = ("nox", "-s", "build_torch", "--", *CPU, "--force", "--clean")

    exit_code, printed = interrupt_while_building(clone, command, press_ctrl_c)

    # nox itself ends with a status of its own.
    assert exit_code != 0, printed
    require_recorded_interruption(clone, printed)

    # The wheel of before is there, so that a build has to be forced.
    clone.run_checked("nox", "-s", "build_torch", "--", *CPU, "--force")
    require_complete_build(clone)


@pytest.mark.usefixtures("cpu_torch")
@pytest.mark.parametrize("cancel", [cancel_job, cancel_group])
def test_records_a_cancelled_build_and_completes_the_next(
    clone: Clone, cancel: Callable[[subprocess.Popen[str]], None]
) -> None:
    # A supervisor signals the front door itself.
    python = clone.path / ".nox" / "build_torch" / "bin" / "python"
    options = (*CPU, "--force", "--clean", f"--python={python}")
    command = ("pytorch_build", "build", "torch", *options)

    exit_code, printed = interrupt_while_building(clone, command, cancel)

    assert exit_code == InterruptedStageError.exit_code, printed
    require_recorded_interruption(clone, printed)

    clone.run_checked("nox", "-s", "build_torch", "--", *CPU)
    require_complete_build(clone)


# A test that waits, beside the sample's own files in the user's tree, with a process out of its group.
LONG_TEST = """
import os, pathlib, subprocess, sys, time

def test_long():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that is dead and waited for by nobody does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (ProcessLookupError, FileNotFoundError):
        return False
    # The state follows the program's name, which may have spaces and brackets.
    state = status.rpartition(")")[2].split()[0]
    return state != "Z"


def wait_until(condition: Callable[[], bool], *, seconds: float) -> None:
    """Wait for a condition, at most for some seconds."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)


def test_interrupted_tests_leave_no_process_behind(clone: Clone, tmp_path: Path) -> None:
    tree = tmp_path / "pytorch"
    shutil.copytree(clone.path / "src" / "sample" / "torch-tests", tree, symlinks=True)
    (tree / "test" / "test_long.py").write_text(LONG_TEST)
    pids_file = tree / "test" / "pids"
    options = (*SAMPLE, "--pytorch-dir", tree, "--include", "test_long")

    def has_begun() -> bool:
        return pids_file.is_file() and pids_file.read_text() != ""

    def is_any_alive() -> bool:
        return any(is_alive(int(pid)) for pid in pids_file.read_text().split())

    with start(clone, ("nox", "-s", "test_torch", "--", *options)) as running:
        wait_until(has_begun, seconds=180)
        press_ctrl_c(running)
        printed = running.communicate(timeout=120)[0]

    assert running.returncode != 0, printed
    wait_until(lambda: not is_any_alive(), seconds=20)
    assert not is_any_alive()
    failed_record = clone.record(f"{TEST_RECORD}.failed")
    assert failed_record["exit_code"] == InterruptedStageError.exit_code
