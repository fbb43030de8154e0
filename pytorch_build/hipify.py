"""Upstream's own rewriting of CUDA sources to HIP: ``tools/amd_build/build_amd.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import console, process
from core.errors import ProcessError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = "tools/amd_build/build_amd.py"


def can_hipify(tree: Path) -> bool:
    """Say whether a tree brings the script; of upstream's projects only torch does."""
    return (tree / SCRIPT).is_file()


def hipify(tree: Path, python: Path) -> None:
    """Rewrite a tree's sources in place, its submodules' included.

    The same sources give the same result on every machine: an installed HIP, which the
    script would look at, and the user's Python settings are kept from it.

    Raises:
        SourceError: The script failed.
    """
    env = process.inherited(
        HIP_PATH=str(tree / "tools" / "amd_build" / "no-hip"),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONUTF8="1",
        PYTHONHASHSEED="0",
        PYTHONPATH=None,
        PYTHONHOME=None,
        PYTHONSAFEPATH=None,
    )
    console.say(f"Rewriting the CUDA sources of {tree} for HIP")
    try:
        process.capture([python, SCRIPT], cwd=tree, env=env)
    except ProcessError as problem:
        raise SourceError(
            f"hipify failed in {tree}: {problem.message}",
            hint=f"Run `{python} {SCRIPT}` there to see the whole output.",
        ) from problem
