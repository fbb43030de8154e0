import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytorch_build.test.ids import Pattern, TestId, exact

EXACT = "test/test_nn.py::TestNN::test_x"
NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
FOLDERS = st.lists(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), max_size=3)
PARAMETERS = st.text(
    st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters="*"), max_size=12
)


@st.composite
def node_ids(draw: st.DrawFn) -> str:
    path = "/".join([*draw(FOLDERS), draw(NAME) + ".py"])
    names = "::".join(draw(st.lists(NAME, min_size=1, max_size=3)))
    parameters = draw(st.none() | PARAMETERS)
    return f"{path}::{names}" + ("" if parameters is None else f"[{parameters}]")


@given(node_ids())
def test_an_id_taken_as_a_pattern_matches_itself_and_no_longer_or_shorter_one(test: str) -> None:
    pattern = Pattern.parse(test)
    assert pattern.matches(test)
    assert not pattern.matches(f"x{test}")
    assert not pattern.matches(f"{test}x")
    assert not pattern.matches(test[:-1])
    assert not pattern.matches(f"other/{test}")
    assert exact(test) == test


@given(node_ids())
def test_every_part_of_an_id_comes_back(test: str) -> None:
    parts = TestId.parse(test)
    again = "::".join((parts.path, *parts.names))
    assert test == (again if parts.parameters is None else f"{again}[{parts.parameters}]")


@given(node_ids(), node_ids())
def test_a_name_without_a_file_means_that_name_in_any_file_and_nothing_else(test: str, other: str) -> None:
    last = TestId.parse(test).names[-1]
    pattern = Pattern.parse(f"::{last}[*]" if "[" in test else f"::{last}")
    assert pattern.matches(test)
    if TestId.parse(other).names[-1] != last:
        assert not pattern.matches(other)


@pytest.mark.parametrize(
    ("pattern", "test", "taken"),
    [
        ("test/test_nn.py::TestNN::test_x", "test/test_nn.py::TestNN::test_x[1]", False),
        ("::test_x[param]", "test/a.py::TestA::test_x[param]", True),
        ("::test_x[param]", "test/a.py::test_x[param]", True),
        ("::test_x[param]", "test/a.py::test_x[params]", False),
        ("::test_x[*]", "test/a.py::test_x[a/b ::c[d]]", True),
        ("::test_x[*]", "test/a.py::test_x", False),
        ("::test_x[*]", "test/a.py::test_xy[1]", False),
        ("::test_[x]", "test/a.py::test_x", False),  # brackets are no set of letters
        ("TestNN::*", "test/test_nn.py::TestNN::test_x", True),
        ("TestNN::*", "test/test_nn.py::TestNN::test_x[a::b]", True),
        ("TestNN::*", "test/test_nn.py::TestNNMore::test_x", False),
        ("TestNN::*", "test/test_nn.py::MyTestNN::test_x", False),
        ("test/test_nn.py::*", "test/test_nn.py::TestNN::test_x", True),
        ("test/test_nn.py::*", "test/test_nn.py::test_x", True),
        ("test/test_nn.py::*", "test/test_nn.pyc::test_x", False),
        ("test/*.py::TestNN::*", "test/nn/test_nn.py::TestNN::test_x", False),
        ("test/*/*.py::TestNN::*", "test/nn/test_nn.py::TestNN::test_x", True),
        ("test/test_*.py::*::test_x", "test/test_nn.py::TestNN::test_x", True),
        ("test/test_*.py::*::test_x", "test/test_nn.py::test_x", False),
        ("TestFoo*::test_bar_cuda_*", "test/a.py::TestFooCUDA::test_bar_cuda_float32", True),
        ("TestFoo*::test_bar_cuda_*", "test/a.py::TestFooCUDA::test_bar_cpu_float32", False),
        ("TestFoo::*bar", "test/a.py::TestFoo::test_x[bar", False),  # '*' stays out of parameters
        ("TestFoo::test_*", "test/a.py::TestFoo::Inner::test_x", False),  # and in its part
        ("::test_x[a*b]", "test/a.py::test_x[a/::]b]", True),
    ],
)
def test_patterns_take_whole_parts(pattern: str, test: str, taken: bool) -> None:  # noqa: FBT001 - a table's column
    assert Pattern.parse(pattern).text == pattern
    assert Pattern.parse(pattern).matches(test) is taken
    assert bool(re.fullmatch(Pattern.parse(pattern).regex, test)) is taken


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("test_x", "write ::test_x"),
        ("test/test_nn.py", "write ::"),
        ("*::*", "takes every test"),
        ("::*", "takes every test"),
        ("test/*.py::*", "takes every test"),
        ("test/nn/*.py::*", "takes every test"),
        ("::**", "takes every test"),
        ("TestNN::::test_x", "empty part"),
        ("TestNN::", "empty part"),
        ("::", "empty part"),
        ("TestNN::test_x[1", "open bracket"),
        ("TestNN::test_x[1]y", "open bracket"),
        ("test/test_nn::TestNN::test_x", "end with .py"),
        ("/test/test_nn.py::TestNN::test_x", "from the checkout on"),
        ("./test_nn.py::TestNN::test_x", "from the checkout on"),
        ("../test_nn.py::TestNN::test_x", "from the checkout on"),
        ("test//test_nn.py::TestNN::test_x", "from the checkout on"),
        ("test\\test_nn.py::TestNN::test_x", "from the checkout on"),
        ("test/test_nn.py::TestNN:test_x", "such letters"),
        ("TestNN::test_x or test_y", "such letters"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(repr(pattern))}.*{re.escape(said)}"):
        Pattern.parse(pattern)


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("test_x", "not a test id"),
        ("::test_x", "must end with .py"),
        ("TestNN::test_x", "must end with .py"),
        ("test/test_nn.py", "not a test id"),
        ("test/test_nn.py::TestNN::*", "under 'patterns'"),
        ("test/*.py::TestNN::test_x", "under 'patterns'"),
        ("test/test_nn.py::test_x[", "open bracket"),
    ],
)
def test_what_is_no_exact_id_is_refused(test: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(repr(test))}.*{re.escape(said)}"):
        exact(test)
    # a star in the parameters is a star
    assert exact("test/a.py::test_mul[a*b]") == "test/a.py::test_mul[a*b]"


@pytest.mark.parametrize(
    ("pattern", "test", "why"),
    [
        (EXACT, "test/test_nn.py::TestNN::test_x[1]", "the parameters differ"),
        ("test/test_nn.py::TestNN::test_x[2]", "test/test_nn.py::TestNN::test_x[1]", "the parameters differ"),
        (EXACT, "test/test_nn.py::TestB::test_x", "the class differs: it names TestNN"),
        ("a.py::A::test_x", "a.py::A::B::test_x", "the class differs: it names A"),
        ("a.py::A::B::test_x", "a.py::A::test_x", "the class differs: it names A::B"),
        ("a.py::test_x", "a.py::A::test_x", "the class differs: it names a function of the file"),
        (EXACT, "test/nn.py::TestNN::test_x", "the file differs: it names test/test_nn.py"),
        ("TestNN::*", "test/test_nn.py::TestB::test_x", ""),
        ("test/test_nn.py::TestNN::test_x", "test/test_nn.py::TestNN::test_y", ""),
        ("test/test_nn.py::TestNN::test_x", "test/test_b.py::TestB::test_x", ""),
        ("test/test_nn.py::TestNN::test_x", "test/test_nn.py", ""),
    ],
)
def test_a_near_miss_says_what_differs(pattern: str, test: str, why: str) -> None:
    said = Pattern.parse(pattern).near_miss(TestId.parse(test))
    assert said.startswith(why) if why else said == ""
