import threading

import pytest

from core import console, errors, parallel
from core.parallel import each, transfer


def test_results_come_in_the_order_of_the_items() -> None:
    second = threading.Event()

    def action(item: int) -> int:
        if item == 1:
            assert second.wait(60)
        else:
            second.set()
        return item * 10

    assert each(action, [1, 2], jobs=2) == [10, 20]


def test_no_items_give_no_results() -> None:
    assert each(str, []) == []


def test_the_first_error_stops_what_has_not_begun() -> None:
    begun = []

    def action(item: int) -> None:
        begun.append(item)
        if item == 0:
            raise ValueError("the first")
        threading.Event().wait(0.002)  # so that a busy machine sees the error before the last item

    with pytest.raises(ValueError, match="the first"):
        each(action, range(1000), jobs=1)
    assert len(begun) < 1000


def test_work_beside_an_interrupted_wait_ends_at_its_next_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, told = threading.Event(), threading.Event()

    def interrupted(*_: object, **__: object) -> None:
        assert begun.wait(60)
        raise KeyboardInterrupt

    def action(_: int) -> None:
        begun.set()
        assert errors.STOPPING.wait(60)
        with pytest.raises(errors.InterruptedStageError):
            errors.require_going()
        told.set()

    monkeypatch.setattr(parallel, "wait", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            each(action, range(2), jobs=2)
    finally:
        errors.STOPPING.clear()
    assert told.is_set()


def test_no_more_than_asked_run_at_once() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def action(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.002)
        with lock:
            running -= 1

    each(action, range(30), jobs=3)
    assert 1 < most <= 3


@pytest.mark.parametrize(("mode", "lines"), [("terminal", 0), ("plain", 0), ("github", 7)])
def test_any_thread_may_report_of_a_transfer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: console.Mode, lines: int
) -> None:
    monkeypatch.setattr(console, "mode", lambda: mode)
    with transfer("Fetching [all]", size=400) as shown:

        def report(name: str) -> None:
            shown.advance(150)
            shown.advance(-50)
            shown.finish(name, 100)

        each(report, ["[9/9] odd name", "b", "c", "d"])
        assert shown.words.startswith("Fetching [all]  0.0 s  400 B of 400 B")
    assert capsys.readouterr().err.count("\n") == lines
