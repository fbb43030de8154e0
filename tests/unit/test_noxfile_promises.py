"""What the documentation promises of nox's sessions, read from the noxfile as nox reads it."""

import importlib.util
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import nox.registry
import pytest

from core.cli.options import ROOT


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Load the noxfile without a matrix; return its sessions by name."""
    monkeypatch.delenv("MATRIX", raising=False)
    monkeypatch.setattr(nox.registry, "_REGISTRY", type(nox.registry._REGISTRY)())
    spec = importlib.util.spec_from_file_location("noxfile_under_test", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return dict(nox.registry.get())


def call_session(session: Any, *options: str, backend: str) -> list[str]:
    """Run a session as nox does for `nox -s SESSION -- OPTIONS`; return the words of its process."""
    nox_session = Mock(posargs=list(options), bin="/environment/bin", python=None)
    nox_session.virtualenv.venv_backend = backend
    session.func(nox_session)
    return list(map(str, nox_session.run.call_args.args))


def test_options_behind_two_dashes_go_to_the_stage(sessions: dict[str, Any]) -> None:
    words = call_session(sessions["check_wheels"], "--torch-ref", "sample", backend="none")

    assert words[:4] == [sys.executable, "-m", "pytorch_build", "check-wheels"]
    assert words[4:] == ["--torch-ref", "sample"]


def test_a_stage_gets_the_python_of_the_environment_that_nox_keeps_for_it(
    sessions: dict[str, Any],
) -> None:
    words = call_session(sessions["build_torch"], "--torch-ref", "sample", backend="uv")

    assert words[1:5] == ["-m", "pytorch_build", "build", "torch"]
    assert words[5:] == [f"--python={Path('/environment/bin', 'python')}", "--torch-ref", "sample"]
