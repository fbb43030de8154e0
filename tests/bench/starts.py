"""Starting a front door, and the sample's whole pipeline."""

import sys
from collections.abc import Iterator

from core import process
from core.cli.options import ROOT
from tests.bench.measuring import Figure, Work, in_turn, removing, scratch

PYTHON, NOX = sys.executable, (sys.executable, "-m", "nox")
CONFIGURE = ("ci", "configure", "--event=pull_request", "--label=build:pytorch")
BUILD = ("pytorch_build", "build", "--help")


def figures(runs: int) -> Iterator[Figure]:
    """Compare starting nox and front doors with what nobody can avoid."""
    works = [
        Work("nox -l", [*NOX, "-l"], note="≤ 0.5 s"),
        Work("MATRIX=release nox -l", [*NOX, "-l"], env={"MATRIX": "release"}, note="≤ 0.45 s of CPU"),
        Work("ci configure, of a pull request", [PYTHON, "-m", *CONFIGURE], note="≤ 0.3 s of CPU"),
        Work("pytorch_build build --help", [PYTHON, "-m", *BUILD], note="≤ 0.2 s of CPU"),
        Work("`nox --version`", [*NOX, "--version"]),
        Work("`python -c pass`", [PYTHON, "-c", "pass"]),
    ]
    *subjects, nox, python = in_turn(works, runs=runs)
    yield from (Figure(one, [nox if "nox" in one.name else python]) for one in subjects)


def pipeline(runs: int) -> Iterator[Figure]:
    """Compare the sample's whole pipeline with its second run, in clones of the checkout."""
    with scratch() as place:
        argv, clone = [PYTHON, "-m", "invoke", "ci", "--torch-ref", "sample"], place / "clone"

        def cloned() -> None:
            removing(clone)()
            process.capture(["git", "clone", "--quiet", ROOT, clone])

        works = [
            Work("from nothing; packages were downloaded before", argv, cwd=clone, before=cloned),
            Work("invoke ci --torch-ref sample, nothing changed", argv, cwd=clone, note="≤ 3.5 s of CPU"),
        ]
        first, second = in_turn(works, runs=runs)
        log, note = place / "strace.log", ""
        if process.which("strace"):
            counted = ("strace", "-f", "-qq", "-e", "trace=execve", "-e", "status=successful", "-o", log)
            process.capture([*counted, *argv], cwd=clone, env=process.inherited())
            note = f"{len(log.read_text(encoding='utf-8').splitlines())} programs started"
        yield Figure(second, [first], note)
