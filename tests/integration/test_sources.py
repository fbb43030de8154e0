"""Checkouts of the sample's repositories, killed at many points, as people and machines kill them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from core import process
from pytorch_build.lock.resolve import resolve
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import torch_ref
from pytorch_build.sample import ensure_repositories
from pytorch_build.sources.checkout import CheckoutOptions, SourceTree, checkout
from pytorch_build.sources.git import Origins

Git = Callable[..., str]

ROOT = Path(__file__).resolve().parents[2]

# Runs one checkout in a process of its own, which the git below can kill.
CHECKOUT = """
import sys
from pathlib import Path
from pytorch_build.sources.git import Origins
from pytorch_build.lock.source_lock import LockedProject
from pytorch_build.sources.checkout import CheckoutOptions, checkout
locked, tree, repositories = sys.argv[1:]
places = {path.name: path for path in Path(repositories).iterdir()}
options = CheckoutOptions(hipify=True, origins=Origins(repositories=places))
checkout(LockedProject.model_validate_json(locked), Path(tree), options)
"""
# Counts its calls and kills who called it: before git runs on odd calls, after it on even ones.
KILLING_GIT = """#!/bin/sh
count=$(($(cat "{counter}" 2>/dev/null || echo 0) + 1))
echo "$count" > "{counter}"
[ "$count" -ne "{at}" ] && exec "{git}" "$@"
[ $((count % 2)) -eq 0 ] && "{git}" "$@"
kill -9 "$PPID"
"""


@dataclass(frozen=True)
class Sample:
    repositories: Path
    lock: SourceLock
    options: CheckoutOptions

    def checkout(self, project: str, folder: Path) -> SourceTree:
        return checkout(self.lock.project(project), folder, self.options)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    root = tmp_path_factory.mktemp("sample")
    repositories = ensure_repositories(root / "repositories")
    origins = Origins(repositories=repositories)
    ref = torch_ref("sample")
    lock = resolve(
        ref, rocm_version=ref.rocm_version, release_type="ci", cache=root / "cache", origins=origins
    )
    return Sample(root / "repositories", lock, CheckoutOptions(hipify=True, origins=origins))


@pytest.fixture(scope="module")
def finished(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> SourceTree:
    return sample.checkout("torch", tmp_path_factory.mktemp("finished") / "torch")


@pytest.mark.parametrize("at", [2, 7, 12, 15, 17, 20, 24, 29, 33, 38, 44, 50])
def test_a_killed_checkout_ends_in_the_same_state(
    sample: Sample, finished: SourceTree, tmp_path: Path, git: Git, at: int
) -> None:
    tree = tmp_path / "src" / "torch"
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    wrapper = bin_folder / "git"
    real = process.which("git")
    wrapper.write_text(KILLING_GIT.format(counter=tmp_path / "counter", at=at, git=real))
    wrapper.chmod(0o755)
    env = process.inherited(PYTHONPATH=str(ROOT))
    env["PATH"] = f"{bin_folder}:{env['PATH']}"
    locked = sample.lock.project("torch").model_dump_json()
    argv: list[str | Path] = [sys.executable, "-c", CHECKOUT, locked, tree, sample.repositories]
    killed = process.capture(argv, env=env, cwd=ROOT, check=False)
    assert killed.returncode == -9, killed.stderr

    made = sample.checkout("torch", tree)
    assert (made.head, made.stashed) == (finished.head, ())
    for folder in (tree, tree / "third_party/miniblas"):
        assert git(folder, "stash", "list") == ""
    assert git(tree, "status", "--porcelain", "--ignored", "--ignore-submodules=none") == ""
    assert not sample.checkout("torch", tree).changed
