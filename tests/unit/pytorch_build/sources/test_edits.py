from pathlib import Path

import pytest

from core.errors import SourceError
from pytorch_build.sources import edits
from pytorch_build.sources.git import Repository
from tests.kit.repos import commit_files, run_git

pytestmark = pytest.mark.processes


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a repository with one commit."""
    tree = tmp_path / "tree"
    commit_files(tree, {"a.txt": "a line\n", "b.txt": "b\n"})
    return tree


# The user's commits


def test_lists_commits_that_nothing_else_holds(tree: Path) -> None:
    first_commit = run_git(tree, "rev-parse", "HEAD")
    commit = commit_files(tree, {"a.txt": "mine\n"}, message="My change")

    # A commit of ours may have gone.
    tool_commits = [first_commit, "1" * 40]
    commits = edits.commits_of_user(Repository(path=tree), tool_commits)

    assert commits == [f"{commit[:7]} My change"]


@pytest.mark.parametrize("ref", ["refs/remotes/origin/main", "refs/tags/mine"])
def test_lists_no_commit_that_a_remote_or_a_tag_holds(tree: Path, ref: str) -> None:
    first_commit = run_git(tree, "rev-parse", "HEAD")
    commit = commit_files(tree, {"a.txt": "mine\n"})
    run_git(tree, "update-ref", ref, commit)

    assert edits.commits_of_user(Repository(path=tree), [first_commit]) == []


def test_names_the_first_of_many_commits(tree: Path) -> None:
    commits = [f"000000{number} Change {number}" for number in range(5)]
    repository = Repository(path=tree)
    with pytest.raises(SourceError, match="2 more") as caught:
        edits.keep_or_refuse_commits(repository, commits, force=False)

    assert "Change 2" in caught.value.message
    assert "Change 3" not in caught.value.message
    assert run_git(tree, "branch", "--list", "pytorch-build-kept-*") == ""
