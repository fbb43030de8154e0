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
# as upstream's generated tests are called
_TEST = "test/test_{}.py::TestOps{}CUDA::test_op_{}_cuda_float32"
SAID = {"action": "skip", "reason": "Measured.", "retries": 0}
PLAN = {"schema": SCHEMA, "journal": "", "root": "/", "mode": "apply", "runner": False, "only": None}
PLACE = SimpleNamespace(dir=Path("/"))
CONFIG: Any = SimpleNamespace(rootpath=PLACE.dir, invocation_params=PLACE, args=[], hook=None)


def figures(runs: int) -> Iterator[Figure]:
    """Compare applying rules of exact ids, and of patterns, with trying each rule on each test."""
    tests = [_TEST.format(at // 400, at // 100, at) for at in range(TESTS)]
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


def _marked(mark: object, *, append: bool) -> None: ...


def applied(tests: Sequence[str], rules: Sequence[Mapping[str, Any]]) -> Callable[[], None]:
    # what the plugin asks of a collected test
    items: list[Any] = [SimpleNamespace(nodeid=one, user_properties=[], add_marker=_marked) for one in tests]
    return lambda: WheelTests(CONFIG, {**PLAN, "rules": rules}).pytest_collection_modifyitems(CONFIG, items)


def tried(tests: Sequence[str], rules: Sequence[Mapping[str, Any]]) -> Callable[[], object]:
    compiled = [(frozenset(one["tests"]), [*map(re.compile, one["patterns"])]) for one in rules]
    return lambda: [
        test in exact or any(one.fullmatch(test) for one in patterns)
        for test in tests[:: len(tests) // PART]
        for exact, patterns in compiled
    ]
