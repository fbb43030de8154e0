"""The tool under a Windows Python, which Wine runs: a session's environment, its output, unit tests."""

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

# The tests of code that is for Windows alone, or that meets its files, its streams and its processes most.
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

    def nox(self, session: str, *arguments: str) -> Completed:
        """Run a session of nox with Windows' Python in the clone."""
        python = self.windows.drive / "py" / "python.exe"
        nox = ("-m", "nox", "-s", session, "--", *arguments)
        return self.windows.run(python, *nox, cwd=self.path, check=False)


@pytest.fixture(scope="module")
def clone(windows_python: WindowsPython, tmp_path_factory: pytest.TempPathFactory) -> WindowsClone:
    """Return a clone of this checkout."""
    path = tmp_path_factory.mktemp("windows") / "clone"
    clone_repository(ROOT, path)
    return WindowsClone(windows=windows_python, path=path)


def test_a_session_finds_the_interpreter_of_its_environment(clone: WindowsClone) -> None:
    (clone.path / "empty").mkdir()

    completed = clone.nox("install_rocm", "--rocm-find-links", "empty")

    # The session fails, as the folder has no packages of ROCm; the environment's Python has looked for them.
    assert (clone.path / ".nox" / "install_rocm" / "Scripts" / "python.exe").is_file()
    assert "No virtual environment" not in printed_by(completed)
    assert "rocm" in completed.stderr
    # All that was printed is in the pipe's encoding: no character was replaced or escaped.
    assert "\N{REPLACEMENT CHARACTER}" not in printed_by(completed)
    assert "\\u2" not in printed_by(completed)


def test_unit_tests_pass_on_windows(clone: WindowsClone) -> None:
    # With processes and without, unlike by default.
    options = ("-m", "processes or not processes", "--numprocesses=0", "--timeout=300")

    completed = clone.nox("tests", *options, *UNIT_TESTS)

    assert completed.returncode == 0, printed_by(completed)[-6000:]
