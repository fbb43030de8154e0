"""The verbs that stage, promote and repair releases, at work on a run's store and two buckets."""

import os
import shutil
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
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
from tests.kit.runs import RunContents

AREAS_OF_RELEASES = ("v2", documents.DECISIONS, documents.INTENTS)
# A folder in which a store appends digests to its files.
STORE_NOTES = ".digests"


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """The folder of a desk, and what many tests begin with there: made once, and put back for the others.

    Records name the addresses of stores, so all tests have the same folder, one after the other.
    """

    desk_folder: Path
    kept_folder: Path
    files: dict[Hashable, tuple[FileRecord, ...]] = field(default_factory=dict)
    folders: dict[Hashable, Path] = field(default_factory=dict)

    def make_once(
        self, content: Hashable, make: Callable[[], tuple[FileRecord, ...]]
    ) -> tuple[FileRecord, ...]:
        """Fill the empty folder by `make`, or with what it left there before; return its files."""
        if content in self.folders:
            link_tree(self.folders[content], self.desk_folder)
        else:
            self.files[content] = make()
            kept_folder = self.kept_folder / str(len(self.folders))
            link_tree(self.desk_folder, kept_folder)
            self.folders[content] = kept_folder
        return self.files[content]

    def is_desk_empty(self) -> bool:
        """Return whether a test has put nothing into the folder."""
        return not any(self.desk_folder.iterdir())

    def clear_desk(self) -> None:
        """Empty the folder for the next test."""
        shutil.rmtree(self.desk_folder)
        self.desk_folder.mkdir()


def link_tree(source: Path, target: Path) -> None:
    """Link the files of a tree into another one. Stores replace their objects, and write into none."""
    shutil.copytree(source, target, copy_function=link_file, dirs_exist_ok=True)


def link_file(source: str, target: str) -> None:
    """Link an object, with the times and the inode by which a store knows it; copy a store's own notes."""
    if STORE_NOTES in Path(source).parts:
        shutil.copy2(source, target)
    else:
        os.link(source, target)


@dataclass(frozen=True, kw_only=True)
class ReleaseDesk:
    """A run in its store, the bucket that it is staged and promoted in, and the bucket of releases.

    `folder` is where wheels are built; the verbs print to `capsys`.
    """

    snapshots: Snapshots
    run: RunOutputs
    run_store: Store
    bucket: Store
    releases: Store
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def with_run(self, run_id: str) -> "ReleaseDesk":
        """Return the same desk for another run in the same store."""
        return replace(self, run=runs.run_outputs(run_id))

    def publish(self, *families: str, contents: RunContents = runs.COMPLETE) -> tuple[FileRecord, ...]:
        """Build and test everything of these families; return the files."""

        def publish_families() -> tuple[FileRecord, ...]:
            files: list[FileRecord] = []
            for family in families:
                files += runs.publish_complete_run(
                    self.run_store,
                    self.run,
                    self.folder,
                    family=family,
                    contents=contents,
                )
            # Wheels that are written again would change those that the store has linked.
            shutil.rmtree(self.folder)
            return tuple(files)

        if not self.snapshots.is_desk_empty():
            return publish_families()
        return self.snapshots.make_once(("published", self.run.run_id, families, contents), publish_families)

    def stage_run(self, *families: str, contents: RunContents = runs.COMPLETE) -> tuple[FileRecord, ...]:
        """Publish everything of these families on an empty desk, and stage it; return the files."""

        def publish_and_stage() -> tuple[FileRecord, ...]:
            files = self.publish(*families, contents=contents)
            assert self.stage() == 0
            return files

        assert self.snapshots.is_desk_empty()
        return self.snapshots.make_once(("staged", self.run.run_id, families, contents), publish_and_stage)

    def promote_run(self, *families: str) -> tuple[FileRecord, ...]:
        """Publish everything of these families on an empty desk, stage and promote it; return the files."""

        def stage_and_promote() -> tuple[FileRecord, ...]:
            files = self.stage_run(*families)
            assert self.promote() == 0
            return files

        assert self.snapshots.is_desk_empty()
        return self.snapshots.make_once(("promoted", self.run.run_id, families), stage_and_promote)

    def release_run(
        self, *families: str, contents: RunContents, options: tuple[str, ...]
    ) -> tuple[FileRecord, ...]:
        """Publish a candidate on an empty desk, stage it and make a release of it; return its files."""

        def stage_and_release() -> tuple[FileRecord, ...]:
            files = self.stage_run(*families, contents=contents)
            assert self.release(*options) == 0
            return files

        assert self.snapshots.is_desk_empty()
        desk_contents = ("released", self.run.run_id, families, contents, options)
        return self.snapshots.make_once(desk_contents, stage_and_release)

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

    def rules(self) -> set[str]:
        """Return the rules by which the only decision in the bucket releases its cells."""
        return {ruling.rule for ruling in self.decision().rulings}

    def decision(self) -> Decision:
        """Return the only decision in the bucket."""
        return only_decision(self.bucket)


def open_desk(snapshots: Snapshots, capsys: pytest.CaptureFixture[str]) -> ReleaseDesk:
    """Return a desk whose stores are folders below that of these snapshots."""
    folder = snapshots.desk_folder
    return ReleaseDesk(
        snapshots=snapshots,
        run=runs.run_outputs("17"),
        run_store=DirectoryStore(folder / "runs"),
        bucket=DirectoryStore(folder / "bucket"),
        releases=DirectoryStore(folder / "releases"),
        folder=folder / "dist",
        capsys=capsys,
    )


def reasons_by_cell(error: str) -> dict[str, list[str]]:
    """Return the reasons of a refusal by the cell they stand below."""
    reasons: dict[str, list[str]] = {}
    cell = ""
    for line in error.splitlines():
        if line.startswith("    "):
            reasons[cell].append(line.strip())
        elif line.startswith("  "):
            cell = line.strip().removesuffix(":")
            reasons[cell] = []
    return reasons


def only_decision(store: Store) -> Decision:
    """Return the only decision in a store."""
    (stored_object,) = store.list(documents.DECISIONS)
    return documents.read(store, stored_object.key, Decision)


def keys_in(store: Store, prefix: str = "") -> list[str]:
    """Return the keys of a store below a prefix."""
    return [stored_object.key for stored_object in store.list(prefix)]


def by_distribution(files: Iterable[FileRecord]) -> dict[str, FileRecord]:
    """Return files by the names of their distributions."""
    return {file.distribution: file for file in files}


def etags_in(store: Store, prefix: str = "") -> dict[str, str]:
    """Return what a store holds: key to etag."""
    return {stored_object.key: stored_object.etag for stored_object in store.list(prefix)}
