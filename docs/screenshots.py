"""Pictures of the pages for the documentation, by Chromium: `nox -s docs -- --screenshots`.

They are taken of made-up runs at a fixed moment, so a picture changes where the page does, or the browser.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ci.report.history import HistoryRun, make_history
from ci.report.html import render, render_history
from ci.report.page import make_page
from core import console, files
from core.errors import MissingInputError
from tests.kit import page_runs as samples

if TYPE_CHECKING:
    from ci.report.model import RunPage

FOLDER = Path(__file__).with_name("pictures")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_NOW = "2026-11-20T22:12:00Z"
# what is shown -> its width and height, the colours, the element that it begins at
_PICTURES: dict[str, tuple[str, tuple[int, int], Literal["light", "dark"], str]] = {
    "run-page-failed.png": ("failed", (1000, 620), "light", "header"),
    "run-page-cells.png": ("cells", (1000, 640), "dark", "#filter"),
    "run-page-phone.png": ("failed", (390, 560), "light", "#cells"),
    "history.png": ("history", (1100, 560), "light", "header"),
}


def browser() -> str | None:
    """Find the machine's Chromium."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def _pages() -> dict[str, str]:
    families, refs, pythons = samples.FAMILIES[:4], samples.REFS[2:], samples.PYTHONS[1:2]
    now = samples.make_run(families, refs, pythons, grown=800_000)
    before = samples.make_run(families, refs, pythons, run_id="122")
    return {
        "failed": render(make_page(samples.broken_run())),
        "cells": render(make_page(now, before)),
        "history": render_history(make_history("linux", [_run(at) for at in range(12)])),
    }


def _run(at: int) -> tuple[HistoryRun, RunPage]:
    """Make the run so many before the last; of the last three, a cell failed."""
    run_id, failed = str(123 - at), samples.broken_run().groups
    found = samples.make_run(
        samples.FAMILIES[:9:2], ("nightly",), ("cp312",), run_id=run_id, grown=(12 - at) << 24
    )
    found = replace(found, groups=(*failed, *found.groups[1:])) if at < 3 else found  # noqa: PLR2004
    return HistoryRun(run_id=run_id, address=f"../{run_id}-linux/reports/index.html"), make_page(found)


def take() -> None:
    """Take all pictures."""
    program = browser()
    if program is None:
        raise MissingInputError(
            "There is no Chromium to take pictures with.", hint="Debian: apt install chromium"
        )
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        for name, text in _pages().items():
            files.write_text(Path(folder) / f"{name}.html", text)
        # a sandbox takes rights that containers do not give
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for picture, (name, (width, height), scheme, begin) in _PICTURES.items():
            tab = running.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            tab.clock.set_fixed_time(_NOW)
            tab.goto((Path(folder) / f"{name}.html").as_uri())
            tab.locator(begin).first.evaluate("one => one.scrollIntoView()")
            tab.screenshot(path=FOLDER / picture)
            console.say(f"docs: {picture}  ({console.size((FOLDER / picture).stat().st_size)})")
            tab.close()
        running.close()
