"""The pages of a run's wheels."""

import os
from pathlib import Path

import pytest

from ci.install.dependencies import mirror, source_of
from ci.publish.index import write_index
from ci.verbs import index
from core.cli.options import Common
from core.errors import MissingInputError, StoreError, UsageError
from core.run import RunOutputs, records
from core.run.records import Record
from core.stores import Store
from core.stores.directory import DirectoryStore
from core.stores.dry_run import DryRunStore
from core.wheel import distributions
from tests.kit import wheels
from tests.kit.front_doors import run_verb
from tests.kit.runs import STARTED, publish_files, write_record
from tests.kit.small_runs import GROUP, publish_wheel


def flat_page(store: Store, outputs: RunOutputs, group: str = GROUP) -> str:
    return store.read(f"{outputs.python_prefix(group)}/index.html").decode()


def has_page(store: Store, outputs: RunOutputs, group: str) -> bool:
    return store.find(f"{outputs.python_prefix(group)}/index.html") is not None


def test_lists_a_wheel_only_with_its_metadata(store: Store, outputs: RunOutputs, tmp_path: Path) -> None:
    wheel = publish_wheel(store, outputs, tmp_path)
    metadata = store.read(f"{wheel.key}.metadata")
    store.delete(f"{wheel.key}.metadata")
    sdist = wheels.write_sdist(tmp_path, name="rocm", version="7.1")
    publish_files(store, outputs, [sdist], step="build_rocm", family=GROUP)

    without_metadata = index.write_pages(store, outputs, GROUP)
    store.put_bytes(f"{wheel.key}.metadata", metadata)
    with_metadata = index.write_pages(store, outputs, GROUP)

    assert list(without_metadata.held_back_files) == [wheel.key]
    assert without_metadata.file_count == 1
    assert with_metadata.file_count == 2
    assert "metadata=" in flat_page(store, outputs)


def test_lists_an_sdist_without_metadata(store: Store, outputs: RunOutputs, tmp_path: Path) -> None:
    sdist = wheels.write_sdist(tmp_path, name="rocm", version="7.1")
    publish_files(store, outputs, [sdist], step="build_rocm", family=GROUP)

    index.write_pages(store, outputs, GROUP)

    page = flat_page(store, outputs)
    assert sdist.name in page
    assert "metadata=" not in page


def test_refuses_a_group_without_wheels(store: Store, outputs: RunOutputs) -> None:
    with pytest.raises(MissingInputError, match="no wheel or sdist"):
        index.write_pages(store, outputs, GROUP)


@pytest.fixture
def unrecorded(store: Store, outputs: RunOutputs, tmp_path: Path) -> str:
    """The key of a wheel that only a failed build names, beside one that is recorded."""
    publish_wheel(store, outputs, tmp_path)
    path = wheels.write_wheel(tmp_path, name="apex", version="1.10.0")
    apex = distributions.publish(store, outputs, GROUP, path)
    write_record(store, outputs, step="build_apex", family=GROUP, files=[apex], error="No.")
    return apex.key


def test_waits_for_the_record_of_a_new_wheel(store: Store, outputs: RunOutputs, unrecorded: str) -> None:
    indexed = index.write_pages(store, outputs, GROUP)

    assert list(indexed.held_back_files) == [unrecorded]
    assert "apex" not in flat_page(store, outputs)


def test_refuses_an_old_wheel_without_a_record(store: Store, outputs: RunOutputs, unrecorded: str) -> None:
    long_ago = 1e9
    os.utime(Path(store.url) / unrecorded, (long_ago, long_ago))

    with pytest.raises(StoreError) as caught:
        index.write_pages(store, outputs, GROUP)

    assert unrecorded in caught.value.message


def test_a_dry_run_names_pages_and_writes_none(
    store: Store, outputs: RunOutputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_wheel(store, outputs, tmp_path)
    keys = [stored.key for stored in store.list("")]

    index.write_pages(DryRunStore(store), outputs, GROUP)

    assert [stored.key for stored in store.list("")] == keys
    page = f"{store.url}/{outputs.python_prefix(GROUP)}/index.html"
    assert f"would write {page}" in capsys.readouterr().err


@pytest.fixture
def two_groups(store: Store, outputs: RunOutputs, tmp_path: Path, common: Common) -> list[str]:
    """Two groups of a run; return the options that name the run."""
    publish_wheel(store, outputs, tmp_path)
    publish_wheel(store, outputs, tmp_path, group="gfx942-gfx1100")
    return ["--run-id", common.run_id, "--store", store.url]


def test_indexes_the_chosen_group(store: Store, outputs: RunOutputs, two_groups: list[str]) -> None:
    assert run_verb("ci", "index", *two_groups, "--gpu-family", "gfx942;gfx1100") == 0

    assert has_page(store, outputs, "gfx942-gfx1100")
    assert not has_page(store, outputs, GROUP)


def test_indexes_every_group_and_tells_which_changed(
    store: Store, outputs: RunOutputs, two_groups: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb("ci", "index", *two_groups, "--gpu-family", "gfx942;gfx1100") == 0
    capsys.readouterr()

    assert run_verb("ci", "index", *two_groups) == 0

    assert has_page(store, outputs, GROUP)
    printed = capsys.readouterr().err
    assert "1 file, 5 pages written" in printed
    assert "unchanged, 1 file listed" in printed


# The pages that stay


def check_indexes(store: Path, *options: str) -> int:
    return run_verb("ci", "index", "--check", "--store", store, *options)


@pytest.fixture
def mirror_store(tmp_path: Path) -> Path:
    """A store with one mirrored wheel, its record and its pages."""
    data = mirror()
    store = DirectoryStore(tmp_path / "store")
    wheel = wheels.write_wheel(tmp_path / "dist", name="numpy", version="2.1")
    file, sidecar = distributions.describe(
        wheel, key=f"{data.prefix}/{wheel.name}", sha256=wheels.sha256(wheel)
    )
    store.put_file(file.key, wheel, sha256=file.sha256, replace=False)
    store.put_bytes(f"{file.key}.metadata", sidecar or b"")

    record = Record(
        stage="mirror_deps", run_id="local", platform="linux", started=STARTED, seconds=0, files=(file,)
    )
    store.put_bytes(f"{data.prefix}/manifests/mirror_deps-1.json", records.serialize(record))
    write_index(store, data.prefix, source_of(data, store), title="Dependencies")
    return store.root


def test_passes_pages_that_list_what_is_there(mirror_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_indexes(mirror_store) == 0

    assert str(mirror_store) in capsys.readouterr().err


@pytest.mark.parametrize("page", ["index.html", "simple/numpy/index.html"])
def test_names_a_lost_page_and_does_not_write_it(
    mirror_store: Path, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = mirror_store / mirror().prefix / page
    path.unlink()

    assert check_indexes(mirror_store) == StoreError.exit_code

    assert f"{mirror().prefix}/{page}" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("page", ["index.html", "simple/numpy/index.html"])
def test_writes_a_lost_page_when_asked(mirror_store: Path, page: str) -> None:
    path = mirror_store / mirror().prefix / page
    path.unlink()

    assert check_indexes(mirror_store, "--write") == 0

    assert path.exists()
    assert check_indexes(mirror_store) == 0


@pytest.mark.parametrize("options", [(), ("--yank=torch==2", "--reason=x")])
def test_refuses_a_store_without_an_index(tmp_path: Path, options: tuple[str, ...]) -> None:
    empty_store = tmp_path / "empty"
    empty_store.mkdir()

    assert check_indexes(empty_store, *options) == MissingInputError.exit_code


@pytest.mark.parametrize("option", ["--directory=wheels", "--artifact-group=gfx900", "--platform=linux"])
def test_a_check_refuses_options_of_a_run(
    mirror_store: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_indexes(mirror_store, option) == UsageError.exit_code

    assert f"{option.partition('=')[0]} has no effect with --check" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--write", "--yank=torch==2", "--remove=torch-2"])
def test_refuses_a_change_of_pages_that_stay_without_a_check(
    mirror_store: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb("ci", "index", "--store", mirror_store, option) == UsageError.exit_code

    assert f"{option.partition('=')[0]} has no effect without --check" in capsys.readouterr().err
