import re
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from pytorch_build.test.ids import Pattern
from pytorch_build.test.plugin import PlannedRule
from pytorch_build.test.target.wheel_test_index import Index

# few and alike, so that they often meet; letters of regular expressions and of ids stand where they may
PIECES = st.sampled_from(["a", "b", "ab", "*", ".", "/", ":", "[", "]", "\n"])
PATHS = st.lists(PIECES, max_size=4).map(lambda pieces: "".join([*pieces, ".py"]))
NAMES = st.lists(PIECES, min_size=1, max_size=3).map("".join)
WRITTEN = st.tuples(PATHS | st.just(""), st.lists(NAMES, min_size=1, max_size=3).map("::".join)).map(
    "::".join
)


def planned(texts: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        try:
            found[text] = Pattern.parse(text).regex
        except ValueError:
            continue
    return found


@given(st.lists(WRITTEN.map(lambda text: text.replace("*", "ba")), max_size=12), st.lists(WRITTEN), st.data())
def test_an_index_finds_what_trying_finds(tests: list[str], patterns: list[str], data: st.DataObject) -> None:
    for test in tests:  # patterns that are made of the tests, too: a piece of one becomes a star
        start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(test))] * 2)))
        patterns += [test, f"{test[:start]}*{test[end:]}"]
    exact = data.draw(st.lists(st.sampled_from([*tests, "gone"]), max_size=4))
    rules = [PlannedRule(name="all", action="skip", reason="", tests=exact, patterns=planned(patterns))]
    rules += [PlannedRule(name=one, action="skip", reason="", patterns=planned([one])) for one in patterns]
    plain: dict[int, list[PlannedRule]] = {}
    for place, test in enumerate(tests):
        for rule in rules:
            if test in rule.tests or any(re.fullmatch(regex, test) for regex in rule.patterns.values()):
                plain.setdefault(place, []).append(rule)
    assert Index(tests).taken(rules) == plain
