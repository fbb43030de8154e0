import os
import shutil
from pathlib import Path

import pytest

from core.errors import SourceError
from pytorch_build.sources.copies import TreeCopy
from tests.kit.repos import commit_files, init_repository, read_files, run_git, write_files
from tests.kit.windows import make_link

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tree ``mine``, which has a link and a submodule, for tests to copy."""
    folder = tmp_path_factory.mktemp("repositories")
    commit_files(folder / "sub", {"code.cpp": "one\n"})
    tree = folder / "mine"
    texts = {
        "setup.py": "",
        "pkg/a.py": "a = 1\n",
        "pkg/b.py": "b = 1\n",
        "run.bat": "echo\n",
        ".gitignore": "build/\n",
        ".gitattributes": "*.bat text eol=crlf\n",
    }
    commit_files(tree, texts)
    make_link(tree / "link", "pkg/a.py")
    run_git(tree, "submodule", "--quiet", "add", "../sub", "third_party/sub")
    commit_files(tree, {})
    (tree / "run.bat").unlink()
    run_git(tree, "checkout", "--", "run.bat")
    return folder


@pytest.fixture
def tree(repositories: Path, tmp_path: Path) -> Path:
    """Return a tree of this test's own."""
    shutil.copytree(repositories, tmp_path, symlinks=True, dirs_exist_ok=True)
    return tmp_path / "mine"


@pytest.fixture
def copy(tree: Path) -> TreeCopy:
    """Return the copy of the tree, which is not there yet."""
    return copy_of(tree)


def copy_of(tree: Path, name: str = "work") -> TreeCopy:
    """Return a copy of a tree, beside it."""
    return TreeCopy(source=tree, path=tree.parent / name, cache=tree.parent / f"{name}-cache")


def update(copy: TreeCopy) -> dict[str, bytes]:
    """Bring a copy up to date; return its files."""
    snapshot = copy.snapshot()
    copy.update(snapshot)
    return read_files(copy.path)


# Which files a copy has


def test_copies_what_git_does_not_ignore(tree: Path, copy: TreeCopy) -> None:
    write_files(tree, {"pkg/new.py": "new\n", "build/object.o": "ignored\n"})

    contents = update(copy)

    assert contents["pkg/new.py"] == b"new\n"
    assert contents["third_party/sub/code.cpp"] == b"one\n"
    assert "build/object.o" not in contents
    assert (copy.path / "link").readlink() == Path("pkg/a.py")


def test_copies_bytes_and_no_lines(tree: Path, copy: TreeCopy) -> None:
    assert update(copy)["run.bat"] == b"echo\r\n"

    (tree / "run.bat").write_bytes(b"echo\n")

    assert update(copy)["run.bat"] == b"echo\n"


def test_copies_tracked_files_that_are_ignored(tree: Path, copy: TreeCopy) -> None:
    write_files(tree, {"build/kept.txt": "committed\n", "build/added.txt": "added\n"})
    run_git(tree, "add", "--force", "build/kept.txt")
    run_git(tree, "commit", "--quiet", "--message", "Keep a file")
    run_git(tree, "add", "--force", "build/added.txt")

    contents = update(copy)

    assert contents["build/kept.txt"] == b"committed\n"
    assert contents["build/added.txt"] == b"added\n"


def test_copies_no_file_any_more_that_is_ignored_now(tree: Path, copy: TreeCopy) -> None:
    write_files(tree, {"notes.txt": "mine\n"})
    assert "notes.txt" in update(copy)
    write_files(tree, {".gitignore": "build/\nnotes.txt\n"})

    assert "notes.txt" not in update(copy)


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_copies_edits_that_git_is_told_not_to_show(tree: Path, copy: TreeCopy, flag: str) -> None:
    run_git(tree, "update-index", flag, "pkg/a.py")
    write_files(tree, {"pkg/a.py": "mine\n"})

    assert copy.snapshot().edited_count == 1
    assert update(copy)["pkg/a.py"] == b"mine\n"


@pytest.mark.parametrize("commits", [0, 1])
def test_copies_a_repository_inside_the_tree(tree: Path, copy: TreeCopy, commits: int) -> None:
    inner = init_repository(tree / "inside" / "inner")
    for _commit in range(commits):
        commit_files(inner, {"committed.txt": "committed\n"})
    write_files(inner, {"new.txt": "new\n"})

    contents = update(copy)

    assert contents["inside/inner/new.txt"] == b"new\n"
    assert ("inside/inner/committed.txt" in contents) == (commits == 1)
    assert copy.snapshot().edited_count == commits + 1


def test_copies_files_that_were_unpacked_in_the_place_of_a_submodule(tree: Path, copy: TreeCopy) -> None:
    shutil.rmtree(tree / "third_party/sub")
    write_files(tree, {"third_party/sub/unpacked.cpp": "two\n"})

    contents = update(copy)

    assert contents["third_party/sub/unpacked.cpp"] == b"two\n"
    assert "third_party/sub/code.cpp" not in contents


@pytest.mark.parametrize("name", [b"\xff", b"a\nb", b'"quoted"\t\\', "ä".encode()])
def test_copies_files_of_any_name(tree: Path, copy: TreeCopy, name: bytes) -> None:
    file_name = os.fsdecode(name)
    path = tree / file_name
    path.write_bytes(b"one\n")
    copy.update(copy.snapshot())
    path.write_bytes(b"two\n")

    copy.update(copy.snapshot())

    copied_file = copy.path / file_name
    assert copied_file.read_bytes() == b"two\n"


def test_copies_a_repository_of_any_name(tree: Path, copy: TreeCopy) -> None:
    inner_path = Path("odd \xff", os.fsdecode(b"name \xfe"))
    inner = init_repository(tree / inner_path)
    write_files(inner, {"new.txt": "new\n"})

    copy.update(copy.snapshot())

    copied_file = copy.path / inner_path / "new.txt"
    assert copied_file.is_file()


# What is compiled again


def times_of(copy: TreeCopy, *paths: str) -> list[int]:
    """Return when files of a copy were written, in nanoseconds."""
    times: list[int] = []
    for path in paths:
        status = (copy.path / path).stat()
        times.append(status.st_mtime_ns)
    return times


def test_gives_a_changed_file_a_new_time_whatever_its_own_is(tree: Path, copy: TreeCopy) -> None:
    update(copy)
    times_before = times_of(copy, "pkg/a.py")
    write_files(tree, {"pkg/a.py": "a = 2\n"})
    # As a file is that was unpacked, or taken back from a backup: no build tool sees that it has changed.
    os.utime(tree / "pkg/a.py", (1_000_000_000, 1_000_000_000))

    contents = update(copy)

    assert contents["pkg/a.py"] == b"a = 2\n"
    assert times_of(copy, "pkg/a.py") > times_before


def test_keeps_the_time_of_a_file_that_has_not_changed(tree: Path, copy: TreeCopy) -> None:
    update(copy)
    times_before = times_of(copy, "pkg/a.py", "pkg/b.py")
    os.utime(tree / "pkg/a.py")
    commit_files(tree, {"pkg/c.py": "c\n"})

    update(copy)

    assert times_of(copy, "pkg/a.py", "pkg/b.py") == times_before


def test_keeps_what_a_build_made_of_files_that_have_not_changed(tree: Path, copy: TreeCopy) -> None:
    update(copy)
    # hipify rewrites sources, and only those that have changed are to be compiled again.
    write_files(copy.path, {"pkg/a.py": "hipified\n", "pkg/b.py": "hipified\n"})
    write_files(tree, {"pkg/b.py": "b = 2\n"})

    contents = update(copy)

    assert contents["pkg/a.py"] == b"hipified\n"
    assert contents["pkg/b.py"] == b"b = 2\n"


def test_keeps_what_builds_left_in_the_copy(tree: Path, copy: TreeCopy) -> None:
    update(copy)
    write_files(copy.path, {"build/object.o": "built\n", "pkg/generated.py": "built\n"})
    write_files(tree, {"pkg/a.py": "a = 2\n"})

    contents = update(copy)

    assert contents["build/object.o"] == b"built\n"
    assert contents["pkg/generated.py"] == b"built\n"


# Changes


def test_copies_changes_and_removes_what_was_removed(tree: Path, copy: TreeCopy) -> None:
    update(copy)
    write_files(tree, {"pkg/a.py": "a = 2\n", "third_party/sub/code.cpp": "two\n"})
    (tree / "pkg/b.py").unlink()
    (tree / "setup.py").chmod(0o755)

    contents = update(copy)

    assert contents["pkg/a.py"] == b"a = 2\n"
    assert contents["third_party/sub/code.cpp"] == b"two\n"
    assert "pkg/b.py" not in contents
    assert os.access(copy.path / "setup.py", os.X_OK)


def test_lets_files_and_folders_change_places(tree: Path, copy: TreeCopy) -> None:
    update(copy)
    write_files(copy.path, {"pkg/generated.py": "built\n"})
    shutil.rmtree(tree / "pkg")
    (tree / "setup.py").unlink()
    write_files(tree, {"pkg": "now a file\n", "setup.py/x": "now a folder\n"})

    contents = update(copy)

    assert contents["pkg"] == b"now a file\n"
    assert contents["setup.py/x"] == b"now a folder\n"


def test_restores_a_file_that_the_copy_has_lost(copy: TreeCopy) -> None:
    update(copy)
    (copy.path / "pkg/a.py").unlink()

    assert update(copy)["pkg/a.py"] == b"a = 1\n"


def test_recreates_a_copy_whose_record_is_damaged(copy: TreeCopy) -> None:
    update(copy)
    (record,) = (copy.path / ".git").glob("*.json")
    record.write_text("{")
    write_files(copy.path, {"pkg/unknown.py": ""})

    contents = update(copy)

    assert contents["pkg/a.py"] == b"a = 1\n"
    assert "pkg/unknown.py" not in contents


def test_ends_an_interrupted_update_before_another_one(tree: Path, copy: TreeCopy) -> None:
    first_snapshot = copy.snapshot()
    copy.update(first_snapshot)
    index = copy.path / ".git/writer/index-of-copy"
    first_index = index.read_bytes()
    write_files(tree, {"pkg/a.py": "a = 2\n", "pkg/new.py": ""})
    copy.update(copy.snapshot())

    # Killed after git had written the files, and before it wrote its index.
    index.write_bytes(first_index)
    index.with_suffix(".lock").write_bytes(b"")
    write_files(tree, {"pkg/a.py": "a = 1\n"})
    (tree / "pkg/new.py").unlink()
    contents = update(copy)

    assert contents["pkg/a.py"] == b"a = 1\n"
    assert "pkg/new.py" not in contents


def test_follows_a_tree_whose_repository_has_dropped_what_was_copied(tree: Path, copy: TreeCopy) -> None:
    commit_files(tree, {"pkg/c.py": "c\n"})
    update(copy)
    run_git(tree, "reset", "--quiet", "--hard", "HEAD~")
    run_git(tree, "reflog", "expire", "--expire=now", "--all")
    run_git(tree, "gc", "--quiet", "--prune=now")

    contents = update(copy)

    assert "pkg/c.py" not in contents
    assert contents["pkg/a.py"] == b"a = 1\n"


def test_keeps_what_was_built_where_the_cache_was_removed(tree: Path, copy: TreeCopy) -> None:
    update(copy)
    write_files(copy.path, {"build/object.o": "built\n"})
    shutil.rmtree(copy.cache)
    write_files(tree, {"pkg/a.py": "a = 2\n"})

    contents = update(copy)

    assert contents["pkg/a.py"] == b"a = 2\n"
    assert contents["build/object.o"] == b"built\n"


@pytest.mark.parametrize("lost_name", ["HEAD", "config", "objects", "index"])
@pytest.mark.nightly
def test_recreates_a_cache_that_has_lost_files(tree: Path, copy: TreeCopy, lost_name: str) -> None:
    write_files(tree, {"first.py": "first\n"})
    update(copy)
    for path in copy.cache.glob(f"{lost_name}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    write_files(tree, {"second.py": "second\n"})

    copied_files = update(copy)

    assert copied_files["first.py"] == b"first\n"
    assert copied_files["second.py"] == b"second\n"


# The developer's repository


def test_says_what_git_says_of_a_damaged_tree(tree: Path, copy: TreeCopy) -> None:
    copy.snapshot()
    (tree / ".git" / "HEAD").unlink()

    with pytest.raises(SourceError, match="not a git repository") as caught:
        copy.snapshot()

    assert str(tree) in caught.value.message
    assert "Give the folder" not in caught.value.hint


def test_a_copy_has_the_commit_of_its_tree(tree: Path, copy: TreeCopy) -> None:
    update(copy)
    assert run_git(copy.path, "rev-parse", "HEAD") == run_git(tree, "rev-parse", "HEAD")

    commit = commit_files(tree, {"pkg/c.py": "c\n"})
    contents = update(copy)

    assert run_git(copy.path, "rev-parse", "HEAD") == commit
    assert contents["pkg/c.py"] == b"c\n"
    assert run_git(copy.path, "status", "--porcelain", "--ignore-submodules=all") == ""


def describe_files(tree: Path) -> dict[str, tuple[int, bytes]]:
    """Return the time and content of everything in a tree, git's own files included."""
    paths = [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def test_changes_nothing_in_the_tree_itself(tree: Path, copy: TreeCopy) -> None:
    write_files(tree, {"pkg/a.py": "mine\n", "pkg/new.py": "new\n", "build/object.o": "ignored\n"})
    # An index that git would want to refresh.
    os.utime(tree / "pkg/b.py", (1, 1))
    files_before = describe_files(tree)

    update(copy)
    update(copy)

    assert describe_files(tree) == files_before


def test_copies_a_worktree(tree: Path) -> None:
    worktree = tree.parent / "worktree"
    run_git(tree, "worktree", "add", "--quiet", "--detach", worktree)
    copy = copy_of(worktree)
    write_files(worktree, {"pkg/a.py": "mine\n"})

    assert update(copy)["pkg/a.py"] == b"mine\n"


def test_copies_no_tree_without_a_commit(tmp_path: Path) -> None:
    tree = init_repository(tmp_path / "plain")
    copy = copy_of(tree)

    with pytest.raises(SourceError, match=str(tree)) as caught:
        copy.snapshot()

    assert "Commit" in caught.value.hint
    assert not copy.path.exists()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="root alone gives files away")
def test_names_gits_remedy_for_a_tree_of_another_user(tree: Path, copy: TreeCopy) -> None:
    os.chown(tree, 12345, 12345)

    with pytest.raises(SourceError) as caught:
        copy.snapshot()

    assert f"safe.directory {tree}" in caught.value.hint


# Edits


def test_counts_no_edits_in_an_unedited_tree(tree: Path, copy: TreeCopy) -> None:
    write_files(tree, {"build/object.o": "ignored\n"})
    os.utime(tree / "pkg/a.py", (1, 1))

    snapshot = copy.snapshot()

    assert snapshot.edited_count == 0
    assert snapshot.digest is None
    assert snapshot.commit == run_git(tree, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        pytest.param({"pkg/a.py": "mine\n"}, 1, id="file"),
        pytest.param({"pkg/a.py": "mine\n", "new.txt": ""}, 2, id="file and new file"),
        pytest.param({"run.bat": "echo mine\n"}, 1, id="file with other ends of lines"),
        pytest.param({"third_party/sub/code.cpp": "two\n"}, 1, id="file of a submodule"),
        pytest.param({"third_party/sub/new.cpp": ""}, 1, id="new file of a submodule"),
    ],
)
def test_counts_edited_files(tree: Path, copy: TreeCopy, texts: dict[str, str], count: int) -> None:
    write_files(tree, texts)

    snapshot = copy.snapshot()

    assert snapshot.edited_count == count
    assert snapshot.digest is not None
    assert len(snapshot.digest) == 64
    assert copy.snapshot() == snapshot


def test_counts_the_files_of_a_submodule_at_another_commit(tree: Path, copy: TreeCopy) -> None:
    commit_files(tree / "third_party/sub", {"code.cpp": "two\n", "more.cpp": ""})

    assert copy.snapshot().edited_count == 2


def test_gives_each_set_of_edits_a_digest_of_its_own(tree: Path, copy: TreeCopy) -> None:
    commit_files(tree / "third_party/sub", {"code.cpp": "committed\n"})
    digests = {copy.snapshot().digest}

    for texts in (
        {"pkg/a.py": "mine\n"},
        {"new.txt": ""},
        {"third_party/sub/code.cpp": "two\n"},
        {"third_party/sub/new.cpp": ""},
    ):
        write_files(tree, texts)
        digests.add(copy.snapshot().digest)

    assert len(digests) == 5


def test_gives_the_same_edits_the_same_digest_in_any_order_and_copy(tree: Path, copy: TreeCopy) -> None:
    write_files(tree, {"pkg/a.py": "other\n", "new.txt": "", "other.txt": ""})
    copy.snapshot()
    write_files(tree, {"pkg/a.py": "mine\n"})
    (tree / "other.txt").unlink()

    second_copy = copy_of(tree, "second")

    assert copy.snapshot() == second_copy.snapshot()


def test_sees_an_edit_in_the_moment_of_the_index(tree: Path, copy: TreeCopy) -> None:
    copy.snapshot()
    # The clock's tick is the only witness: neither size nor times tell.
    moment = (tree / "pkg/a.py").stat().st_mtime_ns
    (tree / "pkg/a.py").write_text("a = 2\n")
    os.utime(tree / "pkg/a.py", ns=(moment, moment))
    for index in copy.cache.glob("index-*"):
        os.utime(index, ns=(moment, moment))

    assert copy.snapshot().edited_count == 1
