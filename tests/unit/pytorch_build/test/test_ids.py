import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytorch_build.test.ids import Pattern, TestId, exact

# Few and alike, so that names often meet in part.
NAMES = st.sampled_from(["x", "xx", "_", "test_x", "test_x1", "TestX", "TestXX"])
FOLDERS = st.lists(st.sampled_from(["test", "nn", "a_b"]), max_size=2)
PARAMETERS = st.text(st.sampled_from("ax1-/:[] .é"), max_size=5)


@st.composite
def node_ids(draw: st.DrawFn) -> str:
    """Return a test's id as pytest writes it."""
    path = "/".join([*draw(FOLDERS), f"{draw(NAMES)}.py"])
    names = "::".join(draw(st.lists(NAMES, min_size=1, max_size=3)))
    parameters = draw(st.none() | PARAMETERS)
    suffix = "" if parameters is None else f"[{parameters}]"
    return f"{path}::{names}{suffix}"


@given(node_ids())
def test_an_id_matches_itself_alone(test: str) -> None:
    pattern = Pattern.parse(test)

    assert exact(test) == test
    assert pattern.matches(test)
    for other in (f"x{test}", f"{test}x", test[:-1], f"other/{test}"):
        assert not pattern.matches(other)


@given(node_ids())
def test_an_id_is_made_of_its_parts(test: str) -> None:
    parts = TestId.parse(test)

    names = "::".join((parts.path, *parts.names))
    parameters = "" if parts.parameters is None else f"[{parts.parameters}]"
    assert f"{names}{parameters}" == test


@given(node_ids(), node_ids())
def test_a_name_without_a_file_matches_it_in_any_file(test: str, other: str) -> None:
    name = TestId.parse(test).names[-1]

    pattern = Pattern.parse(f"::{name}[*]" if "[" in test else f"::{name}")

    assert pattern.matches(test)
    if TestId.parse(other).names[-1] != name:
        assert not pattern.matches(other)


@pytest.mark.parametrize(
    ("pattern", "test"),
    [
        ("::test_x[param]", "test/a.py::TestA::test_x[param]"),
        ("::test_x[param]", "test/a.py::test_x[param]"),
        ("::test_x[*]", "test/a.py::test_x[a/b ::c[d]]"),
        ("TestNN::*", "test/test_nn.py::TestNN::test_x"),
        ("TestNN::*", "test/test_nn.py::TestNN::test_x[a::b]"),
        ("test/test_nn.py::*", "test/test_nn.py::TestNN::test_x"),
        ("test/test_nn.py::*", "test/test_nn.py::test_x"),
        ("test/*/*.py::TestNN::*", "test/nn/test_nn.py::TestNN::test_x"),
        ("test/test_*.py::*::test_x", "test/test_nn.py::TestNN::test_x"),
        ("TestFoo*::test_bar_cuda_*", "test/a.py::TestFooCUDA::test_bar_cuda_float32"),
        ("::test_x[a*b]", "test/a.py::test_x[a/::]b]"),
    ],
)
def test_a_pattern_matches_whole_parts(pattern: str, test: str) -> None:
    parsed = Pattern.parse(pattern)

    assert parsed.text == pattern
    assert parsed.matches(test)
    assert re.fullmatch(parsed.regex, test)


@pytest.mark.parametrize(
    ("pattern", "test"),
    [
        ("test/test_nn.py::TestNN::test_x", "test/test_nn.py::TestNN::test_x[1]"),
        ("::test_x[param]", "test/a.py::test_x[params]"),
        ("::test_x[*]", "test/a.py::test_x"),
        ("::test_x[*]", "test/a.py::test_xy[1]"),
        ("TestNN::*", "test/test_nn.py::TestNNMore::test_x"),
        ("TestNN::*", "test/test_nn.py::MyTestNN::test_x"),
        ("test/test_nn.py::*", "test/test_nn.pyc::test_x"),
        ("test/*.py::TestNN::*", "test/nn/test_nn.py::TestNN::test_x"),
        ("test/test_*.py::*::test_x", "test/test_nn.py::test_x"),
        ("TestFoo*::test_bar_cuda_*", "test/a.py::TestFooCUDA::test_bar_cpu_float32"),
        # Brackets are no set of letters, and a star stays in its part and out of parameters.
        ("::test_[x]", "test/a.py::test_x"),
        ("TestFoo::*bar", "test/a.py::TestFoo::test_x[bar"),
        ("TestFoo::test_*", "test/a.py::TestFoo::Inner::test_x"),
    ],
)
def test_a_pattern_matches_no_part_of_a_part(pattern: str, test: str) -> None:
    parsed = Pattern.parse(pattern)

    assert not parsed.matches(test)
    assert not re.fullmatch(parsed.regex, test)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("test_x", "write ::test_x"),
        ("test/test_nn.py", "write ::"),
        ("*::*", "every test"),
        ("::*", "every test"),
        ("test/*.py::*", "every test"),
        ("test/nn/*.py::*", "every test"),
        ("::**", "every test"),
        ("TestNN::::test_x", "empty part"),
        ("TestNN::", "empty part"),
        ("::", "empty part"),
        ("TestNN::test_x[1", "open bracket"),
        ("TestNN::test_x[1]y", "open bracket"),
        ("test/test_nn::TestNN::test_x", ".py"),
        ("/test/test_nn.py::TestNN::test_x", "from the checkout"),
        ("./test_nn.py::TestNN::test_x", "from the checkout"),
        ("../test_nn.py::TestNN::test_x", "from the checkout"),
        ("test//test_nn.py::TestNN::test_x", "from the checkout"),
        ("test\\test_nn.py::TestNN::test_x", "from the checkout"),
        ("test/test_nn.py::TestNN:test_x", "letters"),
        ("TestNN::test_x or test_y", "letters"),
    ],
)
def test_refuses_text_that_is_not_a_pattern(pattern: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)) as caught:
        Pattern.parse(pattern)

    assert str(caught.value).startswith(repr(pattern))


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("test_x", "test id"),
        ("::test_x", ".py"),
        ("TestNN::test_x", ".py"),
        ("test/test_nn.py", "test id"),
        ("test/test_nn.py::TestNN::*", "'patterns'"),
        ("test/*.py::TestNN::test_x", "'patterns'"),
        ("test/test_nn.py::test_x[", "open bracket"),
    ],
)
def test_refuses_text_that_is_not_an_id(test: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)) as caught:
        exact(test)

    assert str(caught.value).startswith(repr(test))


def test_a_star_among_parameters_is_a_star() -> None:
    assert exact("test/a.py::test_mul[a*b]") == "test/a.py::test_mul[a*b]"


EXACT = "test/test_nn.py::TestNN::test_x"


@pytest.mark.parametrize(
    ("pattern", "test", "difference"),
    [
        (EXACT, "test/test_nn.py::TestNN::test_x[1]", "parameters"),
        (f"{EXACT}[2]", "test/test_nn.py::TestNN::test_x[1]", "parameters"),
        (EXACT, "test/test_nn.py::TestB::test_x", "class differs: it names TestNN"),
        ("a.py::A::test_x", "a.py::A::B::test_x", "class differs: it names A"),
        ("a.py::A::B::test_x", "a.py::A::test_x", "class differs: it names A::B"),
        ("a.py::test_x", "a.py::A::test_x", "class differs: it names a function"),
        (EXACT, "test/nn.py::TestNN::test_x", "file differs: it names test/test_nn.py"),
    ],
)
def test_a_near_miss_says_what_differs(pattern: str, test: str, difference: str) -> None:
    assert difference in Pattern.parse(pattern).near_miss(TestId.parse(test))


@pytest.mark.parametrize(
    ("pattern", "test"),
    [
        ("TestNN::*", "test/test_nn.py::TestB::test_x"),
        (EXACT, "test/test_nn.py::TestNN::test_y"),
        (EXACT, "test/test_b.py::TestB::test_x"),
        (EXACT, "test/test_nn.py"),
    ],
)
def test_two_differences_are_no_near_miss(pattern: str, test: str) -> None:
    assert Pattern.parse(pattern).near_miss(TestId.parse(test)) == ""
