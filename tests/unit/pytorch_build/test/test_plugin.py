import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from core.errors import DataError, MissingInputError
from pytorch_build.test import plugin

SESSION = {"kind": "session", "schema": 1, "time": 1.5, "python": "3.11.7", "torch": ""}


def result(test: str, outcome: str, attempt: int = 1) -> dict[str, object]:
    more = {"seconds": 0.5, "attempt": attempt, "rule": "", "message": ""}
    return {"kind": "test", "test": test, "outcome": outcome, **more}


def journal(path: Path, *lines: Mapping[str, object], cut: str = "") -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)
    return path


def test_a_journal_becomes_its_sessions(tmp_path: Path) -> None:
    path = journal(
        tmp_path / "j",
        # keys of a later plugin lose no result
        {**SESSION, "host": "x"},
        {"kind": "collected", "tests": ["a", "b"], "deselected": 3},
        {"kind": "rule", "rule": "m.r", "action": "skip", "tests": ["a"]},
        {"kind": "start", "test": "a"},
        result("a", "rerun"),
        {"kind": "start", "test": "a"},
        {**result("a", "passed", 2), "memory": 5},
        {"kind": "start", "test": "b"},
        result("b", "failed"),
        {"kind": "end", "exit": 1, "seconds": 2.5},
        SESSION,
        {"kind": "collect", "file": "c.py", "outcome": "error", "message": "no"},
        {"kind": "end", "exit": 2, "seconds": 0.5},
    )
    first, second = plugin.read_journal(path)
    assert (first.collected, first.deselected) == (("a", "b"), 3)
    assert first.rules == {"m.r": ("a",)}
    expected = [("a", "rerun", 1), ("a", "passed", 2), ("b", "failed", 1)]
    assert [(one.test, one.outcome, one.attempt) for one in first.results] == expected
    assert (first.unfinished, first.unreached) == ((), ())
    assert first.end is not None
    assert first.end.exit == 1
    assert [one.file for one in second.uncollected] == ["c.py"]


def test_an_interpreter_that_died_leaves_the_test_that_ran_and_those_after_it(tmp_path: Path) -> None:
    path = journal(
        tmp_path / "j",
        SESSION,
        {"kind": "collected", "tests": ["a", "b", "c", "d"], "deselected": 0},
        {"kind": "start", "test": "a"},
        result("a", "passed"),
        {"kind": "start", "test": "b"},
        result("b", "rerun"),
        cut='{"kind": "start", "te',
    )
    (session,) = plugin.read_journal(path)
    assert session.end is None
    assert session.unfinished == ("b",)
    assert session.unreached == ("c", "d")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([{"kind": "start", "test": "a"}], "line 1: a journal begins with a session"),
        ([SESSION, {"kind": "started"}], "line 2: not a line of a journal"),
        ([SESSION, result("a", "fine")], "line 2: not a line of a journal"),
        ([{**SESSION, "schema": 2}], "line 1: not a line of a journal"),
        ([], "is empty: pytest ended before any test ran"),
    ],
)
def test_what_is_no_journal_is_refused(tmp_path: Path, lines: list[dict[str, object]], said: str) -> None:
    with pytest.raises(DataError, match=said):
        plugin.read_journal(journal(tmp_path / "j", *lines))
    with pytest.raises(MissingInputError, match="cannot be read"):
        plugin.read_journal(tmp_path / "absent")


def test_a_collection_is_kept_without_its_results(tmp_path: Path) -> None:
    collected = {"kind": "collected", "tests": ["a", "b"], "deselected": 0}
    took = {"kind": "rule", "rule": "m.r", "action": "skip", "tests": ["a"]}
    whole = journal(
        tmp_path / "1", SESSION, collected, took, {"kind": "start", "test": "a"}, cut='{"kind": "rule", '
    )
    kept = tmp_path / "kept" / "a.jsonl"
    plugin.keep_collection([whole, journal(tmp_path / "2")], kept)
    (session,) = plugin.read_journal(kept)
    assert (session.collected, session.rules, session.started) == (("a", "b"), {"m.r": ("a",)}, ())
    # nothing collected is nothing kept
    plugin.keep_collection([journal(tmp_path / "3", SESSION)], tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
