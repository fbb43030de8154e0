"""Members of wheels that a build takes over from the last one, packed as they are."""

from __future__ import annotations

import importlib.metadata
import json
import mmap
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from core import archive
from core.archive import Content
from core.archive.packed import PackedData
from core.files import digest_of, sha256, write_json
from core.wheel.record import require_listing

_NOTE = ".packed.json"  # which files a build has left: their SHA-256 by name
_PACKERS = ("deflate", "zlib-ng")


def note_packed_files(folder: Path, level: int, digests: Mapping[str, str]) -> None:
    """Note which files a build has left in a folder, for the next one: their SHA-256 by name."""
    write_json(folder / _NOTE, {"rules": _rules(level), "digests": digests})


def packed_members(folder: Path, level: int) -> Mapping[bytes, PackedData]:
    """Return the members of wheels that are as the last build left them, by the SHA-256 of their bytes.

    They count only where the wheels have the bytes that it wrote, by this code, at this level, so that a
    build makes the same bytes with them and without.
    """
    note = folder / _NOTE
    # Windows does not replace a file that somebody reads.
    if os.name == "nt" or not note.is_file():
        return {}
    content = json.loads(note.read_text(encoding="utf-8"))
    if content["rules"] != _rules(level):
        return {}

    members: dict[bytes, PackedData] = {}
    for name, digest in content["digests"].items():
        path = folder / name
        if path.suffix == ".whl" and path.is_file() and sha256(path) == digest:
            members |= _members_of_wheel(path)
    return members


def _members_of_wheel(path: Path) -> dict[bytes, PackedData]:
    # Mapped, and so read from the file that it is now: the build puts another into its place.
    with path.open("rb") as stream:
        content = Content(data=mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    listing = require_listing(path)

    members: dict[bytes, PackedData] = {}
    for member in listing.members:
        row = listing.rows.get(member.name)
        if row is not None:
            pieces = partial(content.pieces, member.start, member.end)
            members[row.digest] = PackedData(method=member.method, size=member.packed_size, pieces=pieces)
    return members


def _rules(level: int) -> str:
    """Digest what decides about a member's packed bytes."""
    code = sorted(Path(archive.__file__).parent.glob("*.py"))
    return digest_of(
        {
            "level": level,
            "code": {path.name: sha256(path) for path in code},
            "packers": {name: importlib.metadata.version(name) for name in _PACKERS},
        }
    )
