"""The page over runs: of a bucket's, and in a real browser."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from ci.report import page_of
from ci.report.compare import Run, history_of
from ci.report.html import render_history
from core.cli.options import Common
from core.run import records
from tests.kit import page_runs as samples
from tests.kit.front_doors import run_ci
from tests.kit.s3_servers import S3Server


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


def test_the_page_is_accessible_and_fits_every_screen(browser: Browser, tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    runs = []
    for number in range(20):
        page = page_of(samples.make_run(samples.FAMILIES[:3], run_id=str(number)))
        runs.append((Run(run_id=page.run_id, address="../", problems=("No JSON.",)), page))
    (tmp_path / "h.html").write_text(render_history(history_of("linux", runs)), encoding="utf-8")

    for width in (390, 768, 1440):
        for scheme in ("light", "dark"):
            tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            tab.goto((tmp_path / "h.html").as_uri())
            assert Axe().run(tab).response["violations"] == []
            assert tab.evaluate("document.documentElement.scrollWidth") == width
            tab.close()
