"""A folder that `rocm_sdk` is installed into, and what a test needs of its machine."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def can_link(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Return whether symbolic links can be made: Windows wants a right for them, and Wine makes none."""
    link = tmp_path_factory.mktemp("links") / "link"
    # Wine says nothing of a link that it has not made.
    with suppress(OSError):
        link.symlink_to("target")
    return link.is_symlink()


@pytest.fixture
def needs_links(*, can_link: bool) -> None:
    """Skip a test where symbolic links cannot be made."""
    if not can_link:
        pytest.skip("no symbolic links can be made here")
