from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from core.errors import DataError, MissingInputError
from core.junit import Case, Document, Suite
from core.run.outputs import RunOutputs
from core.stores.directory import DirectoryStore
from pytorch_build.test import shards
from pytorch_build.test.shards import Durations, FileDuration, for_run, of_documents, read_durations, record

if TYPE_CHECKING:
    from pathlib import Path


def case(test: str, seconds: float, outcome: Any = "passed") -> Case:
    return Case(test=test, outcome=outcome, seconds=seconds, file=test.partition("::")[0])


def table(**seconds: float) -> Durations:
    return Durations(files={name: FileDuration(seconds=value) for name, value in seconds.items()})


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def run(number: str = "17") -> RunOutputs:
    return RunOutputs(run_id=number, platform="linux")


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
    assert of_documents([first, second]).files == {
        "t.py": FileDuration(
            # a hang is no duration
            seconds=10.75,
            starting=8,
            parts={
                "t.py::A": 5.25,
                "t.py::A::x": 5,
                "t.py::alone": 4,
                "t.py::B": 1.5,
                "t.py::B::z": 1.5,
            },
        )
    }


def test_a_file_that_ran_on_two_architectures_took_both_times() -> None:
    first, second = case("t.py@gfx942::A::x[1]", 2), case("t.py@gfx90a::A::x[1]", 3)
    suites = {"t.py@gfx942": Suite(seconds=2), "t.py@gfx90a": Suite(seconds=3)}
    found = of_documents([Document(cases=(first, second), suites=suites)]).files
    parts = {"t.py::A": 5.0, "t.py::A::x": 5.0}
    assert found == {"t.py": FileDuration(seconds=5, parts=parts)}


def test_parts_directly_below() -> None:
    parts = {"t.py::A": 3.0, "t.py::A::x": 2.0, "t.py::b": 1.0, "t.py::AB::x": 1.0}
    known = Durations(files={"t.py": FileDuration(seconds=9, parts=parts)})
    assert known.below("t.py", "") == [("t.py::A", 3), ("t.py::b", 1)]
    assert known.below("t.py", "t.py::A") == [("t.py::A::x", 2)]
    assert known.below("other.py", "") == []


def test_a_table_of_a_persons(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(table(a=1).model_dump_json())
    assert read_durations(file) == table(a=1)
    with pytest.raises(MissingInputError, match="none"):
        read_durations(tmp_path / "none.json")
    for text in (
        "",
        "[]",
        '{"files": {"a": {"seconds": -1}}}',
        '{"file": {}}',
        '{"files": {"a": {"seconds": NaN}}}',
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=r"mine\.json"):
            read_durations(file)


def test_all_shards_of_a_run_read_the_same(store: DirectoryStore) -> None:
    record(store, run("16"), "cpu", "default", table(a=1))
    assert for_run(store, run(), "cpu", "default") == table(a=1)
    # what another run records in between changes nothing for this one
    record(store, run("16"), "cpu", "default", table(a=99))
    assert for_run(store, run(), "cpu", "default") == table(a=1)
    assert for_run(store, run("18"), "cpu", "default") == table(a=99)
    assert for_run(store, run("18"), "cpu", "inductor") == Durations()
    assert for_run(store, run("18"), "gfx942", "default") == Durations()


def test_the_local_run_takes_the_newest(store: DirectoryStore) -> None:
    record(store, run("local"), "cpu", "default", table(a=1))
    assert for_run(store, run("local"), "cpu", "default") == table(a=1)
    record(store, run("local"), "cpu", "default", table(a=2))
    assert for_run(store, run("local"), "cpu", "default") == table(a=2)


def test_of_two_shards_the_first_one_chooses(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    record(store, run(), "cpu", "default", table(a=1))
    key = shards.run_key(run(), "cpu", "default")
    found = DirectoryStore.find
    looked: list[str] = []

    def late(self: DirectoryStore, asked: str) -> Any:
        answer = found(self, asked)
        if asked == key and not looked:
            looked.append(asked)
            DirectoryStore.put_bytes(self, key, table(b=2).model_dump_json().encode())
        return answer

    monkeypatch.setattr(DirectoryStore, "find", late)
    assert for_run(store, run(), "cpu", "default") == table(b=2)


def test_files_that_did_not_run_keep_what_was_known(store: DirectoryStore) -> None:
    record(store, run(), "cpu", "default", table(a=1, b=2))
    record(store, run(), "cpu", "default", table(b=3, c=4))
    key = shards.latest_key(run(), "cpu", "default")
    assert key == "test-durations/linux/cpu/default.json"
    kept = json.loads(store.read(key))["files"]
    assert {name: one["seconds"] for name, one in kept.items()} == {"a": 1, "b": 3, "c": 4}


def test_a_table_in_the_store_that_is_none_is_told(store: DirectoryStore) -> None:
    store.put_bytes(shards.latest_key(run(), "cpu", "default"), b"{")
    with pytest.raises(DataError, match="test-durations"):
        for_run(store, run(), "cpu", "default")
