import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import DataError, MissingInputError, UsageError
from core.junit import Case, Document, Suite
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from pytorch_build.test import shards

# recorded with torch 2.13.0 for processors, from the tests of 2.6.0
REAL = Path(__file__).with_name("recorded") / "durations.json"
SECONDS = st.floats(0, 1000, allow_nan=False)
BIG = shards.FileDuration(
    seconds=100,
    parts={
        "test_big.py::TestA": 40,
        "test_big.py::TestA::test_long": 25,
        "test_big.py::TestA::test_longer": 15,
        "test_big.py::TestB": 30,
        "test_big.py::TestC": 29,
    },
)


def table(**seconds: float) -> shards.Durations:
    return shards.Durations(
        files={f"test_{one}.py": shards.FileDuration(seconds=value) for one, value in seconds.items()}
    )


def loads(made: shards.Plan) -> list[float]:
    return [round(one, 6) for one in made.seconds]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1/1", (1, 1)),
        ("2/6", (2, 6)),
        ("06/6", (6, 6)),
        *((text, "not K/N") for text in ("a/b", "2", "", "2/6/1", "-1/6", " 1/6", "1/6\n", "²/6", "1/99999")),
        *((text, "K from 1 to N") for text in ("7/6", "0/6", "1/0")),
    ],
)
def test_shards_are_parsed_or_refused(text: str, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert shards.parse_shard(text) == shards.Shard(index=expected[0], count=expected[1])
        return
    with pytest.raises(UsageError, match=expected):
        shards.parse_shard(text)


def test_files_are_spread_by_what_they_take() -> None:
    durations = table(a=5, b=4, c=3, d=3, e=3)
    # the longest first, where the shard stays shortest
    assert loads(shards.plan(durations.files, durations, 2)) == [8, 10]
    # without any duration evenly
    made = shards.plan([f"test_{at}.py" for at in range(12)], shards.Durations(), 4)
    assert [len(units) for units in made.shards] == [3, 3, 3, 3]
    # starting a file counts
    durations = shards.Durations(
        files={f"test_{at}.py": shards.FileDuration(seconds=1, starting=9) for at in range(4)}
    )
    assert loads(shards.plan(durations.files, durations, 2)) == [20, 20]
    with pytest.raises(MissingInputError, match="no test files"):
        shards.plan([], shards.Durations(), 2)


def test_unknown_files_get_the_median_of_the_known() -> None:
    durations = table(a=1, b=10, c=100)
    made = shards.plan([*durations.files, "test_new.py"], durations, 1)
    assert {unit.file: unit.seconds for unit in made.shards[0]}["test_new.py"] == 10
    # to start, too
    known = {f"test_{at}.py": shards.FileDuration(seconds=1, starting=at) for at in (2, 4, 9)}
    made = shards.plan(["test_new.py", *known], shards.Durations(files=known), 1)
    assert loads(made) == [4 + 2 + 4 + 9 + 1 * 3 + 1]
    # of these files nothing is known, so those of all others count
    assert loads(shards.plan(["test_new.py"], shards.Durations(files=known), 1)) == [1 + 4]


def test_a_big_file_is_taken_apart_only_as_far_as_balance_asks() -> None:
    durations = shards.Durations(
        files={"test_big.py": BIG, "test_small.py": shards.FileDuration(seconds=100)}
    )
    whole = shards.plan(durations.files, durations, 2)
    assert all(part.whole for at in (1, 2) for part in whole.parts(shards.Shard(index=at, count=2)))
    classes = shards.plan(["test_big.py"], durations, 2)
    assert classes.imbalance <= shards.BALANCE or {
        unit.part for units in classes.shards for unit in units
    } > {""}
    tests = shards.plan(["test_big.py"], durations, 4)
    assert "test_big.py::TestA::test_long" in {unit.part for units in tests.shards for unit in units}


def takes(made: shards.Plan, test: str) -> Mapping[int, int]:
    count = len(made.shards)
    return {
        at: sum(
            part.takes(test)
            for part in made.parts(shards.Shard(index=at, count=count))
            if test.startswith((f"{part.file}::", f"{part.file}["))
        )
        for at in range(1, count + 1)
    }


NAMES = st.integers(0, 7).map(lambda at: f"test_{at}.py")
PARTS = st.tuples(
    st.sampled_from(["TestA", "TestB", "TestC"]), st.sampled_from(["", "::test_x", "::test_y", "::test_z"])
).map("".join)
Known = dict[str, tuple[dict[str, float], float]]
KNOWN = st.dictionaries(
    NAMES, st.tuples(st.dictionaries(PARTS, SECONDS, max_size=9), st.floats(0, 20)), max_size=8
)


def recorded(known: Known) -> shards.Durations:
    made = {}
    for file, (below, starting) in known.items():
        total = sum(seconds for name, seconds in below.items() if "::" not in name)
        parts = {f"{file}::{name}": seconds for name, seconds in below.items()}
        made[file] = shards.FileDuration(seconds=total, starting=starting, parts=parts)
    return shards.Durations(files=made)


@given(known=KNOWN, unknown=st.sets(NAMES, max_size=4), count=st.integers(1, 7), seed=st.integers())
def test_each_test_is_in_exactly_one_shard(known: Known, unknown: set[str], count: int, seed: int) -> None:
    durations = recorded(known)
    named = sorted({*known, *unknown, "test_always.py"})
    made = shards.plan(named, durations, count)
    shuffled = list(named)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - an order, and no secret
    again = shards.plan(shuffled, shards.Durations(files=dict(reversed(durations.files.items()))), count)
    assert again == made
    assert again.digest == made.digest
    for file in named:
        for name in ("TestA", "TestAB", "TestB", "TestNew"):
            for test in ("test_x", "test_xy", "test_new", "test_x[a]", "test_x[1::2]"):
                assert sum(takes(made, f"{file}::{name}::{test}").values()) == 1
        assert sum(takes(made, f"{file}::test_alone").values()) == 1


@given(st.dictionaries(NAMES, SECONDS, min_size=1), st.integers(1, 6))
def test_no_shard_exceeds_the_mean_and_the_longest_file(seconds: Mapping[str, float], count: int) -> None:
    durations = shards.Durations(
        files={name: shards.FileDuration(seconds=value) for name, value in seconds.items()}
    )
    made = shards.plan(seconds, durations, count)
    mean = sum(seconds.values()) / count
    assert sum(made.seconds) == pytest.approx(sum(seconds.values()))
    assert max(made.seconds) <= mean + max(seconds.values()) * (1 - 1 / count) + 1e-6


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8, 12])
def test_shards_of_a_real_table_are_balanced(count: int) -> None:
    durations = shards.Durations.model_validate_json(REAL.read_text())
    made = shards.plan(durations.files, durations, count)
    assert made.imbalance <= shards.BALANCE
    # what it costs: files that are started in more than one shard
    started = sum(len({unit.file for unit in units}) for units in made.shards)
    assert started <= len(durations.files) * 1.5 + count


def test_the_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    durations = shards.Durations(files={"test_big.py": BIG, "test_s.py": shards.FileDuration(seconds=1)})
    shards.show(shards.plan(durations.files, durations, 2), shards.Shard(index=1, count=2))
    told = capsys.readouterr().err
    assert "1/2 (this one)" in told
    assert "2/2" in told
    assert "test_big.py" in told


def case(test: str, seconds: float, outcome: Any = "passed") -> Case:
    return Case(test=test, outcome=outcome, seconds=seconds, file=test.partition("::")[0])


def test_reports_become_durations() -> None:
    first = Document(
        cases=(
            case("t.py::A::x[1]", 2),
            case("t.py::A::x[2]", 3),
            case("t.py::A::y", 0.25),
            case("t.py::alone", 4),
            case("t.py::B::hung", 600, "timeout"),
        ),
        suites={"t.py": Suite(seconds=615.25)},
    )
    second = Document(cases=(case("t.py::B::z", 1.5),), suites={"t.py": Suite(seconds=9.5)})
    assert shards.of_documents([first, second]).files == {
        "t.py": shards.FileDuration(
            # a hang is no duration
            seconds=10.75,
            starting=8,
            parts={"t.py::A": 5.25, "t.py::A::x": 5, "t.py::alone": 4, "t.py::B": 1.5, "t.py::B::z": 1.5},
        )
    }


def test_a_file_that_ran_on_two_architectures_took_both_times() -> None:
    first, second = case("t.py@gfx942::A::x[1]", 2), case("t.py@gfx90a::A::x[1]", 3)
    suites = {"t.py@gfx942": Suite(seconds=2), "t.py@gfx90a": Suite(seconds=3)}
    found = shards.of_documents([Document(cases=(first, second), suites=suites)]).files
    parts = {"t.py::A": 5.0, "t.py::A::x": 5.0}
    assert found == {"t.py": shards.FileDuration(seconds=5, parts=parts)}


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def run(number: str = "17") -> RunOutputs:
    return RunOutputs(run_id=number, platform="linux")


def test_all_shards_of_a_run_read_the_same(store: DirectoryStore) -> None:
    shards.record(store, run("16"), "cpu", "default", table(a=1))
    assert shards.for_run(store, run(), "cpu", "default") == table(a=1)
    # what another run records in between changes nothing for this one
    shards.record(store, run("16"), "cpu", "default", table(a=99))
    assert shards.for_run(store, run(), "cpu", "default") == table(a=1)
    assert shards.for_run(store, run("18"), "cpu", "default") == table(a=99)
    assert shards.for_run(store, run("18"), "cpu", "inductor") == shards.Durations()
    assert shards.for_run(store, run("18"), "gfx942", "default") == shards.Durations()
    # the local run takes the newest each time
    assert shards.for_run(store, run("local"), "cpu", "default") == table(a=99)
    shards.record(store, run("local"), "cpu", "default", table(a=2))
    assert shards.for_run(store, run("local"), "cpu", "default") == table(a=2)


def test_of_two_shards_the_first_one_chooses(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    shards.record(store, run(), "cpu", "default", table(a=1))
    key = "17-linux/reports/cpu/durations-default.json"
    found = DirectoryStore.find
    looked: list[str] = []

    def late(self: DirectoryStore, asked: str) -> Any:
        answer = found(self, asked)
        if asked == key and not looked:
            looked.append(asked)
            DirectoryStore.put_bytes(self, key, table(b=2).model_dump_json().encode())
        return answer

    monkeypatch.setattr(DirectoryStore, "find", late)
    assert shards.for_run(store, run(), "cpu", "default") == table(b=2)


def test_files_that_did_not_run_keep_what_was_known(store: DirectoryStore) -> None:
    shards.record(store, run(), "cpu", "default", table(a=1, b=2))
    shards.record(store, run(), "cpu", "default", table(b=3, c=4))
    key = shards.latest_key(run(), "cpu", "default")
    assert key == "test-durations/linux/cpu/default.json"
    kept = json.loads(store.read(key))["files"]
    assert [one["seconds"] for one in kept.values()] == [1, 3, 4]
    store.put_bytes(key, b"{")
    with pytest.raises(DataError, match="test-durations"):
        shards.for_run(store, run(), "cpu", "default")
