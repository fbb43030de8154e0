"""The page of a run in a real browser: what it says, what its keys do, whether everybody can use it."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, FloatRect, Locator, ViewportSize
from playwright.sync_api import Page as Tab

from ci.report.facts import RunFacts
from ci.report.html import render
from ci.report.page import make_page
from core import process
from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from tests.kit import page_runs as samples
from tests.kit.environments import Venv, create_environment, installed
from tests.kit.recorded_runs import publish_with_pages
from tests.kit.servers import served
from tests.kit.wheels import write_wheel

PHONE = ViewportSize(width=390, height=844)
TABLET = ViewportSize(width=768, height=1024)
DESK = ViewportSize(width=1440, height=900)
every_screen = pytest.mark.parametrize("screen", [PHONE, TABLET, DESK], ids=["phone", "tablet", "desk"])

BACKGROUNDS = {"dark": "rgb(13, 17, 23)", "light": "rgb(255, 255, 255)"}

# Pages over a cell that failed, over two families and over 24 cells. The last two compare with another run.
FAILED_RUN = "broken.html"
SMALL_RUN = "few.html"
LARGE_RUN = "index.html"

# A cell of the large run.
CELL = "cell-gfx900-nightly-cp311"

# Where a run's report lies in its store.
REPORT = Path("123-linux", "reports", "index.html")

# Columns of the table of wheels.
FILE_COLUMN = 0
SIZE_COLUMN = 2


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the three pages; return their folder."""
    folder: Path = tmp_path_factory.mktemp("reports")
    write_page(folder / FAILED_RUN, samples.broken_run())

    families = ["gfx900", "gfx901"]
    refs = ["release/2.9"]
    small_run = samples.make_run(families, refs, run_id="999999", grown=999999)
    smaller_run = samples.make_run(families, refs, run_id="9", grown=9)
    write_page(folder / SMALL_RUN, small_run, smaller_run)

    families = ["gfx900", "gfx901", "gfx902", "gfx903"]
    refs = ["release/2.9", "release/2.10", "nightly"]
    pythons = ["cp311", "cp312"]
    large_run = samples.make_run(families, refs, pythons, grown=800_000)
    previous_run = samples.make_run(families, refs, pythons, run_id="122", seed="x")
    write_page(folder / LARGE_RUN, large_run, previous_run)
    return folder


def write_page(path: Path, run: RunFacts, previous_run: RunFacts | None = None) -> None:
    """Write the page over a run, compared with another one."""
    page = make_page(run, previous_run)
    path.write_text(render(page), encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class TabBar:
    """Opens pages in tabs, and notes what pages print on their console, and whom else they ask."""

    browser: Browser
    pages: Path
    tabs: list[Tab] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def open(
        self,
        name: str,
        *,
        screen: ViewportSize = DESK,
        color_scheme: Literal["light", "dark"] | None = None,
        permissions: Sequence[str] | None = None,
        runs_scripts: bool = True,
    ) -> Tab:
        """Open a page in a new tab."""
        context = self.browser.new_context(
            viewport=screen,
            color_scheme=color_scheme,
            permissions=permissions,
            java_script_enabled=runs_scripts,
        )
        tab = context.new_page()
        self.tabs.append(tab)

        address = (self.pages / name).as_uri()
        tab.on("console", lambda message: self.problems.append(message.text))
        tab.on("pageerror", lambda error: self.problems.append(str(error)))
        tab.on("request", lambda request: self.note_request(request.url, address))
        tab.goto(address)
        return tab

    def note_request(self, url: str, address: str) -> None:
        """Note a request that is not for the page itself."""
        if not url.startswith(address):
            self.problems.append(f"asked for {url}")


@pytest.fixture
def tab_bar(browser: Browser, pages: Path) -> Iterator[TabBar]:
    """Return what opens the pages. At the end their consoles must be empty, and the network not asked."""
    tab_bar = TabBar(browser=browser, pages=pages)
    yield tab_bar
    for tab in tab_bar.tabs:
        tab.context.close()
    assert tab_bar.problems == []


def text_of(locator: Locator) -> str:
    """Return the text of an element, hidden or not; "" if it has none."""
    return locator.text_content() or ""


def is_unfolded(locator: Locator) -> bool:
    """Return whether an element that folds is open."""
    return bool(locator.evaluate("details => details.open"))


def box_of(locator: Locator) -> FloatRect:
    """Return where an element is drawn."""
    box = locator.bounding_box()
    assert box is not None
    return box


def count_shown(tab: Tab, kind: str) -> int:
    """Return how many elements of a kind no filter hides."""
    return int(tab.locator(f'[data-kind="{kind}"]:not([hidden]):not(.out)').count())


def require_cells(tab: Tab, count: int) -> None:
    """Require that so many cells are shown, in the list and in the matrix."""
    assert count_shown(tab, "cells") == count
    assert count_shown(tab, "square") == count


def wait_for_status(tab: Tab, text: str) -> None:
    """Wait until the page's status contains a text."""
    # The page's policy forbids what playwright would run in the page to wait there.
    from playwright.sync_api import expect

    expect(tab.locator("#status")).to_contain_text(text, timeout=30_000)


def wait_for_open(tab: Tab, target: str) -> None:
    """Wait until a part of the page is unfolded."""
    tab.locator(f"#{target}[open]").wait_for()


def read_column(tab: Tab, index: int) -> list[str]:
    """Read a column of the table of wheels: the values that it is sorted by."""
    cells: list[str] = tab.eval_on_selector_all(
        "#wheels table.fixed > tbody > tr",
        f"rows => rows.map(row => row.cells[{index}].dataset.v ?? row.cells[{index}].textContent.trim())",
    )
    return cells


def read_sizes(tab: Tab) -> list[int]:
    """Read the sizes in the table of wheels."""
    return list(map(int, read_column(tab, SIZE_COLUMN)))


def sort_order(heading: Locator) -> str | None:
    """Return how a column says that it is sorted."""
    order: str | None = heading.get_attribute("aria-sort")
    return order


# Each page on each size and in both schemes, each size in both schemes: every pair.
@pytest.mark.parametrize(
    ("name", "screen", "scheme"),
    [
        pytest.param(SMALL_RUN, PHONE, "light", id="small run, phone, light"),
        pytest.param(SMALL_RUN, TABLET, "dark", id="small run, tablet, dark", marks=pytest.mark.nightly),
        pytest.param(SMALL_RUN, DESK, "light", id="small run, desk, light", marks=pytest.mark.nightly),
        pytest.param(FAILED_RUN, PHONE, "dark", id="failed run, phone, dark", marks=pytest.mark.nightly),
        pytest.param(FAILED_RUN, TABLET, "light", id="failed run, tablet, light", marks=pytest.mark.nightly),
        pytest.param(FAILED_RUN, DESK, "dark", id="failed run, desk, dark"),
    ],
)
def test_the_page_is_accessible_and_fits_every_screen(
    tab_bar: TabBar, name: str, screen: ViewportSize, scheme: Literal["light", "dark"]
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab = tab_bar.open(name, screen=screen, color_scheme=scheme)

    # Nothing is cut off but a part of the matrix, which scrolls in a frame of its own.
    labels_of_cut_off_frames = tab.eval_on_selector_all(
        ".scroll",
        "frames => frames.filter(frame => frame.scrollWidth > frame.clientWidth + 1)"
        ".map(frame => frame.ariaLabel)",
    )
    assert set(labels_of_cut_off_frames) <= {"Table of cells"}

    # The checker meets folded parts and unfolded ones.
    unfold_every_fifth = "(details, index) => { details.open = index % 5 === 0 }"
    tab.evaluate(f"document.querySelectorAll('details').forEach({unfold_every_fifth})")
    assert Axe().run(tab).response["violations"] == []
    assert tab.evaluate("document.documentElement.scrollWidth") == screen["width"]
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == BACKGROUNDS[scheme]


@every_screen
def test_a_failed_run_begins_with_its_cause_on_any_screen(tab_bar: TabBar, screen: ViewportSize) -> None:
    tab = tab_bar.open(FAILED_RUN, screen=screen)

    cause = tab.locator(".cause")
    message = cause.locator(".what")
    command = cause.locator(".command pre")
    log_link = cause.get_by_role("link", name="Log of build_torch")
    assert "aten/ops.cpp:25: error: 'no_such_function'" in text_of(message)
    assert text_of(command).startswith("nox -s build_torch -P 3.12")
    assert log_link.get_attribute("href") == "../logs/gfx900/build_torch.log"

    box = box_of(cause)
    lower_edge = box["y"] + box["height"]
    assert lower_edge < screen["height"]


@every_screen
def test_draws_every_step_of_a_failed_run_on_any_screen(tab_bar: TabBar, screen: ViewportSize) -> None:
    tab = tab_bar.open(FAILED_RUN, screen=screen)

    bars = tab.locator(".gantt .bar").all()
    assert len(bars) == 3
    for bar in bars:
        box = box_of(bar)
        right_edge = box["x"] + box["width"]
        assert box["width"] > 20
        assert 0 <= box["x"] < right_edge <= screen["width"]


@every_screen
def test_says_how_long_a_run_was_idle_on_any_screen(tab_bar: TabBar, screen: ViewportSize) -> None:
    tab = tab_bar.open(FAILED_RUN, screen=screen)

    labels = tab.locator(".axis .mid")
    assert labels.all_text_contents() == ["29 s", "3 min"]
    assert "1 min 00 s of work over 4 min 29 s" in text_of(tab.locator("header"))

    # A longer idle time is wider.
    short_fold, long_fold = tab.locator(".axis .fold").all()
    short_width = box_of(short_fold)["width"]
    long_width = box_of(long_fold)["width"]
    assert short_width * 1.5 < long_width


def test_one_cell_has_one_table_of_each_kind_and_no_older_wheel(tab_bar: TabBar) -> None:
    tab = tab_bar.open(FAILED_RUN)

    assert tab.locator("form, nav, .matrix, select").count() == 0
    captions = tab.locator("table > caption").all_text_contents()
    titles = [caption.partition(";")[0] for caption in captions]
    assert titles == [
        "Files of the run",
        "What was built, by the run's source locks",
    ]
    assert "pip install" not in text_of(tab.locator("main"))


def test_times_are_relative_and_exact_in_their_titles(tab_bar: TabBar) -> None:
    tab = tab_bar.open(FAILED_RUN)

    beginning = tab.locator("header time")
    assert beginning.get_attribute("title") == "2026-11-20T22:00:00+00:00"
    assert beginning.get_attribute("datetime") == "2026-11-20T22:00:00+00:00"
    assert not re.search(r"20\d\d-\d\d-\d\d", tab.locator("body").inner_text())

    tab.clock.set_fixed_time("2026-11-20T22:12:10Z")
    tab.reload()
    assert beginning.text_content() == "12 min ago"

    tab.clock.set_fixed_time("2026-11-22T23:00:00Z")
    tab.reload()
    assert beginning.text_content() == "2 days ago"


def test_copies_a_command_by_keyboard_and_says_so(tab_bar: TabBar) -> None:
    tab = tab_bar.open(FAILED_RUN, permissions=["clipboard-read", "clipboard-write"])

    button = tab.get_by_role("button", name="Copy the command that does build_torch")
    button.press("Enter")

    # Only screen readers get this status.
    status = tab.get_by_role("status").filter(has_text="Copied the command")
    status.wait_for(state="attached")
    command = tab.locator(".cause .command pre").text_content()
    assert tab.evaluate("navigator.clipboard.readText()") == command


def test_no_line_breaks_inside_of_an_option(tab_bar: TabBar) -> None:
    tab = tab_bar.open(FAILED_RUN, screen=PHONE)

    options = tab.locator(".cause .command span")
    names = set(options.all_text_contents())
    assert {"--torch-ref", "--gpu-family", "--run-id"} <= names
    line_counts = options.evaluate_all("options => options.map(option => option.getClientRects().length)")
    assert set(line_counts) == {1}


def test_filters_work_by_keyboard_and_say_how_many_cells_are_left(tab_bar: TabBar) -> None:
    tab = tab_bar.open(LARGE_RUN)
    require_cells(tab, 24)

    tab.get_by_label("Words").focus()
    tab.keyboard.type("GFX901 cp312")
    wait_for_status(tab, "3 of 24 cells")
    require_cells(tab, 3)
    assert tab.locator(".matrix tbody tr:visible").count() == 3

    # The next field lets select a family, by its first letter.
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.name") == "family"
    tab.keyboard.press("g")
    wait_for_status(tab, "0 of 24 cells")

    show_all = tab.get_by_role("button", name="Show all")
    show_all.press("Enter")
    wait_for_status(tab, "24 of 24 cells")

    tab.get_by_label("State").select_option("failed")
    failed_count = tab.locator(".matrix td[data-state=failed]").count()
    wait_for_status(tab, f"{failed_count} of 24 cells")


def test_sorts_tables_by_keyboard_and_says_so(tab_bar: TabBar) -> None:
    tab = tab_bar.open(LARGE_RUN)
    wheels = tab.locator("#wheels")
    wheels.scroll_into_view_if_needed()
    size_heading = wheels.locator("th", has_text="Size").first
    assert sort_order(size_heading) == "none"

    size_heading.get_by_role("button").focus()
    tab.keyboard.press("Enter")
    sizes = read_sizes(tab)
    assert sort_order(size_heading) == "ascending"
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 5

    tab.keyboard.press("Space")
    assert sort_order(size_heading) == "descending"
    assert read_sizes(tab) == sorted(sizes, reverse=True)

    file_button = tab.get_by_role("button", name="File", exact=True).first
    file_button.press("Enter")
    assert sort_order(size_heading) == "none"
    names = read_column(tab, FILE_COLUMN)
    assert names[0].startswith("apex")
    assert names[-1].startswith("triton")


def test_a_cell_of_the_matrix_opens_its_part(tab_bar: TabBar) -> None:
    tab = tab_bar.open(LARGE_RUN)
    link = tab.locator(".matrix td a").first
    target = (link.get_attribute("href") or "").removeprefix("#")
    part = tab.locator(f"#{target}")
    summary = part.locator("> summary")
    assert not is_unfolded(part)

    link.press("Enter")
    wait_for_open(tab, target)
    assert tab.evaluate("document.activeElement.parentElement.id") == target

    # It opens again after it was folded.
    summary.press("Enter")
    assert not is_unfolded(part)
    link.press("Enter")
    wait_for_open(tab, target)


def write_wheels(folder: Path, requirements: Sequence[str]) -> list[Path]:
    """Write a wheel for each pinned requirement, and rocm's, which torch requires."""
    rocm = write_wheel(folder, name="rocm", version="7.1.0")
    wheels = [rocm]
    for requirement in requirements:
        name, version = requirement.split("==")
        requires = ["rocm==7.1.0"] if name == "torch" else []
        wheel = write_wheel(folder, name=name, version=version, requires=requires)
        wheels.append(wheel)
    return wheels


@pytest.fixture
def reported_run(tmp_path: Path) -> DirectoryStore:
    """Return a store with a run of one cell: its wheels, their index, and its report."""
    facts = samples.make_run(["gfx900"], ["nightly"], ["cp312"])
    run = RunOutputs(run_id=facts.run_id, platform="linux")
    store = DirectoryStore(tmp_path / "my runs")
    requirements = make_page(facts).cells[0].requirements
    wheels = write_wheels(tmp_path / "dist", requirements)
    publish_with_pages(store, run, "gfx900", *wheels)

    report = store.root / REPORT
    report.parent.mkdir()
    write_page(report, facts)
    return store


def run_printed_command(tab: Tab, folder: Path) -> Venv:
    """Run the command that a page prints to install its wheels; return the environment."""
    command = shlex.split(text_of(tab.locator(".command pre").first))
    assert command[:2] == ["pip", "install"]
    environment = create_environment(folder / "venv", "pip")
    # The command runs as it is printed, but finds nothing on this machine's own index.
    process.run(
        [environment.python, "-m", *command],
        env={"PIP_NO_INDEX": "1"},
        cwd=folder,
    )
    return environment


def require_wheels_of_the_run(environment: Venv) -> None:
    """Require that an environment has torch's wheel, and what it requires."""
    versions = installed(environment.python)
    assert versions["rocm"] == "7.1.0"
    assert versions["torch"] == "2.10.0.dev4+rocm7.1.0"


def test_the_printed_command_installs_the_wheels_and_what_they_require(
    browser: Browser, reported_run: DirectoryStore, tmp_path: Path
) -> None:
    with served(reported_run.root) as address, browser.new_page() as tab:
        tab.goto(f"{address}/{REPORT.parent}/")
        environment = run_printed_command(tab, tmp_path)

    require_wheels_of_the_run(environment)


@pytest.mark.nightly
def test_the_command_of_a_report_on_disk_installs_from_the_folders_beside_it(
    browser: Browser, reported_run: DirectoryStore, tmp_path: Path
) -> None:
    with browser.new_page() as tab:
        tab.goto((reported_run.root / REPORT).as_uri())
        environment = run_printed_command(tab, tmp_path)

    require_wheels_of_the_run(environment)


def test_can_be_read_without_scripts(tab_bar: TabBar) -> None:
    tab = tab_bar.open(LARGE_RUN, runs_scripts=False)

    states = tab.locator(".matrix td .state")
    assert states.count() == 24
    assert not tab.locator("form").is_visible()

    cell = tab.locator(f"#{CELL}")
    summary = cell.locator("> summary")
    summary.press("Enter")
    assert cell.locator(".gantt").is_visible()
    commands = cell.locator(".command pre")
    installation = commands.filter(has_text="pip install").first
    assert text_of(installation).endswith("--find-links ../python/gfx900")
