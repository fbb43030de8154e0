import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest

from core.cli.options import ROOT, Common, add_common, add_store_names, common_from
from core.errors import UsageError
from core.run import Platform, this_platform
from core.stores.directory import DirectoryStore
from core.stores.dry_run import DryRunStore
from core.stores.overlay import OverlayStore

CI_BUCKET = "s3://therock-ci-artifacts"
SHARED_BUCKET = "s3://therock-ci-artifacts-external"

Variables = Mapping[str, str]


def parse(*command_line: str) -> Common:
    """Parse the common options."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_common(parser)
    add_store_names(parser)
    return common_from(parser.parse_args(command_line))


def set_variables(monkeypatch: pytest.MonkeyPatch, variables: Variables) -> None:
    """Set variables of the environment."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


# Words


def test_without_options_the_local_run_is_in_out() -> None:
    common = parse()

    assert common == Common()
    assert common.run_id == "local"
    assert common.store == "out"
    assert common.release_type == "ci"
    assert not common.outputs.immutable


@pytest.mark.parametrize(
    ("command_line", "mentioned"),
    [
        ("--torch-ref=a --torch-ref=b", ["--torch-ref", "'a'", "'b'"]),
        ("--gpu-family=cpu --amdgpu-family=gfx1100", ["'cpu'", "'gfx1100'"]),
        ("--store=a --bucket=b", ["--bucket", "'a'", "'s3://b'"]),
        ("--output-dir=a --store=b", ["--store", "'a'", "'b'"]),
    ],
)
def test_rejects_two_values_of_one_option(
    command_line: str, mentioned: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        parse(*command_line.split())

    output = capsys.readouterr().err
    assert all(name in output for name in mentioned)


def test_accepts_an_option_twice_with_one_value() -> None:
    assert parse("--torch-ref=a", "--gpu-family=cpu", "--torch-ref", "a").torch_ref == "a"


# Folders and stores


def test_a_stage_works_in_the_folders_of_the_checkout(tmp_path: Path) -> None:
    common = Common(root=tmp_path, run_id="17")

    assert common.outputs.prefix == f"17-{this_platform()}"
    assert common.open_store() == DirectoryStore(tmp_path / "out")
    assert common.cache == tmp_path / ".cache"
    assert (ROOT / "noxfile.py").is_file()


def test_a_dry_run_writes_nothing_into_the_store(tmp_path: Path) -> None:
    store = Common(root=tmp_path, dry_run=True).open_store()

    assert store == DryRunStore(DirectoryStore(tmp_path / "out"))


def test_reads_a_run_from_the_store_behind(tmp_path: Path) -> None:
    common = Common(root=tmp_path, run_id="17", read_store="behind")

    store = common.open_for_reading()

    assert isinstance(store, OverlayStore)
    assert store.store == common.open_store()
    assert store.behind == DirectoryStore(tmp_path / "behind")


def test_reads_a_run_from_its_store_where_none_is_behind(tmp_path: Path) -> None:
    assert Common(root=tmp_path).open_for_reading() == DirectoryStore(tmp_path / "out")


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "https://b.s3.amazonaws.com"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "http://127.0.0.1:9"),
        ({"AWS_ENDPOINT_URL": "http://x", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:8"}, "http://127.0.0.1:8"),
        ({"AWS_PROFILE": "mine"}, None),
    ],
    ids=["Amazon", "endpoint", "endpoint of S3", "profile"],
)
def test_knows_the_server_of_the_store_behind_before_it_is_opened(
    variables: Variables, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, variables)

    store = Common(run_id="17", read_store="s3://b").open_for_reading()

    assert isinstance(store, OverlayStore)
    assert store.endpoint == address
    assert store.location == "s3://b"


@pytest.mark.parametrize("platform", get_args(Platform))
@pytest.mark.parametrize("folder", ["{root}/short", "short"], ids=["path", "in the checkout"])
def test_source_trees_lie_where_the_options_say(tmp_path: Path, platform: Platform, folder: str) -> None:
    sources_dir = Path(folder.format(root=tmp_path))

    common = Common(root=tmp_path, platform=platform, sources_dir=sources_dir)

    assert common.sources == tmp_path / "short"


def test_source_trees_lie_in_the_checkout_on_linux(tmp_path: Path) -> None:
    assert Common(root=tmp_path, platform="linux").sources == tmp_path / "src"


def test_source_trees_have_short_paths_on_windows(tmp_path: Path) -> None:
    assert Common(root=tmp_path, platform="windows").sources == Path("C:/b")


def test_source_trees_lie_where_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCES_DIR", "B:/src")

    assert parse().sources_dir == Path("B:/src")


# Where a run is written and read


@pytest.mark.parametrize(
    ("command_line", "store", "read_store"),
    [
        # A run of CI is read from its bucket where out/ lacks it.
        ("", "out", ""),
        ("--run-id=mine", "out", ""),
        ("--run-id=17", "out", CI_BUCKET),
        ("--run-id=17 --store=out", "out", ""),
        ("--run-id=17 --store=auto", CI_BUCKET, ""),
        ("--run-id=17 --release-type=nightly", "out", "s3://therock-nightly-artifacts"),
        ("--run-id=17 --release-type=release", "out", ""),
        # A store has several names.
        ("--run-id=17 --store elsewhere", "elsewhere", ""),
        ("--run-id=17 --output-dir elsewhere", "elsewhere", ""),
        ("--run-id=17 --store s3://b", "s3://b", ""),
        ("--run-id=17 --bucket b", "s3://b", ""),
        ("--run-id=17 --store b --store b", "b", ""),
    ],
)
def test_a_run_of_the_main_repository_has_a_place(command_line: str, store: str, read_store: str) -> None:
    common = parse(*command_line.split())

    assert common.store == store
    assert common.read_store == read_store
    assert common.external_repo == ""


@pytest.mark.parametrize(
    ("command_line", "store", "read_store", "folder"),
    [
        ("", "out", "", ""),
        ("--run-id=17", "out", SHARED_BUCKET, "down-stream/"),
        ("--run-id=17 --store=out", "out", "", "down-stream/"),
        ("--run-id=17 --store=auto", SHARED_BUCKET, "", "down-stream/"),
        ("--run-id=17 --bucket=auto", "s3://auto", "", ""),
        (f"--run-id=17 --store={SHARED_BUCKET}", SHARED_BUCKET, "", "down-stream/"),
        ("--run-id=17 --store=s3://mine", "s3://mine", "", ""),
        ("--run-id=17 --store=auto --release-type=dev", "s3://therock-dev-artifacts", "", ""),
    ],
)
def test_a_run_of_another_repository_has_a_folder_of_the_shared_bucket(
    command_line: str, store: str, read_store: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "down/stream")

    common = parse(*command_line.split())

    assert common.store == store
    assert common.read_store == read_store
    assert common.external_repo == folder
    assert common.outputs.prefix.startswith(folder)


@pytest.mark.parametrize(
    ("run_store", "command_line", "store", "read_store", "folder"),
    [
        ("/runs", "--run-id=17", "out", "/runs", ""),
        (SHARED_BUCKET, "--run-id=17", "out", SHARED_BUCKET, "down-stream/"),
        ("/runs", "--run-id=17 --store=/other", "/other", "", ""),
        ("/runs", "", "out", "", ""),
    ],
    ids=["folder", "bucket", "named store", "local run"],
)
def test_a_workflow_says_where_its_runs_are_read(
    run_store: str,
    command_line: str,
    store: str,
    read_store: str,
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_variables(monkeypatch, {"GITHUB_REPOSITORY": "down/stream", "RUN_STORE": run_store})

    common = parse(*command_line.split())

    assert common.store == store
    assert common.read_store == read_store
    assert common.external_repo == folder


def test_a_rehearsal_is_read_where_the_workflow_says(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, {"GITHUB_REPOSITORY": "down/stream", "RUN_STORE": "/runs"})

    common = parse("--run-id=17", "--release-type=rehearsal")

    assert common.read_store == "/runs"


def test_a_relative_config_file_begins_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text("")
    monkeypatch.chdir(tmp_path)

    assert parse("--config-file=mine.toml").config_file == tmp_path / "mine.toml"


def test_the_local_run_has_no_bucket_of_ci() -> None:
    with pytest.raises(UsageError, match="--store auto"):
        parse("--store=auto")


def test_releases_have_no_bucket_of_ci() -> None:
    with pytest.raises(UsageError, match="'release'"):
        parse("--store=auto", "--run-id=17", "--release-type=release")


# Release types and variants


@pytest.mark.parametrize(
    ("command_line", "release_type"),
    [("", "nightly"), ("--release-type=dev", "dev")],
    ids=["variable", "option"],
)
def test_the_release_type_comes_from_the_option_or_the_job(
    command_line: str, release_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELEASE_TYPE", "nightly")

    assert parse(*command_line.split()).release_type == release_type


def test_rejects_an_unknown_release_type_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEASE_TYPE", "nigthly")

    with pytest.raises(UsageError) as raised:
        parse()

    assert "'nightly'" in str(raised.value)


@pytest.mark.parametrize(
    ("command_line", "variant", "group"),
    [
        ("--gpu-family=gfx94X-dcgpu;gfx1151 --build-variant=release", "", "gfx94X-dcgpu-gfx1151"),
        ("--gpu-family=gfx94X-dcgpu --build-variant=host-asan", "host-asan", "gfx94X-dcgpu-host-asan"),
        # No family stands for every group.
        ("--build-variant=asan", "asan", ""),
    ],
    ids=["plain", "variant", "no family"],
)
def test_a_build_variant_is_a_part_of_the_artifact_group(command_line: str, variant: str, group: str) -> None:
    common = parse(*command_line.split())

    assert common.build_variant == variant
    assert common.artifact_group == group


def test_rejects_a_build_variant_that_is_no_name() -> None:
    with pytest.raises(UsageError, match=r"\.\./asan"):
        parse("--build-variant=../asan")
