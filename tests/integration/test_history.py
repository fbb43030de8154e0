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

WIDTHS = (390, 768, 1440)


def test_writes_a_page_of_the_last_runs_into_their_bucket(
    rclone: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = f"s3://{rclone.make_bucket()}"
    for run_id in ("98", "99", "100"):
        common = Common(store=bucket, run_id=run_id)
        for record in samples.cell_records("gfx900", "nightly", "cp312"):
            records.write(common.open_store(), common.outputs, "gfx900", record)

    assert run_ci("report", "--history", "--store", bucket, "--runs", "2") == 0

    page = Common(store=bucket).open_store().read("history/linux.html").decode()
    assert page.index("run 99:") < page.index("run 100:")
    assert "run 98" not in page + capsys.readouterr().err


def write_history(path: Path, *, runs: int) -> str:
    """Write the page over some runs of three families; return its address."""
    page = make_page(samples.make_run(samples.FAMILIES[:3]))
    pages = []
    for number in range(runs):
        run = HistoryRun(run_id=str(number), address="../", problems=("No JSON.",))
        pages.append((run, replace(page, run_id=run.run_id)))
    path.write_text(render_history(make_history("linux", pages)), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "light"),
        pytest.param(768, "dark", marks=pytest.mark.nightly),
        pytest.param(1440, "light", marks=pytest.mark.nightly),
    ],
)
def test_the_page_is_accessible_on_every_screen(
    browser: Browser, tmp_path: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    # Every run adds the same kinds of elements, each of which is looked at.
    address = write_history(tmp_path / "h.html", runs=3)

    with browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme) as tab:
        tab.goto(address)
        assert Axe().run(tab).response["violations"] == []


def test_a_page_of_many_runs_fits_every_screen(browser: Browser, tmp_path: Path) -> None:
    address = write_history(tmp_path / "h.html", runs=20)

    for width in WIDTHS:
        with browser.new_page(viewport={"width": width, "height": 900}) as tab:
            tab.goto(address)
            assert tab.evaluate("document.documentElement.scrollWidth") == width
