from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import pytest

from core import process
from core.errors import MissingInputError, ProcessError, RocmError, UsageError
from core.installer import Sources
from core.process import Completed
from pytorch_build.rocm.options import (
    RocmOptions,
    add_rocm_options,
    find_source,
    find_version,
    rocm_options_from,
)
from rocm_packaging import sources
from rocm_packaging.sources import release_index_url

if TYPE_CHECKING:
    from pathlib import Path

ROCM = "7.99.0.dev0+sample"
NONE = RocmOptions()


@pytest.fixture(autouse=True)
def _configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "configured", lambda: Sources(cert="/ca.pem"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Answer for `pip index versions`, and keep what was asked."""
    calls: list[list[str]] = []

    def capture(argv: list[str], **_: Any) -> Completed:
        calls.append(argv)
        said = "rocm (7.2.0a20250102)\nAvailable versions: 7.2.0a20250102, 7.1.0\n"
        return Completed(returncode=0, stdout=said, stderr="")

    monkeypatch.setattr(process, "capture", capture)
    return calls


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Return what `pip index versions` finds: versions by distribution."""
    known: dict[str, list[str]] = {}

    def capture(argv: list[str], **_: Any) -> Completed:
        if argv[-1] not in known:
            said = f"ERROR: No matching distribution found for {argv[-1]}"
            raise ProcessError("pip ended with status 1", output=said)
        versions = known[argv[-1]]
        said = f"{argv[-1]} ({versions[0]})\nAvailable versions: {', '.join(versions)}\n"
        return Completed(returncode=0, stdout=said, stderr="")

    monkeypatch.setattr(process, "capture", capture)
    return known


def test_a_source_says_which_layout_it_has(run: Any, held: dict[str, list[str]]) -> None:
    links = RocmOptions(find_links=("/w",))
    held |= {"rocm-sdk-libraries": ["7.2.0"], "rocm-sdk-libraries-gfx94x-dcgpu": ["7.1.0"]}
    assert find_source(run.context(), links, "7.2.0").layout == "split"
    assert find_source(run.context(), links, "7.1.0").layout == "unsplit"
    with pytest.raises(RocmError, match=r"/w has no ROCm 7\.3\.0 libraries for gfx94X-dcgpu"):
        find_source(run.context(), links, "7.3.0")
    held["rocm-sdk-libraries"].append("7.1.0")
    with pytest.raises(RocmError, match="both layouts: rocm-sdk-libraries, rocm-sdk-libraries-gfx94x-dcgpu"):
        find_source(run.context(), links, "7.1.0")


def test_a_source_that_does_not_answer_is_not_taken_for_one_without_packages(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "WARNING: Retrying\nERROR: No matching distribution found for rocm-sdk-libraries"

    def capture(_argv: list[str], **_: Any) -> Completed:
        raise ProcessError("pip ended with status 1", output=said)

    monkeypatch.setattr(process, "capture", capture)
    with pytest.raises(ProcessError):
        find_source(run.context(), RocmOptions(find_links=("/w",)), "7.1.0")


def parsed(*words: str) -> RocmOptions:
    parser = argparse.ArgumentParser()
    add_rocm_options(parser)
    return rocm_options_from(parser.parse_args(words))


def test_sources_may_be_given_together_and_several_times() -> None:
    words = ["--rocm-index-url", "https://a", "--index-url", "https://b", "--rocm-find-links", "/c"]
    options = parsed(*words, "--find-links", "/d", "--rocm-extras", "profiler,,device-gfx942")
    assert options.index_urls == ("https://a", "https://b")
    assert options.find_links == ("/c", "/d")
    assert options.extras == ("profiler", "device-gfx942")
    assert parsed() == NONE


INPUTS = {
    "ROCM_PACKAGE_INDEX_URL": "",
    "ROCM_PACKAGE_FIND_LINKS_URL": "https://page/index.html",
    "ROCM_PACKAGE_VERSION": "7.10.0",
}


def from_inputs(*words: str) -> RocmOptions:
    parser = argparse.ArgumentParser()
    add_rocm_options(parser)
    return rocm_options_from(parser.parse_args(words), INPUTS)


def test_a_workflows_inputs_say_where_rocm_comes_from() -> None:
    options = from_inputs("--rocm-index-url=", "--rocm-find-links=")
    assert (options.index_urls, options.find_links) == ((), ("https://page/index.html",))
    assert options.version == "7.10.0"


def test_options_come_before_a_workflows_inputs() -> None:
    options = from_inputs("--rocm-index-url=https://mine", "--rocm-version=7.11.0")
    assert (options.index_urls, options.find_links) == (("https://mine",), ())
    assert options.version == "7.11.0"
    assert from_inputs("--rocm-index=nightly").find_links == ()


def test_family_cpu_has_no_rocm_even_where_a_version_is_given(run: Any) -> None:
    assert find_version(run.context("cpu"), RocmOptions(version="7.1.0")) == ""


def test_a_given_version_comes_before_the_refs_own(run: Any) -> None:
    assert find_version(run.context(), RocmOptions(version="7.1.0")) == "7.1.0"
    assert find_version(run.context(), NONE) == ROCM


def test_a_runs_outputs_name_the_version_before_the_release_index(run: Any, asked: list[list[str]]) -> None:
    run.rocm("7.1.0")
    assert find_version(run.context(ref="nightly"), NONE) == "7.1.0"
    assert asked == []
    named = RocmOptions(index_urls=("https://a",))
    assert find_version(run.context(ref="nightly"), named) == "7.2.0a20250102"


def test_the_newest_of_named_sources_is_asked_of_them_alone(run: Any, asked: list[list[str]]) -> None:
    options = RocmOptions(index_urls=("https://a", "https://b"), find_links=("/links",))
    assert find_version(run.context(ref="nightly"), options) == "7.2.0a20250102"
    (argv,) = asked
    assert argv[:4] == [sys.executable, "-m", "pip", "--isolated"]
    assert argv[argv.index("--index-url") + 1] == "https://a"
    assert argv[argv.index("--extra-index-url") + 1] == "https://b"
    assert argv[argv.index("--find-links") + 1] == "/links"
    assert argv[argv.index("--cert") + 1] == "/ca.pem"
    assert argv[-1] == "rocm"


def test_find_links_alone_ask_no_index(run: Any, asked: list[list[str]]) -> None:
    find_version(run.context(ref="nightly"), RocmOptions(find_links=("/links",)))
    assert "--no-index" in asked[0]
    assert "--index-url" not in asked[0]


def test_without_anything_the_familys_release_index_is_asked(run: Any, asked: list[list[str]]) -> None:
    find_version(run.context("gfx110X-all", ref="nightly"), RocmOptions(index="dev"))
    url = asked[0][asked[0].index("--index-url") + 1]
    assert url == release_index_url("dev", "gfx110X-all")


def test_sources_without_a_version_are_an_error_that_names_them(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_argv: list[str], **_: Any) -> Completed:
        raise ProcessError("pip ended with status 1")

    monkeypatch.setattr(process, "capture", fails)
    with pytest.raises(RocmError, match=r"No version of rocm was found at https://a") as caught:
        find_version(run.context(ref="nightly"), RocmOptions(index_urls=("https://a",)))
    assert "--rocm-version" in caught.value.hint
    empty = Completed(returncode=0, stdout="something else\n", stderr="")
    monkeypatch.setattr(process, "capture", lambda _argv, **_: empty)
    with pytest.raises(RocmError, match="did not say"):
        find_version(run.context(ref="nightly"), RocmOptions(index_urls=("https://a",)))


def test_named_sources_come_before_the_runs_outputs(
    run: Any, tmp_path: Path, monkeypatch: Any, held: dict[str, list[str]]
) -> None:
    held["rocm-sdk-libraries"] = [ROCM]
    run.rocm()
    monkeypatch.chdir(tmp_path)
    source = find_source(run.context(), RocmOptions(find_links=("wheels", "https://page")), ROCM)
    assert source.find_links == (str(tmp_path / "wheels"), "https://page")
    assert source.index_urls == ()
    both = find_source(run.context(), RocmOptions(index="dev", index_urls=("https://a",)), ROCM)
    assert both.index_urls == (release_index_url("dev", "gfx94X-dcgpu"), "https://a")
    assert (both.version, both.layout) == (ROCM, "split")


def test_then_come_the_runs_outputs(run: Any) -> None:
    run.rocm()
    source = find_source(run.context(), NONE, ROCM)
    assert len(source.digests) == 4
    assert "this run's outputs" in source.origin


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


def test_last_comes_the_release_index(run: Any, held: dict[str, list[str]]) -> None:
    held["rocm-sdk-libraries-gfx94x-dcgpu"] = ["7.2.0"]
    source = find_source(run.context(ref="nightly"), RocmOptions(), "7.2.0")
    assert source.layout == "unsplit"
    assert source.index_urls == (release_index_url("", "gfx94X-dcgpu"),)
    assert source.find_links == ()
    with pytest.raises(UsageError):
        find_source(run.context(ref="nightly"), RocmOptions(index="no-such-index"), "7.2.0")
