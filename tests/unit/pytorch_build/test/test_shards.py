import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import DataError, MissingInputError, UsageError
from core.junit import Document, Suite
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from pytorch_build.test import shards
from pytorch_build.test.shards import Durations, FileDuration, Plan, Shard
from tests.kit.runs import run_outputs
from tests.kit.torch_results import case_of

# Recorded with torch 2.13.0 for processors, from the tests of 2.6.0.
RECORDED_DURATIONS = Path(__file__).with_name("recorded") / "durations.json"
BIG_FILE = FileDuration(
    seconds=100,
    parts={
        "test_big.py::TestA": 40,
        "test_big.py::TestA::test_long": 25,
        "test_big.py::TestA::test_longer": 15,
        "test_big.py::TestB": 30,
        "test_big.py::TestC": 29,
    },
)


def durations_of(**seconds: float) -> Durations:
    """Return what files take, by the letters behind ``test_``."""
    return Durations(
        files={f"test_{name}.py": FileDuration(seconds=value) for name, value in seconds.items()}
    )


def shard_seconds(plan: Plan) -> list[float]:
    """Return what the shards of a plan take."""
    return [round(seconds, 6) for seconds in plan.seconds]


@pytest.mark.parametrize(("text", "index", "count"), [("1/1", 1, 1), ("2/6", 2, 6), ("06/6", 6, 6)])
def test_parses_a_shard(text: str, index: int, count: int) -> None:
    assert shards.parse_shard(text) == Shard(index=index, count=count)


@pytest.mark.parametrize("text", ["a/b", "2", "", "2/6/1", "-1/6", " 1/6", "1/6\n", "²/6", "1/99999"])
def test_refuses_text_that_is_not_a_shard(text: str) -> None:
    with pytest.raises(UsageError, match="K/N"):
        shards.parse_shard(text)


@pytest.mark.parametrize("text", ["7/6", "0/6", "1/0"])
def test_refuses_a_shard_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="from 1 to N"):
        shards.parse_shard(text)


def test_puts_the_longest_file_into_the_shortest_shard_first() -> None:
    durations = durations_of(a=5, b=4, c=3, d=3, e=3)

    assert shard_seconds(shards.plan(durations.files, durations, 2)) == [8, 10]


def test_spreads_files_of_unknown_durations_evenly() -> None:
    plan = shards.plan([f"test_{index}.py" for index in range(12)], Durations(), 4)

    assert [len(units) for units in plan.shards] == [3, 3, 3, 3]


def test_counts_the_time_to_start_a_file() -> None:
    files = {f"test_{index}.py": FileDuration(seconds=1, starting=9) for index in range(4)}

    assert shard_seconds(shards.plan(files, Durations(files=files), 2)) == [20, 20]


def test_refuses_to_plan_no_files() -> None:
    with pytest.raises(MissingInputError):
        shards.plan([], Durations(), 2)


def test_an_unknown_file_takes_the_median_of_the_known() -> None:
    durations = durations_of(a=1, b=10, c=100)

    plan = shards.plan([*durations.files, "test_new.py"], durations, 1)

    seconds = {unit.file: unit.seconds for unit in plan.shards[0]}
    assert seconds["test_new.py"] == 10


STARTING = {f"test_{seconds}.py": FileDuration(seconds=1, starting=seconds) for seconds in (2, 4, 9)}


@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        pytest.param(["test_new.py", *STARTING], [(1 + 4) + (1 + 2) + (1 + 4) + (1 + 9)], id="beside known"),
        pytest.param(["test_new.py"], [1 + 4], id="alone"),
    ],
)
def test_an_unknown_file_starts_in_the_median_of_the_known(files: list[str], seconds: list[float]) -> None:
    assert shard_seconds(shards.plan(files, Durations(files=STARTING), 1)) == seconds


def test_keeps_files_whole_while_shards_are_balanced() -> None:
    durations = Durations(files={"test_big.py": BIG_FILE, "test_small.py": FileDuration(seconds=100)})

    plan = shards.plan(durations.files, durations, 2)

    for index in (1, 2):
        for part in plan.parts(Shard(index=index, count=2)):
            assert part.is_whole


def test_divides_a_long_file_into_its_classes() -> None:
    plan = shards.plan(["test_big.py"], Durations(files={"test_big.py": BIG_FILE}), 3)

    assert shard_seconds(plan) == [40, 30, 30]


def test_leaves_files_whole_where_classes_balance_no_better() -> None:
    one_class = FileDuration(seconds=100, starting=5, parts={"test_big.py::TestA": 100})

    plan = shards.plan(["test_big.py"], Durations(files={"test_big.py": one_class}), 2)

    (part,) = plan.parts(Shard(index=1, count=2))
    assert part.is_whole
    assert plan.parts(Shard(index=2, count=2)) == ()


def shards_with(plan: Plan, test: str) -> list[int]:
    """Return the shards that run a test, once for each part that takes it."""
    count = len(plan.shards)
    indices: list[int] = []
    for index in range(1, count + 1):
        for part in plan.parts(Shard(index=index, count=count)):
            is_in_file = test.startswith((f"{part.file}::", f"{part.file}["))
            if is_in_file and part.takes(test):
                indices.append(index)
    return indices


FILE_NAMES = st.integers(0, 4).map(lambda number: f"test_{number}.py")
PART_NAMES = st.sampled_from(
    ["TestA", "TestB", "TestA::test_x", "TestA::test_y", "TestB::test_x", "TestB::test_z"]
)
SECONDS = st.floats(0, 1000, allow_nan=False)


@st.composite
def recorded_durations(draw: st.DrawFn) -> Durations:
    """Return durations of a few files, some of which know their parts."""
    files: dict[str, FileDuration] = {}
    for name in draw(st.sets(FILE_NAMES, max_size=4)):
        parts = draw(st.dictionaries(PART_NAMES, SECONDS, max_size=5))
        total = sum(seconds for part, seconds in parts.items() if "::" not in part)
        files[name] = FileDuration(
            seconds=total,
            starting=draw(st.floats(0, 20)),
            parts={f"{name}::{part}": seconds for part, seconds in parts.items()},
        )
    return Durations(files=files)


# Of parts that are known, of others whose names begin alike, and of the file itself.
TEST_NAMES = (
    *("TestA::test_x", "TestA::test_xy", "TestA::test_x[a]", "TestA::test_x[1::2]", "TestA::test_new"),
    *("TestAB::test_x", "TestB::test_x", "TestNew::test_x", "test_alone"),
)


@given(durations=recorded_durations(), count=st.integers(1, 5))
def test_each_test_is_in_exactly_one_shard(durations: Durations, count: int) -> None:
    files = sorted({*durations.files, "test_always.py"})

    plan = shards.plan(files, durations, count)

    for file in files:
        for name in TEST_NAMES:
            assert len(shards_with(plan, f"{file}::{name}")) == 1


@given(durations=recorded_durations(), count=st.integers(1, 5), seed=st.integers())
def test_a_plan_does_not_depend_on_the_order_of_files(durations: Durations, count: int, seed: int) -> None:
    files = sorted({*durations.files, "test_always.py"})
    plan = shards.plan(files, durations, count)

    random.Random(seed).shuffle(files)  # noqa: S311 - an order, and no secret
    reversed_durations = Durations(files=dict(reversed(durations.files.items())))
    other_plan = shards.plan(files, reversed_durations, count)

    assert other_plan == plan
    assert other_plan.digest == plan.digest


@given(st.dictionaries(FILE_NAMES, SECONDS, min_size=1), st.integers(1, 6))
def test_no_shard_exceeds_the_mean_and_the_longest_file(seconds: Mapping[str, float], count: int) -> None:
    durations = Durations(files={name: FileDuration(seconds=value) for name, value in seconds.items()})

    plan = shards.plan(seconds, durations, count)

    mean = sum(seconds.values()) / count
    longest = max(seconds.values())
    assert sum(plan.seconds) == pytest.approx(sum(seconds.values()))
    assert max(plan.seconds) <= mean + longest * (1 - 1 / count) + 1e-6


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8])
def test_shards_of_a_recorded_run_are_balanced(count: int) -> None:
    durations = Durations.model_validate_json(RECORDED_DURATIONS.read_text())

    plan = shards.plan(durations.files, durations, count)

    # Each file that is in several shards is started in each.
    starts = 0
    for index in range(1, count + 1):
        starts += len(plan.parts(Shard(index=index, count=count)))
    assert plan.imbalance <= shards.BALANCE
    assert starts <= len(durations.files) * 1.5 + count


def test_shows_the_plan_and_this_shard(capsys: pytest.CaptureFixture[str]) -> None:
    durations = Durations(files={"test_big.py": BIG_FILE, "test_s.py": FileDuration(seconds=1)})

    shards.show(shards.plan(durations.files, durations, 2), Shard(index=1, count=2))

    printed = capsys.readouterr().err
    assert "1/2 (this one)" in printed
    assert "2/2" in printed
    assert "test_big.py" in printed


def test_learns_durations_from_reports() -> None:
    first = Document(
        cases=(
            case_of("t.py::A::x[1]", seconds=2),
            case_of("t.py::A::x[2]", seconds=3),
            case_of("t.py::A::y", seconds=0.25),
            case_of("t.py::alone", seconds=4),
        ),
        suites={"t.py": Suite(seconds=15.25)},
    )
    second = Document(cases=(case_of("t.py::B::z", seconds=1.5),), suites={"t.py": Suite(seconds=9.5)})

    durations = shards.durations_of([first, second])

    parts = {"t.py::A": 5.25, "t.py::B": 1.5}
    assert durations.files == {"t.py": FileDuration(seconds=10.75, starting=8, parts=parts)}


def test_a_hang_is_no_duration() -> None:
    hung = case_of("t.py::B::hung", outcome="timeout", seconds=600)
    document = Document(cases=(case_of("t.py::A::x", seconds=2), hung), suites={"t.py": Suite(seconds=610)})

    file = shards.durations_of([document]).files["t.py"]

    assert file.seconds == 2
    assert "t.py::B" not in file.parts


def test_a_file_that_ran_on_two_architectures_took_both_times() -> None:
    cases = (
        case_of("t.py@gfx942::A::x[1]", seconds=2),
        case_of("t.py@gfx90a::A::x[1]", seconds=3),
    )
    suites = {"t.py@gfx942": Suite(seconds=2), "t.py@gfx90a": Suite(seconds=3)}

    durations = shards.durations_of([Document(cases=cases, suites=suites)])

    parts = {"t.py::A": 5.0}
    assert durations.files == {"t.py": FileDuration(seconds=5, parts=parts)}


# Durations in a store.


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def record(store: DirectoryStore, durations: Durations, *, run_id: str = "16") -> None:
    """Record what the tests of a run took."""
    shards.record_durations(store, run_outputs(run_id), "cpu", "default", durations)


def durations_for(
    store: DirectoryStore, run_id: str, *, group: str = "cpu", configuration: str = "default"
) -> Durations:
    """Return the durations that a run plans with."""
    return shards.for_run(store, run_outputs(run_id), group, configuration)


def test_all_shards_of_a_run_plan_with_the_same_durations(store: DirectoryStore) -> None:
    record(store, durations_of(a=1))
    assert durations_for(store, "17") == durations_of(a=1)

    record(store, durations_of(a=99))

    assert durations_for(store, "17") == durations_of(a=1)
    assert durations_for(store, "18") == durations_of(a=99)


def test_durations_are_of_one_group_and_configuration(store: DirectoryStore) -> None:
    record(store, durations_of(a=1))

    assert durations_for(store, "18", configuration="inductor") == Durations()
    assert durations_for(store, "18", group="gfx942") == Durations()


def test_the_local_run_plans_with_the_newest_durations(store: DirectoryStore) -> None:
    record(store, durations_of(a=1))
    assert durations_for(store, "local") == durations_of(a=1)

    record(store, durations_of(a=2), run_id="local")

    assert durations_for(store, "local") == durations_of(a=2)


def test_the_first_of_two_shards_chooses_the_durations(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(store, durations_of(a=1))
    key = "17-linux/reports/cpu/durations-default.json"
    find = DirectoryStore.find
    lookups: list[str] = []

    def find_before_the_other_writes(self: DirectoryStore, asked_key: str) -> Any:
        file = find(self, asked_key)
        if asked_key == key and not lookups:
            lookups.append(asked_key)
            self.put_bytes(key, durations_of(b=2).model_dump_json().encode())
        return file

    monkeypatch.setattr(DirectoryStore, "find", find_before_the_other_writes)

    assert durations_for(store, "17") == durations_of(b=2)


def recorded_seconds(store: DirectoryStore, run: RunOutputs) -> Iterable[float]:
    """Return the seconds of all files that a store knows."""
    content = json.loads(store.read(shards.latest_key(run, "cpu", "default")))
    return [file["seconds"] for file in content["files"].values()]


def test_files_that_did_not_run_keep_their_durations(store: DirectoryStore) -> None:
    record(store, durations_of(a=1, b=2))
    record(store, durations_of(b=3, c=4))

    assert recorded_seconds(store, run_outputs()) == [1, 3, 4]


def test_durations_that_cannot_be_read_are_an_error(store: DirectoryStore) -> None:
    key = shards.latest_key(run_outputs(), "cpu", "default")
    store.put_bytes(key, b"{")

    with pytest.raises(DataError, match=key):
        durations_for(store, "17")


def test_durations_lie_beside_the_runs() -> None:
    assert shards.latest_key(run_outputs(), "cpu", "default") == "test-durations/linux/cpu/default.json"
