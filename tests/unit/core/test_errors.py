import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import FatalError, MachineError, UsageError, as_fatal_error, nearest, remedy_on_windows

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
    problem = as_fatal_error(OSError(number, os.strerror(number), "a.whl"))

    assert isinstance(problem, MachineError)
    assert "a.whl" in problem.message
    assert advice in problem.hint


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL], ids=["damaged disk", "argument"])
def test_advises_nothing_where_nothing_is_known(number: int) -> None:
    problem = as_fatal_error(OSError(number, os.strerror(number), "a.whl"))

    assert os.strerror(number) in problem.message
    assert problem.hint == "--debug shows where it was met."


LONG_PATH = f"C:\\{'a' * 255}\\b"


# Python takes the numbers of <winerror.h> for those of POSIX: both of these for EACCES.
@pytest.mark.parametrize(
    ("problem", "number", "advice"),
    [
        (OSError(errno.EACCES, "in use", "a.dll"), 32, "open"),
        (OSError(errno.EACCES, "denied", "a.dll"), 5, "rights"),
        (OSError(errno.EACCES, "denied", "a.dll"), 5, "in use"),
        (OSError(errno.ENOENT, "not there", LONG_PATH), 3, "LongPathsEnabled"),
        (OSError(errno.ENOENT, "not there", "a", None, LONG_PATH), 206, "shorter path"),
    ],
    ids=["file in use", "rights", "loaded DLL", "long path", "long new name"],
)
def test_advises_what_helps_against_a_refusal_of_windows(problem: OSError, number: int, advice: str) -> None:
    remedy = remedy_on_windows(problem, number)

    assert remedy is not None
    assert advice in remedy


def test_takes_a_short_path_that_is_not_there_for_no_long_one() -> None:
    assert remedy_on_windows(OSError(errno.ENOENT, "not there", "C:\\a"), 3) is None


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
