"""Clones of this checkout, in which real nox and real front doors run."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from core import process
from core.process import Completed
from core.run import Platform
from tests.kit import sample

ROOT = Path(__file__).parents[2]
FAMILY = "gfx94X-dcgpu"
SERIES = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


def printed_by(completed: Completed) -> str:
    """Return what a process printed, on both of its streams."""
    return completed.stdout + completed.stderr


@dataclass(frozen=True, kw_only=True)
class Clone:
    """A clone of this checkout, with outputs, environments and caches of its own."""

    path: Path
    platform: Platform = "linux"

    @classmethod
    def create(cls, path: Path) -> Self:
        """Clone this checkout to a folder."""
        sample.clone_repository(ROOT, path)
        return cls(path=path)

    def variables(self, **changes: str | None) -> dict[str, str]:
        """Return the variables of a process in the clone; None takes one out."""
        return process.inherited(**{**sample.NEUTRAL, **changes})

    def run(self, *words: str | Path, **variables: str | None) -> Completed:
        """Run a module of this interpreter in the clone."""
        return process.capture(
            [sys.executable, "-m", *words], cwd=self.path, env=self.variables(**variables), check=False
        )

    def nox(self, *words: str | Path, **variables: str | None) -> Completed:
        """Run nox in the clone."""
        return self.run("nox", *words, **variables)

    def run_checked(self, *words: str | Path, **variables: str | None) -> str:
        """Run a module that has to succeed, and return what it printed."""
        completed = self.run(*words, **variables)
        assert completed.returncode == 0, printed_by(completed)[-4000:]
        return printed_by(completed)

    def outputs_of(self, run: str) -> Path:
        """Return the folder of a run's outputs."""
        return self.path / "out" / f"{run}-{self.platform}"

    def manifest(self, name: str, group: str = FAMILY, run: str = "local") -> Path:
        """Return where a record of a run lies."""
        return self.outputs_of(run) / "manifests" / group / f"{name}.json"

    def record(self, name: str, group: str = FAMILY) -> dict[str, Any]:
        """Read a record of the local run."""
        record: dict[str, Any] = json.loads(self.manifest(name, group).read_text(encoding="utf-8"))
        return record

    def locked_projects(self, run: str = "local") -> dict[str, Any]:
        """Read the projects of a run's source lock."""
        path = self.outputs_of(run) / "manifests" / "source-lock-sample.json"
        projects: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["projects"]
        return projects

    def wheels(self, group: str = FAMILY) -> Path:
        """Return the folder with the local run's wheels."""
        return self.outputs_of("local") / "python" / group
