import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from core.errors import SourceError
from pytorch_build.lock.source_lock import LockedProject
from pytorch_build.sources import checkout as sources
from pytorch_build.sources import git as git_module
from pytorch_build.sources.checkout import CheckoutOptions, SourceTree, checkout
from tests.conftest import Commit, Git, Write

pytestmark = pytest.mark.processes

# what upstream's script does: rewrites in place, in submodules too, and writes new files
BUILD_AMD = """
import pathlib, sys
root = pathlib.Path(__file__).parents[2]
for path in [root / "kernel.cpp", root / "third_party/sub/code.cpp"]:
    if path.exists():
        path.write_text(path.read_text().replace("cuda", "hip"))
(root / "hip").mkdir(exist_ok=True)
(root / "hip/a.hip").write_text((root / "a.cu").read_text().replace("cuda", "hip"))
if (root / "fail").exists():
    sys.exit("no such kernel")
"""
FILES = {
    "version.txt": "2.10.0a0\n",
    "kernel.cpp": "cuda();\n",
    "a.cu": "cuda();\ncuda();\n",
    ".gitignore": "build/\n",
    "tools/amd_build/build_amd.py": BUILD_AMD,
}


@dataclass
class World:
    """An upstream repository with nested submodules, and a managed tree of it."""

    root: Path
    commit_files: Commit
    git: Git
    write: Write
    locked: LockedProject
    options: CheckoutOptions

    @property
    def tree(self) -> Path:
        return self.root / "src" / "torch"

    @property
    def sub(self) -> Path:
        return self.tree / "third_party" / "sub"

    def checkout(self, **changes: object) -> SourceTree:
        return checkout(self.locked, self.tree, replace(self.options, **changes))  # type: ignore[arg-type]

    def upstream(self, texts: Mapping[str, str]) -> str:
        commit = self.commit_files(self.root / "torch", texts)
        self.locked = self.locked.model_copy(update={"commit": commit})
        return commit

    def subjects(self, folder: Path) -> list[str]:
        return self.git(folder, "log", "--format=%s").splitlines()

    def stashes(self, folder: Path) -> list[str]:
        return self.git(folder, "stash", "list").splitlines()

    def is_finished(self) -> bool:
        """Return whether the tree is as a first checkout leaves it."""
        status = self.git(self.tree, "status", "--porcelain", "--ignore-submodules=none")
        return (
            not status
            and self.subjects(self.tree) == ["DO NOT SUBMIT: HIPIFY", "Upstream"]
            and (self.tree / "hip/a.hip").read_text() == "hip();\nhip();\n"
            and (self.tree / "kernel.cpp").read_text() == "hip();\n"
            and (self.sub / "code.cpp").read_text() == "hip();\n"
            and self.git(self.tree, "rev-parse", "THEROCK_HIPIFY_DIFFBASE^") == self.locked.commit
        )


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory, commit_files: Commit, git: Git) -> Path:
    root = tmp_path_factory.mktemp("upstream")
    commit_files(root / "inner", {"inner.h": "cuda\n"})
    commit_files(root / "sub", {"code.cpp": "cuda();\n"})
    git(root / "sub", "submodule", "--quiet", "add", "../inner", "inner")
    commit_files(root / "sub", {})
    commit_files(root / "torch", FILES)
    git(root / "torch", "submodule", "--quiet", "add", "--name", "sub", "../sub", "third_party/sub")
    commit_files(root / "torch", {})
    return root


@pytest.fixture
def world(tmp_path: Path, upstream: Path, commit_files: Commit, git: Git, write_files: Write) -> World:
    shutil.copytree(upstream, tmp_path, symlinks=True, dirs_exist_ok=True)
    commit = git(tmp_path / "torch", "rev-parse", "HEAD")
    locked = LockedProject(
        project="torch", origin=str(tmp_path / "torch"), ref="main", commit=commit, base_version="2.10.0a0"
    )
    return World(tmp_path, commit_files, git, write_files, locked, CheckoutOptions(hipify=True))


def test_a_checkout_is_tagged_and_hipified_with_its_submodules(world: World) -> None:
    made = world.checkout()
    assert world.is_finished()
    assert made.commit == world.locked.commit
    assert made.changed
    assert made.head == world.git(world.tree, "rev-parse", "THEROCK_HIPIFY_DIFFBASE")
    assert world.git(world.tree, "rev-parse", "THEROCK_UPSTREAM_DIFFBASE") == world.locked.commit
    # the submodule has its own commit and tags, the one that hipify did not touch only the first
    assert world.subjects(world.sub)[0] == "DO NOT SUBMIT: HIPIFY"
    assert world.git(world.sub, "tag").split() == ["THEROCK_HIPIFY_DIFFBASE", "THEROCK_UPSTREAM_DIFFBASE"]
    assert world.git(world.sub / "inner", "tag").split() == ["THEROCK_UPSTREAM_DIFFBASE"]
    # one commit of history, as depth says
    assert world.git(world.tree, "rev-list", "--count", "THEROCK_UPSTREAM_DIFFBASE") == "1"
    # a finished tree is left alone
    kernel = (world.tree / "kernel.cpp").stat().st_mtime_ns
    assert world.checkout() == replace(made, changed=False)
    assert (world.tree / "kernel.cpp").stat().st_mtime_ns == kernel
    # the commit depends on the lock alone
    shutil.rmtree(world.tree)
    assert world.checkout().head == made.head


def test_edits_go_to_a_named_stash(world: World) -> None:
    world.checkout()
    world.write(world.tree, {"kernel.cpp": "mine();\n", "notes.txt": "mine\n", "build/object.o": "built\n"})
    world.write(world.sub, {"code.cpp": "mine();\n"})
    untouched = (world.tree / "hip/a.hip").stat().st_mtime_ns
    made = world.checkout()
    assert world.is_finished()
    assert set(made.stashed) == {world.tree, world.sub}
    (stash,) = world.stashes(world.tree)
    assert "pytorch-build: edits found on" in stash
    # ignored files stay, and so do the times of files that nobody edited
    assert (world.tree / "build/object.o").read_text() == "built\n"
    assert (world.tree / "hip/a.hip").stat().st_mtime_ns == untouched
    world.git(world.tree, "stash", "pop")
    assert (world.tree / "kernel.cpp").read_text() == "mine();\n"
    assert (world.tree / "notes.txt").read_text() == "mine\n"
    world.git(world.sub, "stash", "pop")
    assert (world.sub / "code.cpp").read_text() == "mine();\n"


def test_edits_beside_an_interrupted_hipify_are_kept(world: World) -> None:
    world.checkout(hipify=False)
    world.write(world.tree, {"kernel.cpp": "hip();\n", "a.cu": "mine();\n"})
    assert world.checkout().stashed == (world.tree,)
    assert world.git(world.tree, "show", "stash@{0}:a.cu") == "mine();"
    # so is a deletion
    (world.tree / "version.txt").unlink()
    assert world.checkout().stashed == (world.tree,)
    assert world.is_finished()


@pytest.mark.parametrize(("name", "file"), [("", "kernel.cpp"), ("third_party/sub", "code.cpp")])
def test_own_commits_stop_the_checkout(world: World, name: str, file: str) -> None:
    world.checkout()
    folder = world.tree / name
    own = world.commit_files(folder, {file: "mine();\n"})
    with pytest.raises(SourceError, match=rf"{name} has commits of your own.*\n +\w+ Upstream") as caught:
        world.checkout()
    assert f"pytorch-build-kept-{own[:8]}" in caught.value.hint
    assert world.git(folder, "rev-parse", "HEAD") == own
    assert world.checkout(force=True).changed
    assert world.is_finished()
    assert world.git(folder, "rev-parse", f"pytorch-build-kept-{own[:8]}") == own


def test_a_new_lock_moves_the_tree(world: World) -> None:
    world.checkout()
    world.write(world.tree, {"build/object.o": "built\n"})
    commit = world.upstream({"a.cu": "cuda();\ncuda();\n", "b.cu": "cuda();\n"})
    made = world.checkout()
    assert (made.commit, made.stashed) == (commit, ())
    assert world.is_finished()
    assert (world.tree / "b.cu").is_file()
    assert (world.tree / "build/object.o").is_file()


def test_a_submodule_that_has_gone_leaves_nothing(world: World) -> None:
    world.checkout()
    world.git(world.root / "torch", "rm", "--quiet", "--force", "third_party/sub")
    world.upstream({})
    made = world.checkout()
    assert not world.sub.exists()
    assert made.stashed == ()
    assert not world.checkout().changed


def test_an_interrupted_clone_is_finished(world: World) -> None:
    world.git(world.root, "init", "--quiet", world.tree)
    world.write(world.tree, {"kernel.cpp": "cu", ".git/index.lock": "", ".git/shallow.lock": ""})
    assert world.checkout().changed
    assert world.is_finished()
    assert not (world.tree / ".git/index.lock").exists()
    # so is that of a submodule
    shutil.rmtree(world.sub)
    modules = world.tree / ".git/modules/sub"
    shutil.rmtree(modules)
    modules.mkdir()
    (modules / "config").write_text("")
    assert world.checkout(force=True).changed
    assert world.is_finished()


def test_a_repository_inside_the_tree_is_left_alone(world: World) -> None:
    world.checkout()
    world.commit_files(world.tree / "inside", {"x": "theirs\n"})
    assert not world.checkout().changed
    world.write(world.tree, {"kernel.cpp": "mine();\n"})
    assert world.checkout().stashed == (world.tree,)
    assert (world.tree / "inside/x").read_text() == "theirs\n"
    assert not world.checkout().changed


def test_a_broken_merge_is_settled(world: World) -> None:
    world.checkout()
    for name, text in (("one", "1\n"), ("two", "2\n")):
        world.git(world.tree, "checkout", "--quiet", "-B", name, "THEROCK_HIPIFY_DIFFBASE")
        world.commit_files(world.tree, {"kernel.cpp": text})
    world.git(world.tree, "tag", "mine", "HEAD")
    world.git(world.tree, "checkout", "--quiet", "THEROCK_HIPIFY_DIFFBASE")
    world.git(world.tree, "merge", "--quiet", "one")
    with pytest.raises(Exception, match="status 1"):
        world.git(world.tree, "merge", "two")
    made = world.checkout(force=True)
    assert made.stashed == (world.tree,)
    assert world.is_finished()


def test_full_history_where_asked_for(world: World) -> None:
    world.checkout()
    world.checkout(depth=0)
    count = world.git(world.root / "torch", "rev-list", "--count", "HEAD")
    assert world.git(world.tree, "rev-list", "--count", "THEROCK_UPSTREAM_DIFFBASE") == count
    assert not world.checkout(depth=0).changed


def test_a_checkout_without_hipify_or_submodules(world: World) -> None:
    made = world.checkout(hipify=False, submodules=False)
    assert made.head == world.locked.commit
    assert made.head == made.commit
    assert not (world.sub / "code.cpp").exists()
    assert not world.checkout(hipify=False, submodules=False).changed
    assert world.checkout().changed
    assert world.is_finished()


def test_a_hipify_that_fails_says_why_and_can_be_run_again(world: World) -> None:
    broken = world.upstream({"fail": ""})
    with pytest.raises(SourceError, match=r"(?s)hipify failed in .*no such kernel"):
        world.checkout()
    world.git(world.root / "torch", "rm", "--quiet", "fail")
    assert world.upstream({}) != broken
    assert world.checkout().stashed == ()
    assert world.is_finished()
    # a tree without the script is not hipified
    world.git(world.root / "torch", "rm", "--quiet", "tools/amd_build/build_amd.py")
    world.upstream({})
    made = world.checkout()
    assert made.head == made.commit
    assert not world.checkout().changed


def commit_gone(world: World) -> None:
    world.locked = world.locked.model_copy(update={"commit": "1" * 40})


def prebuilt(world: World) -> None:
    world.locked = LockedProject(project="torch", prebuilt="torch==2.13.0")


def other_repository(world: World) -> None:
    world.git(world.root / "torch", "worktree", "add", "--quiet", "--detach", world.tree)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (commit_gone, rf"does not have {'1' * 40} any more; it was 'main'"),
        (lambda world: (world.root / "torch").rename(world.root / "gone"), "does not answer: .*git repo"),
        (lambda world: (world.root / "inner").rename(world.root / "gone"), "could not be fetched: .*inner"),
        (lambda world: world.write(world.tree, {"mine.txt": ""}), "holds files but is not a git repository"),
        (other_repository, "worktree or submodule of another repository"),
        (prebuilt, "nothing to check out"),
    ],
)
def test_what_cannot_be_checked_out_is_named(
    world: World, spoil: Callable[[World], object], said: str
) -> None:
    spoil(world)
    with pytest.raises(SourceError, match=said) as caught:
        world.checkout()
    assert ("nox -s resolve" in caught.value.hint) == (spoil is commit_gone)
    assert (world.tree / "mine.txt").exists() == said.startswith("holds files")


def test_an_origin_is_found_through_a_mirror(world: World) -> None:
    world.locked = world.locked.model_copy(update={"origin": "https://example.invalid/torch"})
    mirrors = {"https://example.invalid/": f"{world.root}/"}
    assert world.checkout(origins=git_module.Origins(mirrors=mirrors)).changed
    assert world.is_finished()


def test_the_upstream_commit_is_the_tag_of_a_checkout(world: World) -> None:
    world.checkout()
    assert sources.upstream_commit(world.tree) == world.locked.commit
    with pytest.raises(SourceError, match="has no tag THEROCK_UPSTREAM_DIFFBASE"):
        sources.upstream_commit(world.root / "torch")


def test_a_build_sees_the_upstream_commit_and_leaves_no_edits(world: World) -> None:
    head = world.checkout().head
    with sources.building(world.tree):
        assert world.git(world.tree, "rev-parse", "HEAD") == world.locked.commit
        assert (world.tree / "kernel.cpp").read_text() == "hip();\n"
        world.write(world.tree, {"torch/_rocm_init.py": "", "odd [name]!.txt": "", "build/x": ""})
        world.write(world.sub, {"generated.h": ""})
    assert world.git(world.tree, "rev-parse", "HEAD") == head
    assert not world.checkout().changed
    assert (world.tree / "odd [name]!.txt").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("tag", "--delete", "THEROCK_HIPIFY_DIFFBASE"),  # its commit was interrupted
        ("checkout", "--quiet", "THEROCK_UPSTREAM_DIFFBASE"),  # no commit of one's own
        ("update-ref", "--no-deref", "HEAD", "THEROCK_UPSTREAM_DIFFBASE"),  # a build was killed
    ],
)
def test_a_tree_that_was_left_halfway_is_set_right(world: World, command: tuple[str, ...]) -> None:
    head = world.checkout().head
    world.git(world.tree, *command)
    made = world.checkout()
    assert (made.head, made.stashed) == (head, ())
    assert world.is_finished()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"head": 1}', "{"])
def test_a_damaged_state_file_only_costs_time(world: World, text: str) -> None:
    world.checkout()
    (world.tree / ".git/pytorch-build.json").write_text(text)
    assert world.checkout().changed
    assert not world.checkout().changed


def test_servers_without_single_commits_give_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = world.locked
    world.upstream({"a.cu": "newer\n"})
    world.locked = locked
    monkeypatch.setattr(git_module, "_MANAGED", (*git_module._MANAGED, "protocol.version=0"))
    world.checkout()
    assert (world.tree / "hip/a.hip").read_text() == "hip();\nhip();\n"
    assert world.git(world.tree, "rev-parse", "THEROCK_UPSTREAM_DIFFBASE") == locked.commit
