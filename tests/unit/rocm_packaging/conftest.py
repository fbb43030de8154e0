"""A folder that `rocm_sdk` is installed into, and what a test needs of its machine."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.windows import can_link

RUNTIME_PACKAGES = {"rocm_sdk", "rocm_sdk_core"}


@pytest.fixture
def sdk_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return an empty folder that Python imports from for as long as the test runs."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    yield site

    for name in list(sys.modules):
        if name.partition(".")[0] in RUNTIME_PACKAGES:
            del sys.modules[name]


@pytest.fixture
def needs_links() -> None:
    """Skip a test where symbolic links cannot be made."""
    if not can_link():
        pytest.skip("no symbolic links can be made here")
