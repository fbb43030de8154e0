"""Clones of this checkout, in which real nox and real front doors run."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from core import process
from core.process import Completed

ROOT = Path(__file__).parents[2]
FAMILY = "gfx94X-dcgpu"
SERIES = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


def said(done: Completed) -> str:
    return done.stdout + done.stderr


@dataclass(frozen=True, kw_only=True)
class Clone:
    """A clone of this checkout, with outputs, environments and caches of its own."""

    path: Path

    @classmethod
    def made(cls, path: Path) -> Self:
        process.capture(["git", "clone", "--quiet", ROOT, path])
        return cls(path=path)

    def env(self, **more: str | None) -> dict[str, str]:
        own = {"NO_COLOR": "1", "GITHUB_ACTIONS": None, "MATRIX": None, "SOURCE_LOCK": None, **more}
        return process.inherited(**own)

    def run(self, *words: str | Path, **env: str | None) -> Completed:
        return process.capture(
            [sys.executable, "-m", *words], cwd=self.path, env=self.env(**env), check=False
        )

    def nox(self, *words: str | Path, **env: str | None) -> Completed:
        return self.run("nox", *words, **env)

    def passes(self, *words: str | Path, **env: str | None) -> str:
        """Run what has to succeed, and return what it said."""
        done = self.run(*words, **env)
        assert done.returncode == 0, said(done)[-4000:]
        return said(done)

    def manifest(self, name: str, group: str = FAMILY, run: str = "local") -> Path:
        return self.path / "out" / f"{run}-linux" / "manifests" / group / f"{name}.json"

    def record(self, name: str, group: str = FAMILY) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.manifest(name, group).read_text(encoding="utf-8"))
        return found

    def lock(self, run: str = "local") -> dict[str, Any]:
        path = self.path / "out" / f"{run}-linux" / "manifests" / "source-lock-sample.json"
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["projects"]
        return found

    def wheels(self, group: str = FAMILY) -> Path:
        return self.path / "out" / "local-linux" / "python" / group
