from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import MissingInputError, UsageError
from pytorch_build.test import shards
from pytorch_build.test.shards import (
    BALANCE,
    Durations,
    FileDuration,
    Part,
    Plan,
    Shard,
    parse_shard,
    plan,
    read_durations,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# recorded with torch 2.13.0 for processors, from the tests of 2.6.0
REAL = Path(__file__).with_name("recorded") / "durations.json"
SECONDS = st.floats(0, 1000, allow_nan=False)


def table(**seconds: float) -> Durations:
    return Durations(
        files={f"test_{name}.py": FileDuration(seconds=value) for name, value in seconds.items()}
    )


def loads(made: Plan) -> list[float]:
    return [round(one, 6) for one in made.seconds]


@pytest.mark.parametrize(("text", "index", "count"), [("1/1", 1, 1), ("2/6", 2, 6), ("06/6", 6, 6)])
def test_shards_are_parsed(text: str, index: int, count: int) -> None:
    assert parse_shard(text) == Shard(index=index, count=count)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("7/6", "no shard 7 of 6"),
        ("0/6", "no shard 0 of 6"),
        ("1/0", "in 0 shards"),
        ("a/b", "not K/N"),
        ("2", "not K/N"),
        ("", "not K/N"),
        ("2/6/1", "not K/N"),
        ("-1/6", "not K/N"),
        (" 1/6", "not K/N"),
        ("1/6\n", "not K/N"),
        ("²/6", "not K/N"),
        ("1/99999", "not K/N"),
    ],
)
def test_what_is_no_shard_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_shard(text)


def test_the_longest_is_placed_first() -> None:
    durations = table(a=5, b=4, c=3, d=3, e=3)
    made = plan(durations.files, durations, 2)
    assert [[unit.file for unit in units] for units in made.shards] == [
        ["test_a.py", "test_d.py"],
        ["test_b.py", "test_c.py", "test_e.py"],
    ] or loads(made) == [8, 10]
    assert sum(loads(made)) == 18


def test_unknown_files_get_the_median_of_the_known() -> None:
    durations = table(a=1, b=10, c=100)
    made = plan(["test_a.py", "test_b.py", "test_c.py", "test_new.py"], durations, 1)
    assert {unit.file: unit.seconds for unit in made.shards[0]}["test_new.py"] == 10


def test_unknown_files_take_a_median_to_start() -> None:
    known = {f"test_{at}.py": FileDuration(seconds=1, starting=at) for at in (2, 4, 9)}
    made = plan(["test_new.py", *known], Durations(files=known), 1)
    assert loads(made) == [4 + 2 + 4 + 9 + 1 * 3 + 1]
    # of files that are asked for nothing is known, so those of all others count
    assert loads(plan(["test_new.py"], Durations(files=known), 1)) == [1 + 4]


def test_without_any_duration_files_are_spread_evenly() -> None:
    made = plan([f"test_{at}.py" for at in range(12)], Durations(), 4)
    assert [len(units) for units in made.shards] == [3, 3, 3, 3]


def test_starting_a_file_counts() -> None:
    durations = Durations(files={f"test_{at}.py": FileDuration(seconds=1, starting=9) for at in range(4)})
    assert loads(plan(durations.files, durations, 2)) == [20, 20]


def test_no_file_is_an_error() -> None:
    with pytest.raises(MissingInputError, match="no test files"):
        plan([], Durations(), 2)


BIG = FileDuration(
    seconds=100,
    parts={
        "test_big.py::TestA": 40,
        "test_big.py::TestA::test_long": 25,
        "test_big.py::TestA::test_longer": 15,
        "test_big.py::TestB": 30,
        "test_big.py::TestC": 29,
    },
)


def test_a_big_file_is_taken_apart_only_as_far_as_balance_asks() -> None:
    durations = Durations(files={"test_big.py": BIG, "test_small.py": FileDuration(seconds=100)})
    whole = plan(durations.files, durations, 2)
    assert all(part.whole for at in (1, 2) for part in whole.parts(Shard(index=at, count=2)))
    classes = plan(["test_big.py"], durations, 2)
    assert classes.imbalance <= BALANCE or {unit.part for units in classes.shards for unit in units} > {""}
    tests = plan(["test_big.py"], durations, 4)
    assert "test_big.py::TestA::test_long" in {unit.part for units in tests.shards for unit in units}


def test_what_nobody_recorded_is_in_the_rest_of_its_file_or_class() -> None:
    durations = Durations(files={"test_big.py": BIG})
    made = plan(["test_big.py"], durations, 4)
    for test in (
        "test_big.py::TestNew::test_x",
        "test_big.py::test_alone",
        "test_big.py::TestA::test_new",
        "test_big.py::TestA::test_long",
        "test_big.py::TestA::test_long[1::2]",
        "test_big.py::TestA::test_long_too",
        "test_big.py::TestAB::test_x",
        "test_big.py::TestB::test_x",
    ):
        assert sum(takes(made, test).values()) == 1, test
    same_class = takes(made, "test_big.py::TestA::test_long_too")
    assert same_class == takes(made, "test_big.py::TestA::test_new")


def takes(made: Plan, test: str) -> Mapping[int, int]:
    """Count by shard how often a test is run."""
    count = len(made.shards)
    return {
        at: sum(
            part.takes(test)
            for part in made.parts(Shard(index=at, count=count))
            if test.startswith((f"{part.file}::", f"{part.file}["))
        )
        for at in range(1, count + 1)
    }


def test_longer_names_count_before_shorter_ones() -> None:
    part = Part(file="t.py", keep=("t.py", "t.py::A::x"), drop=("t.py::A",))
    assert part.takes("t.py::B::x")
    assert part.takes("t.py::A::x[1]")
    assert not part.takes("t.py::A::y")
    assert not part.takes("t.py::A")
    assert not part.takes("other.py::A")


NAMES = st.integers(0, 7).map(lambda at: f"test_{at}.py")
KNOWN = st.dictionaries(
    NAMES,
    st.builds(
        lambda classes, starting: (classes, starting),
        st.dictionaries(
            st.sampled_from(["TestA", "TestB", "TestC"]),
            st.dictionaries(st.sampled_from(["test_x", "test_y", "test_z"]), SECONDS, max_size=3),
            max_size=3,
        ),
        st.floats(0, 20),
    ),
    max_size=8,
)


def recorded(known: Mapping[str, tuple[Mapping[str, Mapping[str, float]], float]]) -> Durations:
    made = {}
    for file, (classes, starting) in known.items():
        parts = {f"{file}::{name}": sum(tests.values()) for name, tests in classes.items()}
        parts |= {
            f"{file}::{name}::{test}": seconds
            for name, tests in classes.items()
            for test, seconds in tests.items()
        }
        total = sum(sum(tests.values()) for tests in classes.values())
        made[file] = FileDuration(seconds=total, starting=starting, parts=parts)
    return Durations(files=made)


@given(known=KNOWN, unknown=st.sets(NAMES, max_size=4), count=st.integers(1, 7), seed=st.integers())
def test_every_test_is_in_exactly_one_shard_on_every_machine(
    known: Mapping[str, tuple[Mapping[str, Mapping[str, float]], float]],
    unknown: set[str],
    count: int,
    seed: int,
) -> None:
    durations = recorded(known)
    named = sorted({*known, *unknown, "test_always.py"})
    made = plan(named, durations, count)
    shuffled = list(named)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - an order, and no secret
    again = plan(shuffled, Durations(files=dict(reversed(durations.files.items()))), count)
    assert again == made
    assert again.digest == made.digest
    for file in named:
        for name in ("TestA", "TestB", "TestNew"):
            for test in ("test_x", "test_new", "test_x[a]"):
                assert sum(takes(made, f"{file}::{name}::{test}").values()) == 1
        assert sum(takes(made, f"{file}::test_alone").values()) == 1


@given(st.dictionaries(NAMES, SECONDS, min_size=1), st.integers(1, 6))
def test_no_shard_is_longer_than_the_mean_and_the_longest_file(
    seconds: Mapping[str, float], count: int
) -> None:
    durations = Durations(files={name: FileDuration(seconds=value) for name, value in seconds.items()})
    made = plan(seconds, durations, count)
    mean = sum(seconds.values()) / count
    assert sum(made.seconds) == pytest.approx(sum(seconds.values()))
    assert max(made.seconds) <= mean + max(seconds.values()) * (1 - 1 / count) + 1e-6


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8, 12])
def test_shards_of_a_real_table_are_balanced(count: int) -> None:
    durations = read_durations(REAL)
    made = plan(durations.files, durations, count)
    assert made.imbalance <= BALANCE
    # what it costs: files that are started in more than one shard
    started = sum(len({unit.file for unit in units}) for units in made.shards)
    assert started <= len(durations.files) * 1.5 + count


def test_files_alone_would_not_balance_the_real_table() -> None:
    durations = read_durations(REAL)
    whole = Durations(
        files={name: one.model_copy(update={"parts": {}}) for name, one in durations.files.items()}
    )
    assert plan(whole.files, whole, 12).imbalance > BALANCE


def test_the_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    durations = Durations(files={"test_big.py": BIG, "test_s.py": FileDuration(seconds=1)})
    shards.show(plan(durations.files, durations, 2), Shard(index=1, count=2))
    told = capsys.readouterr().err
    assert "1/2 (this one)" in told
    assert "2/2" in told
    assert "test_big.py" in told
