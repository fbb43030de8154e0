"""Permanent indexes are compared with what is there."""

from pathlib import Path

import pytest

from ci.install.dependencies import mirror
from ci.publish.index import write_index
from ci.verbs.mirror_deps import source_of
from core.errors import MissingInputError, StoreError
from core.run import records
from core.run.records import Record
from core.stores.directory import DirectoryStore
from core.wheel.distributions import describe
from tests.kit import wheels
from tests.kit.front_doors import run_verb
from tests.kit.runs import STARTED


def check_indexes(store: Path, *options: str) -> int:
    return run_verb("ci", "check-indexes", "--store", store, *options)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one mirrored wheel, its record and its pages."""
    data = mirror()
    store = DirectoryStore(tmp_path / "store")
    wheel = wheels.write_wheel(tmp_path / "dist", name="numpy", version="2.1")
    file, sidecar = describe(wheel, key=f"{data.prefix}/{wheel.name}", sha256=wheels.sha256(wheel))
    store.put_file(file.key, wheel, sha256=file.sha256, replace=False)
    store.put_bytes(f"{file.key}.metadata", sidecar or b"")

    record = Record(
        stage="mirror_deps", run_id="local", platform="linux", started=STARTED, seconds=0, files=(file,)
    )
    store.put_bytes(f"{data.prefix}/manifests/mirror_deps-1.json", records.serialize(record))
    write_index(store, data.prefix, source_of(data, store), title="Dependencies")
    return store.root


def test_passes_pages_that_list_what_is_there(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_indexes(store) == 0

    assert str(store) in capsys.readouterr().err


@pytest.mark.parametrize("page", ["index.html", "simple/numpy/index.html"])
def test_names_a_lost_page_and_does_not_write_it(
    store: Path, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store / mirror().prefix / page
    path.unlink()

    assert check_indexes(store) == StoreError.exit_code

    assert f"{mirror().prefix}/{page}" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("page", ["index.html", "simple/numpy/index.html"])
def test_writes_a_lost_page_when_asked(store: Path, page: str) -> None:
    path = store / mirror().prefix / page
    path.unlink()

    assert check_indexes(store, "--write") == 0

    assert path.exists()
    assert check_indexes(store) == 0


@pytest.mark.parametrize("options", [(), ("--yank=torch==2", "--reason=x")])
def test_refuses_a_store_without_an_index(tmp_path: Path, options: tuple[str, ...]) -> None:
    empty_store = tmp_path / "empty"
    empty_store.mkdir()

    assert check_indexes(empty_store, *options) == MissingInputError.exit_code
