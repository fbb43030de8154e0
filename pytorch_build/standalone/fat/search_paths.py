"""Libraries that get another search path on their way into a wheel."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from core.binaries import rpath

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from core.archive import Edited
    from pytorch_build.standalone.fat.content import RocmFile

_CHUNK = 1 << 20


def with_search_path(file: RocmFile, search: Sequence[str], scratch: Path) -> Path | Edited:
    """Return a library with a search path: what is to be written in its place."""
    if file.info is None:
        target = scratch / file.path
        return rpath.edited(file.source, search) or rpath.patched(file.source, search, target)
    return unpacked(file, search, scratch)


def unpacked(file: RocmFile, search: Sequence[str], scratch: Path) -> Path:
    """Unpack a library from its wheel into a folder, with a search path."""
    target = scratch / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    with file.opened() as stream, target.open("wb") as copy:
        shutil.copyfileobj(stream, copy, _CHUNK)
    rpath.rewrite(target, search)
    return target
