"""An upload that dies at any of its writes is run again, and ends as if nothing had happened."""

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
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
from core.stores.directory import DirectoryStore
from core.wheel import distributions

GROUP = "gfx110X-all"


class Death:
    """Ends a process at one of its writes: before it, and everything after it."""

    def __init__(self, at: int) -> None:
        self.at, self.writes, self._lock = at, 0, Lock()

    def write(self) -> None:
        with self._lock:
            self.writes += 1
            if 0 <= self.at < self.writes:
                raise KeyboardInterrupt


@dataclass(frozen=True)
class Mortal(DirectoryStore):
    death: Death

    def put_file(self, *words: Any, **named: Any) -> Any:
        self.death.write()
        return super().put_file(*words, **named)

    def put_bytes(self, *words: Any, **named: Any) -> Any:
        self.death.write()
        return super().put_bytes(*words, **named)

    def delete(self, key: str) -> None:
        self.death.write()
        super().delete(key)


def state(folder: Path) -> Mapping[str, object]:
    """Return everything that a store holds, but the times that records carry."""
    store = DirectoryStore(folder)
    found: dict[str, object] = {}
    for stored in store.list(""):
        data = store.read(stored.key)
        found[stored.key] = data
        if "/manifests/" in stored.key and "lock" not in stored.key:
            found[stored.key] = {**json.loads(data), "started": "", "seconds": 0}
    assert not [path for path in folder.rglob("*") if path.suffix == ".part"]
    return found


def require_whole(folder: Path, common: Common) -> None:
    """Whatever a record names is there as it says."""
    store = DirectoryStore(folder)
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


def deaths(
    monkeypatch: pytest.MonkeyPatch, root: Path, act: Callable[[Common], object]
) -> Iterator[tuple[int, Path]]:
    """Run something to its end, and then once for each of its writes, dying there and going on."""
    real, death, number = location.open_store, Death(-1), 0

    def open_store(place: str, *, root: Path, dry_run: bool = False) -> Any:
        if place.startswith("target"):
            return Mortal(root / place, death)
        return real(place, root=root, dry_run=dry_run)

    for module in (options, upload):
        monkeypatch.setattr(module, "open_store", open_store)
    act(Common(root=root, run_id="17", store="target"))
    total, whole = death.writes, state(root / "target")
    assert total >= 5
    for number in range(total):
        common = Common(root=root, run_id="17", store=f"target-{number}")
        death = Death(number)
        with pytest.raises(KeyboardInterrupt):
            act(common)
        require_whole(root / common.store, common)
        yield number, root / common.store
        death = Death(-1)
        act(common)
        assert state(root / common.store) == whole
        death = Death(0)
        act(common)  # and a third time there is nothing to write


def test_folders(mine: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _, folder in deaths(monkeypatch, tmp_path, lambda common: upload.upload_folders(common, mine, GROUP)):
        assert folder == tmp_path / folder.name


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

    for _, folder in deaths(monkeypatch, tmp_path, act):
        assert state(folder).keys() <= state(tmp_path / "target").keys()


def test_thirty_two_jobs_upload_into_one_prefix(tmp_path: Path, make_wheel: Callable[..., Path]) -> None:
    common = Common(root=tmp_path, run_id="17")
    folders = []
    for number in range(32):
        folder = tmp_path / f"job-{number}"
        make_wheel(folder / "dist", f"demo-{number}", "1.0")
        make_wheel(folder / "dist", "shared", "1.0")
        (folder / "logs").mkdir()
        (folder / "logs" / f"{number}.log").write_text("x")
        folders.append(Folders(wheels=folder, logs=folder / "logs"))
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda one: upload.upload_folders(common, one, GROUP), folders))
    store = common.open_store()
    listed = {one.key for one in store.list(common.outputs.python_prefix(GROUP)) if one.key.endswith(".whl")}
    promised = records.promised(records.read_all(store, common.outputs, GROUP))
    assert len(listed) == 33
    assert promised.keys() == listed
    assert len(store.list(common.outputs.logs_prefix(GROUP))) == 32
    require_whole(tmp_path / "out", common)
