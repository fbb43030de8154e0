from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core import process
from core.errors import EnvironmentSetupError, SourceError
from pytorch_build.sources import checkout as sources
from pytorch_build.sources.checkout import SourceTree
from pytorch_build.test import upstream_tests
from pytorch_build.test.upstream_tests import Tests, Torch, mismatch, own_tree, require_match

if TYPE_CHECKING:
    from core.env import Interpreter

ONE, TWO = "1" * 40, "2" * 40
TREE = Path("/src/pytorch")


def given(commit: str = ONE, version: str = "2.10.0a0") -> Tests:
    return Tests(tree=TREE, commit=commit, version=version)


def torch(commit: str = ONE, version: str = "2.10.0a0+rocm7.1.0") -> Torch:
    return Torch(version=version, commit=commit)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (torch(), given(), ""),
        # the commit says it, whatever the versions say
        (torch(version="2.11.0"), given(), ""),
        (torch(), given(TWO), "torch 2.10.0a0+rocm7.1.0 was built from 111111111111"),
        (torch(""), given(TWO), ""),
        (torch(""), given(version="2.10.1"), "torch is 2.10.0a0+rocm7.1.0, and the tests"),
        (torch(), given("", "2.10.0"), ""),
        (torch(), given("", "2.9.0a0"), "are for 2.9.0a0"),
        (torch(), given("", ""), "has no version.txt"),
    ],
)
def test_tests_are_held_against_the_torch_that_they_are_to_test(one: Torch, other: Tests, words: str) -> None:
    assert words in mismatch(one, other)
    assert bool(mismatch(one, other)) == bool(words)


def test_other_tests_are_refused_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    require_match(torch(), given(), allowed=False)
    with pytest.raises(SourceError, match="was built from") as caught:
        require_match(torch(), given(TWO), allowed=False)
    assert "--allow-version-mismatch" in caught.value.hint
    require_match(torch(), given(TWO), allowed=True)
    assert "warning: torch 2.10.0a0+rocm7.1.0 was built from" in capsys.readouterr().err


def test_the_locks_commit_is_checked_out_bare_and_beside_the_builds_tree(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def checkout(locked: Any, path: Path, options: Any) -> SourceTree:
        asked.append((locked.commit, path, options))
        path.mkdir(parents=True)
        (path / "version.txt").write_text("2.10.0a0\n")
        return SourceTree(project="torch", path=path, commit=locked.commit, head=locked.commit, changed=True)

    monkeypatch.setattr(sources, "checkout", checkout)
    monkeypatch.setattr(upstream_tests, "checkout_options", lambda *_: sources.CheckoutOptions(hipify=True))
    found = upstream_tests.checked_out(run.context(), run.lock(), {})
    (commit, path, options) = asked[0]
    assert commit == run.lock().project("torch").commit == found.commit
    assert path == run.root / "src" / "sample" / "torch-tests"
    assert (options.depth, options.submodules, options.hipify) == (1, False, False)
    assert found.version == "2.10.0a0"


def test_a_persons_tree_is_taken_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not there"):
        own_tree(tmp_path / "none")
    assert own_tree(tmp_path) == Tests(tree=tmp_path, version="", commit="")
    (tmp_path / "version.txt").write_text("2.9.1\n")
    assert own_tree(tmp_path).version == "2.9.1"


@pytest.mark.processes
def test_a_repository_is_known_by_its_commit_and_a_hipified_one_by_upstreams(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        own = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        return process.capture(["git", *own, *words], cwd=tmp_path).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "upstream")
    upstream = git("rev-parse", "HEAD")
    assert own_tree(tmp_path).commit == upstream
    git("tag", "THEROCK_UPSTREAM_DIFFBASE")
    git("commit", "-q", "--allow-empty", "-m", "DO NOT SUBMIT: HIPIFY")
    assert own_tree(tmp_path).commit == upstream


@pytest.fixture
def miniature(run: Any, tmp_path: Path) -> tuple[Interpreter, Path]:
    """Give an interpreter, and a folder whose torch it imports where isolation is not asked for."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return replace(run.target(), executable=program), tmp_path / "packages"


@pytest.mark.processes
def test_torch_says_itself_what_it_is(miniature: tuple[Interpreter, Path]) -> None:
    target, packages = miniature
    (packages / "torch").mkdir(parents=True)
    text = "from torch import _C, version\n__version__ = '2.10.0'\n"
    (packages / "torch" / "__init__.py").write_text(text)
    (packages / "torch" / "version.py").write_text(f"git_version = '{ONE}'\nhip = '7.1'\ncuda = None\n")
    (packages / "torch" / "_C.py").write_text("def _cuda_getArchFlags(): return 'gfx942 gfx1100'\n")
    env = process.inherited(PYTHONPATH=str(packages))
    found = upstream_tests.installed_torch(target, env)
    assert found == Torch(version="2.10.0", commit=ONE, hip="7.1", targets=("gfx942", "gfx1100"))
    # of a build outside of git
    (packages / "torch" / "version.py").write_text("git_version = 'Unknown'\n")
    (packages / "torch" / "_C.py").write_text("")
    assert upstream_tests.installed_torch(target, env) == Torch(version="2.10.0")


@pytest.mark.processes
def test_a_torch_that_cannot_be_imported_is_an_error(miniature: tuple[Interpreter, Path]) -> None:
    target, packages = miniature
    with pytest.raises(EnvironmentSetupError, match="torch cannot be imported") as caught:
        upstream_tests.installed_torch(target, process.inherited(PYTHONPATH=str(packages)))
    assert "No module named 'torch'" in caught.value.message
