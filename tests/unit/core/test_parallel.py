import re
import threading
from collections.abc import Iterator

import pytest

from core import errors
from core.parallel import map_in_threads, transfer
from tests.kit.processes import ctrl_c_when
from tests.kit.screens import Reader, set_reader

# Far longer than anything here takes, so that a broken test ends.
PATIENCE = 60


@pytest.fixture
def stopping() -> Iterator[threading.Event]:
    """Return the event that tells all threads to stop, and clear it after the test."""
    yield errors.STOPPING
    errors.STOPPING.clear()


def test_returns_results_in_the_order_of_the_items() -> None:
    second_is_done = threading.Event()

    def action(item: int) -> int:
        if item == 1:
            assert second_is_done.wait(PATIENCE)
        else:
            second_is_done.set()
        return item * 10

    assert map_in_threads(action, [1, 2], jobs=2) == [10, 20]


def test_returns_no_results_for_no_items() -> None:
    assert map_in_threads(str, []) == []


def test_a_single_item_needs_no_thread() -> None:
    assert map_in_threads(lambda _item: threading.current_thread(), ["only"]) == [threading.current_thread()]


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_error_leaves_out_what_has_not_begun(jobs: int) -> None:
    started: list[int] = []

    def action(item: int) -> None:
        started.append(item)
        if item == 0:
            raise ValueError("the first")
        threading.Event().wait(0.002)  # so that a busy machine sees the error before the last item

    with pytest.raises(ValueError, match="the first"):
        map_in_threads(action, range(1000), jobs=jobs)

    assert len(started) < 1000


def test_an_interruption_stops_threads_at_their_next_piece_of_work(
    stopping: threading.Event,
) -> None:
    started = threading.Event()
    stopped = threading.Event()

    def action(_item: int) -> None:
        started.set()
        assert stopping.wait(PATIENCE)
        with pytest.raises(errors.InterruptedStageError):
            errors.require_not_stopped()
        stopped.set()

    # Ctrl-C reaches the thread that waits for the others.
    with pytest.raises(KeyboardInterrupt), ctrl_c_when(started.is_set):
        map_in_threads(action, range(2), jobs=2)

    assert stopped.is_set()


def test_runs_at_most_as_many_items_at_once_as_there_are_jobs() -> None:
    lock = threading.Lock()
    running: list[int] = []
    most: list[int] = []

    def action(item: int) -> None:
        with lock:
            running.append(item)
            most.append(len(running))
        threading.Event().wait(0.002)
        with lock:
            running.remove(item)

    map_in_threads(action, range(30), jobs=3)

    assert 1 < max(most) <= 3


def report_from_threads() -> str:
    """Report a transfer of four files from four threads; return what is shown of it in the end."""
    with transfer("Fetching [all]", size=400) as step:

        def report(name: str) -> None:
            step.advance(150)
            step.advance(-50)
            step.finish(name, 100)

        map_in_threads(report, ["[9/9] odd name", "b", "c", "d"])
        return step.words


def test_counts_what_threads_report_of_a_transfer() -> None:
    assert re.match(r"Fetching \[all\]  \d+\.\d s  400 B of 400 B", report_from_threads())


@pytest.mark.parametrize(
    ("reader", "lines"),
    # For GitHub: the fold, a line for each file, the end of the fold and the duration.
    [("terminal", 0), ("plain", 0), ("github", 7)],
)
def test_prints_the_files_of_a_transfer_for_github_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reader: Reader, lines: int
) -> None:
    set_reader(monkeypatch, reader)

    report_from_threads()

    assert capsys.readouterr().err.count("\n") == lines
