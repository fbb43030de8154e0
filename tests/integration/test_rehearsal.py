"""The rehearsal as its page tells it, command by command; and once more in a bucket."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.http_server import served_store
from core.stores.location import open_store
from tests.kit.clones import TAG, Clone, printed_by
from tests.kit.documented_commands import run_page
from tests.kit.s3_servers import S3Server

pytestmark = pytest.mark.nightly

SET_NAME = "torch-2.10.0a0+cpu.sample"
VISION = "torchvision"
VISION_VERSION = "0.25.0a0+cpu.sample"
RUN = ("--run-id=local-rehearsal", "--gpu-family=cpu")
PIP_OPTIONS = ("--isolated", "--force-reinstall", "--no-deps", "--no-index", "--no-cache-dir")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Run every command of the page in a clone, and require of each what the page says."""
    clone = Clone.create(tmp_path_factory.mktemp("rehearsal") / "checkout")
    run_page(clone, (clone.path / "docs" / "rehearsal.md").read_text(encoding="utf-8"))
    return clone


def test_every_documented_command_does_what_its_page_says(clone: Clone) -> None:
    release = clone.path / "out" / "rehearsal" / "v2" / "cpu"

    # A build for processors has no triton.
    names = {path.name.partition("-")[0] for path in release.glob("*.whl")}
    assert names == {"torch", "torchaudio", "torchvision", "apex"}
    assert VISION in (release / "index.html").read_text(encoding="utf-8")


def test_nox_passes_a_python_on_to_a_session_without_an_environment(clone: Clone) -> None:
    options = ("--download=wheels", "--torch-ref=sample", "--dry-run", RUN[0])

    completed = clone.nox("-s", "setup_venv", "-P", "2.7", "--", *options)

    assert completed.returncode != 0
    assert "no Python 2.7" in printed_by(completed)


@dataclass(frozen=True, kw_only=True)
class BucketRelease:
    """A release index in a bucket, and a user's environment."""

    clone: Clone
    bucket: str

    @property
    def options(self) -> tuple[str, str]:
        """The options that name the bucket."""
        return ("--release-type=rehearsal", f"--distribution-store={self.bucket}")

    def stage(self) -> None:
        """Put the clone's run up for testing in the bucket."""
        self.clone.run_checked("ci", "stage", *self.options, *RUN)

    def run_smoke_test(self) -> None:
        """Test what is up for testing."""
        self.clone.run_checked(
            "nox", "-s", "test_smoke", "--", "--torch-ref=sample", "--staged", *RUN, *self.options
        )

    def promote(self) -> None:
        """Promote what is up for testing."""
        self.clone.run_checked("ci", "promote", *self.options)

    def change_index(self, *options: str) -> None:
        """Check the bucket's pages, or change what they list."""
        self.clone.run_checked("ci", "index", "--check", f"--store={self.bucket}", *options)

    def pip_install(self, *requirements: str) -> process.Completed:
        """Install from the bucket's flat page."""
        python = self.clone.path / "out" / "user" / "bin" / "python"
        with served_store(open_store(self.bucket, root=self.clone.path), {}) as url:
            page = f"--find-links={url}/v2/cpu/index.html"
            command: list[str | Path] = [python, "-m", "pip", "install", *PIP_OPTIONS, page, *requirements]
            # With the tests' own variables, which keep pip from this machine's configuration.
            return process.capture(command, env=process.inherited(), check=False)

    def smoke_record(self) -> dict[str, Any]:
        """Return the record of the smoke test."""
        path = self.clone.manifest(f"test_smoke-sample-{TAG}", "cpu", run="local-rehearsal")
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record

    def wheel_keys(self) -> list[str]:
        """Return the keys of the wheels that the bucket holds."""
        files = open_store(self.bucket, root=self.clone.path).list("")
        return [file.key for file in files if file.key.endswith(".whl")]


@pytest.fixture
def release(clone: Clone, rclone: S3Server) -> BucketRelease:
    return BucketRelease(clone=clone, bucket=f"s3://{rclone.make_bucket()}")


def test_releases_the_bytes_that_were_tested_as_they_were_staged(release: BucketRelease) -> None:
    release.stage()
    release.run_smoke_test()
    release.promote()

    record = release.smoke_record()
    assert record["inputs"]["source"] == f"staging ({release.bucket}/v2-staging/cpu)"
    store = open_store(release.bucket, root=release.clone.path)
    released = {
        key.rpartition("/")[2]: store.digest(key) for key in release.wheel_keys() if key.startswith("v2/")
    }
    assert released == record["inputs"]["files"]


def test_a_bucket_yanks_removes_and_promotes_again(release: BucketRelease) -> None:
    pinned = f"{VISION}=={VISION_VERSION}"
    release.stage()
    release.promote()
    assert release.pip_install(pinned).returncode == 0

    release.change_index("--yank", pinned, "--reason", "wrong results", "--write")
    assert "wrong results" in printed_by(release.pip_install(pinned))
    assert "No matching distribution" in printed_by(release.pip_install("--pre", VISION))

    release.change_index("--remove", SET_NAME, "--write")
    assert release.pip_install(pinned).returncode != 0
    assert release.wheel_keys() == []

    release.stage()
    release.promote()
    release.change_index()
    # What was yanked is yanked when it comes again.
    assert "wrong results" in printed_by(release.pip_install(pinned))
