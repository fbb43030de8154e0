import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import DataError, MissingInputError, UsageError
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from pytorch_build.test import shards
from pytorch_build.test.junit.document import Document, Suite
from pytorch_build.test.shards import Durations, FileDuration, Plan, Shard
from tests.kit.runs import run_outputs
from tests.kit.torch_results import case_of

# Recorded with torch 2.13.0 for processors, from the tests of 2.6.0.
RECORDED_DURATIONS = Path(__file__).with_name("recorded") / "durations.json"


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

    assert shard_seconds(shards.plan_shards(durations.files, durations, 2)) == [8, 10]


def test_spreads_files_of_unknown_durations_evenly() -> None:
    plan = shards.plan_shards([f"test_{index}.py" for index in range(12)], Durations(), 4)

    assert [len(units) for units in plan.shards] == [3, 3, 3, 3]


def test_counts_the_time_to_start_a_file() -> None:
    files = {f"test_{index}.py": FileDuration(seconds=1, starting=9) for index in range(4)}

    assert shard_seconds(shards.plan_shards(files, Durations(files=files), 2)) == [20, 20]


def test_refuses_to_plan_no_files() -> None:
    with pytest.raises(MissingInputError):
        shards.plan_shards([], Durations(), 2)


def test_an_unknown_file_takes_the_median_of_the_known() -> None:
    durations = durations_of(a=1, b=10, c=100)

    plan = shards.plan_shards([*durations.files, "test_new.py"], durations, 1)

    assert shard_seconds(plan) == [1 + 10 + 100 + 10]


STARTING = {f"test_{seconds}.py": FileDuration(seconds=1, starting=seconds) for seconds in (2, 4, 9)}


@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        pytest.param(["test_new.py", *STARTING], [(1 + 4) + (1 + 2) + (1 + 4) + (1 + 9)], id="beside known"),
        pytest.param(["test_new.py"], [1 + 4], id="alone"),
    ],
)
def test_an_unknown_file_starts_in_the_median_of_the_known(files: list[str], seconds: list[float]) -> None:
    assert shard_seconds(shards.plan_shards(files, Durations(files=STARTING), 1)) == seconds


FILE_NAMES = st.integers(0, 4).map(lambda number: f"test_{number}.py")
SECONDS = st.floats(0, 1000, allow_nan=False)


FILES = st.dictionaries(
    FILE_NAMES,
    st.builds(FileDuration, seconds=SECONDS, starting=st.floats(0, 20)),
    max_size=4,
)


@given(files=FILES, count=st.integers(1, 5))
def test_each_file_is_in_exactly_one_shard(files: dict[str, FileDuration], count: int) -> None:
    names = {*files, "test_always.py"}

    plan = shards.plan_shards(names, Durations(files=files), count)

    planned_names: list[str] = []
    for index in range(1, count + 1):
        planned_names += plan.files_of(Shard(index=index, count=count))
    assert sorted(planned_names) == sorted(names)


@given(files=FILES, count=st.integers(1, 5), seed=st.integers())
def test_a_plan_does_not_depend_on_the_order_of_files(
    files: dict[str, FileDuration], count: int, seed: int
) -> None:
    names = sorted({*files, "test_always.py"})
    plan = shards.plan_shards(names, Durations(files=files), count)

    random.Random(seed).shuffle(names)  # noqa: S311 - an order, and no secret
    other_plan = shards.plan_shards(names, Durations(files=dict(reversed(files.items()))), count)

    assert other_plan == plan
    assert other_plan.digest == plan.digest


@given(st.dictionaries(FILE_NAMES, SECONDS, min_size=1), st.integers(1, 6))
def test_no_shard_exceeds_the_mean_and_the_longest_file(seconds: Mapping[str, float], count: int) -> None:
    durations = Durations(files={name: FileDuration(seconds=value) for name, value in seconds.items()})

    plan = shards.plan_shards(seconds, durations, count)

    mean = sum(seconds.values()) / count
    longest = max(seconds.values())
    assert sum(plan.seconds) == pytest.approx(sum(seconds.values()))
    assert max(plan.seconds) <= mean + longest * (1 - 1 / count) + 1e-6


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8])
def test_shards_of_a_recorded_run_are_balanced(count: int) -> None:
    durations = Durations.model_validate_json(RECORDED_DURATIONS.read_text())

    plan = shards.plan_shards(durations.files, durations, count)

    mean = sum(plan.seconds) / count
    assert max(plan.seconds) <= mean * 1.1


def test_shows_the_plan_and_this_shard(capsys: pytest.CaptureFixture[str]) -> None:
    durations = durations_of(big=100, small=1)

    shards.print_plan(shards.plan_shards(durations.files, durations, 2), Shard(index=1, count=2))

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

    durations = shards.durations_of_files([first, second])

    assert durations.files == {"t.py": FileDuration(seconds=10.75, starting=8)}


def test_a_hang_is_no_duration() -> None:
    hung = case_of("t.py::B::hung", outcome="timeout", seconds=600)
    document = Document(cases=(case_of("t.py::A::x", seconds=2), hung), suites={"t.py": Suite(seconds=610)})

    assert shards.durations_of_files([document]).files["t.py"].seconds == 2


def test_a_file_that_ran_on_two_architectures_took_both_times() -> None:
    cases = (
        case_of("t.py@gfx942::A::x[1]", seconds=2),
        case_of("t.py@gfx90a::A::x[1]", seconds=3),
    )
    suites = {"t.py@gfx942": Suite(seconds=2), "t.py@gfx90a": Suite(seconds=3)}

    durations = shards.durations_of_files([Document(cases=cases, suites=suites)])

    assert durations.files == {"t.py": FileDuration(seconds=5)}


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
    return shards.durations_for_run(store, run_outputs(run_id), group, configuration)


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
    content = json.loads(store.read(shards.latest_durations_key(run, "cpu", "default")))
    return [file["seconds"] for file in content["files"].values()]


def test_files_that_did_not_run_keep_their_durations(store: DirectoryStore) -> None:
    record(store, durations_of(a=1, b=2))
    record(store, durations_of(b=3, c=4))

    assert recorded_seconds(store, run_outputs()) == [1, 3, 4]


def test_durations_that_cannot_be_read_are_an_error(store: DirectoryStore) -> None:
    key = shards.latest_durations_key(run_outputs(), "cpu", "default")
    store.put_bytes(key, b"{")

    with pytest.raises(DataError, match=key):
        durations_for(store, "17")


def test_durations_lie_beside_the_runs() -> None:
    assert (
        shards.latest_durations_key(run_outputs(), "cpu", "default")
        == "test-durations/linux/cpu/default.json"
    )
