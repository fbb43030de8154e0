from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.errors import FatalError, ProcessError, UsageError, nearest


def test_an_error_reads_as_its_sentence_and_then_the_next_action() -> None:
    problem = UsageError("There is no 'nigtly'.", hint="Try nightly.")
    assert str(problem) == "There is no 'nigtly'.\nTry nightly."
    assert str(FatalError("The disk is full.")) == "The disk is full."


def test_a_process_error_keeps_what_the_process_left() -> None:
    problem = ProcessError("ninja ended with status 3.", returncode=3, output="undefined symbol")
    assert (problem.returncode, problem.output, problem.exit_code) == (3, "undefined symbol", 5)


def test_the_nearest_name_is_named() -> None:
    assert nearest("nigtly", ["nightly", "main"]) == "Did you mean 'nightly'?"


def test_a_name_in_other_letters_is_found_though_it_looks_unlike() -> None:
    assert nearest("CPU", ["cpu", "gfx1100"]) == "Did you mean 'cpu'?"


def test_without_a_near_name_all_are_listed_once_and_sorted() -> None:
    assert nearest("xyz", ["main", "nightly", "main"]) == "Known: main, nightly."
    assert nearest("xyz", []) == "None is known."


@given(st.text(min_size=1, max_size=8), st.lists(st.text(min_size=1, max_size=8), min_size=1))
def test_whatever_is_proposed_is_known(word: str, known: list[str]) -> None:
    said = nearest(word, known)
    assert any(repr(name) in said for name in known) or said.startswith("Known: ")
