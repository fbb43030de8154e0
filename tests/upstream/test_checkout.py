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


def locked(sources: Sources, project: str, scratch: Path) -> LockedProject:
    if project not in sources:
        pytest.skip(f"--sources has no {project}")
    text = f'[refs.mine.{project}]\norigin = "{sources[project].as_posix()}"\nref = "HEAD"\n'
    file = scratch / "refs.toml"
    file.write_text(text)
    use_user_file(file)
    lock = resolve(torch_ref("mine"), rocm_version="", release_type="nightly", cache=scratch / "cache")
    return lock.project(project)


@pytest.mark.parametrize("project", ["torch", "audio", "vision"])
def test_versions_are_read_from_real_trees(project: str, tmp_path: Path, upstream_sources: Sources) -> None:
    found = locked(upstream_sources, project, tmp_path)
    assert found.commit == run_git(upstream_sources[project], "rev-parse", "HEAD")
    assert found.versions["cpu"] == f"{found.base_version}+cpu"


def test_the_real_torch_is_hipified_and_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upstream_sources: Sources
) -> None:
    source = locked(upstream_sources, "torch", tmp_path)
    tree = tmp_path / "src" / "torch"
    options = CheckoutOptions(hipify=True)

    def half(folder: Path) -> None:
        """Hipify as far as a kill would let it: some files not rewritten, one half written."""
        hipify_whole(folder)
        changed = run_git(folder, "diff", "--name-only").splitlines()
        run_git(folder, "checkout", "--quiet", "--", *changed[::2])
        torn = folder / changed[1]
        torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
        raise DataError("killed")

    hipify_whole = hipify.hipify
    with monkeypatch.context() as patch:
        patch.setattr(hipify, "hipify", half)
        with pytest.raises(DataError, match="killed"):
            checkout(source, tree, options)
    first = checkout(source, tree, options)
    assert first.stashes == {}
    assert run_git(tree, "log", "--format=%s").splitlines()[0] == "DO NOT SUBMIT: HIPIFY"
    changed = run_git(tree, "diff", "--name-only", "THEROCK_UPSTREAM_DIFFBASE", "HEAD").splitlines()
    assert len(changed) > 500
    assert run_git(tree, "status", "--porcelain") == ""
    assert not checkout(source, tree, options).changed_by_checkout

    # the user's edit, and what a build leaves where upstream does not ignore it
    (tree / "setup.py").write_text("mine\n")
    (tree / "notes.txt").write_text("mine\n")
    again = checkout(source, tree, replace(options, stash=True))
    assert (again.head, [*again.stashes]) == (first.head, [tree])
    assert run_git(tree, "show", "stash@{0}:setup.py") == "mine"
    assert not checkout(source, tree, options).changed_by_checkout

    # from nothing: the same commit
    shutil.rmtree(tree)
    assert checkout(source, tree, options).head == first.head
    assert os.listdir(tree / "aten" / "src" / "ATen" / "hip")  # noqa: PTH208 - any name will do
