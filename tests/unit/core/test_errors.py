import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import FatalError, MachineError, UsageError, fatal, nearest

WORDS = st.text(min_size=1, max_size=8)


def test_shows_an_error_as_its_message_and_its_hint() -> None:
    problem = UsageError("There is no 'nigtly'.", hint="Try nightly.")

    assert str(problem) == "There is no 'nigtly'.\nTry nightly."


def test_shows_an_error_without_a_hint_as_its_message() -> None:
    assert str(FatalError("The disk is full.")) == "The disk is full."


# Refusals of the machine


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Free space"),
        (errno.EACCES, "rights"),
        (errno.EROFS, "read-only"),
        (errno.ENAMETOOLONG, "shorter path"),
    ],
    ids=["full disk", "rights", "read-only", "long name"],
)
def test_advises_what_helps_against_a_refusal_of_the_machine(number: int, advice: str) -> None:
    problem = fatal(OSError(number, os.strerror(number), "a.whl"))

    assert isinstance(problem, MachineError)
    assert "a.whl" in problem.message
    assert advice in problem.hint


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL], ids=["damaged disk", "argument"])
def test_advises_nothing_where_nothing_is_known(number: int) -> None:
    problem = fatal(OSError(number, os.strerror(number), "a.whl"))

    assert os.strerror(number) in problem.message
    assert problem.hint == "--debug shows where it was met."


# Names


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
