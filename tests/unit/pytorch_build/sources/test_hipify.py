from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core.errors import SourceError
from pytorch_build.sources import edits
from pytorch_build.sources.git import Repository

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Git = Callable[..., str]
    Write = Callable[[Path, Mapping[str, str]], None]
    Commit = Callable[[Path, Mapping[str, str]], str]

SHOW = """
import os, pathlib, sys
pathlib.Path("seen").write_text("\\n".join([os.getcwd(), *sys.argv, *os.environ]))
"""


def test_only_trees_with_the_script_can_be_hipified(tmp_path: Path, write_files: Write) -> None:
    assert not edits.can_hipify(tmp_path)
    write_files(tmp_path, {edits.SCRIPT: ""})
    assert edits.can_hipify(tmp_path)


@pytest.mark.processes
def test_the_script_runs_without_arguments_in_the_tree(
    tmp_path: Path, write_files: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("HIP_PATH", "/opt/rocm/hip")
    write_files(tmp_path, {edits.SCRIPT: SHOW})
    edits.hipify(tmp_path, Path(sys.executable))
    folder, script, *names = (tmp_path / "seen").read_text().splitlines()
    assert (Path(folder), script) == (tmp_path, edits.SCRIPT)
    assert "PYTHONPATH" not in names
    assert {"HIP_PATH", "PYTHONDONTWRITEBYTECODE"} <= set(names)


@pytest.mark.processes
def test_a_failing_script_is_a_source_error(tmp_path: Path, write_files: Write) -> None:
    write_files(tmp_path, {edits.SCRIPT: "raise SystemExit('no such kernel')"})
    with pytest.raises(SourceError, match="no such kernel"):
        edits.hipify(tmp_path, Path(sys.executable))


@pytest.mark.processes
def test_what_the_users_settings_ignore_is_committed_if_hipify_made_it(
    tmp_path: Path, commit_files: Commit, write_files: Write, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_files(tmp_path, {"ignore": "*.hip\n.idea\n", ".gitconfig": ""})
    (tmp_path / ".gitconfig").write_text(f"[core]\n\texcludesFile = {tmp_path / 'ignore'}\n")
    tree = tmp_path / "tree"
    commit_files(tree, {"a.cu": "cuda\n", ".gitignore": "build/\n"})
    write_files(tree, {".idea": "an editor's"})
    repository = Repository(path=tree)
    before = {tree: set(edits.all_untracked(repository))}
    write_files(tree, {"a.hip": "hip\n", "build/x": "ignored by the project"})
    commit = edits.commit_hipified(repository, "2026-01-01T00:00:00Z", before)
    assert git(tree, "show", "--name-only", "--format=%an %aI %s", commit).splitlines() == [
        "pytorch-build 2026-01-01T00:00:00+00:00 DO NOT SUBMIT: HIPIFY",
        "",
        "a.hip",
    ]
    assert edits.commit_hipified(repository, "2026-01-01T00:00:00Z", before) == ""
