"""The front door called in this process, below a folder that stands for the checkout."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from core.cli import main
from core.cli.options import Common, common_from
from core.env import installer
from pytorch_build.__main__ import VERBS
from tests.conftest import Commit


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a front door ended with: its exit code, its standard output and what it reported."""

    code: int
    out: str
    said: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.said.splitlines() if line.startswith("error: ")]


@pytest.fixture
def front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    def below(arguments: argparse.Namespace) -> Common:
        return replace(common_from(arguments), root=tmp_path)

    for verb in VERBS:
        module = import_module(verb.module)
        if hasattr(module, "common_from"):
            monkeypatch.setattr(module, "common_from", below)

    def call(*words: str | Path) -> Answer:
        capsys.readouterr()
        code = main("pytorch_build", "PyTorch sources to wheels.", VERBS, [str(word) for word in words])
        captured = capsys.readouterr()
        return Answer(code=code, out=captured.out, said=captured.err)

    return call


@pytest.fixture
def prepared(run: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Keep the calls and options that would fill the environment, whose tools are locked."""
    kept: list[tuple[Any, Any]] = []
    folder = run.root / "requirements"
    folder.mkdir()
    for name, tools in {"target": ("pytest", "setuptools"), "torch-tests": ("pytest",)}.items():
        text = "".join(f"{tool}==1 \\\n    --hash=sha256:aa\n" for tool in tools)
        (folder / f"{name}-linux-3.12.txt").write_text(text)

    @contextmanager
    def prepared(_target: Any, calls: Any, **options: Any) -> Iterator[None]:
        kept.append((calls, options))
        yield

    monkeypatch.setattr(installer, "prepared", prepared)
    monkeypatch.setattr(installer, "missing_dependencies", lambda _target: ())
    return kept


@pytest.fixture
def refs(tmp_path: Path, commit_files: Commit, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Give the commits of two projects that a file of one's own names, beside a prebuilt torch."""
    texts = {"setup.py": "", "version.txt": "2.10.0\n"}
    commits = {name: commit_files(tmp_path / "upstream" / name, texts) for name in ("audio", "vision")}
    text = '[refs.mine]\ncomponents = ["audio", "vision"]\n[refs.mine.torch]\nprebuilt = "torch==2.10.0"\n'
    for name in commits:
        text += f'[refs.mine.{name}]\norigin = "{tmp_path / "upstream" / name}"\nref = "main"\n'
    (tmp_path / "own.toml").write_text(text)
    monkeypatch.setenv("CI_CONFIG", str(tmp_path / "own.toml"))
    return commits
