"""The front door called in this process, below a folder that stands for the checkout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from core.cli import main
from core.cli.options import common_from
from pytorch_build.__main__ import VERBS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from core.cli.options import Common


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a front door ended with.

    Attributes:
        code: Its exit code.
        out: Its standard output.
        said: What it told people.
    """

    code: int
    out: str
    said: str

    @property
    def errors(self) -> list[str]:
        """Return the lines that start an error."""
        return [line for line in self.said.splitlines() if line.startswith("error: ")]


@pytest.fixture
def front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """Call `python -m pytorch_build` with these words."""

    def below(arguments: argparse.Namespace) -> Common:
        return replace(common_from(arguments), root=tmp_path)

    for verb in VERBS:
        module = import_module(verb.module)
        if hasattr(module, "common_from"):
            monkeypatch.setattr(module, "common_from", below)
    for name in ("SOURCE_LOCK", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: str | Path) -> Answer:
        capsys.readouterr()
        code = main("pytorch_build", "PyTorch sources to wheels.", VERBS, [str(word) for word in words])
        captured = capsys.readouterr()
        return Answer(code=code, out=captured.out, said=captured.err)

    return call
