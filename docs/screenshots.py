"""Pictures of the pages for the documentation, by Chromium: `nox -s docs -- --screenshots`.

They are taken of made-up runs at a fixed moment, so a picture changes where the page does, or the browser.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ci.report.history import HistoryRun, make_history
from ci.report.html import render, render_history
from ci.report.page import make_page
from core import console, files
from core.errors import MissingInputError
from tests.kit import page_runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.sync_api import Browser

    from ci.report.model import RunPage

FOLDER = Path(__file__).with_name("pictures")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_MOMENT = "2026-11-20T22:12:00Z"

_RUNS_OF_HISTORY = 12
_LAST_RUN = 123
_FAILED_RUNS = 3


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture of a page, that begins at an element."""

    page: str
    width: int
    height: int
    scheme: Literal["light", "dark"] = "light"
    element: str = "header"


_PICTURES: Mapping[str, Picture] = {
    "run-page-failed.png": Picture(
        page="failed",
        width=1000,
        height=620,
    ),
    "run-page-cells.png": Picture(
        page="cells",
        width=1000,
        height=640,
        scheme="dark",
        element="#filter",
    ),
    "run-page-phone.png": Picture(
        page="failed",
        width=390,
        height=560,
        element="#cells",
    ),
    "history.png": Picture(
        page="history",
        width=1100,
        height=560,
    ),
}


def find_browser() -> str | None:
    """Return the machine's Chromium; None where it has none."""
    for name in BROWSERS:
        program = shutil.which(name)
        if program is not None:
            return program
    return None


def take() -> None:
    """Take all pictures."""
    program = find_browser()
    if program is None:
        raise MissingInputError(
            "There is no Chromium to take pictures with.", hint="Debian: apt install chromium"
        )
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        for name, html in _pages().items():
            page = Path(folder) / f"{name}.html"
            files.write_text(page, html)
        # A sandbox takes rights that containers do not give.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, picture in _PICTURES.items():
            file = FOLDER / name
            _take_picture(browser, Path(folder), picture, file)
        browser.close()


def _take_picture(browser: Browser, folder: Path, picture: Picture, file: Path) -> None:
    tab = browser.new_page(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme=picture.scheme,
    )
    page = folder / f"{picture.page}.html"
    tab.clock.set_fixed_time(_MOMENT)
    tab.goto(page.as_uri())
    tab.locator(picture.element).first.evaluate("element => element.scrollIntoView()")
    tab.screenshot(path=file)
    size = console.size(file.stat().st_size)
    console.say(f"docs: {file.name}  ({size})")
    tab.close()


def _pages() -> Mapping[str, str]:
    """Return the pages that pictures are taken of."""
    families = page_runs.FAMILIES[:4]
    refs = page_runs.REFS[2:]
    pythons = page_runs.PYTHONS[1:2]
    run = page_runs.make_run(
        families,
        refs,
        pythons,
        grown=800_000,
    )
    previous_run = page_runs.make_run(
        families,
        refs,
        pythons,
        run_id="122",
    )
    history = make_history("linux", [_run_of_history(number) for number in range(_RUNS_OF_HISTORY)])
    return {
        "failed": render(make_page(page_runs.broken_run())),
        "cells": render(make_page(run, previous_run)),
        "history": render_history(history),
    }


def _run_of_history(number: int) -> tuple[HistoryRun, RunPage]:
    """Return the run so many before the last; of the last three, a cell failed."""
    run_id = str(_LAST_RUN - number)
    grown = (_RUNS_OF_HISTORY - number) << 24
    families = page_runs.FAMILIES[:9:2]
    facts = page_runs.make_run(
        families,
        ("nightly",),
        ("cp312",),
        run_id=run_id,
        grown=grown,
    )
    if number < _FAILED_RUNS:
        failed_groups = page_runs.broken_run().groups
        facts = replace(facts, groups=(*failed_groups, *facts.groups[1:]))
    run = HistoryRun(run_id=run_id, address=f"../{run_id}-linux/reports/index.html")
    return run, make_page(facts)
