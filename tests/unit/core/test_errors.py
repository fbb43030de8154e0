import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import FatalError, UsageError, nearest

WORDS = st.text(min_size=1, max_size=8)


def test_shows_an_error_as_its_message_and_its_hint() -> None:
    problem = UsageError("There is no 'nigtly'.", hint="Try nightly.")

    assert str(problem) == "There is no 'nigtly'.\nTry nightly."


def test_shows_an_error_without_a_hint_as_its_message() -> None:
    assert str(FatalError("The disk is full.")) == "The disk is full."


@pytest.mark.parametrize(
    ("word", "names", "sentence"),
    [
        ("nigtly", ["nightly", "main"], "Did you mean 'nightly'?"),
        ("CPU", ["cpu", "gfx1100"], "Did you mean 'cpu'?"),
        ("ic", ["ci", "release"], "Did you mean 'ci'?"),
        ("gfx94X", ["gfx942", "gfx94X-all", "gfx94X-dcgpu"], "Did you mean 'gfx94X-all' or 'gfx94X-dcgpu'?"),
        ("xyz", ["main", "nightly", "main"], "Known: main, nightly."),
        ("xyz", [], "None is known."),
    ],
    ids=["a letter missing", "other case", "swapped letters", "beginnings", "nothing near", "no names"],
)
def test_proposes_the_nearest_name_or_lists_all(word: str, names: list[str], sentence: str) -> None:
    assert nearest(word, names) == sentence


@given(WORDS, st.lists(WORDS, min_size=1))
def test_proposes_only_known_names(word: str, names: list[str]) -> None:
    sentence = nearest(word, names)

    assert any(repr(name) in sentence for name in names) or sentence.startswith("Known: ")
