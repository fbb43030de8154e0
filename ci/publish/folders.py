"""Files of folders, as they are to lie in a run's outputs: named, hashed, large logs packed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ci.publish.transferring import Item
from core import console
from core.errors import MissingInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ci.publish.digests import Digests

# what programs write while they work, and leave when they are killed
_TEMPORARY_ENDS = ("~", ".part", ".tmp", ".temp", ".lock", ".swp")
_TEMPORARY_NAMES = frozenset({"__pycache__", "tmp", "temp"})
# above this many bytes, text that is a log goes in its gzip form
PACKED_FROM = 1 << 20
_TEXT = frozenset({".log", ".txt", ".out", ".err"})


def is_temporary(name: str) -> bool:
    """Say whether a file or folder is hidden or half made, by its name: such are never uploaded."""
    return name.startswith(".") or name.lower().endswith(_TEMPORARY_ENDS) or name in _TEMPORARY_NAMES


def walked(folder: Path) -> Sequence[Path]:
    """List a folder's files at every depth, sorted; without links, and what is hidden or half made."""
    if not folder.is_dir():
        raise MissingInputError(f"{folder} is no folder.", hint="Give one that there is.")
    files = sorted(_visible(folder))
    if not files:
        raise MissingInputError(f"{folder} holds no file to upload.", hint="Give a folder that does.")
    return files


def _visible(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary(entry.name):
                continue
            if entry.is_symlink():
                console.say(f"{entry.path} is a link and is left out.")
            elif entry.is_dir():
                yield from _visible(Path(entry.path))
            elif entry.is_file():
                yield Path(entry.path)


def items_of(
    paths: Sequence[Path],
    keys: Sequence[str],
    digests: Digests,
    *,
    replace: bool,
    pack: bool = False,
    owned: bool = False,
) -> Sequence[Item]:
    """Describe files, hashed side by side."""
    kinds = [_is_packed(path, pack=pack) for path in paths]
    contents = digests.contents(list(zip(paths, kinds, strict=True)))
    return [
        Item(
            key=f"{key}.gz" if packed else key,
            path=path,
            size=content.size,
            sha256=content.sha256,
            replace=replace,
            packed=packed,
            owned=owned,
            changed=content.changed,
        )
        for path, key, packed, content in zip(paths, keys, kinds, contents, strict=True)
    ]


def _is_packed(path: Path, *, pack: bool) -> bool:
    return pack and path.suffix in _TEXT and path.stat().st_size > PACKED_FROM


def tree(folder: Path, prefix: str, digests: Digests) -> Sequence[Item]:
    """Describe a folder's files as they lie under a prefix; large logs in their gzip form."""
    paths = walked(folder)
    keys = [f"{prefix}/{path.relative_to(folder).as_posix()}" for path in paths]
    return items_of(paths, keys, digests, replace=True, pack=True)
