import re
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from pytorch_build.test.ids import Pattern
from pytorch_build.test.plugin import PlannedRule
from pytorch_build.test.target.wheel_test_index import Index

# Few and alike, so that they often meet; letters of regular expressions and of ids stand where they may.
PIECES = st.sampled_from(["a", "b", "ab", "*", ".", "/", ":", "[", "]", "\n"])
PATHS = st.lists(PIECES, max_size=3).map(lambda pieces: "".join([*pieces, ".py"]))
NAMES = st.lists(PIECES, min_size=1, max_size=3).map("".join)
PATTERNS = st.builds(
    lambda path, names: "::".join([path, *names]),
    PATHS | st.just(""),
    st.lists(NAMES, min_size=1, max_size=3),
)
TESTS = PATTERNS.map(lambda pattern: pattern.replace("*", "ba"))


def expressions_of(patterns: Iterable[str]) -> dict[str, str]:
    """Return the regular expressions of those texts that are patterns."""
    expressions: dict[str, str] = {}
    for pattern in patterns:
        try:
            expressions[pattern] = Pattern.parse(pattern).regex
        except ValueError:
            continue
    return expressions


def skip_rule(name: str, *, tests: Iterable[str] = (), patterns: Iterable[str] = ()) -> PlannedRule:
    """Return a rule that skips."""
    return PlannedRule(
        name=name, action="skip", reason="", tests=tuple(tests), patterns=expressions_of(patterns)
    )


@st.composite
def patterns_like(draw: st.DrawFn, test: str) -> str:
    """Return a test's id with a star in the place of a piece."""
    start = draw(st.integers(0, len(test)))
    end = draw(st.integers(start, len(test)))
    return f"{test[:start]}*{test[end:]}"


@given(st.lists(TESTS, max_size=5), st.lists(PATTERNS, max_size=5), st.data())
def test_an_index_takes_the_tests_that_the_rules_match(
    tests: list[str], patterns: list[str], data: st.DataObject
) -> None:
    for test in tests:
        patterns += [test, data.draw(patterns_like(test))]
    exact_tests = data.draw(st.lists(st.sampled_from([*tests, "gone"]), max_size=4))
    rules = [skip_rule("all", tests=exact_tests, patterns=patterns)]
    rules += [skip_rule(pattern, patterns=[pattern]) for pattern in patterns]

    taken = Index(tests).taken(rules)

    matching_rules: dict[int, list[PlannedRule]] = {}
    for index, test in enumerate(tests):
        for rule in rules:
            if test in rule.tests or any(re.fullmatch(regex, test) for regex in rule.patterns.values()):
                matching_rules.setdefault(index, []).append(rule)
    assert taken == matching_rules
