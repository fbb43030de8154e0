"""Permanent indexes are compared with what is there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.install.dependencies import mirror
from ci.publish.index import write_index
from ci.verbs.mirror_deps import source_of
from core import files
from core.run import records
from core.run.records import Record
from core.stores.directory import DirectoryStore
from core.wheel.distributions import describe
from tests.kit.front_doors import run_ci


def door(store: Path, *words: str) -> int:
    return run_ci("check-indexes", "--store", str(store), *words)


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path, make_wheel: Callable[..., Path]) -> Path:
    """A store with one mirrored wheel, its record and its pages."""
    store, data = DirectoryStore(tmp_path / "store"), mirror()
    wheel = make_wheel(tmp_path / "dist", "numpy", "2.1")
    made, sidecar = describe(wheel, key=f"{data.prefix}/{wheel.name}", sha256=files.sha256(wheel))
    store.put_file(made.key, wheel, sha256=made.sha256, replace=False)
    store.put_bytes(f"{made.key}.metadata", sidecar or b"")
    facts: dict[str, Any] = {"run_id": "local", "platform": "linux", "started": records.now(), "seconds": 0}
    record = Record(stage="mirror_deps", files=(made,), **facts)
    store.put_bytes(f"{data.prefix}/manifests/mirror_deps-1.json", records.serialize(record))
    write_index(store, data.prefix, source_of(data, store), title="Dependencies")
    return tmp_path / "store"


def test_pages_that_list_what_is_there_pass(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert door(store) == 0
    assert f"the pages of {store} list what is there" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["index.html", "simple/numpy/index.html"])
def test_a_lost_page_is_named_and_left(store: Path, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = store / mirror().prefix / page
    path.unlink()
    assert door(store) != 0
    assert f"{mirror().prefix}/{page} is not what it should be" in capsys.readouterr().err
    assert not path.exists()
    assert door(store, "--write") == 0
    assert f"1 page written in {store}" in capsys.readouterr().err
    assert path.exists()
    assert door(store) == 0


def test_a_store_without_an_index_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store").mkdir()
    for words in ((), ("--yank=torch==2", "--reason=x")):
        assert door(tmp_path / "store", *words) != 0
        assert "no index that stays" in capsys.readouterr().err
