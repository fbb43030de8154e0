"""The page of a run in a real browser: what it says, what its keys do, whether everybody can use it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from ci.report import page_of
from ci.report.html import render
from tests import page_samples as samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module", name="browser")
def browser_fixture() -> Iterator[Browser]:
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("chromium is not installed (Debian: chromium)")
    playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright_api.sync_playwright() as playwright:
        # a sandbox takes rights that containers do not give
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module", name="place")
def place_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of 24 cells, compared with another run."""
    folder: Path = tmp_path_factory.mktemp("reports")
    families, refs = samples.FAMILIES[:4], samples.REFS[2:]
    now = samples.run(families, refs, samples.PYTHONS[:2], grown=800_000)
    before = samples.run(families, refs, samples.PYTHONS[:2], run_id="122", seed="x")
    (folder / "index.html").write_text(render(page_of(now, before)), encoding="utf-8")
    return folder


@pytest.fixture(name="opened")
def opened_fixture(browser: Browser, place: Path) -> Iterator[Callable[..., Tab]]:
    """Open a page; in the end nothing may have been said on its console, nor asked of the network."""
    said: list[str] = []
    tabs: list[Tab] = []

    def open_page(name: str = "index.html", *, script: bool = True, **options: Any) -> Tab:
        settings = {"viewport": DESK, "java_script_enabled": script, **options}
        tab = browser.new_context(**settings).new_page()
        tabs.append(tab)
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        address = (place / name.partition("#")[0]).as_uri()
        tab.on("request", lambda request: said.extend(foreign(request.url, address)))
        tab.goto("#".join([address, *name.split("#")[1:]]))
        return tab

    yield open_page
    for tab in tabs:
        tab.context.close()
    assert said == []


def foreign(asked: str, address: str) -> list[str]:
    return [] if asked.startswith(address) else [f"asked for {asked}"]


def shown(tab: Tab, kind: str) -> int:
    return int(tab.locator(f'[data-kind="{kind}"]:not([hidden]):not(.out)').count())


def wait_for_status(tab: Tab, said: str) -> None:
    # what playwright waits for in the page itself, the page's policy forbids
    from playwright.sync_api import expect

    expect(tab.locator("#status")).to_contain_text(said, timeout=30_000)


def wait_for_open(tab: Tab, target: str) -> None:
    tab.locator(f"#{target}[open]").wait_for()


def column(tab: Tab, at: int) -> list[str]:
    """Read a column of the table of wheels."""
    found: list[str] = tab.eval_on_selector_all(
        "#wheels table.fixed > tbody > tr",
        f"rows => rows.map(row => row.cells[{at}].dataset.v ?? row.cells[{at}].textContent.trim())",
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_everybody_can_use_it(opened: Callable[..., Tab], scheme: str, viewport: dict[str, int]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab = opened(color_scheme=scheme, viewport=viewport)
    tab.evaluate("document.querySelectorAll('details').forEach((one, at) => { one.open = at % 5 === 0 })")
    found = Axe().run(tab).response["violations"]
    assert [(one["id"], [node["target"] for node in one["nodes"]]) for one in found] == []
    # nothing is wider than the window: tables scroll in their own frames
    assert tab.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(13, 17, 23)" if scheme == "dark" else "rgb(255, 255, 255)"
    )


def test_filters_work_by_keyboard_and_say_what_they_left(opened: Callable[..., Tab]) -> None:
    tab = opened()
    cells = shown(tab, "cells")
    assert cells == shown(tab, "square") == 24
    tab.get_by_label("Words").focus()
    tab.keyboard.type("GFX901 cp312")
    wait_for_status(tab, "3 of 24 cells")
    assert shown(tab, "cells") == shown(tab, "square") == 3
    assert tab.locator(".matrix tbody tr:visible").count() == 3
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.name") == "family"
    tab.keyboard.press("g")
    wait_for_status(tab, "0 of 24 cells")
    tab.get_by_role("button", name="Show all").press("Enter")
    wait_for_status(tab, "24 of 24 cells")
    tab.get_by_label("State").select_option("failed")
    failed = sum(cell.state == "failed" for cell in _cells())
    wait_for_status(tab, f"{failed} of 24 cells")


def _cells() -> Any:
    return page_of(samples.run(samples.FAMILIES[:4], samples.REFS[2:], samples.PYTHONS[:2])).cells


def test_tables_are_sorted_by_keyboard_and_say_so(opened: Callable[..., Tab]) -> None:
    tab = opened()
    tab.locator("#wheels").scroll_into_view_if_needed()
    head = tab.locator("#wheels th", has_text="Size").first
    assert head.get_attribute("aria-sort") == "none"
    head.get_by_role("button").focus()
    tab.keyboard.press("Enter")
    sizes = [int(value) for value in column(tab, 3)]
    assert head.get_attribute("aria-sort") == "ascending"
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 5
    tab.keyboard.press("Space")
    assert head.get_attribute("aria-sort") == "descending"
    assert [int(value) for value in column(tab, 3)] == sorted(sizes, reverse=True)
    tab.get_by_role("button", name="File", exact=True).first.press("Enter")
    assert head.get_attribute("aria-sort") == "none"
    names = column(tab, 0)
    assert names[0].startswith("apex")
    assert names[-1].startswith("triton")


def test_a_cell_of_the_matrix_opens_its_part(opened: Callable[..., Tab]) -> None:
    tab = opened()
    link = tab.locator(".matrix td a").first
    target = (link.get_attribute("href") or "")[1:]
    assert not tab.locator(f"#{target}").evaluate("one => one.open")
    link.press("Enter")
    wait_for_open(tab, target)
    assert tab.evaluate("document.activeElement.parentElement.id") == target
    # again, after it was folded
    tab.locator(f"#{target} > summary").press("Enter")
    assert not tab.locator(f"#{target}").evaluate("one => one.open")
    link.press("Enter")
    wait_for_open(tab, target)


def test_commands_name_where_the_page_lies(opened: Callable[..., Tab], place: Path) -> None:
    tab = opened("index.html#cell-1")
    command = tab.locator("#cell-1 pre").first.text_content() or ""
    assert command.startswith("pip install ")
    assert f"--find-links {place.parent.as_uri()}/python/gfx900/index.html" in command
    assert tab.locator("#cell-1").get_by_role("button", name="Copy pip install").count() == 1


def test_it_can_be_read_without_script(opened: Callable[..., Tab]) -> None:
    tab = opened(script=False)
    assert not tab.locator("form").is_visible()
    assert tab.locator(".matrix td .state").count() == 24
    summary = tab.locator("#cell-1 > summary")
    summary.press("Enter")
    assert tab.locator("#cell-1 table").is_visible()
    assert "--find-links ../python/gfx900/index.html" in (
        tab.locator("#cell-1 pre").first.text_content() or ""
    )
