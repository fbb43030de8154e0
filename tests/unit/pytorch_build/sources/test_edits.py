from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import SourceError
from pytorch_build.sources import edits
from pytorch_build.sources.git import Repository

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Git = Callable[..., str]
    Write = Callable[[Path, Mapping[str, str]], None]
    Commit = Callable[[Path, Mapping[str, str]], str]

pytestmark = pytest.mark.processes


@pytest.fixture
def tree(tmp_path: Path, commit_files: Commit) -> Path:
    commit_files(tmp_path / "tree", {"a.txt": "a line\n", "b.txt": "b\n"})
    return tmp_path / "tree"


def test_a_repository_without_commits_has_no_edits_to_keep(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "--quiet")
    repository = Repository(path=tmp_path)
    assert edits.own_commits(repository, []) == ()
    assert edits.put_aside(repository) is None


def test_commits_that_a_tag_or_remote_holds_are_not_left_behind(
    tree: Path, commit_files: Commit, git: Git
) -> None:
    repository, first = Repository(path=tree), git(tree, "rev-parse", "HEAD")
    second = commit_files(tree, {"a.txt": "mine\n"})
    assert edits.own_commits(repository, [first, "1" * 40]) == (f"{second[:7]} Upstream",)
    git(tree, "update-ref", "refs/remotes/origin/main", second)
    assert edits.own_commits(repository, [first]) == ()


def test_a_long_list_of_commits_is_cut(tree: Path, git: Git) -> None:
    commits = tuple(f"000000{n} Change {n}" for n in range(5))
    with pytest.raises(SourceError, match="Change 2\n  and 2 more") as caught:
        edits.keep_or_refuse(Repository(path=tree), commits, force=False)
    assert "Change 3" not in caught.value.message
    assert not git(tree, "branch", "--list", "pytorch-build-kept-*")


@pytest.mark.parametrize(
    ("changes", "dropped"),
    [
        ({"a.txt": "a line\nand more\n"}, True),
        ({"a.txt": "a li"}, True),  # torn off in the middle
        ({"new.txt": "new"}, True),
        ({"a.txt": "a lie\n"}, False),
        ({"new.txt": "new and mine"}, False),
        ({"other.txt": "mine"}, False),
        ({"a.txt": "a line\nand more\n", "other.txt": "mine"}, False),
    ],
)
def test_a_stash_of_what_a_commit_holds_is_dropped(
    tree: Path,
    commit_files: Commit,
    write_files: Write,
    git: Git,
    changes: Mapping[str, str],
    dropped: bool,  # noqa: FBT001
) -> None:
    ours = commit_files(tree, {"a.txt": "a line\nand more\n", "new.txt": "new"})
    git(tree, "checkout", "--quiet", "HEAD~")
    write_files(tree, changes)
    stash = edits.put_aside(Repository(path=tree))
    assert stash is not None
    assert edits.is_clean(Repository(path=tree))
    assert edits.drop_if_ours(stash, [ours]) is dropped
    assert bool(git(tree, "stash", "list")) is not dropped


def test_a_repository_inside_the_tree_is_no_edit(tree: Path, commit_files: Commit, git: Git) -> None:
    commit_files(tree / "inside", {"x": "theirs\n"})
    assert edits.put_aside(Repository(path=tree)) is None
    (tree / "a.txt").write_text("mine\n")
    (tree / "new.txt").write_text("mine\n")
    assert edits.put_aside(Repository(path=tree)) is not None
    assert edits.is_clean(Repository(path=tree))
    assert git(tree, "show", "--name-only", "--format=", "stash@{0}^3") == "new.txt"
    assert (tree / "inside/x").read_text() == "theirs\n"


def test_only_the_stash_of_this_run_is_dropped(tree: Path, write_files: Write, git: Git) -> None:
    write_files(tree, {"a.txt": "a li"})
    stash = edits.put_aside(Repository(path=tree))
    assert stash is not None
    write_files(tree, {"a.txt": "somebody's\n"})
    git(tree, "stash", "push", "--quiet")
    assert edits.drop_if_ours(stash, [])
    assert len(git(tree, "stash", "list").splitlines()) == 2
