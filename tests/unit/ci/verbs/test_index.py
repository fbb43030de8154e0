"""The pages of a run's groups, and of the indexes that outlast runs."""

import os
from pathlib import Path

import pytest

from ci.install.dependencies import mirror, source_of
from ci.publish.index import IndexUpdate, write_index
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
from tests.kit.front_doors import run_ci
from tests.kit.runs import STARTED, publish_files, write_record
from tests.kit.small_runs import GROUP, publish_wheel
from tests.kit.stores import list_keys

OTHER_GROUP = "gfx942-gfx1100"
FAMILIES_OF_OTHER_GROUP = "gfx942;gfx1100"


def flat_page_key(outputs: RunOutputs, group: str = GROUP) -> str:
    return f"{outputs.python_prefix(group)}/index.html"


def read_flat_page(store: Store, outputs: RunOutputs) -> str:
    return store.read(flat_page_key(outputs)).decode()


def publish_sdist(store: Store, outputs: RunOutputs, folder: Path) -> str:
    """Put an sdist into the run, with the record of its build; return its file name."""
    sdist = wheels.write_sdist(folder, name="rocm", version="7.1")
    publish_files(store, outputs, [sdist], step="build_rocm", family=GROUP)
    return sdist.name


# The pages of a group


def write_pages(store: Store, outputs: RunOutputs) -> IndexUpdate:
    return index.write_pages(store, outputs, GROUP)


def test_holds_a_wheel_back_until_its_metadata_is_there(
    store: Store, outputs: RunOutputs, tmp_path: Path
) -> None:
    publish_sdist(store, outputs, tmp_path)
    wheel = publish_wheel(store, outputs, tmp_path)
    sidecar_key = f"{wheel.key}.metadata"
    metadata = store.read(sidecar_key)
    store.delete(sidecar_key)

    update = write_pages(store, outputs)

    assert list(update.held_back_files) == [wheel.key]
    assert update.file_count == 1

    store.put_bytes(sidecar_key, metadata)

    assert write_pages(store, outputs).file_count == 2
    assert "metadata=" in read_flat_page(store, outputs)


def test_lists_an_sdist_without_metadata(store: Store, outputs: RunOutputs, tmp_path: Path) -> None:
    filename = publish_sdist(store, outputs, tmp_path)

    write_pages(store, outputs)

    page = read_flat_page(store, outputs)
    assert filename in page
    assert "metadata=" not in page


def test_refuses_a_group_without_wheels(store: Store, outputs: RunOutputs) -> None:
    with pytest.raises(MissingInputError, match="no wheel or sdist"):
        write_pages(store, outputs)


@pytest.fixture
def unrecorded_key(store: Store, outputs: RunOutputs, tmp_path: Path) -> str:
    """The key of a wheel that only a failed build names, beside one that is recorded."""
    publish_wheel(store, outputs, tmp_path)
    path = wheels.write_wheel(tmp_path, name="apex", version="1.10.0")
    apex = distributions.publish(store, outputs, GROUP, path)
    write_record(store, outputs, step="build_apex", family=GROUP, files=[apex], error="No.")
    return apex.key


def test_waits_for_the_record_of_a_new_wheel(store: Store, outputs: RunOutputs, unrecorded_key: str) -> None:
    update = write_pages(store, outputs)

    assert list(update.held_back_files) == [unrecorded_key]
    assert "apex" not in read_flat_page(store, outputs)


def test_refuses_an_old_wheel_without_a_record(
    store: Store, outputs: RunOutputs, unrecorded_key: str
) -> None:
    long_ago = 1e9
    os.utime(Path(store.url) / unrecorded_key, (long_ago, long_ago))

    with pytest.raises(StoreError) as raised:
        write_pages(store, outputs)

    assert unrecorded_key in raised.value.message


def test_a_dry_run_names_pages_and_writes_none(
    store: Store, outputs: RunOutputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_wheel(store, outputs, tmp_path)
    keys_before = list_keys(store)

    write_pages(DryRunStore(store), outputs)

    assert list_keys(store) == keys_before
    page = f"{store.url}/{flat_page_key(outputs)}"
    assert f"would write {page}" in capsys.readouterr().err


# Several groups


@pytest.fixture
def options_of_run(store: Store, outputs: RunOutputs, tmp_path: Path, common: Common) -> list[str]:
    """The options that name a run of two groups."""
    publish_wheel(store, outputs, tmp_path)
    publish_wheel(store, outputs, tmp_path, group=OTHER_GROUP)
    return ["--run-id", common.run_id, "--store", store.url]


def test_indexes_only_the_group_of_the_named_families(
    store: Store, outputs: RunOutputs, options_of_run: list[str]
) -> None:
    assert run_ci("index", *options_of_run, "--gpu-family", FAMILIES_OF_OTHER_GROUP) == 0

    keys = list_keys(store)
    assert flat_page_key(outputs, OTHER_GROUP) in keys
    assert flat_page_key(outputs, GROUP) not in keys


def test_indexes_every_group_and_says_which_changed(
    store: Store, outputs: RunOutputs, options_of_run: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_ci("index", *options_of_run, "--gpu-family", FAMILIES_OF_OTHER_GROUP) == 0
    capsys.readouterr()

    assert run_ci("index", *options_of_run) == 0

    assert flat_page_key(outputs, GROUP) in list_keys(store)
    report = capsys.readouterr().err
    assert "1 file, 5 pages written" in report
    assert "unchanged, 1 file listed" in report


# Indexes that outlast runs


def check_indexes(store: Path, *options: str) -> int:
    """Check the pages of a store; return the exit code."""
    return run_ci("index", "--check", "--store", store, *options)


@pytest.fixture
def mirror_store(tmp_path: Path) -> Path:
    """A store with one mirrored wheel, its record and its pages."""
    store = DirectoryStore(tmp_path / "store")
    data = mirror()

    wheel = wheels.write_wheel(tmp_path / "dist", name="numpy", version="2.1")
    digest = wheels.sha256(wheel)
    file, sidecar = distributions.describe(wheel, key=f"{data.prefix}/{wheel.name}", sha256=digest)
    assert sidecar is not None
    store.put_file(file.key, wheel, sha256=digest, replace=False)
    store.put_bytes(f"{file.key}.metadata", sidecar)

    record = Record(
        stage="mirror_deps",
        run_id="local",
        platform="linux",
        started=STARTED,
        seconds=0,
        files=(file,),
    )
    store.put_bytes(f"{data.prefix}/manifests/mirror_deps-1.json", records.serialize(record))

    write_index(store, data.prefix, source_of(data, store), title="Dependencies")
    return store.root


EACH_LOST_PAGE = pytest.mark.parametrize(
    "path",
    [f"{mirror().prefix}/index.html", f"{mirror().prefix}/simple/numpy/index.html"],
    ids=["flat page", "page of a project"],
)


def test_accepts_pages_that_list_what_the_store_has(
    mirror_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_indexes(mirror_store) == 0

    assert str(mirror_store) in capsys.readouterr().err


@EACH_LOST_PAGE
def test_names_a_lost_page_and_does_not_write_it(
    mirror_store: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = mirror_store / path
    page.unlink()

    assert check_indexes(mirror_store) == StoreError.exit_code

    assert path in capsys.readouterr().err
    assert not page.exists()


@EACH_LOST_PAGE
def test_writes_a_lost_page_when_asked(mirror_store: Path, path: str) -> None:
    page = mirror_store / path
    page.unlink()

    assert check_indexes(mirror_store, "--write") == 0

    assert page.exists()
    assert check_indexes(mirror_store) == 0


@pytest.mark.parametrize(
    "options",
    [(), ("--yank=torch==2", "--reason=x")],
    ids=["check", "yank"],
)
def test_refuses_a_store_without_an_index(tmp_path: Path, options: tuple[str, ...]) -> None:
    empty_store = tmp_path / "empty"
    empty_store.mkdir()

    assert check_indexes(empty_store, *options) == MissingInputError.exit_code


@pytest.mark.parametrize(
    ("option", "value"),
    [("--directory", "wheels"), ("--artifact-group", "gfx900"), ("--platform", "linux")],
)
def test_a_check_refuses_options_of_a_run(
    mirror_store: Path, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_indexes(mirror_store, option, value) == UsageError.exit_code

    assert f"{option} has no effect with --check" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "argument"),
    [("--write", "--write"), ("--yank", "--yank=torch==2"), ("--remove", "--remove=torch-2")],
    ids=["write", "yank", "remove"],
)
def test_refuses_to_change_indexes_without_a_check(
    mirror_store: Path, option: str, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_ci("index", "--store", mirror_store, argument) == UsageError.exit_code

    assert f"{option} has no effect without --check" in capsys.readouterr().err
