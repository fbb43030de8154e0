"""The sample's artifacts, packed into a store, fetched by the front door, killed on the way, packaged."""

import shutil
import signal
import sys
from collections.abc import Mapping
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
# How the names of artifacts end that the family does not use, such as `blas_lib_gfx110X-all`.
OTHER_FAMILIES = tuple(f"_{family}" for family in FAMILIES if family != FAMILY)
RUN = RunOutputs(run_id="17", platform=this_platform())

# Runs a front door, and kills it at its n-th write of an artifact's file.
KILLED_FRONT_DOOR = """
import os, runpy, signal, sys
writes_left = int(sys.argv.pop(1))
real_write = os.write
def write(handle, data):
    global writes_left
    writes_left -= 1
    if writes_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real_write(handle, data)
os.write = write
sys.argv[0] = "ci"
runpy.run_module("ci", run_name="__main__")
"""


@pytest.fixture(scope="module")
def store(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with a run of all artifacts, in both forms of archives."""
    root = tmp_path_factory.mktemp("store")
    for number, artifact in enumerate(scan(artifacts)):
        suffix = ".tar.xz" if number % 5 == 4 else ".tar.zst"
        pack(artifact.path, root / RUN.prefix, suffix=suffix)
    return root


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return what the front doors need of the checkout, in a place of its own."""
    copy = tmp_path / "checkout"
    for name in ("core", "ci", "rocm_packaging"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "LICENSE", copy)
    return copy


def fetch(checkout: Path, store: Path, *, killed_at: int | None = None) -> process.Completed:
    """Fetch a family's artifacts into the checkout; kill the fetch at a write, counted from 1."""
    front_door = ["-m", "ci"]
    if killed_at is not None:
        front_door = ["-c", KILLED_FRONT_DOOR, str(killed_at)]
    options = ["--run-id=17", f"--gpu-family={FAMILY}", f"--from={store}"]
    command = [sys.executable, *front_door, "fetch-artifacts", *options]
    return process.capture(command, cwd=checkout, env=process.inherited(PYTHONPATH=None), check=False)


def build(checkout: Path, *options: str) -> process.Completed:
    """Build ROCm's packages of the artifacts in the checkout."""
    variables = process.inherited(SOURCE_DATE_EPOCH="1700000000", PYTHONPATH=None)
    command = [sys.executable, "-m", "rocm_packaging", "build"]
    command += [f"--gpu-family={FAMILY}", "--run-id=17", *options]
    return process.capture(command, cwd=checkout, env=variables, check=False)


def digests_in(folder: Path) -> dict[str, str]:
    """Return the digests of a folder's files."""
    return {path.name: sha256(path) for path in folder.iterdir()}


def describe(path: Path) -> str:
    """Return where a link leads, or a file's digest."""
    if path.is_symlink():
        return f"-> {path.readlink()}"
    if path.is_file():
        return sha256(path)
    return "a folder"


def artifact_files(folder: Path) -> dict[str, tuple[int, str]]:
    """Return every file, folder and link of the artifacts in a directory, with its mode and content."""
    files: dict[str, tuple[int, str]] = {}
    for artifact in scan(folder):
        for path in artifact.path.rglob("*"):
            if path.name != ".archive.sha256":
                name = path.relative_to(folder).as_posix()
                files[name] = (path.lstat().st_mode, describe(path))
    return files


@pytest.fixture(scope="module")
def expected_files(artifacts: Path) -> Mapping[str, tuple[int, str]]:
    """Return the files of the family's artifacts, and of those for every family."""
    files = artifact_files(artifacts)
    for name in list(files):
        artifact_name = name.partition("/")[0]
        if artifact_name.endswith(OTHER_FAMILIES):
            del files[name]
    return files


@pytest.mark.nightly
def test_fetched_artifacts_are_packaged_into_the_same_bytes(
    checkout: Path,
    store: Path,
    artifacts: Path,
    expected_files: Mapping[str, tuple[int, str]],
    tmp_path: Path,
) -> None:
    fetched = fetch(checkout, store)
    assert fetched.returncode == 0, fetched.stderr
    assert artifact_files(RUN.artifacts_folder(checkout / ".cache", FAMILY)) == expected_files

    build(checkout, f"--output-dir={tmp_path / 'of-fetched'}")
    # What is packaged is kept, and would be taken again.
    shutil.rmtree(checkout / "out")
    build(checkout, f"--output-dir={tmp_path / 'of-local'}", f"--artifact-dir={artifacts}")

    packages = digests_in(tmp_path / "of-fetched")
    assert len(packages) >= 4
    assert packages == digests_in(tmp_path / "of-local")


@pytest.mark.parametrize("killed_at", [1, 7, 45])
@pytest.mark.nightly
def test_a_killed_fetch_is_continued(
    checkout: Path, store: Path, expected_files: Mapping[str, tuple[int, str]], killed_at: int
) -> None:
    folder = RUN.artifacts_folder(checkout / ".cache", FAMILY)
    assert fetch(checkout, store, killed_at=killed_at).returncode == -signal.SIGKILL
    complete_artifacts = [path for path in folder.glob("[!.]*") if path.is_dir()]
    require_complete(folder, complete_artifacts, expected_files)

    fetched = fetch(checkout, store)

    assert fetched.returncode == 0, fetched.stderr
    assert fetched.stderr.count("  kept  ") == len(complete_artifacts)
    assert artifact_files(folder) == expected_files
    assert not list(folder.glob(".*.part"))


def require_complete(
    folder: Path, artifacts: list[Path], expected_files: Mapping[str, tuple[int, str]]
) -> None:
    """Require that every file of artifacts that have their names is whole."""
    for artifact in artifacts:
        for path in artifact.rglob("*"):
            if path.is_file() and path.name != ".archive.sha256":
                _mode, content = expected_files[path.relative_to(folder).as_posix()]
                assert describe(path) == content


def test_refuses_to_package_what_is_not_fetched_completely(checkout: Path, store: Path) -> None:
    folder = RUN.artifacts_folder(checkout / ".cache", FAMILY)
    fetch(checkout, store, killed_at=7)
    assert (folder / INCOMPLETE).exists()

    with pytest.raises(ArtifactError, match="incomplete"):
        scan(folder)
    refused = build(checkout)

    assert refused.returncode == ArtifactError.exit_code
    assert "incomplete" in refused.stderr
