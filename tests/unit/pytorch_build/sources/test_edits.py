from collections.abc import Mapping
from pathlib import Path

import pytest

from core.errors import SourceError
from pytorch_build.sources import edits
from pytorch_build.sources.git import Repository
from tests.kit.repos import commit_files, run_git, write_files

pytestmark = pytest.mark.processes

DATE = "2026-01-01T00:00:00Z"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a repository with one commit."""
    commit_files(tmp_path / "tree", {"a.txt": "a line\n", "b.txt": "b\n"})
    return tmp_path / "tree"


# The user's commits


def test_lists_commits_that_nothing_else_holds(tree: Path) -> None:
    first_commit = run_git(tree, "rev-parse", "HEAD")
    commit = commit_files(tree, {"a.txt": "mine\n"}, message="My change")

    # A commit of ours may have gone.
    commits = edits.own_commits(Repository(path=tree), [first_commit, "1" * 40])

    assert commits == (f"{commit[:7]} My change",)


@pytest.mark.parametrize("ref", ["refs/remotes/origin/main", "refs/tags/mine"])
def test_lists_no_commit_that_a_remote_or_a_tag_holds(tree: Path, ref: str) -> None:
    first_commit = run_git(tree, "rev-parse", "HEAD")
    commit = commit_files(tree, {"a.txt": "mine\n"})
    run_git(tree, "update-ref", ref, commit)

    assert edits.own_commits(Repository(path=tree), [first_commit]) == ()


def test_names_the_first_of_many_commits(tree: Path) -> None:
    commits = tuple(f"000000{number} Change {number}" for number in range(5))

    with pytest.raises(SourceError, match="2 more") as caught:
        edits.keep_or_refuse(Repository(path=tree), commits, force=False)

    assert "Change 2" in caught.value.message
    assert "Change 3" not in caught.value.message
    assert run_git(tree, "branch", "--list", "pytorch-build-kept-*") == ""


# Stashes


@pytest.mark.parametrize(
    ("changes", "is_ours"),
    [
        pytest.param({"a.txt": "a line\nand more\n"}, True, id="whole file"),
        pytest.param({"a.txt": "a li"}, True, id="start of a file"),
        pytest.param({"new.txt": "new"}, True, id="new file"),
        pytest.param({"a.txt": "a lie\n"}, False, id="edited file"),
        pytest.param({"new.txt": "new and mine"}, False, id="edited new file"),
        pytest.param({"other.txt": "mine"}, False, id="user's file"),
        pytest.param(
            {"a.txt": "a line\nand more\n", "other.txt": "mine"}, False, id="user's file beside ours"
        ),
    ],
)
def test_drops_a_stash_of_what_our_commits_hold(
    tree: Path, changes: Mapping[str, str], *, is_ours: bool
) -> None:
    our_commit = commit_files(tree, {"a.txt": "a line\nand more\n", "new.txt": "new"})
    run_git(tree, "checkout", "--quiet", "HEAD~")
    write_files(tree, changes)

    stash = edits.put_aside(Repository(path=tree))

    assert stash is not None
    assert edits.is_clean(Repository(path=tree))
    assert edits.drop_if_ours(stash, [our_commit]) is is_ours
    assert (run_git(tree, "stash", "list") == "") is is_ours


def test_drops_no_stash_that_came_later(tree: Path) -> None:
    write_files(tree, {"a.txt": "a li"})
    stash = edits.put_aside(Repository(path=tree))
    assert stash is not None
    write_files(tree, {"a.txt": "somebody's\n"})
    run_git(tree, "stash", "push", "--quiet")

    assert edits.drop_if_ours(stash, [])

    assert len(run_git(tree, "stash", "list").splitlines()) == 2


# What hipify made


@pytest.fixture
def hipified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Repository, str]:
    """Return a repository after hipify, and the commit of what it made, for a user who ignores its files."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    ignored = tmp_path / "ignored"
    ignored.write_text("*.hip\n.idea\n")
    (tmp_path / ".gitconfig").write_text(f"[core]\n\texcludesFile = {ignored}\n")
    tree = tmp_path / "tree"
    commit_files(tree, {"a.cu": "cuda\n", ".gitignore": "build/\n"})
    write_files(tree, {".idea": "an editor's"})
    repository = Repository(path=tree)

    untracked_before = {tree: set(edits.all_untracked(repository))}
    write_files(tree, {"a.hip": "hip\n", "build/x": "ignored by the project"})
    commit = edits.commit_hipified(repository, DATE, untracked_before)
    assert edits.commit_hipified(repository, DATE, untracked_before) == ""
    return repository, commit


def test_commits_what_hipify_made_though_the_user_ignores_it(hipified: tuple[Repository, str]) -> None:
    repository, commit = hipified

    shown = run_git(repository.path, "show", "--name-only", "--format=", commit)

    assert shown.splitlines() == ["a.hip"]


def test_commits_what_hipify_made_under_a_fixed_name_and_date(hipified: tuple[Repository, str]) -> None:
    repository, commit = hipified

    shown = run_git(repository.path, "show", "--no-patch", "--format=%an %aI %s", commit)

    assert shown == "pytorch-build 2026-01-01T00:00:00+00:00 DO NOT SUBMIT: HIPIFY"
