"""The page of a run in a real browser: what it says, what its keys do, whether everybody can use it."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from playwright.sync_api import Page as Tab

from ci.report.html import render
from ci.report.page import make_page
from core import process
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from tests.kit import page_runs as samples
from tests.kit.environments import create_environment, installed
from tests.kit.recorded_runs import publish_with_pages
from tests.kit.servers import served
from tests.kit.wheels import write_wheel

DESK = {"width": 1440, "height": 900}
CELL = "cell-gfx900-nightly-cp311"
PHONE = {"width": 390, "height": 844}
TABLET = {"width": 768, "height": 1024}
SIZES = [PHONE, TABLET, DESK]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of 24 cells, compared with another run, and that of one cell, which failed."""
    folder: Path = tmp_path_factory.mktemp("reports")
    (folder / "broken.html").write_text(render(make_page(samples.broken_run())), encoding="utf-8")
    families = samples.FAMILIES[:4]
    refs = samples.REFS[2:]
    run = samples.make_run(families, refs, samples.PYTHONS[:2], grown=800_000)
    previous_run = samples.make_run(families, refs, samples.PYTHONS[:2], run_id="122", seed="x")
    small_run = samples.make_run(families[:2], refs[:1], run_id="999999", grown=999999)
    smaller_run = samples.make_run(families[:2], refs[:1], run_id="9", grown=9)
    (folder / "few.html").write_text(render(make_page(small_run, smaller_run)), encoding="utf-8")
    (folder / "index.html").write_text(render(make_page(run, previous_run)), encoding="utf-8")
    return folder


@pytest.fixture
def open_tab(browser: Browser, pages: Path) -> Iterator[Callable[..., Tab]]:
    """Return what opens a page. At the end its console must be empty, and the network not asked."""
    messages: list[str] = []
    tabs: list[Tab] = []

    def open_page(name: str = "index.html", *, script: bool = True, **options: Any) -> Tab:
        settings = {"viewport": DESK, "java_script_enabled": script, **options}
        tab = browser.new_context(**settings).new_page()
        tabs.append(tab)
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        address = (pages / name.partition("#")[0]).as_uri()
        tab.on("request", lambda request: messages.extend(requests_elsewhere(request.url, address)))
        tab.goto("#".join([address, *name.split("#")[1:]]))
        return tab

    yield open_page
    for tab in tabs:
        tab.context.close()
    assert messages == []


def requests_elsewhere(url: str, address: str) -> list[str]:
    """Return what to say of a request, if it is not for the page itself."""
    return [] if url.startswith(address) else [f"asked for {url}"]


def count_shown(tab: Tab, kind: str) -> int:
    """Return how many rows of a kind no filter hides."""
    return int(tab.locator(f'[data-kind="{kind}"]:not([hidden]):not(.out)').count())


def wait_for_status(tab: Tab, text: str) -> None:
    """Wait until the page's status contains a text."""
    # What playwright waits for in the page itself, the page's policy forbids
    from playwright.sync_api import expect

    expect(tab.locator("#status")).to_contain_text(text, timeout=30_000)


def wait_for_open(tab: Tab, target: str) -> None:
    """Wait until a part of the page is unfolded."""
    tab.locator(f"#{target}[open]").wait_for()


def read_column(tab: Tab, index: int) -> list[str]:
    """Read a column of the table of wheels."""
    cells: list[str] = tab.eval_on_selector_all(
        "#wheels table.fixed > tbody > tr",
        f"rows => rows.map(row => row.cells[{index}].dataset.v ?? row.cells[{index}].textContent.trim())",
    )
    return cells


# Each page on each size and in both schemes, each size in both schemes: every pair.
@pytest.mark.parametrize(
    ("name", "viewport", "scheme"),
    [
        ("few.html", PHONE, "light"),
        pytest.param("few.html", TABLET, "dark", marks=pytest.mark.nightly),
        pytest.param("few.html", DESK, "light", marks=pytest.mark.nightly),
        pytest.param("broken.html", PHONE, "dark", marks=pytest.mark.nightly),
        pytest.param("broken.html", TABLET, "light", marks=pytest.mark.nightly),
        ("broken.html", DESK, "dark"),
    ],
    ids=lambda value: str(value["width"]) if isinstance(value, dict) else value,
)
def test_the_page_is_accessible_and_fits_every_screen(
    open_tab: Callable[..., Tab], name: str, viewport: dict[str, int], scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab = open_tab(name, color_scheme=scheme, viewport=viewport)
    # nothing is cut off but of the matrix, which scrolls in a frame of its own
    wide = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.ariaLabel)"
    assert set(tab.eval_on_selector_all(".scroll", wide)) <= {"Table of cells"}
    tab.evaluate("document.querySelectorAll('details').forEach((one, at) => { one.open = at % 5 === 0 })")
    assert Axe().run(tab).response["violations"] == []
    assert tab.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(13, 17, 23)" if scheme == "dark" else "rgb(255, 255, 255)"
    )


@pytest.mark.parametrize("viewport", SIZES, ids=lambda size: str(size["width"]))
def test_a_failed_run_begins_with_its_cause_and_draws_time_on_any_screen(
    open_tab: Callable[..., Tab], viewport: dict[str, int]
) -> None:
    tab = open_tab("broken.html", viewport=viewport)
    cause = tab.locator(".cause")
    assert "aten/ops.cpp:25: error: 'no_such_function'" in (cause.locator(".what").text_content() or "")
    assert (cause.locator(".command pre").text_content() or "").startswith("nox -s build_torch -P 3.12")
    assert cause.get_by_role("link", name="Log of build_torch").get_attribute("href") == (
        "../logs/gfx900/build_torch.log"
    )
    box = cause.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < viewport["height"]
    bars = [bar.bounding_box() for bar in tab.locator(".gantt .bar").all()]
    assert len(bars) == 3
    for bar in bars:
        assert bar is not None
        assert bar["width"] > 20
        assert 0 <= bar["x"] < bar["x"] + bar["width"] <= viewport["width"]
    # each idle time says how long it was, and a longer one is wider
    assert tab.locator(".axis .mid").all_text_contents() == ["29 s", "3 min"]
    first, second = (fold.bounding_box() for fold in tab.locator(".axis .fold").all())
    assert first is not None
    assert second is not None
    assert first["width"] * 1.5 < second["width"]
    assert "1 min 00 s of work over 4 min 29 s" in (tab.locator("header").text_content() or "")


def test_one_cell_has_one_table_of_each_kind_and_no_older_wheel(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab("broken.html")
    assert tab.locator("form, nav, .matrix, select").count() == 0
    expected = ["Files of the run", "What was built, by the run's source locks"]
    assert [
        caption.split(";")[0] for caption in tab.locator("table > caption").all_text_contents()
    ] == expected
    assert "pip install" not in (tab.locator("main").text_content() or "")


def test_times_are_relative_and_exact_in_their_titles(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab("broken.html")
    began = tab.locator("header time")
    assert began.get_attribute("title") == began.get_attribute("datetime") == "2026-11-20T22:00:00+00:00"
    assert not re.search(r"20\d\d-\d\d-\d\d", tab.locator("body").inner_text())
    for time, text in (("2026-11-20T22:12:10Z", "12 min ago"), ("2026-11-22T23:00:00Z", "2 days ago")):
        tab.clock.set_fixed_time(time)
        tab.reload()
        assert began.text_content() == text


def test_copies_a_command_by_keyboard_and_says_so(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab("broken.html", permissions=["clipboard-read", "clipboard-write"])
    button = tab.get_by_role("button", name="Copy the command that does build_torch")
    button.press("Enter")
    tab.get_by_role("status").filter(has_text="Copied the command").wait_for(state="attached")
    assert tab.evaluate("navigator.clipboard.readText()") == tab.locator(".cause .command pre").text_content()


def test_no_line_breaks_inside_of_an_option(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab("broken.html", viewport=PHONE)

    options = tab.locator(".cause .command span")

    assert {"--torch-ref", "--gpu-family", "--run-id"} <= set(options.all_text_contents())
    lines = "all => all.map(option => option.getClientRects().length)"
    assert set(options.evaluate_all(lines)) == {1}


def test_filters_work_by_keyboard_and_say_how_many_cells_are_left(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab()
    cells = count_shown(tab, "cells")
    assert cells == count_shown(tab, "square") == 24
    tab.get_by_label("Words").focus()
    tab.keyboard.type("GFX901 cp312")
    wait_for_status(tab, "3 of 24 cells")
    assert count_shown(tab, "cells") == count_shown(tab, "square") == 3
    assert tab.locator(".matrix tbody tr:visible").count() == 3
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.name") == "family"
    tab.keyboard.press("g")
    wait_for_status(tab, "0 of 24 cells")
    tab.get_by_role("button", name="Show all").press("Enter")
    wait_for_status(tab, "24 of 24 cells")
    tab.get_by_label("State").select_option("failed")
    wait_for_status(tab, f"{tab.locator('.matrix td[data-state=failed]').count()} of 24 cells")


def test_sorts_tables_by_keyboard_and_says_so(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab()
    tab.locator("#wheels").scroll_into_view_if_needed()
    head = tab.locator("#wheels th", has_text="Size").first
    assert head.get_attribute("aria-sort") == "none"
    head.get_by_role("button").focus()
    tab.keyboard.press("Enter")
    sizes = [int(value) for value in read_column(tab, 2)]
    assert head.get_attribute("aria-sort") == "ascending"
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 5
    tab.keyboard.press("Space")
    assert head.get_attribute("aria-sort") == "descending"
    assert [int(value) for value in read_column(tab, 2)] == sorted(sizes, reverse=True)
    tab.get_by_role("button", name="File", exact=True).first.press("Enter")
    assert head.get_attribute("aria-sort") == "none"
    names = read_column(tab, 0)
    assert names[0].startswith("apex")
    assert names[-1].startswith("triton")


def test_a_cell_of_the_matrix_opens_its_part(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab()
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


@pytest.mark.parametrize("scheme", ["http", pytest.param("file", marks=pytest.mark.nightly)])
def test_the_printed_command_installs_the_wheels_and_what_they_need(
    browser: Browser, tmp_path: Path, scheme: str
) -> None:
    page = make_page(samples.make_run(["gfx900"], ["nightly"], ["cp312"]))
    wheels = [write_wheel(tmp_path / "dist", name="rocm", version="7.1.0")]
    for name, version in (requirement.split("==") for requirement in page.cells[0].requirements):
        requires = ["rocm==7.1.0"] if name == "torch" else []
        wheels.append(write_wheel(tmp_path / "dist", name=name, version=version, requires=requires))
    out = tmp_path / "my runs"
    publish_with_pages(DirectoryStore(out), RunOutputs(run_id="123", platform="linux"), "gfx900", *wheels)
    place = out / "123-linux" / "reports" / "index.html"
    place.parent.mkdir()
    place.write_text(render(page), encoding="utf-8")
    with served(out) as address, browser.new_page() as tab:
        tab.goto(place.as_uri() if scheme == "file" else f"{address}/123-linux/reports/")
        command = shlex.split(tab.locator(".command pre").first.text_content() or "")
        assert command[:2] == ["pip", "install"]
        target = create_environment(tmp_path / "venv", "pip")
        # As it is printed, but that what is on this machine's own index is left out.
        process.run([target.python, "-m", *command], env={"PIP_NO_INDEX": "1"}, cwd=tmp_path)
    assert {"rocm": "7.1.0", "torch": "2.10.0.dev4+rocm7.1.0"}.items() <= installed(target.python).items()


def test_can_be_read_without_script(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab(script=False)
    assert not tab.locator("form").is_visible()
    assert tab.locator(".matrix td .state").count() == 24
    summary = tab.locator(f"#{CELL} > summary")
    summary.press("Enter")
    assert tab.locator(f"#{CELL} .gantt").is_visible()
    command = tab.locator(f"#{CELL} .command pre").filter(has_text="pip install").first
    assert (command.text_content() or "").endswith("--find-links ../python/gfx900")
