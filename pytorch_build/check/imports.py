"""Import checks of installed wheels: the command to run, and what its report means.

The caller runs the command with the target environment's Python (`core.process.capture`,
``check=False``) and passes the result to `read_report`.
"""

from __future__ import annotations

from pathlib import Path

from packaging.utils import canonicalize_name
from pydantic import ValidationError

from core.data import Model

SCRIPT = Path(__file__).with_name("import_check.py")
# Its module states the base version as a constant, whatever suffix the wheel carries.
_PUBLIC = frozenset({"triton"})


class _Report(Model):
    problems: tuple[str, ...]


def import_command(python: Path, distribution: str, version: str) -> tuple[str, ...]:
    """Return the command that imports a distribution's module."""
    name = canonicalize_name(distribution)
    # -I: neither the working folder nor PYTHONPATH may answer for what is installed.
    return (
        *(str(python), "-I", str(SCRIPT)),
        *("--distribution", name, "--version", version, "--module", name.replace("-", "_")),
        *(("--public",) if name in _PUBLIC else ()),
    )


def read_report(returncode: int, stdout: str, stderr: str) -> tuple[str, ...]:
    """Return the problems that the script found, one sentence each."""
    try:
        problems = _Report.model_validate_json(stdout).problems
    except ValidationError:
        last = next((line for line in reversed(stderr.strip().splitlines()) if line.strip()), "no output")
        return (f"The import check died with status {returncode}: {last.strip()}",)
    if returncode and not problems:
        # The report was written, then a destructor or an exit handler brought the process down.
        return (f"Python died with status {returncode} when it ended.",)
    return problems
