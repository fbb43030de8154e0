"""Which run is tested next, whatever is missing, and which runs are searched."""

from collections.abc import Mapping
from math import ceil, log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.bisection.judging import judge_exit_codes
from ci.bisection.search import (
    Bisection,
    Judgement,
    Revision,
    day_of,
    find_revision,
    revisions_from,
)
from core.errors import CheckError, FatalError

GOOD = judge_exit_codes([0])
BAD = judge_exit_codes([1])
SKIP = judge_exit_codes([125])
LOST = Judgement(
    result="skip",
    why="gone",
    lost=True,
)


def make_search(
    count: int,
    *,
    without_wheels: set[int] | None = None,
    build: bool = False,
    verdicts: Mapping[int, Judgement] | None = None,
) -> Bisection:
    """Return a search among runs r0, r1, …, some of which lack their wheels; `build` makes those."""
    points: list[Revision] = []
    for position in range(count):
        lacks = "none" if position in (without_wheels or ()) else ""
        points.append(Revision(name=f"r{position}", lacks=lacks))
    verdicts_by_name: dict[str, Judgement] = {}
    for position, verdict in (verdicts or {}).items():
        verdicts_by_name[f"r{position}"] = verdict
    return Bisection(
        question={},
        points=tuple(points),
        build=build,
        verdicts=verdicts_by_name,
    )


# --- Which run is next -----------------------------------------------------------------------


@given(st.data())
def test_finds_the_first_bad_run_in_few_tests_whatever_is_skipped_or_missing(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 200))
    inner_runs = st.sets(st.integers(1, count - 2)) if count > 2 else st.just(set[int]())
    skipped = data.draw(inner_runs)
    without_wheels = data.draw(inner_runs)
    build = data.draw(st.booleans())
    first_bad = data.draw(st.integers(1, count - 1))

    search = make_search(count, without_wheels=without_wheels, build=build)
    tests = 0
    skips = 0
    while revision := search.next_revision:
        position = search.points.index(revision)
        steps = search.most_tests
        assert revision.name not in search.verdicts
        is_skipped = position in skipped
        verdict = BAD if position >= first_bad else GOOD
        search = search.with_judgement(revision, SKIP if is_skipped else verdict)
        tests += 1
        skips += is_skipped
        # A test makes what is left shorter, as was said.
        assert is_skipped or search.most_tests < steps

    good, bad = search.ends
    assert good < first_bad <= bad
    untestable = skipped if build else skipped | without_wheels
    assert set(range(good + 1, bad)) <= untestable
    most_tests = ceil(log2(count)) * (2 if build else 1)
    assert tests <= 2 + most_tests + skips


def test_tests_a_run_that_must_be_built_only_where_no_other_is_left() -> None:
    search = make_search(
        9,
        without_wheels={1, 2, 3, 5, 6, 7},
        build=True,
        verdicts={0: GOOD, 8: BAD},
    )

    assert search.next_revision == search.points[4]
    assert search.with_judgement(search.points[4], BAD).next_revision == search.points[2]


def test_ends_where_every_run_that_is_left_would_have_to_be_built() -> None:
    search = make_search(9, without_wheels={1, 2, 3, 4, 5, 6, 7}, verdicts={0: GOOD, 8: BAD})

    assert search.next_revision is None


def test_builds_a_run_whose_wheels_are_lost_after_all_others_and_once() -> None:
    search = make_search(4, build=True, verdicts={0: GOOD, 3: BAD})

    after_loss = search.with_judgement(search.points[2], LOST)
    after_other = after_loss.with_judgement(search.points[1], GOOD)
    after_second_loss = after_loss.with_judgement(after_loss.points[2], LOST)

    assert after_loss.next_revision == search.points[1]
    assert after_loss.points[2].lacks == "gone"
    assert after_other.next_revision == after_loss.points[2]
    assert after_second_loss.verdicts["r2"] == LOST


@pytest.mark.parametrize(("position", "verdict"), [(0, BAD), (0, SKIP), (8, GOOD)])
def test_ends_where_an_end_is_not_what_it_should_be(
    position: int, verdict: Judgement, tmp_path: Path
) -> None:
    search = make_search(9)
    log = tmp_path / "log"
    log.write_text("no module named torch\n")

    with pytest.raises(CheckError, match=f"r{position}") as caught:
        search.with_judgement(search.points[position], verdict.model_copy(update={"log": str(log)}))

    assert "no module named torch" in str(caught.value)


@pytest.mark.parametrize("lacks", ["", "no wheels"], ids=["lost", "never there"])
def test_an_end_without_wheels_can_be_built(lacks: str) -> None:
    search = make_search(9)
    end = search.points[-1].model_copy(update={"lacks": lacks})
    judgement = SKIP if lacks else LOST

    with pytest.raises(CheckError, match="cannot be tested") as caught:
        search.with_judgement(end, judgement)

    assert "--build" in str(caught.value)


# --- Flaky commands --------------------------------------------------------------------------


def test_says_how_likely_a_flaky_test_misled_the_search() -> None:
    flaky = judge_exit_codes([0, 1, 0])

    search = make_search(
        3, verdicts={0: judge_exit_codes([0, 0, 0]), 1: flaky, 2: judge_exit_codes([1, 1, 1])}
    )

    assert flaky.why == "failed 1 of 3 times"
    assert "failed 1 of 3 times at r1" in search.flakiness
    # Three passes in a row, with two chances in three each.
    assert "30%" in search.flakiness
    assert search.result["first_bad"] == "r1"


def test_says_nothing_of_flaky_tests_where_none_is() -> None:
    assert make_search(2, verdicts={0: GOOD, 1: BAD}).flakiness == ""


# --- The ends of a search --------------------------------------------------------------------

# Two runs a day, from 1 to 3 November; each has a version.
REVISIONS = [
    Revision(
        name=f"{number}",
        started=f"2026-11-0{number // 2 + 1}T0{number}:00",
        names=(f"v{number}",),
    )
    for number in range(6)
]


@pytest.mark.parametrize(("text", "name"), [("2", "2"), ("v3", "3"), ("2026-11-01", "1"), ("20261102", "3")])
def test_an_end_is_named_by_its_id_a_version_or_a_day(text: str, name: str) -> None:
    assert find_revision(REVISIONS, text).name == name


def test_searches_between_two_ends() -> None:
    assert [point.name for point in revisions_from(REVISIONS, "v1", "2026-11-02")] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("good", "bad", "mention"),
    [
        ("3", "1", "swap the two"),
        ("2", "v2", "Name two"),
        ("1", "7", "no 7"),
        ("1", "2026-12-01", "2026-11-03"),
        ("20261031", "2", "2026-11-01"),
    ],
)
def test_refuses_ends_between_which_nothing_lies(good: str, bad: str, mention: str) -> None:
    with pytest.raises(FatalError) as caught:
        revisions_from(REVISIONS, good, bad)

    assert mention in str(caught.value)


@pytest.mark.parametrize(
    ("version", "day"), [("2.10.0a0+rocm7.10.0a20261120", "2026-11-20"), ("2.9.1", None)]
)
def test_reads_the_day_of_a_nightly_version(version: str, day: str | None) -> None:
    assert day_of(version) == day
