"""Wheels and sdists of a ROCm release candidate, rewritten as those of the release.

Use: ``change = final_of("7.10.0rc2")``, ``plan_set(names, change)`` for what will become of each
file (pure, by names alone: a dry run needs no bytes), ``rewrite_set(paths, folder, change)`` to do it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.promotion.renaming import Renamed, RocmChange, final_of, new_version, plan_set

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from core.wheel_writer import WrittenFile

__all__ = ["Renamed", "Rewritten", "RocmChange", "final_of", "new_version", "plan_set", "rewrite_set"]


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A wheel or sdist that was rewritten, and checked again.

    Attributes:
        plan: Its old and new names and versions.
        file: The new file: path, hex SHA-256, size in bytes.
        changed: Members that hold other bytes than before, sorted; by their new names.
    """

    plan: Renamed
    file: WrittenFile
    changed: tuple[str, ...]


def rewrite_set(
    files: Sequence[Path], folder: Path, change: RocmChange, *, epoch: int | None = None
) -> tuple[Rewritten, ...]:
    """Write every wheel and sdist of a set again under its new version, and check the results.

    The whole set is written and checked before one new file appears in `folder`; the old files
    stay as they are. The same files give the same bytes, so an interrupted call can be repeated.

    Args:
        files: The set's wheels and sdists, on this machine; that they are the tested ones, by
            digest, is the caller's to see.
        folder: Where the new files go.
        change: The change of ROCm's version, from `final_of`.
        epoch: SOURCE_DATE_EPOCH in seconds (default: 1980-01-01, the earliest a zip holds).

    Returns:
        One entry a file, sorted by old file name.

    Raises:
        MissingInputError: There are no files, or one does not exist.
        WheelError: A file is broken or hostile, is not of the set, does not hold the old version
            where it should, still holds it elsewhere, or pins another candidate. It names file and
            member, and the set is refused as a whole.
        CheckError: A rewritten wheel does not pass the checks of built wheels.
    """
    raise NotImplementedError
