"""When a checkout has nothing to do: everything that its record names, changed alone, and what is none."""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from pytorch_build.sources.checkout import SourceTree
from tests.kit.checkouts import HIPIFY_TAG, HOST, UPSTREAM_TAG, CheckoutWorld
from tests.kit.repos import run_git, write_files

pytestmark = pytest.mark.processes

# A request of a checkout, or a change of the world and then a request.
Request = Callable[[CheckoutWorld], SourceTree]


def check_out(world: CheckoutWorld) -> SourceTree:
    """Request the same checkout as before."""
    return world.checkout()


def check_out_newer_commit(world: CheckoutWorld) -> SourceTree:
    """Request a newer commit."""
    world.commit_upstream({"b.cu": "cuda();\n"})
    return world.checkout()


def check_out_from_fork(world: CheckoutWorld) -> SourceTree:
    """Request the same commit from another origin."""
    if not (world.root / "fork").exists():
        shutil.copytree(world.upstream, world.root / "fork", symlinks=True)
    world.lock(origin=f"{HOST}fork")
    return world.checkout()


def check_out_renamed_ref(world: CheckoutWorld) -> SourceTree:
    """Request the same commit, resolved from another branch."""
    world.lock(ref="release/2.10", base_version="2.10.0")
    return world.checkout()


# What the record names, changed alone.
CHANGED_REQUESTS: Mapping[str, Request] = {
    "origin": check_out_from_fork,
    "commit": check_out_newer_commit,
    "without submodules": lambda world: world.checkout(submodules=False),
    "without hipify": lambda world: world.checkout(hipify=False),
    "full history": lambda world: world.checkout(depth=0),
}
UNCOUNTED_REQUESTS: Mapping[str, Request] = {
    "nothing": check_out,
    "branch": check_out_renamed_ref,
    "force": lambda world: world.checkout(force=True),
    # A tree with more history than requested is good enough.
    "depth": lambda world: world.checkout(depth=2),
}


@pytest.mark.parametrize("name", CHANGED_REQUESTS)
@pytest.mark.nightly
def test_checks_out_again_what_is_requested_otherwise_and_then_no_more(
    finished_world: CheckoutWorld, name: str
) -> None:
    request = CHANGED_REQUESTS[name]

    assert request(finished_world).changed_by_checkout
    if name == "commit":
        # Each request of that kind is one of another commit.
        request = check_out
    assert not request(finished_world).changed_by_checkout


@pytest.mark.parametrize("name", UNCOUNTED_REQUESTS)
def test_does_nothing_where_the_same_is_requested(finished_world: CheckoutWorld, name: str) -> None:
    kernel = finished_world.tree / "kernel.cpp"
    modified_before = kernel.stat().st_mtime_ns

    assert not UNCOUNTED_REQUESTS[name](finished_world).changed_by_checkout

    finished_world.require_finished()
    assert kernel.stat().st_mtime_ns == modified_before


# What must be in the tree as it was left


def write_in_tree(world: CheckoutWorld, *, path: str) -> None:
    """Write a file into the tree."""
    write_files(world.tree, {path: "mine();\n"})


def run_git_in_tree(world: CheckoutWorld, *, arguments: tuple[str, ...]) -> None:
    """Run git in the tree."""
    run_git(world.tree, *arguments)


def remove_file(world: CheckoutWorld) -> None:
    """Remove a file of the tree."""
    (world.tree / "version.txt").unlink()


def remove_submodule(world: CheckoutWorld) -> None:
    """Remove the files of a submodule."""
    shutil.rmtree(world.submodule)


def record_file(world: CheckoutWorld) -> Path:
    """Return the file in which a checkout records what it did."""
    (path,) = (world.tree / ".git").glob("*.json")
    return path


def write_record(world: CheckoutWorld, *, text: str) -> None:
    """Write text in the place of the record."""
    record_file(world).write_text(text)


def remove_record(world: CheckoutWorld) -> None:
    """Remove the record."""
    record_file(world).unlink()


EDITS: Mapping[str, Callable[[CheckoutWorld], None]] = {
    "edited file": partial(write_in_tree, path="kernel.cpp"),
    "edited file of a submodule": partial(write_in_tree, path="third_party/sub/code.cpp"),
    "new file": partial(write_in_tree, path="notes.txt"),
    "removed file": remove_file,
}
DAMAGES: Mapping[str, Callable[[CheckoutWorld], None]] = {
    "removed submodule": remove_submodule,
    "lock of an interrupted git": partial(write_in_tree, path=".git/index.lock"),
    "HEAD elsewhere": partial(run_git_in_tree, arguments=("checkout", "--quiet", UPSTREAM_TAG)),
    # The commit that has it was interrupted.
    "no tag of hipify": partial(run_git_in_tree, arguments=("tag", "--delete", HIPIFY_TAG)),
    "no tag of upstream's commit": partial(run_git_in_tree, arguments=("tag", "--delete", UPSTREAM_TAG)),
    "no record": remove_record,
    "empty record": partial(write_record, text=""),
    "record of another form": partial(write_record, text="[]"),
    "record without content": partial(write_record, text="{}"),
    "record of a number": partial(write_record, text='{"head": 1}'),
    "cut record": partial(write_record, text="{"),
}
# Records that are read as a cut one is.
UNREADABLE_RECORDS = (
    "empty record",
    "record of another form",
    "record without content",
    "record of a number",
)


@pytest.mark.parametrize("name", EDITS)
def test_checks_out_again_what_was_edited_and_then_no_more(finished_world: CheckoutWorld, name: str) -> None:
    EDITS[name](finished_world)

    tree = finished_world.checkout(stash=True)

    finished_world.require_finished()
    assert tree.changed_by_checkout
    assert tree.stashes != {}
    assert not finished_world.checkout().changed_by_checkout


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if name in UNREADABLE_RECORDS else [])
        for name in DAMAGES
    ],
)
def test_checks_out_again_what_was_damaged_and_then_no_more(finished_world: CheckoutWorld, name: str) -> None:
    head = finished_world.commit_of("HEAD")
    DAMAGES[name](finished_world)

    tree = finished_world.checkout()

    finished_world.require_finished()
    assert tree.changed_by_checkout
    assert tree.head == head
    # Nothing of it is an edit.
    assert tree.stashes == {}
    assert not finished_world.checkout().changed_by_checkout


@pytest.mark.parametrize("path", ["build/object.o", ".git/info/attributes"], ids=["ignored", "git's"])
def test_does_nothing_where_files_are_new_that_are_not_of_the_tree(
    finished_world: CheckoutWorld, path: str
) -> None:
    write_in_tree(finished_world, path=path)

    assert not finished_world.checkout().changed_by_checkout
