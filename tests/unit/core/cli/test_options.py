import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

from core.cli.options import ROOT, Common, add_common, add_store_names, common_from
from core.errors import UsageError
from core.run import this_platform
from core.stores.directory import DirectoryStore
from core.stores.location import DryRunStore, OverlayStore


def parsed(*words: str) -> Common:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_common(parser)
    add_store_names(parser)
    return common_from(parser.parse_args(words))


def test_without_options_the_local_run_in_out_is_meant() -> None:
    assert parsed() == Common()
    assert (parsed().run_id, parsed().store, parsed().release_type) == ("local", "out", "ci")
    assert not parsed().outputs.immutable


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--torch-ref=a", "--torch-ref=b"), "--torch-ref is 'a' here and cannot be 'b' too"),
        (("--gpu-family=cpu", "--amdgpu-family=gfx1100"), "is 'cpu' here and cannot be 'gfx1100' too"),
        (("--store=a", "--bucket=b"), "--bucket is 'a' here and cannot be 's3://b' too"),
        (("--output-dir=a", "--store=b"), "--store is 'a' here and cannot be 'b' too"),
    ],
)
def test_conflicts_are_refused(words: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        parsed(*words)
    assert said in capsys.readouterr().err


def test_a_cells_options_may_be_repeated() -> None:
    assert parsed("--torch-ref=a", "--gpu-family=cpu", "--torch-ref", "a").torch_ref == "a"


def test_what_a_stage_works_on_follows_from_its_options(tmp_path: Path) -> None:
    common = Common(root=tmp_path, run_id="17")
    assert common.outputs.prefix == f"17-{this_platform()}"
    assert common.open_store() == DirectoryStore(tmp_path / "out")
    assert Common(root=tmp_path, dry_run=True).open_store() == DryRunStore(DirectoryStore(tmp_path / "out"))
    assert (common.sources, common.cache) == (tmp_path / "src", tmp_path / ".cache")
    assert (ROOT / "noxfile.py").is_file()


MAIN, SHARED = "s3://therock-ci-artifacts", "s3://therock-ci-artifacts-external"


DOWN = {"GITHUB_REPOSITORY": "down/stream"}


@pytest.mark.parametrize(
    ("env", "words", "expected"),
    [
        # a run of CI is read from its bucket where out/ lacks it
        ({}, "", ("out", "", "")),
        ({}, "--run-id=mine", ("out", "", "")),
        ({}, "--run-id=17", ("out", MAIN, "")),
        ({}, "--run-id=17 --store=out", ("out", "", "")),
        ({}, "--run-id=17 --store=auto", (MAIN, "", "")),
        ({}, "--run-id=17 --release-type=nightly", ("out", "s3://therock-nightly-artifacts", "")),
        ({}, "--run-id=17 --release-type=release", ("out", "", "")),
        # a store has several names, and the last one counts
        ({}, "--run-id=17 --store elsewhere", ("elsewhere", "", "")),
        ({}, "--run-id=17 --output-dir elsewhere", ("elsewhere", "", "")),
        ({}, "--run-id=17 --store s3://b", ("s3://b", "", "")),
        ({}, "--run-id=17 --bucket b", ("s3://b", "", "")),
        ({}, "--run-id=17 --store b --store b", ("b", "", "")),
        # another repository's runs lie in its own folder
        (DOWN, "", ("out", "", "")),
        (DOWN, "--run-id=17", ("out", SHARED, "down-stream/")),
        (DOWN, "--run-id=17 --store=out", ("out", "", "down-stream/")),
        (DOWN, "--run-id=17 --store=auto", (SHARED, "", "down-stream/")),
        (DOWN, "--run-id=17 --bucket=auto", ("s3://auto", "", "")),
        (DOWN, f"--run-id=17 --store={SHARED}", (SHARED, "", "down-stream/")),
        (DOWN, "--run-id=17 --store=s3://mine", ("s3://mine", "", "")),
        (DOWN, "--run-id=17 --store=auto --release-type=dev", ("s3://therock-dev-artifacts", "", "")),
        # a workflow says where its runs are read
        ({**DOWN, "RUN_STORE": "/runs"}, "--run-id=17", ("out", "/runs", "")),
        ({**DOWN, "RUN_STORE": SHARED}, "--run-id=17", ("out", SHARED, "down-stream/")),
        ({**DOWN, "RUN_STORE": "/runs"}, "--run-id=17 --store=/other", ("/other", "", "")),
        ({**DOWN, "RUN_STORE": "/runs"}, "", ("out", "", "")),
    ],
)
def test_where_a_run_is_written_and_read(
    env: dict[str, str], words: str, expected: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    found = parsed(*words.split())
    assert (found.store, found.read_store, found.external_repo) == expected
    assert found.outputs.prefix.startswith(expected[2])


def test_the_local_run_has_no_bucket_of_ci() -> None:
    with pytest.raises(UsageError, match="--store auto is for runs of CI"):
        parsed("--store=auto")
    with pytest.raises(UsageError, match="No bucket holds artifacts of release type 'release'"):
        parsed("--store=auto", "--run-id=17", "--release-type=release")


def test_the_release_type_comes_from_ci_and_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEASE_TYPE", "nightly")
    assert parsed().release_type == "nightly"
    assert parsed("--release-type=dev").release_type == "dev"
    monkeypatch.setenv("RELEASE_TYPE", "nigthly")
    with pytest.raises(UsageError, match="Did you mean 'nightly'"):
        parsed()


def test_reading_goes_through_to_the_store_behind(tmp_path: Path) -> None:
    common = Common(root=tmp_path, run_id="17", read_store="behind")
    store = common.open_for_reading()
    assert isinstance(store, OverlayStore)
    assert (store.store, store.behind) == (common.open_store(), DirectoryStore(tmp_path / "behind"))
    assert Common(root=tmp_path).open_for_reading() == DirectoryStore(tmp_path / "out")
    assert Common(store="s3://b").outputs.bucket == "b"


@pytest.mark.parametrize(
    ("env", "address"),
    [
        ({}, "https://b.s3.amazonaws.com"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "http://127.0.0.1:9"),
        ({"AWS_ENDPOINT_URL": "http://x", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:8"}, "http://127.0.0.1:8"),
        ({"AWS_PROFILE": "mine"}, ""),
    ],
)
def test_whom_the_store_behind_talks_to_is_known_before_it_is_opened(
    env: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    store = Common(run_id="17", read_store="s3://b").open_for_reading()
    assert isinstance(store, OverlayStore)
    assert (store.address, store.where) == (address, "s3://b")


def test_trees_have_short_paths_or_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Common(root=tmp_path, platform="linux").sources == tmp_path / "src"
    assert Common(root=tmp_path, platform="windows").sources == Path("C:/b")
    monkeypatch.setenv("SOURCES_DIR", "B:/src")
    assert parsed().sources_dir == Path("B:/src")
    given = Common(root=tmp_path, platform="windows", sources_dir=tmp_path / "short")
    assert given.sources == tmp_path / "short"
    assert Common(root=tmp_path, sources_dir=Path("short")).sources == tmp_path / "short"


def test_a_build_variant_is_part_of_the_artifact_group() -> None:
    plain = parsed("--gpu-family=gfx94X-dcgpu;gfx1151", "--build-variant=release")
    assert (plain.build_variant, plain.artifact_group) == ("", "gfx94X-dcgpu-gfx1151")
    asan = parsed("--gpu-family=gfx94X-dcgpu", "--build-variant=host-asan")
    assert (asan.build_variant, asan.artifact_group) == ("host-asan", "gfx94X-dcgpu-host-asan")
    # no family stands for every group
    assert parsed("--build-variant=asan").artifact_group == ""
    with pytest.raises(UsageError, match="invalid name"):
        parsed("--build-variant=../asan")
