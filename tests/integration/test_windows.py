"""The tool under a Windows Python, which Wine runs: sessions with environments, pipes, cmd.exe, unit tests.

`--windows-python PROGRAM` names a program that runs Windows' Python in the folder where it is called, with
the packages of requirements.txt and a git.exe on its PATH.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core import process
from core.errors import MissingInputError
from tests.kit.clones import ROOT, printed_by
from tests.kit.sample import clone_repository

if TYPE_CHECKING:
    from core.process import Completed

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

# Modules whose code is Windows' own, or meets its files and processes most.
UNIT_TESTS = (
    "tests/unit/core/process",
    "tests/unit/core/test_shell.py",
    "tests/unit/core/test_console.py",
    "tests/unit/core/test_files.py",
    "tests/unit/core/test_temporary.py",
    "tests/unit/core/stores/test_directory.py",
    "tests/unit/test_noxfile.py",
)


@pytest.fixture(scope="module")
def windows_python(request: pytest.FixtureRequest) -> Path:
    """Return the program that runs Windows' Python; tests are skipped where none is named."""
    program: Path | None = request.config.getoption("--windows-python")
    if program is None:
        pytest.skip("--windows-python names no Windows Python")
    return program.resolve()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone of this checkout."""
    path = tmp_path_factory.mktemp("windows") / "clone"
    clone_repository(ROOT, path)
    return path


def run(python: Path, clone: Path, *words: str) -> Completed:
    """Run a module of Windows' Python in the clone."""
    # Tests of the product's streams, so that nothing is chosen for it.
    variables = process.inherited(WENV="GITHUB_ACTIONS=")
    return process.capture([python, "-m", *words], cwd=clone, env=variables, check=False)


def test_a_session_finds_the_interpreter_of_its_environment(windows_python: Path, clone: Path) -> None:
    (clone / "empty").mkdir()

    completed = run(windows_python, clone, "nox", "-s", "install_rocm", "--", "--rocm-find-links", "empty")

    # There are no packages of ROCm; the environment is made before they are looked for.
    printed = printed_by(completed)
    assert (clone / ".nox" / "install_rocm" / "Scripts" / "python.exe").is_file()
    assert "rocm" in printed
    assert "interpreter" not in printed
    assert completed.returncode == MissingInputError.exit_code


def test_writes_utf8_into_pipes(windows_python: Path, clone: Path) -> None:
    program = ["-m", "ci", "configure", "--help"]

    output = process.capture([windows_python, *program], cwd=clone, env=process.inherited()).stdout

    assert "\N{REPLACEMENT CHARACTER}" not in output
    assert "\\u2" not in output


def test_passes_the_unit_tests_of_what_is_windows_own(windows_python: Path, clone: Path) -> None:
    options = ["-m", "processes or not processes", "--numprocesses=0", "--timeout=300"]

    completed = run(windows_python, clone, "nox", "-s", "tests", "--", *options, *UNIT_TESTS)

    assert completed.returncode == 0, printed_by(completed)[-6000:]
