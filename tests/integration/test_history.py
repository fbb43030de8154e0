"""The page over runs: of a bucket's, and in a real browser."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from ci.report.history import HistoryRun, make_history
from ci.report.html import render_history
from ci.report.page import make_page
from core.cli.options import Common
from core.run import records
from tests.kit import page_runs as samples
from tests.kit.front_doors import run_ci
from tests.kit.s3_servers import S3Server

# Widths of screens.
PHONE = 390
TABLET = 768
DESK = 1440


def test_writes_a_page_of_the_last_runs_into_their_bucket(
    rclone: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = f"s3://{rclone.make_bucket()}"
    for run_id in ("98", "99", "100"):
        common = Common(store=bucket, run_id=run_id)
        for record in samples.cell_records("gfx900", "nightly", "cp312"):
            records.write(common.open_store(), common.outputs, "gfx900", record)

    assert run_ci("report", "--history", "--store", bucket, "--runs", "2") == 0

    store = Common(store=bucket).open_store()
    page = store.read("history/linux.html").decode()
    assert page.index("run 99:") < page.index("run 100:")
    assert "run 98" not in page
    assert "run 98" not in capsys.readouterr().err


def write_history(path: Path, *, run_count: int) -> str:
    """Write the page over so many runs of three families; return its address."""
    page = make_page(samples.make_run(samples.FAMILIES[:3]))
    pages = []
    for number in range(run_count):
        run = HistoryRun(run_id=str(number), address="../", problems=("No JSON.",))
        pages.append((run, replace(page, run_id=run.run_id)))
    history = make_history("linux", pages)
    path.write_text(render_history(history), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        pytest.param(PHONE, "light", id="phone, light"),
        pytest.param(TABLET, "dark", id="tablet, dark", marks=pytest.mark.nightly),
        pytest.param(DESK, "light", id="desk, light", marks=pytest.mark.nightly),
    ],
)
def test_the_page_is_accessible_on_every_screen(
    browser: Browser, tmp_path: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    # Every run adds the same kinds of elements, each of which is looked at.
    address = write_history(tmp_path / "history.html", run_count=3)

    with browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme) as tab:
        tab.goto(address)
        assert Axe().run(tab).response["violations"] == []


@pytest.mark.parametrize("width", [PHONE, TABLET, DESK], ids=["phone", "tablet", "desk"])
def test_a_page_of_many_runs_fits_every_screen(browser: Browser, tmp_path: Path, width: int) -> None:
    address = write_history(tmp_path / "history.html", run_count=20)

    with browser.new_page(viewport={"width": width, "height": 900}) as tab:
        tab.goto(address)
        assert tab.evaluate("document.documentElement.scrollWidth") == width
