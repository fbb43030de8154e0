from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from core.errors import SourceError
from pytorch_build.sources.trees import diff_digest, mirror

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Git = Callable[..., str]
    Write = Callable[[Path, Mapping[str, str]], None]
    Commit = Callable[[Path, Mapping[str, str]], str]

pytestmark = pytest.mark.processes


@pytest.fixture
def tree(tmp_path: Path, commit_files: Commit, git: Git) -> Path:
    commit_files(tmp_path / "sub", {"code.cpp": "one\n"})
    tree = tmp_path / "mine"
    commit_files(
        tree, {"setup.py": "", "pkg/a.py": "a = 1\n", "pkg/b.py": "b = 1\n", ".gitignore": "build/\n"}
    )
    (tree / "link").symlink_to("pkg/a.py")
    git(tree, "submodule", "--quiet", "add", "../sub", "third_party/sub")
    commit_files(tree, {})
    return tree


def snapshot(tree: Path, git: Git) -> dict[str, object]:
    """Everything in a tree that a build could have changed, git's own index included."""
    files = [path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()]
    state: dict[str, object] = {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
    env = ("-c", "core.fsmonitor=false")
    state["status"] = git(tree, *env, "--no-optional-locks", "status", "--ignored", "--porcelain")
    return state


def texts(work: Path) -> dict[str, str]:
    files = (
        path for path in work.rglob("*") if path.is_file() and ".git" not in path.relative_to(work).parts
    )
    return {path.relative_to(work).as_posix(): path.read_text() for path in files}


def test_a_copy_holds_what_the_tree_holds(tree: Path, tmp_path: Path, write_files: Write, git: Git) -> None:
    write_files(tree, {"pkg/new.py": "new\n", "build/object.o": "ignored\n"})
    made = mirror(tree, tmp_path / "work")
    held = texts(made.path)
    assert held["pkg/new.py"] == "new\n"
    assert held["third_party/sub/code.cpp"] == "one\n"
    assert "build/object.o" not in held
    assert (made.path / "link").is_symlink()
    assert (made.path / "pkg/a.py").stat().st_mtime_ns == (tree / "pkg/a.py").stat().st_mtime_ns
    # git in the copy answers for the tree's commit
    assert made.commit == git(tree, "rev-parse", "HEAD") == git(made.path, "rev-parse", "HEAD")


def test_the_tree_itself_is_never_changed(tree: Path, tmp_path: Path, write_files: Write, git: Git) -> None:
    write_files(tree, {"pkg/a.py": "mine\n", "pkg/new.py": "new\n", "build/object.o": "ignored\n"})
    # an index that git would want to refresh
    os.utime(tree / "pkg/b.py", (1, 1))
    before = snapshot(tree, git)
    mirror(tree, tmp_path / "work")
    mirror(tree, tmp_path / "work")
    assert snapshot(tree, git) == before


def test_only_changes_are_copied(tree: Path, tmp_path: Path, write_files: Write) -> None:
    work = tmp_path / "work"
    first = mirror(tree, work)
    assert first.changed == len(texts(work))  # the link is a file of the tree, as .gitmodules is
    write_files(work, {"build/object.o": "built\n", "pkg/generated.py": "built\n"})
    assert mirror(tree, work).changed == 0
    write_files(tree, {"pkg/a.py": "a = 2\n", "third_party/sub/code.cpp": "two\n"})
    (tree / "pkg/b.py").unlink()
    assert mirror(tree, work).changed == 3
    held = texts(work)
    assert (held["pkg/a.py"], held["third_party/sub/code.cpp"]) == ("a = 2\n", "two\n")
    assert "pkg/b.py" not in held
    # what builds left stays
    assert (held["build/object.o"], held["pkg/generated.py"]) == ("built\n", "built\n")


def test_a_file_with_the_same_text_keeps_its_time(tree: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    mirror(tree, work)
    built_from = (work / "pkg/a.py").stat().st_mtime_ns
    os.utime(tree / "pkg/a.py")
    mirror(tree, work)
    assert (work / "pkg/a.py").stat().st_mtime_ns == built_from


def test_files_and_folders_may_change_places(tree: Path, tmp_path: Path, write_files: Write) -> None:
    work = tmp_path / "work"
    mirror(tree, work)
    shutil.rmtree(tree / "pkg")
    write_files(tree, {"pkg": "now a file\n", "setup.cfg/x": "now a folder\n"})
    mirror(tree, work)
    assert texts(work)["pkg"] == "now a file\n"
    (tree / "pkg").unlink()
    write_files(tree, {"pkg/c.py": "c\n"})
    mirror(tree, work)
    assert texts(work)["pkg/c.py"] == "c\n"


def test_a_copy_that_was_damaged_is_repaired(tree: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    mirror(tree, work)
    (work / "pkg/a.py").unlink()
    assert mirror(tree, work).changed == 1
    (work / ".git/pytorch-build-mirror.json").write_text("{")
    assert mirror(tree, work).changed == len(texts(work))
    assert texts(work)["pkg/a.py"] == "a = 1\n"


def test_a_copy_follows_the_trees_commit(tree: Path, tmp_path: Path, commit_files: Commit, git: Git) -> None:
    work = tmp_path / "work"
    mirror(tree, work)
    commit = commit_files(tree, {"pkg/a.py": "a = 3\n"})
    assert mirror(tree, work).commit == commit
    assert git(work, "rev-parse", "HEAD") == commit
    assert git(work, "status", "--porcelain", "--ignore-submodules=all") == ""


def test_the_digest_is_that_of_the_edits(tree: Path, write_files: Write) -> None:
    assert diff_digest(tree) == ""
    os.utime(tree / "pkg/a.py", (1, 1))
    assert diff_digest(tree) == ""
    seen = set()
    for edit in (
        {"pkg/a.py": "mine\n"},
        {"pkg/a.py": "mine\n", "new.txt": ""},
        {"pkg/a.py": "mine\n", "new.txt": "text"},
        {"third_party/sub/code.cpp": "two\n"},
        {"third_party/sub/new.cpp": ""},
    ):
        write_files(tree, edit)
        digest = diff_digest(tree)
        assert digest == diff_digest(tree)
        assert len(digest) == 64
        seen.add(digest)
    assert len(seen) == 5


def test_the_digest_covers_a_submodules_commit(tree: Path, commit_files: Commit) -> None:
    commit_files(tree / "third_party/sub", {"code.cpp": "two\n"})
    assert diff_digest(tree)


def test_ignored_files_are_no_edits(tree: Path, write_files: Write) -> None:
    write_files(tree, {"build/object.o": "built\n"})
    assert diff_digest(tree) == ""


def test_what_cannot_be_built_is_refused(tree: Path, tmp_path: Path, git: Git, write_files: Write) -> None:
    work = tmp_path / "work"
    with pytest.raises(SourceError, match="is not there"):
        mirror(tmp_path / "absent", work)
    write_files(tmp_path / "plain", {"setup.py": ""})
    with pytest.raises(SourceError, match="is not a git repository"):
        mirror(tmp_path / "plain", work)
    git(tmp_path / "plain", "init", "--quiet")
    with pytest.raises(SourceError, match="its commit cannot be read"):
        mirror(tmp_path / "plain", work)
    (tree / "setup.py").unlink()
    with pytest.raises(SourceError, match=r"neither setup\.py nor pyproject\.toml"):
        mirror(tree, work)
    assert not work.exists()


def test_a_name_that_is_not_utf8_is_refused(tree: Path, tmp_path: Path) -> None:
    with open(os.fsencode(tree) + b"/\xff", "wb"):  # noqa: PTH123 - a name that a Path would not show
        pass
    with pytest.raises(SourceError, match="not UTF-8"):
        mirror(tree, tmp_path / "work")


def test_an_edit_in_the_moment_of_the_index_is_seen(tmp_path: Path, git: Git, commit_files: Commit) -> None:
    tree = tmp_path / "tree"
    commit_files(tree, {"setup.py": "one\n"})
    # the clock's tick as the only witness: neither size nor time nor ctime tells
    git(tree, "config", "core.trustctime", "false")
    moment = (tree / "setup.py").stat().st_mtime_ns - 10**10
    os.utime(tree / "setup.py", ns=(moment, moment))
    git(tree, "update-index", "--refresh")
    (tree / "setup.py").write_text("two\n")
    os.utime(tree / "setup.py", ns=(moment, moment))
    os.utime(tree / ".git" / "index", ns=(moment, moment))
    assert diff_digest(tree)
