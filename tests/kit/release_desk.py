"""The verbs that stage, promote and repair releases, at work on a run's store and two buckets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ci.promote import documents
from ci.promote.documents import Decision
from core.errors import CheckError
from core.run import RunOutputs
from core.run.records import FileRecord
from core.stores import Store
from core.stores.directory import DirectoryStore
from tests.kit import runs
from tests.kit.front_doors import run_ci

AREAS_OF_RELEASES = ("v2", documents.DECISIONS, documents.INTENTS)


@dataclass(frozen=True, kw_only=True)
class ReleaseDesk:
    """A run in its store, the bucket that it is staged and promoted in, and the bucket of releases.

    `folder` is where wheels are built; the verbs print to `capsys`.
    """

    run: RunOutputs
    run_store: Store
    bucket: Store
    releases: Store
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def with_run(self, run_id: str) -> "ReleaseDesk":
        """Return the same desk for another run in the same store."""
        return replace(self, run=runs.run_outputs(run_id))

    def publish(
        self,
        *families: str,
        pythons: Sequence[str] = (runs.PYTHON,),
        torch_ref: str = runs.TORCH_REF,
        rocm_version: str = runs.ROCM_VERSION,
        targets: Sequence[str] = (),
        is_tested: bool = True,
    ) -> tuple[FileRecord, ...]:
        """Build and test everything of these families; return the files."""
        files: list[FileRecord] = []
        for family in families:
            files += runs.publish_complete_run(
                self.run_store,
                self.run,
                self.folder,
                family=family,
                pythons=pythons,
                torch_ref=torch_ref,
                rocm_version=rocm_version,
                targets=targets,
                is_tested=is_tested,
            )
        return tuple(files)

    def stage(self, *options: str) -> int:
        """Put the run's wheels up for testing; return the exit code."""
        stores = ("--store", self.run_store.url, "--distribution-store", self.bucket.url)
        return run_ci("stage", "--run-id", self.run.run_id, *stores, *options)

    def promote(self, *options: str, release_type: str = "nightly") -> int:
        """Promote what is staged as it is; return the exit code."""
        stores = ("--distribution-store", self.bucket.url, "--release-type", release_type)
        return run_ci("promote", *stores, "--by", "the release job", *options)

    def release(self, *options: str) -> int:
        """Make a release of a candidate; return the exit code."""
        stores = ("--from-store", self.bucket.url, "--distribution-store", self.releases.url)
        return run_ci("promote", *stores, "--release-type", "release", *options)

    def check_indexes(self, *options: str) -> int:
        """Check or repair the bucket's indexes; return the exit code."""
        return run_ci("index", "--check", "--store", self.bucket.url, *options)

    def read_messages(self) -> str:
        """Return what the verbs have printed since this was last asked."""
        return self.capsys.readouterr().err

    def read_refusal(self, *options: str) -> str:
        """Promote what must not be released; return the error."""
        self.read_messages()
        assert self.promote(*options) == CheckError.exit_code
        return self.read_messages().partition("error: ")[2]

    def released_wheels(self, family: str) -> list[str]:
        """Return the names of a family's wheels in the release index."""
        keys = [stored_object.key for stored_object in self.bucket.list(f"v2/{family}", recursive=False)]
        return [key.rpartition("/")[2] for key in keys if key.endswith(".whl")]

    def has_released_nothing(self) -> bool:
        """Return whether the bucket has no release, no decision and no intent."""
        return not any(self.bucket.list(area) for area in AREAS_OF_RELEASES)

    def decision(self) -> Decision:
        """Return the only decision in the bucket."""
        return only_decision(self.bucket)


def open_desk(folder: Path, capsys: pytest.CaptureFixture[str]) -> ReleaseDesk:
    """Return a desk whose stores are folders below this one."""
    return ReleaseDesk(
        run=runs.run_outputs("17"),
        run_store=DirectoryStore(folder / "runs"),
        bucket=DirectoryStore(folder / "bucket"),
        releases=DirectoryStore(folder / "releases"),
        folder=folder / "dist",
        capsys=capsys,
    )


def only_decision(store: Store) -> Decision:
    """Return the only decision in a store."""
    (stored_object,) = store.list(documents.DECISIONS)
    return documents.read(store, stored_object.key, Decision)


def etags_in(store: Store, prefix: str = "") -> dict[str, str]:
    """Return what a store holds: key to etag."""
    return {stored_object.key: stored_object.etag for stored_object in store.list(prefix)}
