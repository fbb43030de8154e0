import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import MissingInputError, RocmError, UsageError
from core.packages import sources
from pytorch_build import sdk
from rocm_packaging.origin import RocmSource, release_index_url
from rocm_packaging.packages.layouts import Layout

ROCM = "7.99.0.dev0+sample"
NONE = sdk.RocmOptions()


def options(**named: Any) -> sdk.RocmOptions:
    return sdk.RocmOptions(source=sources.SourceOptions(prefix="--rocm-", **named))


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
    assert sdk.find_source(run.context(), options(find_links=(folder,)), "7.2.0").layout == "split"
    assert sdk.find_source(run.context(), options(find_links=(folder,)), "7.1.0").layout == "unsplit"
    with pytest.raises(RocmError, match=r"has no ROCm 7\.3\.0 libraries for gfx94X-dcgpu"):
        sdk.find_source(run.context(), options(find_links=(folder,)), "7.3.0")


def test_an_images_rocm_has_the_version_of_the_lock(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = RocmSource(version="7.1.0", packages=sources.PackageSource(installed=Path("/opt/python")))
    monkeypatch.setattr("pytorch_build.sdk._installed", lambda _: here)
    chosen = options(no_install=True)
    assert sdk.find_version(run.context(), chosen) == "7.1.0"
    assert sdk.find_source(run.context(), chosen, "7.1.0") is here
    with pytest.raises(MissingInputError, match=r"says ROCm 7.2.0; what /opt/python has installed is 7.1.0"):
        sdk.find_source(run.context(), chosen, "7.2.0")


def test_options_are_parsed_once_and_a_workflow_says_by_a_variable_that_the_image_has_rocm() -> None:
    def parsed(*words: str, env: dict[str, str] | None = None) -> sdk.RocmOptions:
        return sdk.rocm_options_from(parser.parse_args(words), env or {})

    parser = argparse.ArgumentParser()
    sdk.add_rocm_options(parser)
    words = ["--rocm-index-url", "https://a", "--index-url", "https://b", "--rocm-find-links", "/c"]
    found = parsed(*words, "--rocm-extras", "profiler,,device-gfx942")
    assert found.source.index_urls == ("https://a", "https://b")
    assert found.source.find_links == ("/c",)
    assert found.extras == ("profiler", "device-gfx942")
    assert parsed() == NONE
    env = {"ROCM_PACKAGE_NO_INSTALL": "1"}
    assert parsed(env=env).source.no_install
    assert parsed("--rocm-no-install").source.no_install
    assert not parsed("--rocm-find-links=/x", env=env).source.no_install


def test_a_given_version_comes_before_the_refs_own_and_family_cpu_has_none(run: Any) -> None:
    assert sdk.find_version(run.context(), options(version="7.1.0")) == "7.1.0"
    assert sdk.find_version(run.context(), NONE) == ROCM
    assert sdk.find_version(run.context("cpu"), options(version="7.1.0")) == ""


def test_the_newest_is_that_of_named_sources_then_of_the_run(run: Any, folder: str) -> None:
    run.rocm("7.1.5")
    assert sdk.find_version(run.context(ref="nightly"), NONE) == "7.1.5"
    assert sdk.find_version(run.context(ref="nightly"), options(find_links=(folder,))) == "7.2.0"


def test_without_anything_the_familys_release_index_is_asked(run: Any) -> None:
    assert sdk.packages_of(run.context("gfx110X-all", ref="nightly"), NONE).index_urls == (
        release_index_url("", "gfx110X-all"),
    )
    dev = sdk.packages_of(run.context("gfx110X-all", ref="nightly"), options(index_name="dev"))
    assert dev.index_urls == (release_index_url("dev", "gfx110X-all"),)
    with pytest.raises(UsageError):
        sdk.packages_of(run.context(ref="nightly"), options(index_name="no-such-index"))


def test_the_runs_outputs_are_found_with_their_digests_and_nothing_else(run: Any) -> None:
    put = run.rocm()
    run.rocm(ROCM, group="gfx110X-all")
    run.built("torch")
    source = sdk.find_source(run.context(), NONE, ROCM)
    assert dict(source.digests) == {one.name: one.sha256 for one in put}
    assert "run local" in source.origin


def test_outputs_of_another_version_are_refused(run: Any) -> None:
    run.rocm("7.1.0")
    with pytest.raises(MissingInputError, match=r"^ROCm 7\.2\.0 is asked for;.*holds 7\.1\.0") as caught:
        sdk.find_source(run.context(ref="nightly"), NONE, "7.2.0")
    # the hint's command exists as written
    assert "(nox -s resolve)" in caught.value.hint
    assert "nox -s build_rocm" in caught.value.hint


def test_the_samples_rocm_is_on_no_index(run: Any) -> None:
    run.rocm(run_id="77")
    with pytest.raises(MissingInputError) as caught:
        sdk.find_source(run.context(), NONE, ROCM)
    assert "nox -s build_rocm -- --torch-ref sample --gpu-family gfx94X-dcgpu" in caught.value.hint
    assert sdk.find_source(run.context(run_id="77"), NONE, ROCM).version == ROCM
    named = options(run_id="77", store=str(run.root / "out"))
    assert sdk.find_source(run.context(), named, ROCM).version == ROCM


FAMILY = "gfx94X-dcgpu"
SPLIT = RocmSource(version="7.1.0a20250101", packages=sources.PackageSource(find_links=("/wheels",)))
UNSPLIT = replace(SPLIT, layout="unsplit")
SDK = """
import os
__version__ = os.environ.get("ROCM_FAKE_VERSION", "7.1.0")
def find_libraries(name):
    if name in ("hipfile", "rccl"):
        raise (ModuleNotFoundError if name == "hipfile" else FileNotFoundError)(name)
    return [] if name == "roctx64" else [f"/sdk/lib{name}.so"]
"""
DIST_INFO = """
import os
class Libraries:
    is_target_specific = os.environ.get("ROCM_FAKE_LAYOUT") != "split"
ALL_PACKAGES = {"libraries": Libraries}
AVAILABLE_TARGET_FAMILIES = ["gfx942", "gfx950"] if "ROCM_FAKE_LAYOUT" in os.environ else ["gfx94X-dcgpu"]
def determine_target_family():
    asked = os.environ.get("ROCM_SDK_TARGET_FAMILY", "gfx942")
    assert asked in AVAILABLE_TARGET_FAMILIES
    return os.environ.get("ROCM_FAKE_FAMILY", asked)
"""
MAIN = """
import os, sys
answers = {"--root": "root", "--bin": "root/bin", "--cmake": "root/cmake"}
if sys.argv[1] == "targets":
    print(os.environ.get("ROCM_FAKE_TARGETS", "gfx942;gfx950"))
else:
    print(os.environ.get("ROCM_FAKE_PATH") or os.path.join(os.environ["ROCM_FAKE"], answers[sys.argv[2]]))
"""


@pytest.mark.parametrize("family", ["", "gfx942;gfx1100"])
def test_an_index_of_one_family_is_asked_for_one(family: str) -> None:
    assert release_index_url("nightly", family) == "https://nightly.repo.amd.com/rocm/whl-next/"
    with pytest.raises(UsageError, match="is an index of one GPU family"):
        release_index_url("nightly-v2", family)
    with pytest.raises(UsageError, match="Did you mean 'nightly'"):
        release_index_url("nightyl", FAMILY)


@pytest.fixture
def target(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an interpreter in whose environment a small rocm_sdk answers."""
    package = tmp_path / "site" / "rocm_sdk"
    package.mkdir(parents=True)
    for name, text in (("__init__", SDK), ("_dist_info", DIST_INFO), ("__main__", MAIN)):
        (package / f"{name}.py").write_text(text)
    for folder in ("root/bin", "root/cmake"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setenv("ROCM_FAKE", str(tmp_path))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={package.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return run.target(executable=python)


def answered(target: Any, *targets: str) -> sdk.RocmSdk:
    layout: Layout = "split" if targets else "unsplit"
    return sdk.ask(target, replace(SPLIT, version="7.1.0", layout=layout), family=FAMILY, targets=targets)


@pytest.mark.processes
def test_an_installed_sdk_is_asked_for_its_facts(target: Any, tmp_path: Path) -> None:
    answer = answered(target)
    assert (answer.root, answer.bin) == (tmp_path / "root", tmp_path / "root" / "bin")
    assert answer.cmake == tmp_path / "root" / "cmake"
    assert answer.targets == ("gfx942", "gfx950")
    assert (answer.device_libs, answer.host_math, answer.sysdeps) == (False, False, False)
    for folder in ("lib/llvm/amdgcn/bitcode", "lib/host-math", "lib/rocm_sysdeps"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    wanted = ("amdhip64", "hipfile", "rccl", "roctx64")
    whole = sdk.ask(target, replace(UNSPLIT, version="7.1.0"), family=FAMILY, libraries=wanted)
    assert whole.device_libs
    assert whole.host_math
    assert whole.sysdeps
    assert whole.libraries == {"amdhip64"}


@pytest.mark.processes
def test_a_split_sdk_is_never_told_a_family(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_FAKE_LAYOUT", "split")
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", FAMILY)
    assert answered(target, "gfx942", "gfx950").version == "7.1.0"
    with pytest.raises(RocmError, match="no device code for gfx1100, only for gfx942, gfx950"):
        answered(target, "gfx942", "gfx1100")
    with pytest.raises(RocmError, match="has split packages, not unsplit ones"):
        answered(target)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("ROCM_FAKE_VERSION", "7.0.0", "is 7.0.0, not 7.1.0"),
        ("ROCM_FAKE_FAMILY", "gfx110X-all", "is for 'gfx110X-all', not 'gfx94X-dcgpu'"),
        ("ROCM_FAKE_PATH", "relative", "answered 'relative', which is not a folder"),
        ("ROCM_FAKE_PATH", "/nonexistent/folder", "which is not a folder"),
        ("ROCM_FAKE_PATH", " ", "gave an empty answer to path --root"),
        ("ROCM_FAKE_TARGETS", ";", "names no GPU targets"),
        ("ROCM_FAKE_TARGETS", " ", "gave an empty answer"),
    ],
)
def test_other_and_empty_answers_are_refused(
    target: Any, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(RocmError) as caught:
        answered(target)
    assert words in caught.value.message


@pytest.mark.processes
def test_an_sdk_that_is_absent_or_no_json_is_refused(target: Any, tmp_path: Path) -> None:
    init = tmp_path / "site" / "rocm_sdk" / "__init__.py"
    init.write_text("print('hello')\n" + init.read_text())
    with pytest.raises(RocmError, match="answered 'hello"):
        answered(target)
    init.parent.rename(tmp_path / "gone")
    with pytest.raises(RocmError, match="does not answer"):
        answered(target)


@pytest.mark.processes
def test_what_an_image_has_says_its_version_and_layout(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_FAKE_LAYOUT", "split")
    found = sdk.installed(target)
    assert (found.version, found.layout, found.files) == ("7.1.0", "split", ())
    assert found.origin == f"what {target.executable} has installed"


def test_an_images_rocm_alone_is_linked(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, own = tmp_path / "base", tmp_path / "own"
    for name in ("_rocm_sdk_core", "rocm_sdk", "rocm-7.1.0.dist-info", "numpy", "pip"):
        (base / name).mkdir(parents=True)
    (base / "rocm-7.1.0.dist-info" / "METADATA").write_text("Name: rocm")
    own.mkdir()
    monkeypatch.setattr(sdk, "interpreter", lambda _: replace(run.target(), purelib=base))
    target = replace(run.target(), purelib=own)
    for _ in range(2):
        sdk.link(target)
        assert {path.name for path in own.iterdir()} == {"_rocm_sdk_core", "rocm_sdk", "rocm-7.1.0.dist-info"}
    assert (own / "_rocm_sdk_core").resolve() == base / "_rocm_sdk_core"
    # installers overlook metadata that is a link
    assert not (own / "rocm-7.1.0.dist-info").is_symlink()
