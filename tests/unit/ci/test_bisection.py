"""Which run is tested next, whatever is missing; what exit codes mean; what is said to differ."""

from collections.abc import Mapping, Sequence
from math import ceil, log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.bisection import Facts, Point, Search, Verdict, between, day_in, end_of, facts_of, judged
from core.errors import CheckError, FatalError
from core.run.plan import RocmOrigin
from core.run.records import Record
from pytorch_build.lock.source_lock import LockedProject, SourceLock

OLD_COMMIT = "a" * 40
NEW_COMMIT = "b" * 40

GOOD = judged([0])
BAD = judged([1])
SKIP = judged([125])
LOST = Verdict(result="skip", why="gone", lost=True)


def make_search(
    count: int,
    *,
    without_wheels: set[int] | None = None,
    build: bool = False,
    verdicts: Mapping[int, Verdict] | None = None,
) -> Search:
    """Return a search among runs r0, r1, …, some of which lack their wheels; `build` makes those."""
    points: list[Point] = []
    for position in range(count):
        lacks = "none" if position in (without_wheels or ()) else ""
        points.append(Point(name=f"r{position}", lacks=lacks))
    named = {f"r{position}": verdict for position, verdict in (verdicts or {}).items()}
    return Search(question={}, points=tuple(points), build=build, verdicts=named)


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
    while point := search.next:
        position = search.points.index(point)
        steps = search.steps
        assert point.name not in search.verdicts
        is_skipped = position in skipped
        verdict = BAD if position >= first_bad else GOOD
        search = search.told(point, SKIP if is_skipped else verdict)
        tests += 1
        skips += is_skipped
        # A test makes what is left shorter, as was said.
        assert is_skipped or search.steps < steps

    good, bad = search.ends
    assert good < first_bad <= bad
    untestable = skipped if build else skipped | without_wheels
    assert set(range(good + 1, bad)) <= untestable
    most_tests = ceil(log2(count)) * (2 if build else 1)
    assert tests <= 2 + most_tests + skips


def test_tests_a_run_that_must_be_built_only_where_no_other_is_left() -> None:
    search = make_search(9, without_wheels={1, 2, 3, 5, 6, 7}, build=True, verdicts={0: GOOD, 8: BAD})

    assert search.next == search.points[4]
    assert search.told(search.points[4], BAD).next == search.points[2]


def test_ends_where_every_run_that_is_left_would_have_to_be_built() -> None:
    search = make_search(9, without_wheels={1, 2, 3, 4, 5, 6, 7}, verdicts={0: GOOD, 8: BAD})

    assert search.next is None


def test_builds_a_run_whose_wheels_are_lost_after_all_others_and_once() -> None:
    search = make_search(4, build=True, verdicts={0: GOOD, 3: BAD})

    after_loss = search.told(search.points[2], LOST)
    after_other = after_loss.told(search.points[1], GOOD)
    after_second_loss = after_loss.told(after_loss.points[2], LOST)

    assert after_loss.next == search.points[1]
    assert after_loss.points[2].lacks == "gone"
    assert after_other.next == after_loss.points[2]
    assert after_second_loss.verdicts["r2"] == LOST


@pytest.mark.parametrize(("position", "verdict"), [(0, BAD), (0, SKIP), (8, GOOD)])
def test_ends_where_an_end_is_not_what_it_should_be(position: int, verdict: Verdict, tmp_path: Path) -> None:
    search = make_search(9)
    log = tmp_path / "log"
    log.write_text("no module named torch\n")

    with pytest.raises(CheckError, match=f"r{position}") as caught:
        search.told(search.points[position], verdict.model_copy(update={"log": str(log)}))

    assert "no module named torch" in str(caught.value)


# --- What exit codes mean --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_codes", "result"),
    [
        ([0], "good"),
        ([1], "bad"),
        ([124], "bad"),
        ([125], "skip"),
        ([127], "bad"),
        ([0, 125, 1], "skip"),
        ([0, 1, 0], "bad"),
    ],
)
def test_exit_codes_mean_what_they_mean_to_git_bisect(exit_codes: Sequence[int], result: str) -> None:
    assert judged(exit_codes).result == result


def test_says_how_likely_a_flaky_test_misled_the_search() -> None:
    flaky = judged([0, 1, 0])

    search = make_search(3, verdicts={0: judged([0, 0, 0]), 1: flaky, 2: judged([1, 1, 1])})

    assert flaky.why == "failed 1 of 3 times"
    assert "failed 1 of 3 times at r1" in search.flaky
    # Three passes in a row, with two chances in three each.
    assert "30%" in search.flaky
    assert search.result["first_bad"] == "r1"


def test_says_nothing_of_flaky_tests_where_none_is() -> None:
    assert make_search(2, verdicts={0: GOOD, 1: BAD}).flaky == ""


# --- The ends of a search --------------------------------------------------------------------

# Two runs a day, from 1 to 3 November; each has a version.
POINTS = [
    Point(name=f"{number}", started=f"2026-11-0{number // 2 + 1}T0{number}:00", names=(f"v{number}",))
    for number in range(6)
]


@pytest.mark.parametrize(("word", "name"), [("2", "2"), ("v3", "3"), ("2026-11-01", "1"), ("20261102", "3")])
def test_an_end_is_named_by_its_id_a_version_or_a_day(word: str, name: str) -> None:
    assert end_of(POINTS, word).name == name


def test_searches_between_two_ends() -> None:
    assert [point.name for point in between(POINTS, "v1", "2026-11-02")] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("good", "bad", "named"),
    [
        ("3", "1", "swap the two"),
        ("2", "v2", "Name two"),
        ("1", "7", "no 7"),
        ("1", "2026-12-01", "2026-11-03"),
        ("20261031", "2", "2026-11-01"),
    ],
)
def test_refuses_ends_between_which_nothing_lies(good: str, bad: str, named: str) -> None:
    with pytest.raises(FatalError) as caught:
        between(POINTS, good, bad)

    assert named in str(caught.value)


@pytest.mark.parametrize(("version", "day"), [("2.10.0a0+rocm7.10.0a20261120", "2026-11-20"), ("2.9.1", "")])
def test_reads_the_day_of_a_nightly_version(version: str, day: str) -> None:
    assert day_in(version) == day


# --- What differs between the ends -----------------------------------------------------------

TORCH_ORIGIN = "https://github.com/o/torch.git"


def make_facts(commit: str, *, rules: str, rocm: str, origin: str = TORCH_ORIGIN) -> Facts:
    """Return what is known of a run: its commit of torch, the digest of its build rules, its ROCm."""
    torch = LockedProject(project="torch", origin=origin, commit=commit, base_version="2.10.0")
    lock = SourceLock(torch_ref="mine", release_type="dev", rocm_version=rocm, projects={"torch": torch})
    source = RocmOrigin(platform="linux", artifact_group="g", run_id=rocm[-2:], repository="o/rocm")
    inputs = {"code": rules, "version": commit, "flags": {}, "source": {}}
    records = [
        make_record("build_torch", inputs=inputs),
        make_record("build_rocm", details={"families": ["gfx942", rocm]}),
    ]
    facts = facts_of(lock, [source], records)
    return facts.model_copy(update={"packages": {"torch": f"2.10+{rocm}", "numpy": "2"}})


def make_record(
    step: str, *, inputs: Mapping[str, object] | None = None, details: Mapping[str, object] | None = None
) -> Record:
    return Record(
        stage=step,
        run_id="1",
        platform="linux",
        started="2026-11-01",
        seconds=1,
        inputs=dict(inputs or {}),
        details=dict(details or {}),
    )


def changes_between(good: Facts, bad: Facts) -> dict[str, tuple[str, str]]:
    """Return what differs, with its value at both ends."""
    return {change.what: (change.good, change.bad) for change in search_of(good, bad).changes}


def hints_about(what: str, good: Facts, bad: Facts) -> tuple[str, ...]:
    """Return how to learn more of a difference."""
    (hints,) = [change.more for change in search_of(good, bad).changes if change.what == what]
    return hints


def search_of(good: Facts, bad: Facts) -> Search:
    verdicts = {
        0: Verdict(result="good", why="", facts=good),
        1: Verdict(result="bad", why="", facts=bad),
    }
    return make_search(2, verdicts=verdicts)


GOOD_FACTS = make_facts(OLD_COMMIT, rules="c" * 64, rocm="7.10")
BAD_FACTS = make_facts(NEW_COMMIT, rules="d" * 64, rocm="7.11")


def test_tells_which_commits_rules_and_packages_differ() -> None:
    changes = changes_between(GOOD_FACTS, BAD_FACTS)

    rules = changes.pop("build_torch: build rules")
    assert len(rules[0]) == 12
    assert changes == {
        "torch": ("a" * 12, "b" * 12),
        "ROCm": ("7.10", "7.11"),
        "origin of ROCm": ("o/rocm 10", "o/rocm 11"),
        "build_rocm: targets": ('["gfx942","7.10"]', '["gfx942","7.11"]'),
        "installed torch": ("2.10+7.10", "2.10+7.11"),
    }


def test_tells_nothing_where_nothing_differs() -> None:
    assert changes_between(GOOD_FACTS, GOOD_FACTS) == {}


def test_compares_only_what_both_ends_know() -> None:
    untested = GOOD_FACTS.model_copy(update={"packages": {}, "commits": {"torch": ("/t", NEW_COMMIT)}})

    assert changes_between(untested, GOOD_FACTS) == {"torch": ("b" * 12, "a" * 12)}
    assert hints_about("torch", untested, GOOD_FACTS) == (TORCH_ORIGIN,)


def test_shows_how_to_list_the_commits_of_a_public_repository() -> None:
    page = "https://github.com/o/torch/compare/aaaaaaaaaaaa...bbbbbbbbbbbb"

    assert hints_about("torch", GOOD_FACTS, BAD_FACTS) == (
        "git log --oneline aaaaaaaaaaaa..bbbbbbbbbbbb",
        page,
    )


def test_shows_how_to_list_the_commits_of_a_repository_on_this_machine() -> None:
    good = make_facts(OLD_COMMIT, rules="c", rocm="7.10", origin="/my torch")
    bad = make_facts(NEW_COMMIT, rules="c", rocm="7.10", origin="/my torch")

    (command,) = hints_about("torch", good, bad)

    assert command == "git -C '/my torch' log --oneline aaaaaaaaaaaa..bbbbbbbbbbbb"
