import shutil
from pathlib import Path

import pytest

from core.errors import SourceError
from pytorch_build.sources import submodules
from pytorch_build.sources.git import Origins, Repository
from tests.kit.repos import commit_files, run_git

pytestmark = pytest.mark.processes

LOCAL_SETTINGS = ("protocol.file.allow=always",)
LOST_COMMIT = "1" * 40
# Addresses that name a helper program, or a folder of this machine.
UNSAFE_ADDRESSES = ["fd::0", "ext::sh -c 'touch {folder}/ran'", "file://{folder}/there"]


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with ``top``, its submodule outer, and inner within that; both have newer commits."""
    folder = tmp_path_factory.mktemp("repositories")
    inner = folder / "inner"
    outer = folder / "outer"
    top = folder / "top"

    commit_files(inner, {"i": "1"})
    commit_files(outer, {"o": "1"})
    add_submodule(outer, "../inner", "lib/inner")
    commit_files(top, {"t": "1"})
    add_submodule(top, "../outer", "outer")

    commit_files(inner, {"i": "2"})
    commit_files(outer, {"o": "2"})
    return folder


def add_submodule(repository: Path, origin: str, path: str) -> None:
    """Commit a submodule to a repository."""
    run_git(repository, "submodule", "--quiet", "add", origin, path)
    commit_files(repository, {})


@pytest.fixture
def tree(repositories: Path, tmp_path: Path) -> Repository:
    """Return a clone of this test's own without its submodules."""
    run_git(tmp_path, "clone", "--quiet", repositories / "top", "tree")
    return Repository(path=tmp_path / "tree", settings=LOCAL_SETTINGS)


def test_lists_no_submodule_before_it_is_checked_out(tree: Repository) -> None:
    assert list(submodules.submodules(tree)) == []


def test_updates_submodules_and_lists_inner_ones_first(tree: Repository) -> None:
    submodules.update_submodules(tree, depth=1)

    outer = tree.path / "outer"
    inner = outer / "lib/inner"
    (first, second) = submodules.submodules(tree)
    (direct,) = submodules.direct_submodules(tree)
    assert first.path == inner
    assert second.path == direct.path == outer
    # The commit that its parent names, and not the newest one.
    assert (inner / "i").read_text() == "1"


def test_updates_nothing_in_a_repository_without_submodules(repositories: Path) -> None:
    submodules.update_submodules(Repository(path=repositories / "inner"), depth=1)


def test_recreates_an_incomplete_clone_of_a_nested_submodule(tree: Repository) -> None:
    submodules.update_submodules(tree, depth=1)
    modules = tree.path / ".git/modules/outer/modules/lib/inner"
    shutil.rmtree(modules)
    modules.mkdir()

    submodules.update_submodules(tree, depth=1)

    assert (tree.path / "outer/lib/inner/i").read_text() == "1"
    assert len(list(submodules.submodules(tree))) == 2


def test_rejects_a_submodule_outside_the_tree(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    gitmodules = '[submodule "x"]\n\tpath = ../other\n\turl = ../x\n'
    commit_files(tree, {".gitmodules": gitmodules})

    with pytest.raises(SourceError, match="other"):
        submodules.submodule_folders(Repository(path=tree))


@pytest.mark.parametrize("address", UNSAFE_ADDRESSES)
def test_fetches_no_submodule_from_an_unsafe_address(tmp_path: Path, address: str) -> None:
    address = address.format(folder=tmp_path)
    tree = tmp_path / "tree"
    gitmodules = f'[submodule "a"]\n\tpath = a\n\turl = {address}\n'
    commit_files(tmp_path / "there", {"a": ""})
    commit_files(tree, {".gitmodules": gitmodules})
    settings = Origins().settings("https://example.org/a")
    repository = Repository(path=tree, settings=settings)
    repository.run("update-index", "--add", "--cacheinfo", f"160000,{LOST_COMMIT},a")

    with pytest.raises(SourceError, match="not allowed"):
        submodules.update_submodules(repository, depth=1)

    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("path", ["outer", "orphan"])
def test_blames_the_commit_for_a_submodule_that_is_nowhere(tree: Repository, path: str) -> None:
    # A commit that the submodule's repository has lost, and a submodule that .gitmodules does not name.
    tree.run("update-index", "--add", "--cacheinfo", f"160000,{LOST_COMMIT},{path}")

    with pytest.raises(SourceError) as caught:
        submodules.update_submodules(tree, depth=1)

    assert "ref" in caught.value.hint
    assert "network" not in caught.value.hint
