import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from core.errors import DataError
from pytorch_build.test import plugin


def started(test: str) -> dict[str, object]:
    """Return the line that begins a test."""
    return {"kind": "started", "time": 2.0, "test": test}


def ended(test: str, outcome: str, *, attempt: int = 1) -> dict[str, object]:
    """Return the line that ends a test."""
    return {"kind": "ended", "time": 3.0, "test": test, "outcome": outcome, "attempt": attempt}


def collected(*tests: str, deselected: tuple[str, ...] = ()) -> dict[str, object]:
    """Return the line that lists the tests."""
    return {
        "kind": "collected",
        "time": 1.0,
        "tests": tests,
        "deselected": deselected,
        "rules": {"m.r": ["a"]},
    }


def write_events(folder: Path, *lines: Mapping[str, object], last_line: str = "", name: str = "1") -> None:
    """Write the events of a process; `last_line` is one that was cut."""
    text = "".join(json.dumps(line) + "\n" for line in lines) + last_line
    (folder / f"{name}.jsonl").write_text(text)


def test_events_say_what_exists_and_what_rules_take(tmp_path: Path) -> None:
    write_events(tmp_path, collected("a", "b", deselected=("c",)))

    (events,) = plugin.read_event_logs(tmp_path)

    assert events.collected == ("a", "b")
    assert events.existing == {"a", "b", "c"}
    assert events.rules == {"m.r": ("a",)}
    assert events.unreached == ("a", "b")


def test_events_have_every_attempt_of_a_test(tmp_path: Path) -> None:
    write_events(
        tmp_path,
        collected("a", "b"),
        started("a"),
        ended("a", "rerun"),
        ended("a", "passed", attempt=2),
        started("b"),
        ended("b", "failed"),
    )

    (events,) = plugin.read_event_logs(tmp_path)

    attempts = [(result.test, result.outcome, result.attempt) for result in events.results]
    assert attempts == [("a", "rerun", 1), ("a", "passed", 2), ("b", "failed", 1)]
    assert events.running is None
    assert events.unreached == ()


def test_each_process_has_its_own_events(tmp_path: Path) -> None:
    write_events(tmp_path, collected("b"), started("b"), name="2")
    write_events(tmp_path, collected("a"), name="1")

    first, second = plugin.read_event_logs(tmp_path)

    assert first.collected == ("a",)
    assert second.running == "b"


def test_a_process_that_died_leaves_the_test_that_ran_and_those_after_it(tmp_path: Path) -> None:
    write_events(
        tmp_path,
        collected("a", "b", "c", "d"),
        started("a"),
        ended("a", "passed"),
        started("b"),
        ended("b", "rerun"),
        last_line='{"kind": "started", "te',
    )

    (events,) = plugin.read_event_logs(tmp_path)

    assert events.running == "b"
    assert events.unreached == ("c", "d")
    assert events.last_time == 3.0


def test_a_process_that_died_at_once_has_no_events(tmp_path: Path) -> None:
    write_events(tmp_path, last_line='{"kind"')

    assert plugin.read_event_logs(tmp_path) == []


def test_keys_of_a_later_plugin_lose_no_result(tmp_path: Path) -> None:
    write_events(tmp_path, {**collected("a"), "host": "x"}, {**ended("a", "passed"), "memory": 5})

    (events,) = plugin.read_event_logs(tmp_path)

    assert [result.test for result in events.results] == ["a"]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param({"kind": "begun", "time": 1.0}, id="unknown kind"),
        pytest.param(ended("a", "fine"), id="unknown outcome"),
        pytest.param({"kind": "started", "time": 1.0}, id="no test"),
    ],
)
def test_refuses_a_line_that_is_no_event(tmp_path: Path, line: dict[str, object]) -> None:
    write_events(tmp_path, collected("a"), line)

    with pytest.raises(DataError, match="line 2"):
        plugin.read_event_logs(tmp_path)
