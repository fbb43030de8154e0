"""The front door called in this process, below a folder that stands for the checkout."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from core.cli.options import Common, common_from
from core.env import installer
from pytorch_build.__main__ import VERBS
from tests.kit.builds import LocalRun
from tests.kit.front_doors import FrontDoorResult, run_pytorch_build
from tests.kit.repos import commit_files, write_files


@pytest.fixture
def front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., FrontDoorResult]:
    """Return the front door, whose checkout is the test's folder."""

    def common_below(arguments: argparse.Namespace) -> Common:
        return replace(common_from(arguments), root=tmp_path)

    for verb in VERBS:
        module = import_module(verb.module)
        if hasattr(module, "common_from"):
            monkeypatch.setattr(module, "common_from", common_below)

    def call(*words: str | Path) -> FrontDoorResult:
        capsys.readouterr()
        exit_code = run_pytorch_build(*words)
        captured = capsys.readouterr()
        return FrontDoorResult(exit_code=exit_code, output=captured.out, report=captured.err)

    return call


@pytest.fixture
def prepared(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Keep the calls and options that would fill the environment, whose tools are locked."""
    preparations: list[tuple[Any, Any]] = []
    requirements = {"target": ("pytest", "setuptools"), "torch-tests": ("pytest",)}
    for name, tools in requirements.items():
        text = "".join(f"{tool}==1 \\\n    --hash=sha256:aa\n" for tool in tools)
        write_files(run.root / "requirements", {f"{name}-linux-3.12.txt": text})

    @contextmanager
    def prepare(_target: Any, calls: Any, **options: Any) -> Iterator[None]:
        preparations.append((calls, options))
        yield

    monkeypatch.setattr(installer, "prepared", prepare)
    monkeypatch.setattr(installer, "missing_dependencies", lambda _target: ())
    return preparations


@pytest.fixture
def refs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the commits of two projects that a user's file names, beside a prebuilt torch."""
    commits: dict[str, str] = {}
    ref = '[refs.mine]\ncomponents = ["audio", "vision"]\n[refs.mine.torch]\nprebuilt = "torch==2.10.0"\n'
    for name in ("audio", "vision"):
        repository = tmp_path / "upstream" / name
        commits[name] = commit_files(repository, {"setup.py": "", "version.txt": "2.10.0\n"})
        ref += f'[refs.mine.{name}]\norigin = "{repository}"\nref = "main"\n'
    (tmp_path / "own.toml").write_text(ref)
    monkeypatch.setenv("CI_CONFIG", str(tmp_path / "own.toml"))
    return commits
