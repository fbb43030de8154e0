from __future__ import annotations

import threading
import time

import pytest

from ci.flow_graph import Call, Node
from ci.flow_running import Outcome, command, run_all, show
from core.errors import ProcessError


def node(name: str, *needs: str, tolerant: bool = False) -> Node:
    return Node(name=name, stage=name, calls=(Call(sessions=(name,)),), needs=needs, tolerant=tolerant)


class Work:
    def __init__(self, *failing: str) -> None:
        self.failing: tuple[str, ...] = failing
        self.ran: list[str] = []

    def __call__(self, one: Node) -> None:
        self.ran.append(one.name)
        if one.name in self.failing:
            raise ProcessError("it broke\nbadly", returncode=1)


CHAIN = (
    node("rocm"),
    node("torch", "rocm"),
    node("test", "torch"),
    node("other"),
    node("report", "test", tolerant=True),
)


def test_jobs_run_after_what_they_need() -> None:
    work = Work()
    assert [one.result for one in run_all(CHAIN, work)] == ["ok"] * 5
    assert work.ran == ["rocm", "torch", "test", "other", "report"]


def test_a_failure_stops_the_rest_and_the_report_still_comes() -> None:
    work = Work("torch")
    found = {one.name: (one.result, one.why) for one in run_all(CHAIN, work)}
    assert found["torch"] == ("failed", "it broke\nbadly")
    assert found["test"] == ("left out", "torch failed")
    assert found["other"] == ("left out", "another job failed")
    assert work.ran == ["rocm", "torch", "report"]


@pytest.mark.parametrize(
    ("failing", "result"), [("torch", "left out"), ("test", "ok"), ("other", "ok"), ("", "ok")]
)
def test_what_puts_results_together_needs_some(failing: str, result: str) -> None:
    first = (node("torch"), node("test", "torch"), node("more", "torch"), node("other"))
    last = Node(
        name="last", stage="last", calls=(), needs=("test", "more"), tolerant=True, wants_results=True
    )
    found = {one.name: one for one in run_all((*first, last), Work(failing), keep_going=True)}
    assert found["last"].result == result
    assert (found["last"].why == "nothing has run that it needs") == (result == "left out")


def test_going_on_leaves_out_only_what_needs_the_failure() -> None:
    work = Work("torch")
    found = {one.name: one.result for one in run_all(CHAIN, work, keep_going=True)}
    assert found == {"rocm": "ok", "torch": "failed", "test": "left out", "other": "ok", "report": "ok"}


def test_as_many_jobs_run_at_a_time_as_asked() -> None:
    now, most, lock = 0, 0, threading.Lock()

    def work(_: Node) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1

    run_all([node(str(number)) for number in range(8)], work, jobs=3)
    assert most == 3


def test_a_fault_of_the_tool_is_not_a_failed_job() -> None:
    def work(_: Node) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_all([node("one")], work)


def test_the_table_says_why_and_the_flow_fails(capsys: pytest.CaptureFixture[str]) -> None:
    show([Outcome(name="rocm", result="ok", seconds=3.0)])
    with pytest.raises(ProcessError, match="1 of 2 jobs failed: torch"):
        show(
            [
                Outcome(name="torch", result="failed", why="it broke\nbadly"),
                Outcome(name="test", result="left out", why="torch failed"),
            ]
        )
    said = capsys.readouterr().err
    assert "it broke\n" in said
    assert "torch failed" in said


def test_a_call_is_a_command_of_nox() -> None:
    call = Call(sessions=("a", "b"), python="3.12", posargs=("--run-id=1",))
    assert command(call)[1:] == [
        *("-m", "nox", "--no-error-on-external-run"),
        *("-s", "a", "b", "-P", "3.12", "--", "--run-id=1"),
    ]
