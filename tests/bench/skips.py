"""Skip rules on as many tests as a large suite has, against the plain loop over rules."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pytorch_build.test.ids import Pattern
from pytorch_build.test.plugin import TARGET, Plan, arguments
from pytorch_build.test.skip_rules import Rule, RuleTable
from tests.bench import programs
from tests.bench.measuring import Figure, Work, in_turn, scratch
from tests.bench.wheels import ours

RULES, PART, WHY = 5_000, 1_000, "It is measured."


def figures(runs: int) -> Iterator[Figure]:
    """Compare applying rules of exact ids, and of patterns, with trying each rule on each test."""
    tests = programs.ids_of_tests()
    exact = tests[:: len(tests) // RULES]
    patterns = [one.replace("_float32", "_*") for one in exact]
    matches = [re.compile(Pattern.parse(one).regex).fullmatch for one in patterns]
    exactly = [RuleTable(tests=(one,), reason=WHY) for one in exact]
    alike = [RuleTable(patterns=(one,), reason=WHY) for one in patterns]
    with scratch() as place:
        for title, goal, rules, takes in (
            ("exact ids", 3, exactly, [{one}.__contains__ for one in exact]),
            ("patterns", 15, alike, matches),
        ):
            name = f"{len(tests):,} tests, {len(rules):,} rules of {title}"
            works = [applied(place / "plan.json", name, rules, f"≤ {goal} s"), tried(tests, takes)]
            subject, baseline = in_turn(works, runs=runs)
            yield Figure(subject, [baseline], "with Python's start")


def applied(path: Path, name: str, tables: Sequence[RuleTable], note: str) -> Work:
    """Apply rules as the plugin does in a run of tests."""
    rules = [Rule(file=path, key=f"rule-{at}", table=one).planned() for at, one in enumerate(tables)]
    arguments(path, Plan(root="/", journal="", rules=tuple(rules)))
    return replace(ours(name, programs.skip, path, note=note), env={"PYTHONPATH": str(TARGET)})


def tried(tests: Sequence[str], rules: Sequence[Callable[[str], object]]) -> Work:
    times = len(tests) // PART
    title = f"each rule on {PART:,} of the tests, times {times}"
    return Work(title, lambda: [takes(one) for one in tests[::times] for takes in rules], times=times)
