"""Collecting upstream's tests, and trying the skipped ones, in an environment that has torch: the thin edge.

A process a file, in the tree's ``test`` folder, as a run of the tests has it.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from core import console, process
from core.errors import CheckError, MissingInputError
from pytorch_build.test import plugin
from pytorch_build.test.plugin import Plan
from pytorch_build.test.skip_review import entries, in_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytorch_build.test.conditions import Decision
    from pytorch_build.test.plugin import PlannedRule, Session

# a whole file; what hangs is one of the reasons for which tests are skipped
SECONDS = 1800.0
_TESTS = "test"
_LAST_LINES = 15


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Where tests are collected or tried."""

    python: Path
    tree: Path
    rules: tuple[PlannedRule, ...]
    gpu: bool = False
    seconds: float = SECONDS


def named_files(tree: Path, decisions: Sequence[Decision]) -> Sequence[str]:
    """List the test files that rules which apply name."""
    folder = tree / _TESTS
    files = sorted(path.relative_to(tree).as_posix() for path in folder.rglob("*.py"))
    if not files:
        raise MissingInputError(
            f"{folder} holds no tests.", hint="Give a PyTorch source tree: --pytorch-dir DIR."
        )
    named = [entry for one in decisions if one.applies for entry in entries(one.rule)]
    found = [file for file in files if any(in_file(entry, file) for entry in named)]
    if not found:
        raise MissingInputError(
            f"No rule that applies names a test file of {tree}.",
            hint="See them all: nox -s skips -- list --all; rules for GPUs need --gpu-family.",
        )
    return found


def sessions(trial: Trial, files: Sequence[str], mode: Literal["collect", "try"]) -> Iterator[Session]:
    """Collect files, or run the tests in them that rules hide."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = folder / "plan.json"
        applied: Literal["apply", "try"] = "apply" if mode == "collect" else "try"
        plugin.write_plan(plan, Plan(root=str(trial.tree), mode=applied, rules=trial.rules))
        for number, file in enumerate(files):
            yield from _file(trial, file, plan, folder / str(number), mode)


def _file(trial: Trial, file: str, plan: Path, folder: Path, mode: str) -> Sequence[Session]:
    journal, log = folder / "journal.jsonl", folder / "log"
    argv: list[str | Path] = [
        trial.python,
        "-m",
        "pytest",
        *plugin.arguments(plan, journal),
        "-p",
        "no:cacheprovider",
        "-q",
    ]
    argv += ["--rootdir", trial.tree, *(("--collect-only",) if mode == "collect" else ())]
    console.say(f"{mode}: {file}")
    child = process.start(
        [*argv, Path(file).relative_to(_TESTS)],
        cwd=trial.tree / _TESTS,
        env=process.inherited(
            PYTHONPATH=str(plugin.TARGET),
            PYTHONHOME=None,
            PYTHONDONTWRITEBYTECODE="1",
            PYTEST_ADDOPTS=None,
            PYTORCH_TEST_WITH_ROCM="1" if trial.gpu else None,
        ),
        output=log,
    )
    try:
        if child.wait(trial.seconds) is None:
            console.warn(f"{file} did not end within {console.duration(trial.seconds)}.")
    finally:
        child.kill()
    if not journal.is_file():
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:])
        raise CheckError(f"pytest wrote nothing about {file}:\n{tail}", hint="Run pytest on it by hand.")
    return plugin.read_journal(journal)
