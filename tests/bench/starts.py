"""Starting a front door, and the sample's whole pipeline."""

import sys
from collections.abc import Iterator
from pathlib import Path

from core import process
from core.cli.options import ROOT
from tests.bench.comparisons import Comparison
from tests.bench.workloads import Command, Workload, measure_in_turn, remove, scratch_folder

PYTHON = sys.executable
NOX = (PYTHON, "-m", "nox")
CONFIGURE = (PYTHON, "-m", "ci", "configure", "--event=pull_request", "--label=build:pytorch")
BUILD_HELP = (PYTHON, "-m", "pytorch_build", "build", "--help")
PIPELINE = (PYTHON, "-m", "invoke", "ci", "--torch-ref", "sample")


def compare_starts(runs: int) -> Iterator[Comparison]:
    """Compare starting nox and front doors with what nobody can avoid."""
    workloads = [
        Workload(
            name="nox -l",
            action=[*NOX, "-l"],
            note="≤ 0.5 s",
        ),
        Workload(
            name="MATRIX=release nox -l",
            action=[*NOX, "-l"],
            variables={"MATRIX": "release"},
            note="≤ 0.45 s of CPU",
        ),
        Workload(
            name="ci configure, of a pull request",
            action=CONFIGURE,
            note="≤ 0.3 s of CPU",
        ),
        Workload(
            name="pytorch_build build --help",
            action=BUILD_HELP,
            note="≤ 0.2 s of CPU",
        ),
        Workload(name="`nox --version`", action=[*NOX, "--version"]),
        Workload(name="`python -c pass`", action=[PYTHON, "-c", "pass"]),
    ]
    nox_list, nox_matrix, configure, build_help, nox_version, python = measure_in_turn(workloads, runs=runs)

    yield Comparison(subject=nox_list, baselines=[nox_version])
    yield Comparison(subject=nox_matrix, baselines=[nox_version])
    yield Comparison(subject=configure, baselines=[python])
    yield Comparison(subject=build_help, baselines=[python])


def compare_pipeline_runs(runs: int) -> Iterator[Comparison]:
    """Compare the sample's whole pipeline with its second run, in clones of the checkout."""
    with scratch_folder() as scratch:
        clone = scratch / "clone"

        def clone_checkout() -> None:
            remove(clone)
            process.capture(["git", "clone", "--quiet", ROOT, clone])

        workloads = [
            Workload(
                name="from nothing; packages were downloaded before",
                action=PIPELINE,
                folder=clone,
                prepare=clone_checkout,
            ),
            Workload(
                name="invoke ci --torch-ref sample, nothing changed",
                action=PIPELINE,
                folder=clone,
                note="≤ 3.5 s of CPU",
            ),
        ]
        first_run, second_run = measure_in_turn(workloads, runs=runs)
        note = ""
        if process.which("strace"):
            note = f"{count_programs(clone, scratch / 'strace.log')} programs started"

    yield Comparison(subject=second_run, baselines=[first_run], note=note)


def count_programs(clone: Path, log: Path) -> int:
    """Return how many programs another run of the pipeline starts."""
    strace: Command = [
        "strace",
        "-f",
        "-qq",
        "-e",
        "trace=execve",
        "-e",
        "status=successful",
        "-o",
        log,
    ]
    process.capture([*strace, *PIPELINE], cwd=clone, env=process.inherited())
    return len(log.read_text(encoding="utf-8").splitlines())
