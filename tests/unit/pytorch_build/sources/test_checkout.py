import shutil
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from core.errors import ProcessError, SourceError
from pytorch_build.lock.source_lock import LockedProject
from pytorch_build.sources.checkout import prepared_for_build, upstream_commit
from pytorch_build.sources.edits import INTERRUPTED_REF
from tests.kit.checkouts import HIPIFY_SUBJECT, HIPIFY_TAG, UPSTREAM_TAG, CheckoutWorld
from tests.kit.repos import commit_files, run_git, write_files

pytestmark = pytest.mark.processes


# A first checkout


def test_checks_out_a_hipified_tree_with_its_submodules(world: CheckoutWorld) -> None:
    tree = world.checkout()

    world.require_finished()
    assert tree.changed_by_checkout
    assert tree.commit == world.locked.commit
    assert tree.head == world.commit_of(HIPIFY_TAG)
    assert world.commit_of(UPSTREAM_TAG) == world.locked.commit


def test_tags_submodules_and_commits_what_hipify_changed_in_them(finished_world: CheckoutWorld) -> None:
    submodule = finished_world.submodule

    assert run_git(submodule, "log", "-1", "--format=%s") == HIPIFY_SUBJECT
    assert run_git(submodule, "tag").split() == [HIPIFY_TAG, UPSTREAM_TAG]
    # hipify did not touch this one.
    assert run_git(submodule / "inner", "tag").split() == [UPSTREAM_TAG]


def test_fetches_one_commit_of_history(finished_world: CheckoutWorld) -> None:
    assert run_git(finished_world.tree, "rev-list", "--count", UPSTREAM_TAG) == "1"


def test_fetches_full_history_where_requested(finished_world: CheckoutWorld) -> None:
    finished_world.checkout(depth=0)

    count = run_git(finished_world.upstream, "rev-list", "--count", "HEAD")
    assert int(count) > 1
    assert run_git(finished_world.tree, "rev-list", "--count", UPSTREAM_TAG) == count


def test_makes_the_same_commit_from_the_same_lock(finished_world: CheckoutWorld) -> None:
    head = finished_world.commit_of("HEAD")
    shutil.rmtree(finished_world.tree)

    assert finished_world.checkout().head == head


def test_checks_out_without_hipify_and_submodules(world: CheckoutWorld) -> None:
    tree = world.checkout(hipify=False, submodules=False)

    assert tree.head == world.locked.commit
    assert tree.head == tree.commit
    assert not (world.submodule / "code.cpp").exists()


def test_completes_a_checkout_without_hipify_and_submodules(world: CheckoutWorld) -> None:
    world.checkout(hipify=False, submodules=False)

    assert world.checkout().changed_by_checkout
    world.require_finished()


def test_asks_a_server_for_all_commits_that_gives_no_single_one(
    world: CheckoutWorld, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked_commit = world.locked.commit
    world.commit_upstream({"a.cu": "newer\n"})
    world.lock(commit=locked_commit)
    # By the oldest protocol, a server refuses commits that no branch names.
    home = tmp_path_factory.mktemp("home")
    (home / ".gitconfig").write_text("[protocol]\n\tversion = 0\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))

    world.checkout()

    assert world.commit_of(UPSTREAM_TAG) == locked_commit
    assert (world.tree / "hip/a.hip").read_text() == "hip();\nhip();\n"


# Another lock


def test_moves_a_tree_to_a_newer_commit(finished_world: CheckoutWorld) -> None:
    write_files(finished_world.tree, {"build/object.o": "built\n"})
    commit = finished_world.commit_upstream({"b.cu": "cuda();\n"})

    tree = finished_world.checkout()

    finished_world.require_finished()
    assert tree.commit == commit
    assert tree.stashes == {}
    assert (finished_world.tree / "b.cu").is_file()
    assert (finished_world.tree / "build/object.o").is_file()


def test_removes_a_submodule_that_upstream_has_removed(finished_world: CheckoutWorld) -> None:
    finished_world.commit_upstream({}, removed="third_party/sub")

    tree = finished_world.checkout()

    assert not finished_world.submodule.exists()
    assert tree.stashes == {}
    assert not finished_world.checkout().changed_by_checkout


def test_hipifies_no_tree_without_the_script(finished_world: CheckoutWorld) -> None:
    finished_world.commit_upstream({}, removed="tools/amd_build/build_amd.py")

    tree = finished_world.checkout()

    assert tree.head == tree.commit
    assert not finished_world.checkout().changed_by_checkout


# The user's edits


@pytest.mark.parametrize(
    ("folder", "path"),
    [("", "kernel.cpp"), ("", "notes.txt"), ("third_party/sub", "code.cpp")],
    ids=["file", "new file", "file of a submodule"],
)
def test_refuses_to_overwrite_edits(finished_world: CheckoutWorld, folder: str, path: str) -> None:
    repository = finished_world.tree / folder
    write_files(repository, {path: "mine();\n"})

    with pytest.raises(SourceError, match=path):
        finished_world.checkout(force=True)
    # A refusal leaves nothing that a later checkout takes for its own.
    with pytest.raises(SourceError, match=path) as caught:
        finished_world.checkout()

    assert str(repository) in caught.value.message
    assert "--stash" in caught.value.hint
    assert (repository / path).read_text() == "mine();\n"


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_sees_edits_that_git_is_told_not_to_show(finished_world: CheckoutWorld, flag: str) -> None:
    run_git(finished_world.submodule, "update-index", flag, "code.cpp")
    write_files(finished_world.submodule, {"code.cpp": "mine();\n"})

    with pytest.raises(SourceError, match=r"code\.cpp"):
        finished_world.checkout()


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_does_nothing_where_git_hides_a_file_without_edits(finished_world: CheckoutWorld, flag: str) -> None:
    run_git(finished_world.tree, "update-index", flag, "kernel.cpp")

    assert finished_world.checkout().stashes == {}
    assert not finished_world.checkout().changed_by_checkout


def test_puts_edits_into_a_named_stash(finished_world: CheckoutWorld) -> None:
    tree = finished_world.tree
    write_files(tree, {"kernel.cpp": "mine();\n", "notes.txt": "mine\n"})

    stashes = finished_world.checkout(stash=True).stashes

    finished_world.require_finished()
    (stash,) = finished_world.stashes()
    assert stashes[tree] in stash
    run_git(tree, "stash", "pop")
    assert (tree / "kernel.cpp").read_text() == "mine();\n"
    assert (tree / "notes.txt").read_text() == "mine\n"


def test_puts_edits_of_a_submodule_into_a_stash_there(finished_world: CheckoutWorld) -> None:
    submodule = finished_world.submodule
    write_files(submodule, {"code.cpp": "mine();\n"})

    assert [*finished_world.checkout(stash=True).stashes] == [submodule]

    finished_world.require_finished()
    run_git(submodule, "stash", "pop")
    assert (submodule / "code.cpp").read_text() == "mine();\n"


def test_leaves_ignored_files_and_unedited_ones_alone(finished_world: CheckoutWorld) -> None:
    tree = finished_world.tree
    write_files(tree, {"kernel.cpp": "mine();\n", "build/object.o": "built\n"})
    modified_before = (tree / "hip/a.hip").stat().st_mtime_ns

    finished_world.checkout(stash=True)

    assert (tree / "build/object.o").read_text() == "built\n"
    assert (tree / "hip/a.hip").stat().st_mtime_ns == modified_before


def test_keeps_the_removal_of_a_file(finished_world: CheckoutWorld) -> None:
    (finished_world.tree / "version.txt").unlink()

    assert [*finished_world.checkout(stash=True).stashes] == [finished_world.tree]
    finished_world.require_finished()


def test_settles_a_merge_with_conflicts(finished_world: CheckoutWorld) -> None:
    tree = finished_world.tree
    for branch in ("first", "second"):
        run_git(tree, "checkout", "--quiet", "-B", branch, HIPIFY_TAG)
        commit_files(tree, {"kernel.cpp": f"{branch}();\n"})
    run_git(tree, "tag", "mine", "second")
    run_git(tree, "checkout", "--quiet", HIPIFY_TAG)
    run_git(tree, "merge", "--quiet", "first")
    with pytest.raises(ProcessError):
        run_git(tree, "merge", "second")

    assert [*finished_world.checkout(force=True, stash=True).stashes] == [tree]

    finished_world.require_finished()


def test_leaves_a_repository_inside_the_tree_alone(finished_world: CheckoutWorld) -> None:
    tree = finished_world.tree
    commit_files(tree / "inside", {"x": "theirs\n"})
    assert not finished_world.checkout().changed_by_checkout

    write_files(tree, {"kernel.cpp": "mine();\n"})
    assert [*finished_world.checkout(stash=True).stashes] == [tree]

    assert (tree / "inside/x").read_text() == "theirs\n"
    assert not finished_world.checkout().changed_by_checkout


# The user's commits


each_repository = pytest.mark.parametrize(
    ("folder", "file"), [("", "kernel.cpp"), ("third_party/sub", "code.cpp")], ids=["tree", "submodule"]
)


@each_repository
def test_checks_nothing_out_over_a_users_commits(
    finished_world: CheckoutWorld, folder: str, file: str
) -> None:
    repository = finished_world.tree / folder
    commit = commit_files(repository, {file: "mine();\n"}, message="My change")

    with pytest.raises(SourceError, match="My change") as caught:
        finished_world.checkout()

    assert str(repository) in caught.value.message
    assert f"pytorch-build-kept-{commit[:8]}" in caught.value.hint
    assert finished_world.commit_of("HEAD", repository) == commit


@each_repository
def test_keeps_a_users_commits_as_a_branch_where_the_user_forces_a_checkout(
    finished_world: CheckoutWorld, folder: str, file: str
) -> None:
    repository = finished_world.tree / folder
    commit = commit_files(repository, {file: "mine();\n"})

    assert finished_world.checkout(force=True).changed_by_checkout

    finished_world.require_finished()
    assert finished_world.commit_of(f"pytorch-build-kept-{commit[:8]}", repository) == commit


# Interrupted and failed checkouts


def test_finishes_an_interrupted_clone(world: CheckoutWorld) -> None:
    upstream = world.upstream.rename(world.root / "gone")
    with pytest.raises(SourceError):
        world.checkout()
    upstream.rename(world.upstream)
    write_files(world.tree, {"kernel.cpp": "cu", ".git/index.lock": "", ".git/shallow.lock": ""})

    assert world.checkout().changed_by_checkout

    world.require_finished()
    assert not (world.tree / ".git/index.lock").exists()


def test_finishes_an_interrupted_clone_of_a_submodule(finished_world: CheckoutWorld) -> None:
    shutil.rmtree(finished_world.submodule)
    modules = finished_world.tree / ".git/modules/sub"
    shutil.rmtree(modules)
    modules.mkdir()
    (modules / "config").write_text("")

    assert finished_world.checkout(force=True).changed_by_checkout

    finished_world.require_finished()


def test_repairs_what_a_killed_hipify_left(finished_world: CheckoutWorld) -> None:
    tree = finished_world.tree
    commit = finished_world.commit_upstream({"fail": "", "b.cu": "cuda();\n"})
    with pytest.raises(SourceError):
        finished_world.checkout()
    # An edit of the user's beside the files that are rewritten in part.
    write_files(tree, {"version.txt": "mine\n"})
    finished_world.commit_upstream({}, removed="fail")

    assert finished_world.checkout().stashes == {}

    finished_world.require_finished()
    assert finished_world.stashes() == []
    assert run_git(tree, "show", f"{INTERRUPTED_REF}:version.txt") == "mine"
    assert finished_world.commit_of(f"{INTERRUPTED_REF}^") == commit


def test_repairs_what_a_killed_build_left(finished_world: CheckoutWorld) -> None:
    tree = finished_world.tree
    record = tree / ".git" / "pytorch-build.json"
    with prepared_for_build(tree):
        record_while_building = record.read_bytes()
    record.write_bytes(record_while_building)
    run_git(tree, "update-ref", "--no-deref", "HEAD", UPSTREAM_TAG)
    write_files(tree, {"version.txt": "of the build\n", "generated.py": ""})

    assert finished_world.checkout().stashes == {}

    finished_world.require_finished()
    assert (tree / "version.txt").read_text() == "2.10.0a0\n"


def test_says_why_hipify_failed_and_can_be_run_again(world: CheckoutWorld) -> None:
    world.commit_upstream({"fail": ""})
    with pytest.raises(SourceError, match="no such kernel"):
        world.checkout()

    world.commit_upstream({}, removed="fail")

    assert world.checkout().stashes == {}
    world.require_finished()


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """What keeps a commit from being checked out, and what an error of it names."""

    place: Callable[[CheckoutWorld], object]
    names: tuple[str, ...]


def lock_missing_commit(world: CheckoutWorld) -> None:
    """Lock a commit that upstream does not have."""
    world.lock(commit="1" * 40)


def lock_prebuilt_torch(world: CheckoutWorld) -> None:
    """Lock a torch that is not built."""
    world.locked = LockedProject(project="torch", prebuilt="torch==2.13.0")


def add_worktree(world: CheckoutWorld) -> None:
    """Make the tree a worktree of upstream's repository."""
    run_git(world.upstream, "worktree", "add", "--quiet", "--detach", world.tree)


OBSTACLES = {
    "missing commit": Obstacle(place=lock_missing_commit, names=("1" * 40, "'main'")),
    "missing repository": Obstacle(
        place=lambda world: world.upstream.rename(world.root / "gone"),
        names=("https://example.invalid/torch", "git repo"),
    ),
    "missing submodule": Obstacle(
        place=lambda world: (world.root / "inner").rename(world.root / "gone"), names=("inner",)
    ),
    "files": Obstacle(
        place=lambda world: write_files(world.tree, {"mine.txt": ""}), names=("not a git repository",)
    ),
    "worktree": Obstacle(place=add_worktree, names=("worktree",)),
    "prebuilt torch": Obstacle(place=lock_prebuilt_torch, names=("torch==2.13.0",)),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_names_what_cannot_be_checked_out(world: CheckoutWorld, name: str) -> None:
    obstacle = OBSTACLES[name]
    obstacle.place(world)

    with pytest.raises(SourceError) as caught:
        world.checkout()

    assert [fact for fact in obstacle.names if fact not in caught.value.message] == []
    # Another lock helps where the commit has gone, and nowhere else.
    assert ("nox -s resolve" in caught.value.hint) == (name == "missing commit")


def test_leaves_files_alone_that_are_not_in_git(world: CheckoutWorld) -> None:
    write_files(world.tree, {"mine.txt": "mine"})

    with pytest.raises(SourceError):
        world.checkout()

    assert (world.tree / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("lost_files", ["objects/??/*", "HEAD"])
def test_names_a_tree_whose_repository_has_lost_files(finished_world: CheckoutWorld, lost_files: str) -> None:
    # It lies in the folder of another repository, where git would go on without saying so.
    run_git(finished_world.root, "init", "--quiet")
    for path in (finished_world.tree / ".git").glob(lost_files):
        path.unlink()

    with pytest.raises(SourceError, match=str(finished_world.tree)) as caught:
        finished_world.checkout()

    assert "move" in caught.value.hint
    assert (finished_world.tree / "kernel.cpp").is_file()


# Builds in a tree


def test_knows_the_upstream_commit_of_a_tree(finished_world: CheckoutWorld) -> None:
    assert upstream_commit(finished_world.tree) == finished_world.locked.commit


@pytest.mark.parametrize("folder", ["torch", "absent"])
def test_knows_no_upstream_commit_of_what_is_no_checkout(world: CheckoutWorld, folder: str) -> None:
    with pytest.raises(SourceError, match=UPSTREAM_TAG):
        upstream_commit(world.root / folder)


def test_shows_a_build_the_upstream_commit_and_hipified_files(finished_world: CheckoutWorld) -> None:
    head = finished_world.commit_of("HEAD")

    with prepared_for_build(finished_world.tree):
        assert finished_world.commit_of("HEAD") == finished_world.locked.commit
        assert (finished_world.tree / "kernel.cpp").read_text() == "hip();\n"

    assert finished_world.commit_of("HEAD") == head


def test_takes_no_file_of_a_build_for_an_edit(finished_world: CheckoutWorld) -> None:
    built_file = finished_world.tree / "odd [name]!.txt"

    with prepared_for_build(finished_world.tree):
        write_files(finished_world.tree, {"torch/_rocm_init.py": "", built_file.name: "", "build/x": ""})
        write_files(finished_world.submodule, {"generated.h": ""})

    assert not finished_world.checkout().changed_by_checkout
    assert built_file.exists()
