from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Commit

MINE = ("--torch-ref", "mine", "--gpu-family", "cpu")


def head(git: Any, tree: Path) -> str:
    found: str = git(tree, "rev-parse", "THEROCK_UPSTREAM_DIFFBASE")
    return found


@pytest.mark.processes
def test_components_are_checked_out_once(front: Any, refs: dict[str, str], tmp_path: Path, git: Any) -> None:
    answer = front("checkout", *MINE)
    assert answer.code == 0, answer.said
    for name, commit in refs.items():
        assert head(git, tmp_path / "src" / "mine" / name) == commit
    assert answer.said.count("checked out") == 2
    again = front("checkout", *MINE)
    assert again.said.count("unchanged") == 2
    (tmp_path / "src/mine/audio/setup.py").write_text("# an edit\n")
    edited = front("checkout", *MINE, "--components", "audio")
    assert edited.code == 0, edited.said
    assert "edits kept in git stash" in edited.said


@pytest.mark.processes
def test_one_project_from_an_address_of_its_own(
    front: Any, refs: dict[str, str], tmp_path: Path, git: Any, commit_files: Commit
) -> None:
    fork = tmp_path / "fork"
    git(tmp_path, "clone", "--quiet", tmp_path / "upstream" / "audio", fork)
    git(fork, "checkout", "--quiet", "-b", "topic")
    topic = commit_files(fork, {"new.py": ""})
    answer = front(
        *("checkout", *MINE, "--components", "audio", "--checkout-dir", tmp_path / "here"),
        *("--gitrepo-origin", fork, "--repo-hashtag", "topic", "--no-submodules", "--no-hipify"),
    )
    assert answer.code == 0, answer.said
    assert head(git, tmp_path / "here") == topic
    # the run's lock is another matter
    assert not (tmp_path / "out").exists()
    assert refs["audio"] != topic


@pytest.mark.processes
@pytest.mark.usefixtures("refs")
def test_what_cannot_be_checked_out_is_named(front: Any) -> None:
    answer = front("checkout", *MINE, "--components", "torch")
    assert (answer.code, "torch of mine is prebuilt" in answer.said) == (2, True)
    answer = front("checkout", *MINE, "--components", "audio", "--repo-hashtag", "gone")
    assert (answer.code, "has no branch or tag 'gone'" in answer.said) == (6, True)
