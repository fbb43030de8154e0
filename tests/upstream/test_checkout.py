"""Checkouts of real upstream sources (--sources DIR)."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from core.data import use_user_file
from core.errors import DataError
from pytorch_build.lock.resolve import resolve
from pytorch_build.lock.source_lock import LockedProject
from pytorch_build.refs.torch_refs import torch_ref
from pytorch_build.sources import hipify
from pytorch_build.sources.checkout import CheckoutOptions, checkout
from tests.kit.repos import run_git

Sources = Mapping[str, Path]
HIPIFIED = CheckoutOptions(hipify=True)


def lock_project(sources: Sources, project: str, scratch: Path) -> LockedProject:
    """Lock the commit that a repository has checked out; a test is skipped where there is none."""
    if project not in sources:
        pytest.skip(f"--sources has no {project}")
    origin = sources[project].as_posix()
    refs = scratch / "refs.toml"
    refs.write_text(f'[refs.mine.{project}]\norigin = "{origin}"\nref = "HEAD"\n')
    use_user_file(refs)

    lock = resolve(torch_ref("mine"), rocm_version="", release_type="nightly", cache=scratch / "cache")
    return lock.project(project)


@pytest.mark.parametrize("project", ["torch", "audio", "vision"])
def test_versions_are_read_from_real_trees(project: str, tmp_path: Path, upstream_sources: Sources) -> None:
    locked_project = lock_project(upstream_sources, project, tmp_path)

    assert locked_project.commit == run_git(upstream_sources[project], "rev-parse", "HEAD")
    assert locked_project.versions["cpu"] == f"{locked_project.base_version}+cpu"


def interrupt_hipify(monkeypatch: pytest.MonkeyPatch, source: LockedProject, tree: Path) -> None:
    """Hipify as far as a kill would let it: some files not rewritten, and half of one written."""
    hipify_all = hipify.hipify

    def hipify_half(folder: Path) -> None:
        hipify_all(folder)
        rewritten_files = run_git(folder, "diff", "--name-only").splitlines()
        run_git(folder, "checkout", "--quiet", "--", *rewritten_files[::2])
        torn_file = folder / rewritten_files[1]
        torn_file.write_bytes(torn_file.read_bytes()[: torn_file.stat().st_size // 2])
        raise DataError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(hipify, "hipify", hipify_half)
        with pytest.raises(DataError, match="killed"):
            checkout(source, tree, HIPIFIED)


def test_the_real_torch_is_hipified_and_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upstream_sources: Sources
) -> None:
    source = lock_project(upstream_sources, "torch", tmp_path)
    tree = tmp_path / "src" / "torch"
    interrupt_hipify(monkeypatch, source, tree)

    repaired = checkout(source, tree, HIPIFIED)

    assert repaired.stashes == {}
    assert run_git(tree, "log", "--format=%s").splitlines()[0] == "DO NOT SUBMIT: HIPIFY"
    rewritten_files = run_git(tree, "diff", "--name-only", "THEROCK_UPSTREAM_DIFFBASE", "HEAD").splitlines()
    assert len(rewritten_files) > 500
    assert run_git(tree, "status", "--porcelain") == ""
    assert not checkout(source, tree, HIPIFIED).changed_by_checkout

    # The user's edit, and what a build leaves where upstream does not ignore it.
    (tree / "setup.py").write_text("mine\n")
    (tree / "notes.txt").write_text("mine\n")
    stashed = checkout(source, tree, replace(HIPIFIED, stash=True))
    assert stashed.head == repaired.head
    assert list(stashed.stashes) == [tree]
    assert run_git(tree, "show", "stash@{0}:setup.py") == "mine"
    assert not checkout(source, tree, HIPIFIED).changed_by_checkout

    # A new checkout has the same commit.
    shutil.rmtree(tree)
    assert checkout(source, tree, HIPIFIED).head == repaired.head
    assert os.listdir(tree / "aten" / "src" / "ATen" / "hip")  # noqa: PTH208 - any name will do
