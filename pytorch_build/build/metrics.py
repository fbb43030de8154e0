"""A build's figures for its record: how far a failed one came, and the memory that builds take."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core import process
from pytorch_build.build.machine import memory_bytes

# Bounds of what a record keeps.
_MOST_FAILED = 5
_MOST_LETTERS = 200
# Bytes of a log's end that are read: the last command's errors may be long.
_TAIL = 4 << 20

# "[12/1758] Building …", unless NINJA_STATUS is set.
_PROGRESS = re.compile(r"^\[(\d{1,9})/(\d{1,9})\] ", re.MULTILINE)
# Since ninja 1.13 a failure has a code.
_FAILED = re.compile(r"^FAILED: (?:\[code=-?\d+\] )?(\S+)", re.MULTILINE)


@contextmanager
def measured(details: dict[str, Any], log: Path) -> Iterator[None]:
    """Add what is known of a build to the details of its record while the block runs, however it ends."""
    try:
        yield
    except BaseException:
        reached = progress_in(process.tail(log, lines=_TAIL, limit=_TAIL))
        if reached is not None:
            details["reached"] = reached
        raise
    finally:
        # Windows does not say what the largest process took that has ended.
        if sys.platform != "win32":
            import resource

            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
            details["memory"] = {"peak": peak, "total": memory_bytes()}


def progress_in(output: str) -> dict[str, Any] | None:
    """Return how far ninja came, from what a build printed; None where it printed nothing of it."""
    steps = _PROGRESS.findall(output)
    failed = tuple(dict.fromkeys(_FAILED.findall(output)))
    if not steps and not failed:
        return None

    progress: dict[str, Any] = {}
    if steps:
        step, last_step = steps[-1]
        progress["done"] = int(step)
        progress["total"] = int(last_step)
    progress["failed"] = [_short_path(path) for path in failed[:_MOST_FAILED]]
    return progress


def _short_path(path: str) -> str:
    """Return a path without the machine's own folders, bounded in length."""
    path = path.replace("\\", "/")
    if path.startswith("/") or path[1:3] == ":/":
        path = "/".join(["…", *path.split("/")[-3:]])
    if len(path) > _MOST_LETTERS:
        path = f"…{path[1 - _MOST_LETTERS :]}"
    return path
