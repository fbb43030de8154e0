"""Checkouts of the sample's repositories, killed at many points, as people and machines kill them."""

import signal
import sys
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
from tests.kit.clones import ROOT
from tests.kit.repos import run_git

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
    """The sample's repositories, and their lock."""

    repositories: Path
    lock: SourceLock
    options: CheckoutOptions

    def check_torch_out(self, folder: Path) -> SourceTree:
        """Check torch out into a folder."""
        return checkout(self.lock.project("torch"), folder, self.options)


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
def undisturbed(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> SourceTree:
    """Return a tree whose checkout nobody killed."""
    return sample.check_torch_out(tmp_path_factory.mktemp("undisturbed") / "torch")


def check_out_with_git(git: Path, sample: Sample, tree: Path) -> process.Completed:
    """Check torch out in a process that finds this git first."""
    variables = process.inherited(PYTHONPATH=str(ROOT))
    variables["PATH"] = f"{git.parent}:{variables['PATH']}"
    locked = sample.lock.project("torch").model_dump_json()
    command: list[str | Path] = [sys.executable, "-c", CHECKOUT, locked, tree, sample.repositories]
    return process.capture(command, env=variables, cwd=ROOT, check=False)


@pytest.mark.parametrize(
    "call_number",
    [
        7,
        38,
        pytest.param(2, marks=pytest.mark.nightly),
        pytest.param(15, marks=pytest.mark.nightly),
        pytest.param(20, marks=pytest.mark.nightly),
        pytest.param(29, marks=pytest.mark.nightly),
        pytest.param(44, marks=pytest.mark.nightly),
        pytest.param(50, marks=pytest.mark.nightly),
    ],
)
def test_a_killed_checkout_ends_in_the_same_state(
    sample: Sample, undisturbed: SourceTree, tmp_path: Path, call_number: int
) -> None:
    tree = tmp_path / "src" / "torch"
    killing_git = tmp_path / "bin" / "git"
    killing_git.parent.mkdir()
    killing_git.write_text(
        KILLING_GIT.format(counter=tmp_path / "counter", at=call_number, git=process.which("git"))
    )
    killing_git.chmod(0o755)
    killed = check_out_with_git(killing_git, sample, tree)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    completed = sample.check_torch_out(tree)

    assert completed.head == undisturbed.head
    assert completed.stashes == {}
    for folder in (tree, tree / "third_party/miniblas"):
        assert run_git(folder, "stash", "list") == ""
    assert run_git(tree, "status", "--porcelain", "--ignored", "--ignore-submodules=none") == ""
    assert not sample.check_torch_out(tree).changed_by_checkout
