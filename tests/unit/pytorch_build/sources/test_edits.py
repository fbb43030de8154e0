from collections.abc import Mapping
from pathlib import Path

import pytest

from core.errors import SourceError
from pytorch_build.sources import edits
from pytorch_build.sources.git import Repository
from tests.conftest import Commit, Git, Write

pytestmark = pytest.mark.processes


@pytest.fixture
def tree(tmp_path: Path, commit_files: Commit) -> Path:
    commit_files(tmp_path / "tree", {"a.txt": "a line\n", "b.txt": "b\n"})
    return tmp_path / "tree"


def test_commits_that_a_tag_or_remote_has_are_no_loss(tree: Path, commit_files: Commit, git: Git) -> None:
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


def test_only_the_stash_of_this_run_is_dropped(tree: Path, write_files: Write, git: Git) -> None:
    write_files(tree, {"a.txt": "a li"})
    stash = edits.put_aside(Repository(path=tree))
    assert stash is not None
    write_files(tree, {"a.txt": "somebody's\n"})
    git(tree, "stash", "push", "--quiet")
    assert edits.drop_if_ours(stash, [])
    assert len(git(tree, "stash", "list").splitlines()) == 2


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
