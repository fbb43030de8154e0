"""An upload that was killed at any of its writes is completed by running it again."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ci.publish.folders import Folders, compare_folders
from ci.publish.local_files import Digests
from ci.publish.runs import SourceRun, compare_run
from ci.verbs import upload
from core.cli import options
from core.cli.options import Common
from core.run import records
from core.stores import Store, location
from core.stores.directory import DirectoryStore
from core.wheel import distributions
from tests.kit import repos, runs, stores, wheels
from tests.kit.memory_store import MemoryStore

GROUP = "gfx110X-all"
RUN = runs.run_outputs("17")
TARGET = "target"


def run_with(
    store: MemoryStore,
    action: Callable[[Common], object],
    root: Path,
    run_id: str = RUN.run_id,
) -> None:
    """Carry out an upload whose target is this store."""
    open_store = location.open_store

    def open_target(place: str, *, root: Path, dry_run: bool = False) -> Store:
        return store if place == TARGET else open_store(place, root=root, dry_run=dry_run)

    with pytest.MonkeyPatch.context() as patch:
        for module in (options, upload):
            patch.setattr(module, "open_store", open_target)
        action(Common(root=root, run_id=run_id, store=TARGET))


def contents(store: MemoryStore) -> Mapping[str, object]:
    """Return everything that a store holds, but the times that records carry."""
    documents: dict[str, object] = {}
    for key, content in store.objects.items():
        if "/manifests/" in key and "lock" not in key:
            documents[key] = {**json.loads(content), "started": "", "seconds": 0}
        else:
            documents[key] = content
    return documents


def require_recorded_files(store: MemoryStore) -> None:
    """Require that what a record names is there as it says."""
    for record in records.read_all(store, RUN, GROUP):
        for file in record.files:
            assert store.digest(file.key) == file.sha256
            if file.metadata_sha256:
                assert store.digest(f"{file.key}{distributions.SIDECAR}") == file.metadata_sha256


def require_completion(action: Callable[[Common], object], root: Path) -> None:
    """Kill an upload at each of its writes; require that the next one completes it."""

    def work(store: MemoryStore) -> None:
        run_with(store, action, root)

    start = MemoryStore(folder_pages=False)
    undisturbed = start.copy_of()
    work(undisturbed)
    assert undisturbed.writes >= 5
    assert stores.count_writes(undisturbed, work) == 0

    for moment, store in stores.interruptions(start, work):
        require_recorded_files(store)
        work(store)

        assert contents(store) == contents(undisturbed), f"killed {moment}"


@pytest.fixture
def build_outputs(tmp_path: Path) -> Folders:
    """Write wheels, logs and artifacts as a build leaves them."""
    folder = tmp_path / "mine"
    wheels.write_wheel(folder / "dist", name="torch", version="2.10.0")
    wheels.write_wheel(folder / "dist", name="apex", version="2.10.0")
    repos.write_files(folder / "logs", {"build.log": "build", "deep/test.log": "test"})
    artifacts = {"base_lib_generic.tar.zst": "base", "blas_lib_gfx110X-all.tar.zst": "blas"}
    repos.write_files(folder / "artifacts", artifacts)
    return Folders(wheels=folder, logs=folder / "logs", artifacts=folder / "artifacts")


def test_completes_an_upload_of_folders(build_outputs: Folders, tmp_path: Path) -> None:
    def upload_folders(common: Common) -> None:
        upload.put_all(common, compare_folders(common, build_outputs, GROUP))

    require_completion(upload_folders, tmp_path)


def test_completes_an_upload_that_replaces_a_wheel_of_the_local_run(tmp_path: Path) -> None:
    folder = tmp_path / "mine"

    def upload_folder(common: Common) -> None:
        upload.put_all(common, compare_folders(common, Folders(wheels=folder), GROUP))

    def work(store: MemoryStore) -> None:
        run_with(store, upload_folder, tmp_path, "local")

    start = MemoryStore(folder_pages=False)
    # Of both wheels the metadata has the same size.
    wheels.write_wheel(folder, requires=["numpy>=1"])
    work(start)
    wheels.write_wheel(folder, requires=["numpy>=2"])
    undisturbed = start.copy_of()
    work(undisturbed)

    for moment, store in stores.interruptions(start, work):
        work(store)

        assert contents(store) == contents(undisturbed), f"killed {moment}"


def test_completes_an_upload_of_a_run(tmp_path: Path) -> None:
    local_store = DirectoryStore(tmp_path / "out")
    for name in ("torch", "apex"):
        path = wheels.write_wheel(tmp_path / "built", name=name, version="2.10.0")
        runs.publish_files(local_store, RUN, [path], step=f"build_{name}", family=GROUP)
    local_store.put_bytes(f"{RUN.logs_prefix(GROUP)}/build_torch.log", b"log")
    local_store.put_bytes(f"{RUN.reports_prefix(GROUP)}/smoke.xml", b"<a/>")
    local_store.put_bytes(RUN.source_lock_key("nightly"), b"{}")
    source = SourceRun(store=local_store, outputs=RUN, cache=tmp_path / "fetched", digests=Digests())

    def upload_run(common: Common) -> None:
        upload.put_all(common, compare_run(common, source, upload.KINDS, ""))

    require_completion(upload_run, tmp_path)
