"""Import checks of installed wheels: the command to run, and what its report means.

The caller runs the command with the target environment's Python (`core.process.capture`,
``check=False``) and gives the result to `read_report`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from pydantic import ValidationError

from core.data import Model
from pytorch_build.check import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHECK = "import"
SCRIPT = Path(__file__).with_name("import_check.py")
MODULES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "torchaudio": ("torchaudio",),
    "torchvision": ("torchvision",),
    "triton": ("triton",),
    "apex": ("apex",),
}
# Its module states the base version as a constant, whatever suffix the wheel carries.
_PUBLIC = frozenset({"triton"})


class ImportedModule(Model):
    """One module: its name, `__version__` (or nothing), file, and seconds to import."""

    name: str
    version: str
    file: str
    seconds: float


class ImportReport(Model):
    """What the script saw in the target environment."""

    distribution: str
    version: str
    python: str
    modules: tuple[ImportedModule, ...]
    problems: tuple[str, ...]


def import_command(
    python: Path, distribution: str, version: str, modules: Sequence[str] = ()
) -> tuple[str, ...]:
    """Build the command that imports a distribution's modules."""
    name = canonicalize_name(distribution)
    chosen = tuple(modules) or MODULES.get(name, (name.replace("-", "_"),))
    # -I: neither the working folder nor PYTHONPATH may answer for what is installed.
    return (
        *(str(python), "-I", str(SCRIPT)),
        *("--distribution", name, "--version", version),
        *(word for module in chosen for word in ("--module", module)),
        *(("--public",) if name in _PUBLIC else ()),
    )


def read_report(
    wheel: str, returncode: int, stdout: str, stderr: str
) -> tuple[ImportReport | None, tuple[Finding, ...]]:
    """Turn the script's result into findings."""
    try:
        report = ImportReport.model_validate(json.loads(stdout))
    except (ValueError, ValidationError):
        last = next((line for line in reversed(stderr.strip().splitlines()) if line.strip()), "no output")
        return None, (_error(wheel, f"The import check died with status {returncode}: {last.strip()}"),)
    problems = report.problems
    if returncode and not problems:
        # The report was written, then a destructor or an exit handler brought the process down.
        problems = (f"Python died with status {returncode} when it ended.",)
    return report, tuple(_error(wheel, problem) for problem in problems)


def _error(wheel: str, message: str) -> Finding:
    return Finding(severity="error", check=CHECK, wheel=wheel, where="", message=message)
