"""A real browser, where the machine has one."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from docs import screenshots


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return a running browser; skip the test where none is installed."""
    program = screenshots.find_browser()
    if program is None:
        pytest.skip("chromium is not installed (Debian: chromium)")
    playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright_api.sync_playwright() as playwright:
        # A sandbox takes rights that containers do not give.
        running_browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running_browser
        running_browser.close()
