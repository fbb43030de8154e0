"""Test files of upstream's that misbehave or not, and runs of them by the real pytest."""

import sys
from dataclasses import replace
from pathlib import Path

from core import process
from pytorch_build.test import plugin
from pytorch_build.test.file_run import FileResults, FileSettings, run_file
from pytorch_build.test.junit.document import Case
from pytorch_build.test.upstream_tests import LimitsTable, Runner, TestFile
from tests.kit.repos import write_files

FILE = "test/test_it.py"
PASSES = "def test_passes():\n    assert True\n"


def run_settings(folder: Path) -> FileSettings:
    """Return settings for a tree with one empty test file, in the environment of a run."""
    tree = folder / "tree"
    write_files(tree, {"pytest.ini": "[pytest]\naddopts = --capture=sys\n", FILE: ""})
    return FileSettings(
        python=Path(sys.executable),
        tree=tree,
        env=process.inherited(PYTHONPATH=str(plugin.TARGET), PYTEST_ADDOPTS=None),
        folder=folder / "work",
        logs=folder / "logs",
        limits=LimitsTable(test_seconds=60, file_seconds=120, restarts=3, log_megabytes=16),
    )


def with_limits(settings: FileSettings, **changes: float) -> FileSettings:
    """Return settings with other limits."""
    return replace(settings, limits=settings.limits.model_copy(update=changes))


def run_text(
    settings: FileSettings,
    text: str,
    *,
    runner: Runner = "pytest",
    arguments: tuple[str, ...] = (),
    parallel: bool = False,
) -> FileResults:
    """Run a test file of this text."""
    (settings.tree / FILE).write_text(text)
    test_file = TestFile(file=FILE, runner=runner, arguments=arguments, parallel=parallel)
    return run_file(test_file, settings)


def outcomes_of(results: FileResults) -> dict[str, str]:
    """Return the outcomes of a file's tests, by their names; the file itself may have failed, too."""
    return {case.test.removeprefix(f"{FILE}::"): case.outcome for case in results.cases}


def existing_names(results: FileResults) -> set[str]:
    """Return the names of the tests that a file has."""
    assert results.existing is not None
    return {test.removeprefix(f"{FILE}::") for test in results.existing}


def case_named(results: FileResults, name: str) -> Case:
    """Return the result of a test."""
    (case,) = [case for case in results.cases if case.test == f"{FILE}::{name}"]
    return case


def log_of(results: FileResults) -> str:
    """Return what a file's processes printed."""
    return "".join(log.read_text() for log in results.logs)
