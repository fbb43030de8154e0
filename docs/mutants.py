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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from core import console, files, process
from core.cli import exit_code
from core.cli.options import ROOT
from core.data import Document, Model, load_toml
from core.errors import CheckError, ProcessError, UsageError, nearest
from docs.markdown import table

DATA_FILE = Path(__file__).with_name("mutants.toml")
SCORES_FILE = Path(__file__).with_name("mutants.json")
_FOUND = {"killed", "timeout", "segfault"}
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
    found: int
    stay: int

    @property
    def percent(self) -> float:
        """How many of the mutants tests have found, in per cent."""
        return 100 * self.found / self.mutants


class Scores(Document):
    """What was measured last, by module."""

    modules: dict[str, Score] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Survivor:
    """A mutant that no test has found: the line that it changes, and the diff."""

    line: str
    diff: str


def unit_tests(module: str, judged: Judged) -> tuple[str, ...]:
    """Return a module's unit tests, as pytest takes them."""
    path = Path(module)
    return judged.tests or (f"tests/unit/{path.parent.as_posix()}/test_{path.name}",)


def undecorated(source: str) -> str:
    """Write decorators of functions as assignments after them: mutmut leaves out what is decorated.

    Caches go: what they kept of the module itself would answer for each mutant.
    """
    lines = source.splitlines(keepends=True)
    decorated = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.decorator_list and node.end_lineno
    ]
    for node in sorted(decorated, key=lambda node: -node.lineno):
        value = node.name
        for decorator in map(ast.unparse, reversed(node.decorator_list)):
            value = value if _CACHE.match(decorator) else f"{decorator}({value})"
        if value != node.name:
            lines.insert(node.end_lineno or 0, f"{' ' * node.col_offset}{node.name} = {value}\n")
        del lines[node.decorator_list[0].lineno - 1 : node.lineno - 1]
    return "".join(lines)


def survivor(shown: str) -> Survivor:
    """Read what `mutmut show` prints: a line of its own, then a unified diff."""
    diff = shown.partition("\n")[2].rstrip()
    changed = (line for line in diff.splitlines()[2:] if line.startswith("-"))
    return Survivor(line=next(changed, "")[1:].strip(), diff=diff)


def unexplained(survivors: Sequence[Survivor], judged: Judged, *, module: str) -> list[Survivor]:
    """Return the survivors that no reason covers.

    Raises:
        CheckError: A reason covers another number than it says.
    """
    lines = Counter(one.line for one in survivors)
    if stale := [one for one in judged.stay if lines[one.line] != one.survivors]:
        each = "".join(f"\n  {one.line}: {lines[one.line]} survive, not {one.survivors}" for one in stale)
        raise CheckError(
            f"Reasons for {module} are not true of its mutants:{each}", hint=f"Correct {DATA_FILE.name}."
        )
    return [one for one in survivors if one.line not in {stay.line for stay in judged.stay}]


def prepare(
    root: Path,
    place: Path,
    module: str,
    tests: Sequence[str],
) -> None:
    """Copy the checkout to where mutmut has its copy, and beside it the module and the settings."""
    listed = process.capture(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=root).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (place / "mutants" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, place / "mutants" / name)
    (place / module).parent.mkdir(parents=True)
    (place / module).write_text(undecorated((root / module).read_text("utf-8")), "utf-8")
    # of the same time, or mutmut takes the copy for mutants that it wrote earlier
    shutil.copy2(place / module, place / "mutants" / module)
    lists = {"module": (module,), "options": _OPTIONS, "tests": tests}
    words = {name: "".join(f"\n    {one}" for one in each) for name, each in lists.items()}
    (place / "setup.cfg").write_text(_SETTINGS.format(**words), "utf-8")


def measured(root: Path, module: str, tests: Sequence[str]) -> tuple[int, list[Survivor]]:
    """Run a module's tests on each of its mutants: how many there are, and the survivors."""
    mutmut, cores = Path(sys.executable).with_name("mutmut"), os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        place = Path(temporary)
        prepare(root, place, module, tests)
        # what tests of other runs left among temporary files may not fail these
        env = process.inherited(TMPDIR=str(files.made(place / "temporary")))
        try:
            process.capture([mutmut, "run", f"--max-children={cores}"], cwd=place, env=env)
        except ProcessError as problem:
            hint = f"Run its tests: pytest {' '.join(tests)}"
            raise CheckError(f"{module} could not be measured: {problem.message}", hint=hint) from problem
        results = process.capture([mutmut, "results", "--all=true"], cwd=place).stdout
        verdicts = dict(line.strip().split(": ") for line in results.splitlines())
        left = [name for name, verdict in verdicts.items() if verdict not in _FOUND]
        with ThreadPoolExecutor(cores) as pool:
            shown = pool.map(lambda name: process.capture([mutmut, "show", name], cwd=place).stdout, left)
            return len(verdicts), [survivor(one) for one in shown]


def judge(module: str, data: Mutants) -> Score:
    """Measure a module, and show the survivors that nothing explains."""
    judged = data.modules[module]
    console.say(f"{module}: running {' '.join(unit_tests(module, judged))} on each mutant")
    count, survivors = measured(ROOT, module, unit_tests(module, judged))
    if not count:
        raise CheckError(f"{module} has no mutants.", hint=f"Take it out of {DATA_FILE.name}.")
    left = unexplained(survivors, judged, module=module)
    for one in left:
        console.result(one.diff)
    score = Score(
        mutants=count,
        found=count - len(survivors),
        stay=len(survivors) - len(left),
    )
    console.say(f"{module}: {score.found} of {count} found ({score.percent:.1f} %), {score.stay} stay")
    return score


def score_table() -> str:
    """Write what was measured last, by module."""
    scores = Scores.read(SCORES_FILE).modules
    rows = [
        (f"`{name}`", str(one.mutants), f"{one.percent:.1f} %", str(one.stay)) for name, one in scores.items()
    ]
    return "\n".join(table(("module", "mutants", "found", "stay for a reason"), rows))


def _run(words: Sequence[str]) -> None:
    data = load_toml(DATA_FILE, Mutants)
    for word in words:
        if word not in data.modules:
            raise UsageError(f"{word} is not judged. {nearest(word, data.modules)}", hint=f"See {DATA_FILE}.")
    before: Mapping[str, Score] = Scores.read(SCORES_FILE).modules if SCORES_FILE.is_file() else {}
    scores = {module: judge(module, data) for module in words or data.modules}
    known = {**before, **scores}
    Scores(modules={name: known[name] for name in data.modules if name in known}).write(SCORES_FILE)
    process.run([sys.executable, "-m", "docs.generate"], cwd=ROOT)
    if low := [name for name, score in scores.items() if score.percent < data.limit]:
        raise CheckError(
            f"Tests find less than {data.limit} % of the mutants of {', '.join(low)}.",
            hint="Test what the diffs above show; nox -s mutants -- MODULE measures it again.",
        )
    console.done(f"mutants: tests find at least {data.limit} % in each of {len(scores)} modules")


def main(words: Sequence[str]) -> int:
    """Measure some modules, or all that are judged."""
    return exit_code(lambda: _run(words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
