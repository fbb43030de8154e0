from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.drift.tree import Subject, Tree
from ci.verbs.drift import ACCEPTED, SUBJECTS, Accepted, AcceptedFile, Difference, differences, sorted_out
from core.data import load_toml
from core.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from ci.drift.tree import Facts

values = st.dictionaries(
    st.sampled_from("abc"), st.lists(st.sampled_from("xyz"), min_size=1, unique=True).map(tuple), min_size=1
)


def subject(theirs: Facts, ours: Facts) -> Subject:
    return Subject(name="s", upstream="there.py", here="here.toml", facts=lambda _: (theirs, ours))


def difference(key: str, upstream: tuple[str, ...] = (), here: tuple[str, ...] = ()) -> Difference:
    where = {"subject": "s", "upstream": "there.py", "here": "here.toml"}
    return Difference(key=key, only_upstream=upstream, only_here=here, **where)


@given(values, values)
def test_differences_are_what_either_has_alone(theirs: Facts, ours: Facts) -> None:
    found = differences(subject(theirs, ours), Tree(root=ACCEPTED.parent))
    pairs = {(one.key, value) for one in found for value in one.only_upstream}
    own = {(one.key, value) for one in found for value in one.only_here}
    all_of = [{(key, value) for key, many in facts.items() for value in many} for facts in (theirs, ours)]
    assert pairs == all_of[0] - all_of[1]
    assert own == all_of[1] - all_of[0]


@pytest.mark.parametrize(
    ("theirs", "ours", "named"), [({}, {"a": ("x",)}, "there.py"), ({"a": ("x",)}, {"a": ()}, "here.toml")]
)
def test_a_place_that_says_nothing_is_an_error(
    theirs: Facts, ours: Facts, named: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=named):
        differences(subject(theirs, ours), Tree(root=tmp_path))


def test_a_reason_is_for_the_values_that_it_names() -> None:
    row = Accepted(subject="s", key="on *", upstream=("a*",), here=("b",), reason="it is meant")
    meant = difference("on linux", ("ab", "ac"), ("b",))
    more = difference("on windows", ("ab", "c"))
    other = difference("in", ("a",))
    idle = Accepted(subject="t", key="*", reason="left over here")
    assert sorted_out([meant, more, other], [row, idle]) == ([more, other], {meant: "it is meant"}, [idle])


def test_reasons_are_about_subjects_that_there_are() -> None:
    rows = load_toml(ACCEPTED, AcceptedFile).accepted
    assert rows
    assert {row.subject for row in rows} <= {one.name for one in SUBJECTS}
