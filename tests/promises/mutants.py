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
            self.original.splitlines(), self.mutated.splitlines(), self.module, self.module, n=0, lineterm=""
        )
        return "\n".join(lines)

    def applied_to(self, source: str) -> str | None:
        """Return a version of the module with the same change, or None where its lines are not there."""
        if source == self.original:
            return self.mutated
        before = self.original.splitlines(keepends=True)
        after = self.mutated.splitlines(keepends=True)
        changes = [
            change
            for change in difflib.SequenceMatcher(None, before, after).get_opcodes()
            if change[0] != "equal"
        ]
        first_change, last_change = changes[0], changes[-1]
        removed = "".join(before[first_change[1] : last_change[2]])
        added = "".join(after[first_change[3] : last_change[4]])
        if not removed or source.count(removed) != 1:
            return None
        return source.replace(removed, added)


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
    visitor = mutmut.MutationVisitor(mutmut.mutation_operators, mutmut.IgnoredCode(set(), set(), set()))
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
        return hashlib.sha256(f"{seed} {self.module} {self.number}".encode()).hexdigest()

    def mutant(self) -> Mutant:
        """Write the mutated module."""
        mutation = self.mutation
        mutated_tree = _mutmut().deep_replace(self.tree, mutation.original_node, mutation.mutated_node)
        return Mutant(module=self.module, original=self.original, mutated=mutated_tree.code)


def module_candidates(module: str, source: str) -> list[Candidate]:
    """Return every mutation of a module's functions and methods, as mutmut makes them."""
    original = mutants.undecorated(source)
    tree, mutations = mutations_of(original)
    return [
        Candidate(module=module, original=original, tree=tree, mutation=mutation, number=number)
        for number, mutation in enumerate(mutations)
        if mutation.contained_by_top_level_function is not None
    ]


def drawn_mutants(seed: str, size: int) -> list[Mutant]:
    """Return as many mutants as asked for, drawn by the digest of the seed and each mutation's number."""
    candidates: list[Candidate] = []
    for module in load_toml(mutants.DATA_FILE, mutants.Mutants).modules:
        source = process.capture(["git", "show", f"{seed}:{module}"], cwd=ROOT).stdout
        candidates += module_candidates(module, source)
    drawn = sorted(candidates, key=lambda candidate: candidate.lot(seed))[:size]
    return [candidate.mutant() for candidate in sorted(drawn, key=lambda candidate: candidate.module)]


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy of a checkout, to change modules in, and the pytest options that all its runs take."""

    folder: Path

    @classmethod
    def of(cls, checkout: Path, folder: Path) -> "Copy":
        """Copy every file of a checkout that git does not ignore."""
        listing = process.capture(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=checkout).stdout
        for name in filter(None, listing.split("\0")):
            if (checkout / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(checkout / name, folder / name)
        return cls(folder=folder)

    def run_tests(self, words: Sequence[str]) -> process.Completed:
        """Run tests in the copy."""
        # temporary files that mutants leave behind may not fail the tests of others
        with tempfile.TemporaryDirectory(prefix="mutant-tests-") as temporary:
            environment = process.inherited(TMPDIR=temporary)
            options = ("-q", "-p", "no:cacheprovider", "--hypothesis-profile=few", "-m", "not processes")
            limit = ("prlimit", f"--cpu={_CPU_SECONDS}")
            command = [*limit, sys.executable, "-m", "pytest", *options, *words]
            return process.capture(
                command, cwd=self.folder, env=environment, check=False, timeout=_TIMEOUT_SECONDS
            )

    def failing_tests(self, tests: Sequence[str]) -> list[str]:
        """Return the tests that fail without any mutant.

        Raises:
            CheckError: The tests could not be run at all.
        """
        completed = self.run_tests([*tests, "-rfE", "--tb=no"])
        failing = _FAILED_TEST.findall(completed.stdout)
        if completed.returncode and not failing:
            raise CheckError(
                f"{' '.join(tests)} cannot be run in {self.folder}.", hint=completed.stdout[-2000:]
            )
        return failing


def judge(copy: Copy, mutant: Mutant, words: Sequence[str], *, number: int) -> Verdict:
    """Put a mutant in the place of its module, run tests, and put the module back."""
    path = copy.folder / mutant.module
    source = path.read_text("utf-8")
    mutated = mutant.applied_to(mutants.undecorated(source))
    if mutated is None:
        return Verdict(module=mutant.module, diff=mutant.diff, verdict="absent")

    path.write_text(mutated, "utf-8")
    os.utime(path, (_FIRST_TIME + number, _FIRST_TIME + number))
    try:
        completed = copy.run_tests([*words, "-x"])
        verdict = _VERDICTS.get(completed.returncode, "killed")
    except ProcessError:
        verdict = "timeout"
    finally:
        path.write_text(source, "utf-8")
        os.utime(path, (_FIRST_TIME - 1, _FIRST_TIME - 1))
    return Verdict(module=mutant.module, diff=mutant.diff, verdict=verdict)


def judge_all(checkout: Path, drawn: Sequence[Mutant], results: Path | None) -> list[Verdict]:
    """Judge mutants by a checkout's tests, and keep the verdicts after each."""
    commit = process.capture(["git", "rev-parse", "HEAD"], cwd=checkout).stdout.strip()
    judged_modules = load_toml(checkout / "docs/mutants.toml", mutants.Mutants).modules
    verdicts: list[Verdict] = []
    excluded: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy.of(checkout, Path(folder))
        for number, mutant in enumerate(drawn):
            tests = mutants.unit_tests(mutant.module, judged_modules[mutant.module])
            if mutant.module not in excluded:
                excluded[mutant.module] = copy.failing_tests(tests)
            deselected = [f"--deselect={test}" for test in excluded[mutant.module]]
            verdict = judge(copy, mutant, [*tests, *deselected], number=number)
            verdicts.append(verdict)
            console.say(f"{number + 1}/{len(drawn)} {verdict.verdict}: {verdict.diff}")
            if results is not None:
                document = {
                    "checkout": commit,
                    "excluded_tests": excluded,
                    "counts": Counter(verdict.verdict for verdict in verdicts),
                    "mutants": [asdict(verdict) for verdict in verdicts],
                }
                files.write_json(results, json.loads(json.dumps(document)))
    return verdicts


def main(words: Sequence[str]) -> int:
    """Draw mutants and judge them."""
    parser = argparse.ArgumentParser(prog="python -m tests.promises.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=200, help="how many mutants to draw")
    parser.add_argument("--seed", required=True, help="the full hash of the commit whose modules are mutated")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="where the tests are")
    parser.add_argument("--results", type=Path, help="a JSON file for the verdicts")
    arguments = parser.parse_args(words)
    verdicts = judge_all(
        arguments.checkout.resolve(), drawn_mutants(arguments.seed, arguments.sample), arguments.results
    )
    counts = Counter(verdict.verdict for verdict in verdicts)
    console.result("\n".join(f"{verdict}: {count}" for verdict, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
