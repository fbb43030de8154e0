import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import FatalError, UsageError, nearest


def test_an_error_reads_as_its_sentence_and_then_the_next_action() -> None:
    problem = UsageError("There is no 'nigtly'.", hint="Try nightly.")
    assert str(problem) == "There is no 'nigtly'.\nTry nightly."
    assert str(FatalError("The disk is full.")) == "The disk is full."


@pytest.mark.parametrize(
    ("word", "known", "said"),
    [
        ("nigtly", ["nightly", "main"], "Did you mean 'nightly'?"),
        ("CPU", ["cpu", "gfx1100"], "Did you mean 'cpu'?"),
        ("ic", ["ci", "release"], "Did you mean 'ci'?"),
        ("gfx94X", ["gfx942", "gfx94X-all", "gfx94X-dcgpu"], "Did you mean 'gfx94X-all' or 'gfx94X-dcgpu'?"),
        ("xyz", ["main", "nightly", "main"], "Known: main, nightly."),
        ("xyz", [], "None is known."),
    ],
)
def test_the_nearest_name_is_proposed_or_all_are_listed(word: str, known: list[str], said: str) -> None:
    assert nearest(word, known) == said


@given(st.text(min_size=1, max_size=8), st.lists(st.text(min_size=1, max_size=8), min_size=1))
def test_whatever_is_proposed_is_known(word: str, known: list[str]) -> None:
    said = nearest(word, known)
    assert any(repr(name) in said for name in known) or said.startswith("Known: ")
