from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core.env.installer import Sources
from core.errors import MissingInputError, RocmError, UsageError
from core.packages import sources
from core.packages.sources import PackageSource, SourceOptions
from pytorch_build.rocm import (
    RocmOptions,
    add_rocm_options,
    find_source,
    find_version,
    packages_of,
    rocm_options_from,
)
from rocm_packaging.rocm_sources import RocmSource, release_index_url

if TYPE_CHECKING:
    from collections.abc import Callable

ROCM = "7.99.0.dev0+sample"
NONE = RocmOptions()


def options(**named: Any) -> RocmOptions:
    return RocmOptions(source=SourceOptions(prefix="--rocm-", **named))


@pytest.fixture(autouse=True)
def _configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "configured", Sources)


@pytest.fixture
def folder(tmp_path: Path, make_wheel: Callable[..., Path]) -> str:
    """A folder with ROCm in two versions, the newer one split."""
    made = tmp_path / "links"
    for name in ("rocm", "rocm-sdk-core", "rocm-sdk-devel"):
        for version in ("7.1.0", "7.2.0"):
            make_wheel(made, name, version)
    make_wheel(made, "rocm-sdk-libraries", "7.2.0")
    make_wheel(made, "rocm-sdk-libraries-gfx94x-dcgpu", "7.1.0")
    return str(made)


def test_a_source_says_which_layout_it_has(run: Any, folder: str) -> None:
    assert find_source(run.context(), options(find_links=(folder,)), "7.2.0").layout == "split"
    assert find_source(run.context(), options(find_links=(folder,)), "7.1.0").layout == "unsplit"
    with pytest.raises(RocmError, match=r"has no ROCm 7\.3\.0 libraries for gfx94X-dcgpu"):
        find_source(run.context(), options(find_links=(folder,)), "7.3.0")


def test_an_images_rocm_is_of_the_version_that_the_lock_says(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = RocmSource(version="7.1.0", packages=PackageSource(installed=Path("/opt/python")))
    monkeypatch.setattr("pytorch_build.rocm._installed", lambda _: here)
    chosen = options(no_install=True)
    assert find_version(run.context(), chosen) == "7.1.0"
    assert find_source(run.context(), chosen, "7.1.0") is here
    with pytest.raises(
        MissingInputError, match=r"says ROCm 7\.2\.0; what /opt/python has installed is 7\.1\.0"
    ):
        find_source(run.context(), chosen, "7.2.0")


def test_a_workflow_says_by_a_variable_that_the_image_has_rocm() -> None:
    parser = argparse.ArgumentParser()
    add_rocm_options(parser)
    env = {"ROCM_PACKAGE_NO_INSTALL": "1"}
    assert rocm_options_from(parser.parse_args([]), env).source.no_install
    assert rocm_options_from(parser.parse_args(["--rocm-no-install"])).source.no_install
    assert not rocm_options_from(parser.parse_args(["--rocm-find-links=/x"]), env).source.no_install


def test_options_are_parsed_once() -> None:
    parser = argparse.ArgumentParser()
    add_rocm_options(parser)
    words = ["--rocm-index-url", "https://a", "--index-url", "https://b", "--rocm-find-links", "/c"]
    found = rocm_options_from(parser.parse_args([*words, "--rocm-extras", "profiler,,device-gfx942"]))
    assert found.source.index_urls == ("https://a", "https://b")
    assert found.source.find_links == ("/c",)
    assert found.extras == ("profiler", "device-gfx942")
    assert rocm_options_from(parser.parse_args([])) == NONE


def test_family_cpu_has_no_rocm_even_where_a_version_is_given(run: Any) -> None:
    assert find_version(run.context("cpu"), options(version="7.1.0")) == ""


def test_a_given_version_comes_before_the_refs_own(run: Any) -> None:
    assert find_version(run.context(), options(version="7.1.0")) == "7.1.0"
    assert find_version(run.context(), NONE) == ROCM


def test_the_newest_is_that_of_named_sources_then_of_the_run(run: Any, folder: str) -> None:
    run.rocm("7.1.5")
    assert find_version(run.context(ref="nightly"), NONE) == "7.1.5"
    assert find_version(run.context(ref="nightly"), options(find_links=(folder,))) == "7.2.0"


def test_without_anything_the_familys_release_index_is_asked(run: Any) -> None:
    assert packages_of(run.context("gfx110X-all", ref="nightly"), NONE).index_urls == (
        release_index_url("", "gfx110X-all"),
    )
    dev = packages_of(run.context("gfx110X-all", ref="nightly"), options(index_name="dev"))
    assert dev.index_urls == (release_index_url("dev", "gfx110X-all"),)
    with pytest.raises(UsageError):
        packages_of(run.context(ref="nightly"), options(index_name="no-such-index"))


def test_the_runs_outputs_are_found_with_their_digests_and_nothing_else(run: Any) -> None:
    put = run.rocm()
    run.rocm(ROCM, group="gfx110X-all")
    run.built("torch")
    source = find_source(run.context(), NONE, ROCM)
    assert dict(source.digests) == {one.name: one.sha256 for one in put}
    assert "run local" in source.origin


def test_outputs_of_another_version_are_refused(run: Any) -> None:
    run.rocm("7.1.0")
    with pytest.raises(MissingInputError, match=r"says ROCm 7\.2\.0;.*holds 7\.1\.0") as caught:
        find_source(run.context(ref="nightly"), NONE, "7.2.0")
    # the hint's command exists as written
    assert "(nox -s resolve)" in caught.value.hint
    assert "nox -s build_rocm" in caught.value.hint


def test_the_samples_rocm_is_on_no_index(run: Any) -> None:
    run.rocm(run_id="77")
    with pytest.raises(MissingInputError) as caught:
        find_source(run.context(), NONE, ROCM)
    assert "nox -s build_rocm -- --torch-ref sample --gpu-family gfx94X-dcgpu" in caught.value.hint
    assert find_source(run.context(run_id="77"), NONE, ROCM).version == ROCM
    named = options(run_id="77", store=str(run.root / "out"))
    assert find_source(run.context(), named, ROCM).version == ROCM
