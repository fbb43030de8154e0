"""The Pythons that a flow asks for, refused before anything is done where this machine lacks one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from core import console, process
from core.cli.options import environment
from core.errors import EnvironmentSetupError, UsageError

_PROGRAM = re.compile(r"python3\.\d+t?")


def require_pythons(versions: Iterable[str]) -> None:
    """Refuse versions of Python, such as ``3.12`` or ``3.13t``, that this machine lacks."""
    missing_versions = _missing_versions(versions)
    if not missing_versions:
        return

    programs = " and no ".join(f"python{version}" for version in missing_versions)
    raise EnvironmentSetupError(
        f"There is no {programs} on the PATH, where {', '.join(_programs_there()) or 'none'} can be found.",
        hint=f"Install it, as `uv python install {' '.join(missing_versions)}` does, or choose another: "
        "--python.",
    )


def warn_of_missing_pythons(versions: Iterable[str]) -> None:
    """Name versions of Python that this machine lacks, where nothing is to be done yet."""
    missing_versions = _missing_versions(versions)
    if missing_versions:
        console.warn(f"This machine has no Python {', '.join(missing_versions)}, which these jobs need.")


def _missing_versions(versions: Iterable[str]) -> Sequence[str]:
    distinct_versions = sorted(set(versions))
    for version in distinct_versions:
        if not _PROGRAM.fullmatch(f"python{version}"):
            raise UsageError(
                f"--python {version!r} is not a Python version.", hint="Write it like 3.12 or 3.13t."
            )

    # Windows' launcher knows where others are.
    if process.which("py"):
        return []
    return [version for version in distinct_versions if not starts(f"python{version}")]


def _programs_there() -> Sequence[str]:
    """Return the Pythons of the PATH that start, in the order of their versions."""
    names: set[str] = set()
    for folder in environment().get("PATH", "").split(os.pathsep):
        names.update(path.name for path in Path(folder).glob("python3.*"))

    programs = [name for name in names if _PROGRAM.fullmatch(name)]
    programs.sort(key=lambda name: (len(name.rstrip("t")), name))
    return [name for name in programs if starts(name)]


@cache  # a flow asks, and each of its parts
def starts(program: str) -> bool:
    """Return whether an interpreter is there and starts: a version manager's shim may stand for none."""
    path = process.which(program)
    return path is not None and process.capture([str(path), "-c", ""], check=False).returncode == 0
