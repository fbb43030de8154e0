from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from core.errors import SourceError
from pytorch_build.sources import git
from pytorch_build.sources import git as git_module
from pytorch_build.sources.git import Repository

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Git = Callable[..., str]
    Write = Callable[[Path, Mapping[str, str]], None]
    Commit = Callable[[Path, Mapping[str, str]], str]

pytestmark = pytest.mark.processes
LOCAL = ("protocol.file.allow=always",)


@pytest.fixture
def tree(tmp_path: Path, commit_files: Commit, git: Git) -> Repository:
    """A clone without its submodules: outer, and inner within it, both behind their branches."""
    commit_files(tmp_path / "inner", {"i": "1"})
    commit_files(tmp_path / "outer", {"o": "1"})
    git(tmp_path / "outer", "submodule", "--quiet", "add", "../inner", "lib/inner")
    commit_files(tmp_path / "outer", {})
    commit_files(tmp_path / "top", {"t": "1"})
    git(tmp_path / "top", "submodule", "--quiet", "add", "../outer", "outer")
    commit_files(tmp_path / "top", {})
    commit_files(tmp_path / "inner", {"i": "2"})
    commit_files(tmp_path / "outer", {"o": "2"})
    git(tmp_path, "clone", "--quiet", "top", "tree")
    return Repository(path=tmp_path / "tree", settings=LOCAL)


def test_submodules_are_listed_inner_ones_first(tree: Repository) -> None:
    assert list(git.submodules(tree)) == []
    git.update_submodules(tree, depth=1, jobs=2)
    outer = tree.path / "outer"
    assert [one.path for one in git.submodules(tree)] == [outer / "lib/inner", outer]
    assert [one.path for one in git.direct_submodules(tree)] == [outer]
    assert (outer / "lib/inner/i").read_text() == "1"


def test_a_tree_without_submodules_needs_nothing(tmp_path: Path, commit_files: Commit) -> None:
    commit_files(tmp_path, {"a": ""})
    git.update_submodules(Repository(path=tmp_path), depth=1, jobs=2)
    assert git.listed(Repository(path=tmp_path)) == []


def test_servers_that_give_no_single_commits_are_asked_for_all(
    tree: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_module, "_MANAGED", (*git_module._MANAGED, "protocol.version=0"))
    git.update_submodules(tree, depth=1, jobs=2)
    assert (tree.path / "outer/o").read_text() == "1"
    assert (tree.path / "outer/lib/inner/i").read_text() == "1"


def test_a_nested_clone_that_broke_off_is_made_again(tree: Repository) -> None:
    git.update_submodules(tree, depth=1, jobs=2)
    nested = tree.path / "outer/lib/inner"
    modules = tree.path / ".git/modules/outer/modules/lib/inner"
    shutil.rmtree(modules)
    modules.mkdir()
    git.update_submodules(tree, depth=1, jobs=2)
    assert (nested / "i").read_text() == "1"
    assert len(list(git.submodules(tree))) == 2


def test_a_folder_outside_the_tree_is_refused(tmp_path: Path, commit_files: Commit) -> None:
    commit_files(tmp_path / "tree", {".gitmodules": '[submodule "x"]\n\tpath = ../other\n\turl = ../x\n'})
    with pytest.raises(SourceError, match="outside the tree"):
        git.listed(Repository(path=tmp_path / "tree"))
