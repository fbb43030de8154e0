"""The tool under a Windows Python, which Wine runs: environments of sessions, pipes, flows, unit tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.kit.clones import ROOT, printed_by
from tests.kit.sample import clone_repository
from tests.kit.windows_python import WindowsPython, windows_python

if TYPE_CHECKING:
    from pathlib import Path

    from core.process import Completed

__all__ = ["windows_python"]

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

# Those of code that is Windows' own, or meets its files, its streams and its processes most.
UNIT_TESTS = (
    "tests/unit/core/process",
    "tests/unit/core/cli/test_sessions.py",
    "tests/unit/core/test_console.py",
    "tests/unit/core/test_files.py",
    "tests/unit/core/test_host_path.py",
    "tests/unit/core/test_shell.py",
    "tests/unit/core/test_temporary.py",
)


@dataclass(frozen=True, kw_only=True)
class WindowsClone:
    """A clone of this checkout, on the drive of a Windows."""

    windows: WindowsPython
    path: Path

    def run(self, *words: str) -> Completed:
        """Run a module of Windows' Python in the clone."""
        python = self.windows.drive / "py" / "python.exe"
        return self.windows.run(python, "-m", *words, cwd=self.path, check=False)


@pytest.fixture(scope="module")
def clone(windows_python: WindowsPython, tmp_path_factory: pytest.TempPathFactory) -> WindowsClone:
    """Return a clone of this checkout."""
    path = tmp_path_factory.mktemp("windows") / "clone"
    clone_repository(ROOT, path)
    return WindowsClone(windows=windows_python, path=path)


def test_a_session_finds_the_interpreter_of_its_environment(clone: WindowsClone) -> None:
    (clone.path / "empty").mkdir()

    completed = clone.run("nox", "-s", "install_rocm", "--", "--rocm-find-links", "empty")

    # There are no packages of ROCm, which are looked for with the environment's Python.
    assert (clone.path / ".nox" / "install_rocm" / "Scripts" / "python.exe").is_file()
    assert "No virtual environment" not in printed_by(completed)
    assert "rocm" in completed.stderr
    # In the letters of a pipe and the quotes of cmd.exe.
    assert "\N{REPLACEMENT CHARACTER}" not in printed_by(completed)
    assert "\\u2" not in printed_by(completed)


def test_passes_the_unit_tests_of_what_is_windows_own(clone: WindowsClone) -> None:
    options = ["-m", "processes or not processes", "--numprocesses=0", "--timeout=300"]

    completed = clone.run("nox", "-s", "tests", "--", *options, *UNIT_TESTS)

    assert completed.returncode == 0, printed_by(completed)[-6000:]
