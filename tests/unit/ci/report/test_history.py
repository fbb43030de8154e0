"""What the last runs of a store have in common."""

import pytest

from ci.report import model
from ci.report.history import HistoryRun, make_history
from ci.report.html import render_history
from ci.report.names import anchor, cell_text
from ci.report.text import make_history_tables
from tests.kit.cell_pages import CELL_NAME, make_cell_page

UNREADABLE = HistoryRun(run_id="7", problems=("7-linux/manifests: <b>no JSON</b>",))


@pytest.fixture
def runs() -> list[tuple[HistoryRun, model.RunPage | None]]:
    """Five runs, the newest first; the third could not be read."""
    states: tuple[model.State, ...] = ("incomplete", "failed", "passed", "failed", "passed")
    runs: list[tuple[HistoryRun, model.RunPage | None]] = []
    for number, state in zip(range(9, 4, -1), states, strict=True):
        runs.append((HistoryRun(run_id=str(number), address=f"../{number}"), make_cell_page(state)))
    runs[2] = (UNREADABLE, None)
    return runs


def test_a_history_tells_since_when_a_cell_fails(runs: list[tuple[HistoryRun, model.RunPage | None]]) -> None:
    (line,) = make_history("linux", runs).lines

    assert line.since == 3
    assert line.good == 4


def test_a_history_has_the_time_of_sound_builds_and_the_reason_of_failures(
    runs: list[tuple[HistoryRun, model.RunPage | None]],
) -> None:
    (line,) = make_history("linux", runs).lines

    newest, failed, unreadable, first_failed, sound = line.points
    assert newest is not None
    assert newest.seconds is None
    assert failed is not None
    assert unreadable is None
    assert first_failed is not None
    assert first_failed.why == "build_torch: a.cpp:7: no such type"
    assert sound is not None
    assert sound.seconds == 3600


def test_a_history_compares_each_run_with_the_one_before(
    runs: list[tuple[HistoryRun, model.RunPage | None]],
) -> None:
    history = make_history("linux", runs)

    assert history.runs[2].changes == ()
    assert [change.kind for change in history.runs[3].changes] == ["broken"]


def test_a_history_is_printed_with_a_line_for_each_cell(
    runs: list[tuple[HistoryRun, model.RunPage | None]],
) -> None:
    _, cells = make_history_tables(make_history("linux", runs))

    reason = "build_torch: a.cpp:7: no such type"
    assert cells.rows == [(cell_text(CELL_NAME), "incomplete", "6", "5", reason)]


def test_a_history_has_a_page_with_links_to_its_runs(
    runs: list[tuple[HistoryRun, model.RunPage | None]],
) -> None:
    html = render_history(make_history("linux", runs))

    assert f'href="../9#{anchor(CELL_NAME)}"' in html
    assert "&lt;b&gt;no JSON" in html
    assert html == render_history(make_history("linux", runs))


def test_a_history_of_unreadable_runs_has_no_cells() -> None:
    html = render_history(make_history("linux", [(UNREADABLE, None)]))

    assert "<article" not in html
