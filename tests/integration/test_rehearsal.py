"""The rehearsal as its page tells it, command by command; and once more in a bucket."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from core import process
from core.http_server import served_store
from core.stores import Store
from core.stores.location import open_store
from tests.kit.clones import TAG, Clone, printed_by
from tests.kit.documented_commands import run_page
from tests.kit.s3_servers import S3Server

pytestmark = pytest.mark.nightly

SET_NAME = "torch-2.10.0a0+cpu.sample"
VISION = "torchvision"
PINNED_VISION = "torchvision==0.25.0a0+cpu.sample"
RUN = ("--run-id=local-rehearsal", "--gpu-family=cpu")
PIP_INSTALL = (
    "-m",
    "pip",
    "install",
    "--isolated",
    "--force-reinstall",
    "--no-deps",
    "--no-index",
    "--no-cache-dir",
)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Run every command of the page in a clone, and require of each what the page says."""
    clone = Clone.create(tmp_path_factory.mktemp("rehearsal") / "checkout")
    run_page(clone, (clone.path / "docs" / "rehearsal.md").read_text(encoding="utf-8"))
    return clone


def test_every_documented_command_does_what_its_page_says(clone: Clone) -> None:
    release = clone.path / "out" / "rehearsal" / "v2" / "cpu"
    index = release / "index.html"

    # A build for processors has no triton.
    names = {path.name.partition("-")[0] for path in release.glob("*.whl")}
    assert names == {"torch", "torchaudio", "torchvision", "apex"}
    assert VISION in index.read_text(encoding="utf-8")


def test_nox_passes_a_python_on_to_a_session_without_an_environment(clone: Clone) -> None:
    options = ("--download=wheels", "--torch-ref=sample", "--dry-run", "--run-id=local-rehearsal")

    refused = clone.nox("-s", "setup_venv", "-P", "2.7", "--", *options)

    assert refused.returncode != 0
    assert "no Python 2.7" in printed_by(refused)


@dataclass(frozen=True, kw_only=True)
class BucketRelease:
    """A release index in a bucket, and a user's environment."""

    clone: Clone
    bucket: str

    @property
    def options(self) -> tuple[str, str]:
        """The options that name the bucket."""
        return ("--release-type=rehearsal", f"--distribution-store={self.bucket}")

    @property
    def store(self) -> Store:
        """What the bucket holds."""
        return open_store(self.bucket, root=self.clone.path)

    def stage(self) -> None:
        """Put the clone's run up for testing in the bucket."""
        self.clone.run_checked("ci", "stage", *self.options, *RUN)

    def run_smoke_test(self) -> None:
        """Test what is up for testing."""
        self.clone.run_checked(
            "nox",
            "-s",
            "test_smoke",
            "--",
            "--torch-ref=sample",
            "--staged",
            *RUN,
            *self.options,
        )

    def promote(self) -> None:
        """Promote what is up for testing."""
        self.clone.run_checked("ci", "promote", *self.options)

    def change_index(self, *options: str) -> None:
        """Check the bucket's pages, or change what they list."""
        self.clone.run_checked("ci", "index", "--check", f"--store={self.bucket}", *options)

    def pip_install(self, requirement: str, *options: str) -> process.Completed:
        """Install from the bucket's flat page."""
        python = self.clone.path / "out" / "user" / "bin" / "python"
        with served_store(self.store, {}) as url:
            page = f"--find-links={url}/v2/cpu/index.html"
            return process.capture(
                [python, *PIP_INSTALL, page, *options, requirement],
                # With the tests' own variables, which keep pip from this machine's configuration.
                env=process.inherited(),
                check=False,
            )

    def smoke_record(self) -> dict[str, Any]:
        """Return the record of the smoke test."""
        path = self.clone.manifest(f"test_smoke-sample-{TAG}", "cpu", run="local-rehearsal")
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record

    def wheel_keys(self) -> list[str]:
        """Return the keys of the wheels that the bucket holds."""
        return [file.key for file in self.store.list("") if file.key.endswith(".whl")]

    def released_digests(self) -> dict[str, str]:
        """Return the names and digests of the wheels that are released."""
        digests = {}
        for key in self.wheel_keys():
            if key.startswith("v2/"):
                name = key.rpartition("/")[2]
                digests[name] = self.store.digest(key)
        return digests


@pytest.fixture
def release(clone: Clone, rclone: S3Server) -> BucketRelease:
    return BucketRelease(clone=clone, bucket=f"s3://{rclone.make_bucket()}")


def test_releases_the_bytes_that_were_tested_as_they_were_staged(release: BucketRelease) -> None:
    release.stage()
    release.run_smoke_test()
    release.promote()

    inputs = release.smoke_record()["inputs"]
    assert inputs["source"] == f"staging ({release.bucket}/v2-staging/cpu)"
    assert release.released_digests() == inputs["files"]


def test_a_bucket_yanks_removes_and_promotes_again(release: BucketRelease) -> None:
    release.stage()
    release.promote()
    installed = release.pip_install(PINNED_VISION)
    assert installed.returncode == 0, printed_by(installed)

    release.change_index("--yank", PINNED_VISION, "--reason", "wrong results", "--write")
    warned = release.pip_install(PINNED_VISION)
    assert "wrong results" in printed_by(warned)
    refused = release.pip_install(VISION, "--pre")
    assert "No matching distribution" in printed_by(refused)

    release.change_index("--remove", SET_NAME, "--write")
    refused = release.pip_install(PINNED_VISION)
    assert refused.returncode != 0
    assert release.wheel_keys() == []

    # What was yanked is yanked when it comes again.
    release.stage()
    release.promote()
    release.change_index()
    warned = release.pip_install(PINNED_VISION)
    assert "wrong results" in printed_by(warned)
