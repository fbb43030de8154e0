"""What `nox -s lint` runs: every linter over its files, all of them also after one has found something."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from core import console, process
from core.errors import CheckError, FatalError, MissingInputError, ProcessError

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, kw_only=True)
class Linter:
    """One linter.

    Attributes:
        command: Program and arguments.
        files: Globs of the files that it is given; none for one that finds its own.
        posargs: Whether it also gets what follows ``--`` on the command line.
        optional: Whether it runs only where it is installed, as no lock can bring it.
    """

    command: tuple[str, ...]
    files: tuple[str, ...] = ()
    posargs: bool = False
    optional: bool = False


WORKFLOWS = (".github/workflows/*.yml",)
LINTERS = (
    Linter(command=("ruff", "check"), posargs=True),
    Linter(command=("ruff", "format", "--check")),
    Linter(command=("cfn-lint",), files=("ci/server/template.yaml",)),
    Linter(command=("shellcheck",), files=("docker/**/*.sh", ".ci/run")),
    Linter(command=("hadolint",), files=("docker/**/*Dockerfile",)),
    Linter(
        command=("yamllint", "--strict"),
        files=(*WORKFLOWS, ".github/actions/*/action.yml", ".github/zizmor.yml"),
    ),
    Linter(command=("check-jsonschema", "--builtin-schema", "vendor.github-workflows"), files=WORKFLOWS),
    Linter(
        command=("check-jsonschema", "--builtin-schema", "vendor.github-actions"),
        files=(".github/actions/*/action.yml",),
    ),
    Linter(command=("zizmor", "--offline", "--no-progress", "--quiet", ".github")),
    Linter(command=("actionlint",), files=WORKFLOWS, optional=True),
)


def commands(root: Path, posargs: list[str]) -> list[list[str]]:
    """List what is run.

    Args:
        root: The checkout.
        posargs: What follows ``--`` on the command line.

    Raises:
        MissingInputError: A linter has nothing to check.
    """
    found = []
    for one in LINTERS:
        names = []
        for pattern in one.files:
            matches = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
            if not matches:
                raise MissingInputError(f"{one.command[0]} has nothing to check: no {pattern} in {root}.")
            names += matches
        found.append([*one.command, *(posargs if one.posargs else []), *names])
    return found


def main(words: list[str]) -> int:
    """Run every linter, and say at the end which of them found something."""
    try:
        failed = []
        absent = {one.command[0] for one in LINTERS if one.optional and process.which(one.command[0]) is None}
        for command in commands(ROOT, words):
            if command[0] in absent:
                console.say(f"{command[0]} is not installed, so it is left out")
                continue
            try:
                process.run(command, cwd=ROOT)
            except ProcessError as problem:
                console.error(problem.message)
                failed.append(command[0])
        if failed:
            raise CheckError(f"Not clean: {', '.join(dict.fromkeys(failed))}.")
    except FatalError as problem:
        console.error(str(problem))
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
