"""Skip rules on as many tests as a large suite has, against the plain loop over rules."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytorch_build.test.ids import Pattern
from pytorch_build.test.target.wheel_test_plugin import SCHEMA, WheelTests
from tests.bench.measuring import Figure, Work, in_turn

TESTS, RULES, PART = 200_000, 5_000, 1_000
PER_FILE, PER_CLASS = 400, 100
SAID = {"action": "skip", "reason": "Measured.", "retries": 0}
PLAN = {"schema": SCHEMA, "journal": "", "root": "/", "mode": "apply", "runner": False, "only": None}
PLACE = SimpleNamespace(dir=Path("/"))
CONFIG: Any = SimpleNamespace(rootpath=PLACE.dir, invocation_params=PLACE, args=[], hook=None)


class Item:
    """What the plugin asks of a collected test."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid
        self.user_properties: list[tuple[str, object]] = []

    def add_marker(self, mark: object, *, append: bool) -> None: ...


def figures(runs: int) -> Iterator[Figure]:
    """Compare applying rules of exact ids, and of patterns, with trying each rule on each test."""
    tests = [test_name(number) for number in range(TESTS)]
    chosen = tests[:: TESTS // RULES]
    alike = [Pattern.parse(one.replace("_float32", "_*")).regex for one in chosen]
    times = TESTS // PART
    for title, goal, rules in (
        ("exact ids", 3, [{"tests": [one], "patterns": []} for one in chosen]),
        ("patterns", 15, [{"tests": [], "patterns": [one]} for one in alike]),
    ):
        named = [{"name": f"bench.rule-{number}", **SAID, **one} for number, one in enumerate(rules)]
        works = [
            Work(f"{TESTS:,} tests, {RULES:,} rules of {title}", applied(tests, named), note=f"≤ {goal} s"),
            Work(f"each rule on {PART:,} of the tests, times {times}", tried(tests, named), times=times),
        ]
        subject, baseline = in_turn(works, runs=runs)
        yield Figure(subject, [baseline])


def test_name(number: int) -> str:
    """Name a test as upstream's generated ones are."""
    file, case = divmod(number, PER_FILE)
    return f"test/test_{file}.py::TestOps{case // PER_CLASS}CUDA::test_op_{case}_cuda_float32"


def applied(tests: Sequence[str], rules: Sequence[Mapping[str, Any]]) -> Callable[[], None]:
    items: list[Any] = [Item(one) for one in tests]
    return lambda: WheelTests(CONFIG, {**PLAN, "rules": rules}).pytest_collection_modifyitems(CONFIG, items)


def tried(tests: Sequence[str], rules: Sequence[Mapping[str, Any]]) -> Callable[[], object]:
    compiled = [(frozenset(one["tests"]), [*map(re.compile, one["patterns"])]) for one in rules]
    return lambda: [
        test in exact or any(one.fullmatch(test) for one in patterns)
        for test in tests[:: len(tests) // PART]
        for exact, patterns in compiled
    ]
