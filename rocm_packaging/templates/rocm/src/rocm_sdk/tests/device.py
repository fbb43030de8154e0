"""Checks of device packages, one a gfx target, which lie over the libraries."""

import json
from pathlib import Path

from .. import _dist_info
from .check import Check, expect, expect_files, expect_none

_ARCHIVE_SUFFIX = ".kpack"
_ARCHIVE_MAGIC = b"KPAK"


def checks():
    """Yield a check a device package."""
    entry = _dist_info.ALL_PACKAGES.get("device")
    if entry is None:
        return
    for target in _dist_info.installed_target_families():
        yield Check(
            "device",
            f"the code for {target} is there",
            _check_code,
            entry,
            target,
        )


def _check_code(entry, target):
    """Require what the package says it has, that its archives are archives, and something for its target."""
    listing = Path(entry.marker_path(target))
    links = json.loads(listing.read_text(encoding="utf-8"))["links"]
    root = listing.parents[1]
    files = [root / link["relpath"] for link in links]
    expect_files(files)

    damaged_archives = []
    for path in files:
        if path.suffix == _ARCHIVE_SUFFIX and not _is_archive(path):
            damaged_archives.append(path)
    expect_none(damaged_archives, "kernel archives are damaged")

    has_target = any(target in link["relpath"] for link in links)
    expect(has_target, f"nothing of {len(links)} files is for {target}")


def _is_archive(path):
    with open(path, "rb") as stream:
        return stream.read(len(_ARCHIVE_MAGIC)) == _ARCHIVE_MAGIC
