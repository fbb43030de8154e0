"""Checks of device packages, one a gfx target, which lie over the libraries."""

import json
from pathlib import Path

from .. import _dist_info
from .checks import Check, expect, expect_none

_ARCHIVE, _MAGIC = ".kpack", b"KPAK"


def checks():
    entry = _dist_info.ALL_PACKAGES.get("device")
    for target in _dist_info.installed_target_families() if entry else ():
        yield Check("device", f"the code for {target} is there", _code, entry.marker_path(target), target)


def _code(marker, target):
    """All that the package says it has is there, its archives are archives, and something is for its target."""
    root = Path(marker).parents[1]
    with open(marker, encoding="utf-8") as stream:
        names = [link["relpath"] for link in json.load(stream)["links"]]
    files = [root / name for name in names]
    expect_none((path for path in files if not path.is_file()), "files are missing")
    expect_none((path for path in files if not path.stat().st_size), "files are empty")
    archives = [path for path in files if path.suffix == _ARCHIVE]
    expect_none((path for path in archives if _head(path) != _MAGIC), "kernel archives are damaged")
    expect(any(target in name for name in names), f"nothing of {len(names)} files is for {target}")
    return f"{len(names)} files, {len(archives)} kernel archives"


def _head(path):
    with open(path, "rb") as stream:
        return stream.read(len(_MAGIC))
