"""An upload that dies at any of its writes is run again, and ends as if nothing had happened."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.publish import wheels
from ci.publish.folders import Digests
from ci.verbs import upload
from ci.verbs.upload import Folders
from core.cli import options
from core.cli.options import Common
from core.run import records
from core.run.records import Record
from core.stores import location
from core.wheel import distributions
from tests.kit.memory_store import KilledError, MemoryStore
from tests.kit.stores import killed_at

GROUP = "gfx110X-all"


def state(store: MemoryStore) -> Mapping[str, object]:
    """Return everything that a store holds, but the times that records carry."""
    return {
        key: {**json.loads(data), "started": "", "seconds": 0}
        if "/manifests/" in key and "lock" not in key
        else data
        for key, data in store.objects.items()
    }


def require_whole(store: MemoryStore, common: Common) -> None:
    """Whatever a record names is there as it says."""
    for record in records.read_all(store, common.outputs, GROUP):
        for one in record.files:
            assert store.digest(one.key) == one.sha256
            if one.metadata_sha256:
                assert store.digest(f"{one.key}{distributions.SIDECAR}") == one.metadata_sha256


@pytest.fixture(name="mine")
def mine_fixture(tmp_path: Path, make_wheel: Callable[..., Path]) -> Folders:
    for name in ("torch", "apex", "triton"):
        make_wheel(tmp_path / "mine/dist", name, "2.10.0")
    for name in ("build.log", "deep/test.log"):
        path = tmp_path / "mine/logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    artifacts = tmp_path / "mine/artifacts"
    artifacts.mkdir()
    for name in ("base_lib_generic", "blas_lib_gfx110X-all"):
        (artifacts / f"{name}.tar.zst").write_text(name)
    mine = tmp_path / "mine"
    return Folders(wheels=mine, logs=mine / "logs", artifacts=artifacts)


def stopped(monkeypatch: pytest.MonkeyPatch, root: Path, act: Callable[[Common], object]) -> None:
    """Run something to its end, and then once for each of its writes, dying there and going on."""
    real, common = location.open_store, Common(root=root, run_id="17", store="target")
    store = undisturbed = MemoryStore(folder_pages=False)

    def open_store(place: str, *, root: Path, dry_run: bool = False) -> Any:
        return store if place == "target" else real(place, root=root, dry_run=dry_run)

    for module in (options, upload):
        monkeypatch.setattr(module, "open_store", open_store)
    act(common)
    assert undisturbed.writes >= 5
    for number in range(1, undisturbed.writes + 1):
        store = MemoryStore(folder_pages=False)
        killed_at(number, after=False)(store)
        with pytest.raises(KilledError):
            act(common)
        store = store.copy_of()
        require_whole(store, common)
        act(common)
        assert state(store) == state(undisturbed)
        killed_at(0, after=False)(store)
        act(common)  # and a third time there is nothing to write


def test_folders(mine: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(monkeypatch, tmp_path, lambda common: upload.upload_folders(common, mine, GROUP))


def test_a_run_from_out(
    tmp_path: Path,
    make_wheel: Callable[..., Path],
    record_of: Callable[..., Record],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Common(root=tmp_path, run_id="17")
    store, outputs = here.open_store(), here.outputs
    for name in ("torch", "apex"):
        one = distributions.publish(store, outputs, GROUP, make_wheel(tmp_path / "built", name, "2.10.0"))
        records.write(store, outputs, GROUP, record_of(one, stage=f"build_{name}"))
    store.put_bytes(f"{outputs.logs_prefix(GROUP)}/build_torch.log", b"log")
    store.put_bytes(f"{outputs.reports_prefix(GROUP)}/smoke.xml", b"<a/>")
    store.put_bytes(outputs.source_lock_key("nightly"), b"{}")
    source = wheels.Source(store=store, outputs=outputs)

    def act(common: Common) -> None:
        wheels.upload_run(common, source, upload.KINDS, "", Digests())

    stopped(monkeypatch, tmp_path, act)
