"""Checks of the libraries packages, of each GPU family that is installed."""

import sys

from .. import _dist_info
from . import support
from .check import Check, expect


def checks():
    """Yield the checks of the libraries packages."""
    families = _dist_info.installed_libraries()
    for family in families:
        group = "libraries" if len(families) == 1 else f"libraries.{family}"
        root = support.payload("libraries", family)
        yield Check(group, "layout", _check_layout, root)
        yield from support.library_checks(
            group, root, support.payload("core")
        )
    yield from support.preload_checks("libraries")


def _check_layout(root):
    folder = root / ("bin" if sys.platform == "win32" else "lib")
    expect(folder.is_dir(), f"{folder} is missing")
