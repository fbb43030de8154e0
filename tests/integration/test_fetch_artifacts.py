"""The sample's artifacts, packed into a store, fetched by the front door, killed on the way, packaged."""

import shutil
import sys
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT
from core.errors import ArtifactError
from core.files import sha256
from core.run import RunOutputs, this_platform
from rocm_packaging.artifacts import INCOMPLETE, scan
from rocm_packaging.sample import FAMILIES
from tests.kit.artifact_archives import pack

FAMILY = "gfx94X-dcgpu"
RUN = RunOutputs(run_id="17", platform=this_platform())

# Runs a front door, and kills it at its n-th write of an artifact's file.
KILLED = """
import os, runpy, signal, sys
left = int(sys.argv.pop(1))
real = os.write
def write(handle, data):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(handle, data)
os.write = write
sys.argv[0] = "ci"
runpy.run_module("ci", run_name="__main__")
"""


@pytest.fixture(scope="session")
def store(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run of all artifacts, in both forms."""
    root = tmp_path_factory.mktemp("store")
    for number, artifact in enumerate(scan(artifacts)):
        pack(artifact.path, root / RUN.prefix, suffix=".tar.xz" if number % 5 == 4 else ".tar.zst")
    return root


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the front doors need of the checkout, in a place of its own."""
    copy = tmp_path / "checkout"
    for name in ("core", "ci", "rocm_packaging"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "LICENSE", copy)
    return copy


def fetch(checkout: Path, store: Path, *words: str, killed_at: int = 0) -> process.Completed:
    start = ["-c", KILLED, str(killed_at)] if killed_at else ["-m", "ci"]
    options = ["--run-id=17", f"--gpu-family={FAMILY}", f"--from={store}", *words]
    argv = [sys.executable, *start, "fetch-artifacts", *options]
    return process.capture(argv, cwd=checkout, env=process.inherited(PYTHONPATH=None), check=False)


def build(checkout: Path, output: Path, *words: str) -> dict[str, str]:
    options = [f"--gpu-family={FAMILY}", f"--output-dir={output}", "--run-id=17", *words]
    env = process.inherited(SOURCE_DATE_EPOCH="1700000000", PYTHONPATH=None)
    process.capture([sys.executable, "-m", "rocm_packaging", "build", *options], cwd=checkout, env=env)
    return {path.name: sha256(path) for path in output.iterdir()}


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file, folder and link of the artifacts in a directory, with its mode and content."""
    found = {}
    for artifact in scan(folder):
        for path in artifact.path.rglob("*"):
            name = path.relative_to(folder).as_posix()
            what = f"-> {path.readlink()}" if path.is_symlink() else sha256(path) if path.is_file() else "/"
            if path.name != ".archive.sha256":
                found[name] = (path.lstat().st_mode, what)
    return found


def of_family(folder: Path) -> dict[str, tuple[int, str]]:
    others = {f"_{family}/" for family in FAMILIES} - {f"_{FAMILY}/"}
    return {
        name: facts
        for name, facts in tree(folder).items()
        if not any(other in f"{name}/" for other in others)
    }


def test_fetched_artifacts_are_packaged_into_the_same_bytes(
    checkout: Path, store: Path, artifacts: Path, tmp_path: Path
) -> None:
    said = fetch(checkout, store)
    assert said.returncode == 0, said.stderr
    folder = RUN.artifacts_folder(checkout / ".cache", FAMILY)
    assert tree(folder) == of_family(artifacts)
    fetched = build(checkout, tmp_path / "fetched")
    shutil.rmtree(checkout / "out")
    assert fetched == build(checkout, tmp_path / "given", f"--artifact-dir={artifacts}")
    assert len(fetched) >= 4


@pytest.mark.parametrize("killed_at", [1, 2, 7, 20, 45])
def test_a_killed_fetch_is_continued(checkout: Path, store: Path, artifacts: Path, killed_at: int) -> None:
    folder = RUN.artifacts_folder(checkout / ".cache", FAMILY)
    assert fetch(checkout, store, killed_at=killed_at).returncode == -9
    assert (folder / INCOMPLETE).exists()
    whole = of_family(artifacts)
    there = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
    for name in there:  # what has its name is whole
        for path in (folder / name).rglob("*"):
            if path.is_file() and not path.is_symlink() and path.name != ".archive.sha256":
                assert whole[path.relative_to(folder).as_posix()][1] == sha256(path)
    with pytest.raises(ArtifactError, match="is incomplete"):
        scan(folder)
    options = ["--run-id=17", f"--gpu-family={FAMILY}"]
    argv = [sys.executable, "-m", "rocm_packaging", "build", *options]
    refused = process.capture(argv, cwd=checkout, check=False)
    assert (refused.returncode, "is incomplete" in refused.stderr) == (ArtifactError.exit_code, True)
    said = fetch(checkout, store)
    assert said.returncode == 0, said.stderr
    assert said.stderr.count("  kept  ") == len(there)
    assert tree(folder) == whole
    assert not list(folder.glob(".*.part"))
