"""What the last build packed: members that did not change since are taken over as they are compressed.

The wheels that it left in its folder are the memory. They count only where they still have the bytes that it
wrote, by this code, at this level, so that a build makes the same bytes with them and without.
"""

from __future__ import annotations

import importlib.metadata
import json
import mmap
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from core import archive, files
from core.archive import Content
from core.archive.packed import Kept
from core.archive.zips import opened
from core.wheel.record import require_listing

_NOTE = ".packed.json"
_PACKERS = ("deflate", "zlib-ng")


def remember(folder: Path, level: int, digests: Mapping[str, str]) -> None:
    """Note which files a build has left: their SHA-256 by name."""
    files.write_json(folder / _NOTE, {"rules": _rules(level), "digests": digests})


def members(folder: Path, level: int) -> Mapping[bytes, Kept]:
    """Return the members of wheels that are as the last build left them, by the SHA-256 of their bytes."""
    note = folder / _NOTE
    # Windows does not replace a file that somebody reads.
    if os.name == "nt" or not note.is_file():
        return {}
    noted = json.loads(note.read_text(encoding="utf-8"))
    if noted["rules"] != _rules(level):
        return {}
    found: dict[bytes, Kept] = {}
    for name, sha256 in noted["digests"].items():
        path = folder / name
        if path.suffix == ".whl" and path.is_file() and files.sha256(path) == sha256:
            found |= _members(path)
    return found


def _members(path: Path) -> dict[bytes, Kept]:
    # mapped, and so read from the file that it is now: the build puts another into its place
    with opened(path) as wheel, path.open("rb") as stream:
        content = Content(data=mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        listing = require_listing(path, wheel)
    return {
        entry.digest: Kept(
            method=info.compress_type,
            packed_size=info.compress_size,
            pieces=partial(content.pieces, span.start, span.end),
        )
        for info, span in listing.files
        if (entry := listing.entries.get(info.filename))
    }


def _rules(level: int) -> str:
    """Digest what decides about a member's packed bytes."""
    code = sorted(Path(archive.__file__).parent.glob("*.py"))
    return files.digest_of(
        {
            "level": level,
            "code": {path.name: files.sha256(path) for path in code},
            "packers": {name: importlib.metadata.version(name) for name in _PACKERS},
        }
    )
