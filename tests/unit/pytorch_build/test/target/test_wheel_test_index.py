import re
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pytorch_build.test.ids import Pattern
from pytorch_build.test.plugin import PlannedRule
from pytorch_build.test.target.wheel_test_index import Index

# few and alike, so that they often meet; letters of regular expressions and of ids stand where they may
PATHS = st.lists(st.sampled_from(["a", "b", "*", ":", "/", "[", "]", "."]), max_size=5).map("".join)
NAMES = st.lists(st.sampled_from(["a", "b", "ab", "*", "]", "."]), max_size=3).map("".join)
PARAMETERS = st.text("ab*[]:/\n", max_size=4)


@st.composite
def written(draw: st.DrawFn) -> str:
    path = draw(st.just("") | PATHS.map("{}.py".format))
    parameters = draw(st.just("") | PARAMETERS.map("[{}]".format))
    return "::".join([path, *draw(st.lists(NAMES, max_size=3))]) + parameters


def is_pattern(text: str) -> bool:
    try:
        return bool(Pattern.parse(text))
    except ValueError:
        return False


TESTS = st.lists(written().map(lambda text: text.replace("*", "ba")), max_size=12)


@given(TESTS, st.lists(written().filter(is_pattern), max_size=6), st.data())
def test_an_index_finds_what_trying_each_pattern_on_each_test_finds(
    tests: list[str], patterns: Sequence[str], data: st.DataObject
) -> None:
    # patterns that are made of the tests, too: a piece of one becomes a star
    for test in filter(is_pattern, tests):
        start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(test))] * 2)))
        patterns = [*patterns, *filter(is_pattern, (test, f"{test[:start]}*{test[end:]}"))]
    exact = data.draw(st.lists(st.sampled_from([*tests, "gone"]), max_size=4))
    regexes = {one: Pattern.parse(one).regex for one in patterns}
    plain = [
        place
        for place, test in enumerate(tests)
        if test in exact or any(re.fullmatch(regex, test) for regex in regexes.values())
    ]
    rule = PlannedRule(name="any", action="skip", reason="", tests=tuple(exact), patterns=regexes)
    assert Index(tests).taken([rule, rule]) == {place: [rule, rule] for place in plain}
