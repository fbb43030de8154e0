"""Run the tests of a checkout on a sample of mutants that is the same for every checkout.

`python -m tests.promises.mutants --sample 200 --seed COMMIT --checkout DIR [--results FILE]`, with an
interpreter that has requirements/mutants.txt installed. The mutants are those of the modules in
docs/mutants.toml as they were at COMMIT, so two checkouts with different tests are measured by the same
changes.
"""

import argparse
import difflib
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core import console, files, process
from core.cli.options import ROOT
from core.data import load_toml
from core.errors import CheckError, ProcessError
from docs import mutants

# of CPU time, because a busy machine is no verdict; what waits for ever is ended by the clock
_CPU_SECONDS = 60
_TIMEOUT_SECONDS = 1800
# by exit code; with every other one, too, something failed: a test, the collection, the interpreter
_VERDICTS = {0: "survived", -signal.SIGXCPU: "timeout", -signal.SIGKILL: "timeout"}
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+)", re.MULTILINE)
# distinct times, because byte code is taken for current when its source's time and size are as before
_FIRST_TIME = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A module's source before and after one change. Decorators are written as assignments in both."""

    module: str
    original: str
    mutated: str

    @property
    def diff(self) -> str:
        """Return the change as a unified diff."""
        lines = difflib.unified_diff(
            self.original.splitlines(),
            self.mutated.splitlines(),
            fromfile=self.module,
            tofile=self.module,
            n=0,
            lineterm="",
        )
        return "\n".join(lines)

    def applied_to(self, source: str) -> str | None:
        """Return a version of the module with the same change, or None where its lines are not there."""
        if source == self.original:
            return self.mutated

        old_lines = self.original.splitlines(keepends=True)
        new_lines = self.mutated.splitlines(keepends=True)
        matcher = difflib.SequenceMatcher(None, old_lines, new_lines)
        changes = [change for change in matcher.get_opcodes() if change[0] != "equal"]

        # from the beginning of the first change to the end of the last one
        _, old_start, _, new_start, _ = changes[0]
        _, _, old_end, _, new_end = changes[-1]
        old_text = "".join(old_lines[old_start:old_end])
        new_text = "".join(new_lines[new_start:new_end])
        if not old_text or source.count(old_text) != 1:
            return None
        return source.replace(old_text, new_text)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a checkout's tests say of a mutant: killed, survived, timeout, or absent without its lines."""

    module: str
    diff: str
    verdict: str


def _mutmut() -> Any:
    # not at the top: only the environment that measures mutants has it
    return importlib.import_module("mutmut.mutation.file_mutation")


def mutations_of(source: str) -> tuple[Any, Sequence[Any]]:
    """Return a module's tree, and every mutation of a part of it, by mutmut's visitor.

    mutmut's own function for this reads settings from the working directory, so the visitor is used as it is.
    """
    mutmut = _mutmut()
    tree = mutmut.MetadataWrapper(mutmut.cst.parse_module(source))
    nothing_ignored = mutmut.IgnoredCode(set(), set(), set())
    visitor = mutmut.MutationVisitor(mutmut.mutation_operators, nothing_ignored)
    mutated_tree = tree.visit(visitor)
    return mutated_tree, visitor.mutations


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A mutation of a module that may be drawn; its source is written only if it is."""

    module: str
    original: str
    tree: Any
    mutation: Any
    number: int

    def lot(self, seed: str) -> str:
        """Return what decides whether it is drawn."""
        identity = f"{seed} {self.module} {self.number}"
        return hashlib.sha256(identity.encode()).hexdigest()

    def mutant(self) -> Mutant:
        """Write the mutated module."""
        mutated_tree = _mutmut().deep_replace(
            self.tree, self.mutation.original_node, self.mutation.mutated_node
        )
        return Mutant(module=self.module, original=self.original, mutated=mutated_tree.code)


def module_candidates(module: str, source: str) -> list[Candidate]:
    """Return every mutation of a module's functions and methods, as mutmut makes them."""
    original = mutants.undecorated(source)
    tree, mutations = mutations_of(original)

    candidates: list[Candidate] = []
    for number, mutation in enumerate(mutations):
        if mutation.contained_by_top_level_function is None:
            continue
        candidate = Candidate(
            module=module,
            original=original,
            tree=tree,
            mutation=mutation,
            number=number,
        )
        candidates.append(candidate)
    return candidates


def drawn_mutants(seed: str, size: int) -> list[Mutant]:
    """Return as many mutants as asked for, drawn by the digest of the seed and each mutation's number."""
    candidates: list[Candidate] = []
    for module in load_toml(mutants.DATA_FILE, mutants.Mutants).modules:
        source = process.capture(["git", "show", f"{seed}:{module}"], cwd=ROOT).stdout
        candidates += module_candidates(module, source)

    candidates.sort(key=lambda candidate: candidate.lot(seed))
    drawn_candidates = sorted(candidates[:size], key=lambda candidate: candidate.module)
    return [candidate.mutant() for candidate in drawn_candidates]


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy of a checkout, to change modules in."""

    folder: Path

    @classmethod
    def of(cls, checkout: Path, folder: Path) -> "Copy":
        """Copy every file of a checkout that git does not ignore."""
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listing = process.capture(command, cwd=checkout).stdout
        for name in listing.split("\0"):
            source = checkout / name
            target = folder / name
            # deleted files are listed, too, and an empty name comes last
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        return cls(folder=folder)

    def run_tests(self, arguments: Sequence[str]) -> process.Completed:
        """Run tests in the copy, with arguments of pytest."""
        # temporary files that mutants leave behind may not fail the tests of others
        with tempfile.TemporaryDirectory(prefix="mutant-tests-") as temporary:
            command = [
                "prlimit",
                f"--cpu={_CPU_SECONDS}",
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "--hypothesis-profile=few",
                "-m",
                "not processes",
                *arguments,
            ]
            return process.capture(
                command,
                cwd=self.folder,
                env=process.inherited(TMPDIR=temporary),
                check=False,
                timeout=_TIMEOUT_SECONDS,
            )

    def failing_tests(self, tests: Sequence[str]) -> list[str]:
        """Return the tests that fail without any mutant.

        Raises:
            CheckError: The tests could not be run at all.
        """
        completed = self.run_tests([*tests, "-rfE", "--tb=no"])
        failing = _FAILED_TEST.findall(completed.stdout)
        if completed.returncode and not failing:
            names = " ".join(tests)
            output_end = completed.stdout[-2000:]
            raise CheckError(f"{names} cannot be run in {self.folder}.", hint=output_end)
        return failing


def judge(copy: Copy, mutant: Mutant, arguments: Sequence[str], *, number: int) -> Verdict:
    """Return what tests say of a mutant that is in the place of its module while they run."""
    path = copy.folder / mutant.module
    source = path.read_text("utf-8")
    mutated = mutant.applied_to(mutants.undecorated(source))
    if mutated is None:
        return Verdict(module=mutant.module, diff=mutant.diff, verdict="absent")

    _write_module(path, mutated, modified=_FIRST_TIME + number)
    try:
        completed = copy.run_tests([*arguments, "-x"])
        verdict = _VERDICTS.get(completed.returncode, "killed")
    except ProcessError:
        verdict = "timeout"
    finally:
        _write_module(path, source, modified=_FIRST_TIME - 1)
    return Verdict(module=mutant.module, diff=mutant.diff, verdict=verdict)


def _write_module(path: Path, source: str, *, modified: int) -> None:
    path.write_text(source, "utf-8")
    os.utime(path, (modified, modified))


class Judgement:
    """The verdicts of a checkout's tests so far, and its tests that fail without any mutant, by module."""

    def __init__(self, checkout: Path) -> None:
        self.commit = process.capture(["git", "rev-parse", "HEAD"], cwd=checkout).stdout.strip()
        self.excluded_tests: dict[str, list[str]] = {}
        self.verdicts: list[Verdict] = []

    def counts(self) -> Counter[str]:
        """Return how many mutants have each verdict."""
        return Counter(verdict.verdict for verdict in self.verdicts)

    def write(self, path: Path) -> None:
        """Write all of it to a JSON file."""
        document: dict[str, object] = {
            "checkout": self.commit,
            "excluded_tests": self.excluded_tests,
            "counts": self.counts(),
            "mutants": [asdict(verdict) for verdict in self.verdicts],
        }
        files.write_json(path, json.loads(json.dumps(document)))


def judge_all(checkout: Path, drawn: Sequence[Mutant], results: Path | None) -> Judgement:
    """Judge mutants by a checkout's tests, and write the verdicts to a file after each."""
    judged_modules = load_toml(checkout / "docs/mutants.toml", mutants.Mutants).modules
    judgement = Judgement(checkout)

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy.of(checkout, Path(folder))
        for number, mutant in enumerate(drawn):
            module = mutant.module
            tests = mutants.unit_tests(module, judged_modules[module])
            if module not in judgement.excluded_tests:
                judgement.excluded_tests[module] = copy.failing_tests(tests)
            deselections = [f"--deselect={test}" for test in judgement.excluded_tests[module]]

            verdict = judge(copy, mutant, [*tests, *deselections], number=number)
            console.say(f"{number + 1}/{len(drawn)} {verdict.verdict}: {verdict.diff}")
            judgement.verdicts.append(verdict)
            if results is not None:
                judgement.write(results)
    return judgement


def main(command_line: Sequence[str]) -> int:
    """Draw mutants and judge them."""
    parser = argparse.ArgumentParser(prog="python -m tests.promises.mutants", description=__doc__)
    parser.add_argument(
        "--sample",
        type=int,
        default=200,
        help="how many mutants to draw",
    )
    parser.add_argument(
        "--seed",
        required=True,
        help="the full hash of the commit whose modules are mutated",
    )
    parser.add_argument(
        "--checkout",
        type=Path,
        default=ROOT,
        help="where the tests are",
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="a JSON file for the verdicts",
    )
    arguments = parser.parse_args(command_line)

    drawn = drawn_mutants(arguments.seed, arguments.sample)
    judgement = judge_all(arguments.checkout.resolve(), drawn, arguments.results)

    for verdict, count in sorted(judgement.counts().items()):
        console.result(f"{verdict}: {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
