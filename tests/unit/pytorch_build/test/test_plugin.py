import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from core.errors import DataError, MissingInputError
from pytorch_build.test import plugin

SESSION = {"kind": "session", "schema": 1, "time": 1.5, "python": "3.11.7", "torch": ""}


def start(test: str) -> dict[str, object]:
    """Return the line that begins a test."""
    return {"kind": "start", "test": test}


def result(test: str, outcome: str, *, attempt: int = 1) -> dict[str, object]:
    """Return the line that ends a test."""
    return {
        "kind": "test",
        "test": test,
        "outcome": outcome,
        "attempt": attempt,
        "seconds": 0.5,
        "rule": "",
        "message": "",
    }


def collected(*tests: str, deselected: int = 0) -> dict[str, object]:
    """Return the line that lists the tests."""
    return {"kind": "collected", "tests": tests, "deselected": deselected}


RULE = {"kind": "rule", "rule": "m.r", "action": "skip", "tests": ["a"]}


def write_journal(path: Path, *lines: Mapping[str, object], last_line: str = "") -> Path:
    """Write a journal; `last_line` is one that was cut."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + last_line)
    return path


@pytest.fixture
def two_sessions(tmp_path: Path) -> Path:
    """Return a journal of a session with a retried test, and of one that could not collect a file."""
    return write_journal(
        tmp_path / "journal",
        SESSION,
        collected("a", "b", deselected=3),
        RULE,
        start("a"),
        result("a", "rerun"),
        start("a"),
        result("a", "passed", attempt=2),
        start("b"),
        result("b", "failed"),
        {"kind": "end", "exit": 1, "seconds": 2.5},
        SESSION,
        {"kind": "collect", "file": "c.py", "outcome": "error", "message": "no"},
        {"kind": "end", "exit": 2, "seconds": 0.5},
    )


def test_a_session_has_its_tests_and_rules(two_sessions: Path) -> None:
    session, _second = plugin.read_journal(two_sessions)

    assert session.collected == ("a", "b")
    assert session.deselected == 3
    assert session.rules == {"m.r": ("a",)}


def test_a_session_has_every_attempt_of_a_test(two_sessions: Path) -> None:
    session, _second = plugin.read_journal(two_sessions)

    attempts = [(line.test, line.outcome, line.attempt) for line in session.results]
    assert attempts == [("a", "rerun", 1), ("a", "passed", 2), ("b", "failed", 1)]
    assert session.unfinished == ()
    assert session.unreached == ()
    assert session.end is not None
    assert session.end.exit == 1


def test_a_session_names_files_that_were_not_collected(two_sessions: Path) -> None:
    _first, session = plugin.read_journal(two_sessions)

    assert [line.file for line in session.uncollected] == ["c.py"]


def test_keys_of_a_later_plugin_lose_no_result(tmp_path: Path) -> None:
    later_result = {**result("a", "passed"), "memory": 5}
    journal = write_journal(tmp_path / "journal", {**SESSION, "host": "x"}, later_result)

    (session,) = plugin.read_journal(journal)

    assert [line.test for line in session.results] == ["a"]


def test_an_interpreter_that_died_leaves_the_test_that_ran_and_those_after_it(tmp_path: Path) -> None:
    journal = write_journal(
        tmp_path / "journal",
        SESSION,
        collected("a", "b", "c", "d"),
        start("a"),
        result("a", "passed"),
        start("b"),
        result("b", "rerun"),
        last_line='{"kind": "start", "te',
    )

    (session,) = plugin.read_journal(journal)

    assert session.end is None
    assert session.unfinished == ("b",)
    assert session.unreached == ("c", "d")


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        pytest.param([start("a")], "line 1", id="no session"),
        pytest.param([SESSION, {"kind": "started"}], "line 2", id="unknown kind"),
        pytest.param([SESSION, result("a", "fine")], "line 2", id="unknown outcome"),
        pytest.param([{**SESSION, "schema": 2}], "line 1", id="later schema"),
        pytest.param([], "is empty", id="no line"),
    ],
)
def test_refuses_a_file_that_is_not_a_journal(
    tmp_path: Path, lines: list[dict[str, object]], place: str
) -> None:
    with pytest.raises(DataError, match=place):
        plugin.read_journal(write_journal(tmp_path / "journal", *lines))


def test_refuses_a_journal_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="absent"):
        plugin.read_journal(tmp_path / "absent")
