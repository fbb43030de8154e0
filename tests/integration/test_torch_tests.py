"""test_torch on the sample, in a clone of this checkout: real nox, real installers, real pytest."""

import os
import shutil
import signal
import subprocess  # noqa: TID251 - a run is interrupted here, which the door for processes cannot do
import sys
import time
from pathlib import Path

import pytest

from core.process import Completed
from tests.kit.clones import TAG, Clone, printed_by

CPU = ("--torch-ref", "sample", "--gpu-family", "cpu")

# beside the sample's own files, in the user's tree
LONG = """
import os, pathlib, subprocess, sys, time

def test_long():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
"""


def run_tests(clone: Clone, *words: str | Path) -> Completed:
    return clone.nox("-s", "test_torch", "--", *CPU, *words)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    made = Clone.create(tmp_path_factory.mktemp("torch-tests") / "checkout")
    made.run_checked("nox", "-s", "build_torch", "index", "--", *CPU)
    return made


@pytest.fixture(scope="module")
def tree(clone: Clone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the tree that the first run checked out, and put bad tests into it."""
    source = clone.path / "src" / "sample" / "torch-tests"
    if not source.is_dir():
        assert run_tests(clone).returncode == 0
    made = tmp_path_factory.mktemp("mine") / "pytorch"
    shutil.copytree(source, made, symlinks=True)
    (made / "test" / "test_long.py").write_text(LONG)
    return made


def test_the_samples_own_tests_pass_on_its_wheel(clone: Clone) -> None:
    done = run_tests(clone)
    assert done.returncode == 0, printed_by(done)[-4000:]
    record = clone.record(f"test_torch-sample-{TAG}", "cpu")
    built = clone.record(f"build_torch-sample-{TAG}", "cpu")["files"][0]
    assert record["inputs"]["files"] == {built["name"]: built["sha256"]}
    assert record["details"]["tests"]["tests"] > 10
    assert record["details"]["tests"]["failures"] == record["details"]["tests"]["errors"] == 0
    assert record["inputs"]["tests"]["commit"] == clone.locked_projects()["torch"]["commit"]
    assert not list((clone.path / "src").rglob("__pycache__")), "byte code is shared outside of trees"
    assert "test_torch: unchanged, nothing to do" in printed_by(run_tests(clone))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


def test_ctrl_c_leaves_no_process_behind(clone: Clone, tree: Path) -> None:
    told = tree / "test" / "pids"
    words = ("-s", "test_torch", "--", *CPU, "--pytorch-dir", tree, "--include", "test_long")
    with subprocess.Popen(
        [sys.executable, "-m", "nox", *words],
        cwd=clone.path,
        env=clone.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        end = time.monotonic() + 180
        while not (told.is_file() and told.read_text()) and time.monotonic() < end:
            time.sleep(0.1)
        # as a terminal does: to every process of the group
        os.killpg(running.pid, signal.SIGINT)
        printed = running.communicate(timeout=120)[0]
    assert running.returncode != 0, printed
    pids = [int(word) for word in told.read_text().split()]
    end = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [pid for pid in pids if alive(pid)]
    assert clone.record(f"test_torch-sample-{TAG}.failed", "cpu")["exit_code"] == 130
