"""How well unit tests hold the modules that decide: `nox -s mutants [-- MODULE ...]`, by mutmut.

A mutant is a module with one change: another operator, constant, argument, method. A test that fails has
found it. Those that no test of the module finds are shown as diffs, unless `mutants.toml` says why they stay.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from core import console, files, process
from core.cli import exit_code
from core.cli.options import ROOT
from core.data import Document, Model, load_toml
from core.errors import CheckError, ProcessError, UsageError, nearest
from core.parallel import map_in_threads
from docs.markdown import table

DATA_FILE = Path(__file__).with_name("mutants.toml")
SCORES_FILE = Path(__file__).with_name("mutants.json")
_KILLED = {"killed", "timeout", "segfault"}
_SETTINGS = """\
[mutmut]
source_paths = {module}
pytest_add_cli_args = {options}
pytest_add_cli_args_test_selection = {tests}
timeout_multiplier = 5
use_git_change_detection = false
"""
_CACHE = re.compile(r"(functools\.)?(lru_)?cache\b")
_OPTIONS = ("-p", "no:cacheprovider", "--hypothesis-profile=mutants")


class Stay(Model):
    """Mutants of a line that survive, and why they may."""

    line: str
    survivors: int = Field(gt=0)
    reason: str = Field(min_length=10)


class Judged(Model):
    """A module, its tests (default: those of its name), and the mutants that stay."""

    tests: tuple[str, ...] = ()
    stay: tuple[Stay, ...] = ()


class Mutants(Model):
    """What is judged: `limit` is a percentage."""

    limit: int = Field(gt=0, le=100)
    modules: dict[str, Judged]


class Score(Model):
    """What was measured of a module."""

    mutants: int
    killed: int
    stay: int

    @property
    def percent(self) -> float:
        """How many of the mutants tests have found, in per cent."""
        return 100 * self.killed / self.mutants


class Scores(Document):
    """What was measured last, by module."""

    modules: dict[str, Score] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Survivor:
    """A mutant that no test has found: the line that it changes, and the diff."""

    line: str
    diff: str


def unit_tests(module: str, judged_module: Judged) -> tuple[str, ...]:
    """Return a module's unit tests, as pytest takes them."""
    if judged_module.tests:
        return judged_module.tests
    path = Path(module)
    folder = path.parent.as_posix()
    return (f"tests/unit/{folder}/test_{path.name}",)


def undecorated(source: str) -> str:
    """Write decorators of functions as assignments after them: mutmut leaves out what is decorated.

    Caches go: what they kept of the module itself would answer for each mutant.
    """
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    ]
    lines = source.splitlines(keepends=True)
    # From the last one to the first, so that the lines of those before it stay where they are.
    for function in sorted(functions, key=lambda function: function.lineno, reverse=True):
        decorated_name = function.name
        for node in reversed(function.decorator_list):
            decorator = ast.unparse(node)
            if not _CACHE.match(decorator):
                decorated_name = f"{decorator}({decorated_name})"
        if decorated_name != function.name:
            indentation = " " * function.col_offset
            assignment = f"{indentation}{function.name} = {decorated_name}\n"
            last_line = function.end_lineno or function.lineno
            lines.insert(last_line, assignment)

        first_line = function.decorator_list[0].lineno - 1
        last_line = function.lineno - 1
        del lines[first_line:last_line]
    return "".join(lines)


def read_survivor(output: str) -> Survivor:
    """Read what `mutmut show` prints: a line of its own, then a unified diff."""
    _title, _newline, diff = output.partition("\n")
    diff = diff.rstrip()
    changed_line = ""
    lines_after_names = diff.splitlines()[2:]
    for line in reversed(lines_after_names):
        if line.startswith("-"):
            changed_line = line.removeprefix("-")
    return Survivor(
        line=changed_line.strip(),
        diff=diff,
    )


def unexplained(survivors: Sequence[Survivor], judged_module: Judged, *, module: str) -> list[Survivor]:
    """Return the survivors that no reason covers.

    Raises:
        CheckError: A reason covers another number than it says.
    """
    counts = Counter(survivor.line for survivor in survivors)
    for stay in judged_module.stay:
        count = counts[stay.line]
        if count != stay.survivors:
            raise CheckError(
                f"A reason for {module} is not true: of {stay.line}: {count} survive, not {stay.survivors}.",
                hint=f"Correct {DATA_FILE.name}.",
            )

    explained_lines = {stay.line for stay in judged_module.stay}
    return [survivor for survivor in survivors if survivor.line not in explained_lines]


def copy_checkout(
    root: Path,
    folder: Path,
    module: str,
    tests: Sequence[str],
) -> None:
    """Copy the checkout to where mutmut has its copy, and beside it the module and the settings."""
    listing = process.capture(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=root).stdout
    for name in filter(None, listing.split("\0")):
        if (root / name).is_file():
            target = folder / "mutants" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target)

    source = (root / module).read_text("utf-8")
    (folder / module).parent.mkdir(parents=True)
    (folder / module).write_text(undecorated(source), "utf-8")
    # Of the same time, or mutmut takes the copy for mutants that it wrote earlier.
    shutil.copy2(folder / module, folder / "mutants" / module)

    settings = _SETTINGS.format(
        module=_setting([module]),
        options=_setting(_OPTIONS),
        tests=_setting(tests),
    )
    (folder / "setup.cfg").write_text(settings, "utf-8")


def _setting(words: Sequence[str]) -> str:
    """Write a list as a setting of several lines."""
    return "".join(f"\n    {word}" for word in words)


def measure(root: Path, module: str, tests: Sequence[str]) -> tuple[int, list[Survivor]]:
    """Run a module's tests on each of its mutants; return how many there are, and the survivors."""
    mutmut = Path(sys.executable).with_name("mutmut")
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary_folder:
        folder = Path(temporary_folder)
        copy_checkout(root, folder, module, tests)
        # What tests of other runs left among temporary files may not fail these.
        temporary_files = files.ensure_folder(folder / "temporary")
        env = process.inherited(TMPDIR=str(temporary_files))
        try:
            process.capture(
                [mutmut, "run", f"--max-children={cores}"],
                cwd=folder,
                env=env,
            )
        except ProcessError as problem:
            words = " ".join(tests)
            raise CheckError(
                f"{module} could not be measured: {problem.message}",
                hint=f"Run its tests: pytest {words}",
            ) from problem

        def read_mutant(name: str) -> Survivor:
            completed = process.capture([mutmut, "show", name], cwd=folder)
            return read_survivor(completed.stdout)

        results = process.capture([mutmut, "results", "--all=true"], cwd=folder)
        lines = results.stdout.splitlines()
        surviving_names: list[str] = []
        for line in lines:
            name, _separator, verdict = line.strip().partition(": ")
            if verdict not in _KILLED:
                surviving_names.append(name)
        survivors = map_in_threads(
            read_mutant,
            surviving_names,
            jobs=cores,
        )
        return len(lines), survivors


def judge(module: str, data: Mutants) -> Score:
    """Measure a module, and show the survivors that nothing explains."""
    judged_module = data.modules[module]
    tests = unit_tests(module, judged_module)
    console.say(f"{module}: running {' '.join(tests)} on each mutant")
    count, survivors = measure(ROOT, module, tests)
    if not count:
        raise CheckError(f"{module} has no mutants.", hint=f"Take it out of {DATA_FILE.name}.")

    unexplained_survivors = unexplained(survivors, judged_module, module=module)
    for survivor in unexplained_survivors:
        console.result(survivor.diff)
    score = Score(
        mutants=count,
        killed=count - len(survivors),
        stay=len(survivors) - len(unexplained_survivors),
    )
    console.say(f"{module}: {score.killed} of {count} found ({score.percent:.1f} %), {score.stay} stay")
    return score


def score_table() -> str:
    """Write what was measured last, by module."""
    scores = Scores.read(SCORES_FILE)
    rows: list[tuple[str, ...]] = []
    for module, score in scores.modules.items():
        row = (
            f"`{module}`",
            str(score.mutants),
            f"{score.percent:.1f} %",
            str(score.stay),
        )
        rows.append(row)
    columns = ("module", "mutants", "found", "stay for a reason")
    lines = table(columns, rows)
    return "\n".join(lines)


def _judge_modules(requested_modules: Sequence[str]) -> None:
    data = load_toml(DATA_FILE, Mutants)
    for module in requested_modules:
        if module not in data.modules:
            suggestion = nearest(module, data.modules)
            raise UsageError(
                f"{module} is not judged. {suggestion}",
                hint=f"See {DATA_FILE}.",
            )

    scores: dict[str, Score] = {}
    if SCORES_FILE.is_file():
        scores.update(Scores.read(SCORES_FILE).modules)
    low_modules: list[str] = []
    modules = requested_modules or list(data.modules)
    for module in modules:
        score = judge(module, data)
        scores[module] = score
        if score.percent < data.limit:
            low_modules.append(module)

    scores_of_data = {module: scores[module] for module in data.modules if module in scores}
    Scores(modules=scores_of_data).write(SCORES_FILE)
    process.run(
        [sys.executable, "-m", "docs.generate"],
        cwd=ROOT,
    )
    if low_modules:
        names = ", ".join(low_modules)
        raise CheckError(
            f"Tests find less than {data.limit} % of the mutants of {names}.",
            hint="Test what the diffs above show; nox -s mutants -- MODULE measures it again.",
        )
    console.done(f"mutants: tests find at least {data.limit} % in each of {len(modules)} modules")


def main(words: Sequence[str]) -> int:
    """Measure some modules, or all that are judged."""
    return exit_code(lambda: _judge_modules(words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
