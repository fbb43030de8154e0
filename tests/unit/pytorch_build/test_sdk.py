import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import MissingInputError, RocmError, UsageError
from core.packages.options import SourceOptions
from core.packages.sources import InstalledPackages, linked_source
from pytorch_build import sdk
from rocm_packaging.origin import RocmSource, release_index_url
from rocm_packaging.packages.layouts import Layout
from tests.kit.builds import LocalRun
from tests.kit.repos import write_files
from tests.kit.wheels import write_wheel
from tests.kit.windows import absolute, can_link

FAMILY = "gfx94X-dcgpu"
ROCM_VERSION = "7.99.0.dev0+sample"
DEFAULT_OPTIONS = sdk.RocmOptions()
IMAGE_PYTHON = Path("/opt/python")


def rocm_from(**source: Any) -> sdk.RocmOptions:
    """Return the options that name a source of ROCm."""
    return sdk.RocmOptions(source=SourceOptions(prefix="--rocm-", **source))


@pytest.fixture
def links(tmp_path: Path) -> str:
    """Return a folder with ROCm in two versions, the newer one split."""
    folder = tmp_path / "links"
    for version in ("7.1.0", "7.2.0"):
        for name in ("rocm", "rocm-sdk-core", "rocm-sdk-devel"):
            write_wheel(folder, name=name, version=version)
    write_wheel(folder, name="rocm-sdk-libraries", version="7.2.0")
    write_wheel(folder, name="rocm-sdk-libraries-gfx94x-dcgpu", version="7.1.0")
    return str(folder)


@pytest.mark.parametrize(("version", "layout"), [("7.1.0", "unsplit"), ("7.2.0", "split")])
def test_a_source_says_which_layout_it_has(run: LocalRun, links: str, version: str, layout: str) -> None:
    assert sdk.find_rocm_source(run.context(), rocm_from(find_links=(links,)), version).layout == layout


def test_a_source_without_the_version_is_refused(run: LocalRun, links: str) -> None:
    with pytest.raises(RocmError, match=r"7\.3\.0"):
        sdk.find_rocm_source(run.context(), rocm_from(find_links=(links,)), "7.3.0")


@pytest.fixture
def image_rocm(monkeypatch: pytest.MonkeyPatch) -> RocmSource:
    """Return the ROCm 7.1.0 that an image has installed."""
    source = RocmSource(version="7.1.0", packages=InstalledPackages(python=IMAGE_PYTHON))
    monkeypatch.setattr("pytorch_build.sdk._rocm_of_image", lambda _: source)
    return source


def test_an_images_rocm_is_taken_without_an_installation(run: LocalRun, image_rocm: RocmSource) -> None:
    options = rocm_from(no_install=True)

    assert sdk.find_rocm_version(run.context(), options) == "7.1.0"
    assert sdk.find_rocm_source(run.context(), options, "7.1.0") is image_rocm


@pytest.mark.usefixtures("image_rocm")
def test_an_images_rocm_of_another_version_than_the_locks_is_refused(run: LocalRun) -> None:
    with pytest.raises(MissingInputError) as caught:
        sdk.find_rocm_source(run.context(), rocm_from(no_install=True), "7.2.0")

    for name in ("7.2.0", str(IMAGE_PYTHON), "7.1.0"):
        assert name in caught.value.message


def parse_options(*arguments: str, variables: dict[str, str] | None = None) -> sdk.RocmOptions:
    """Return what options and variables say."""
    parser = argparse.ArgumentParser()
    sdk.add_rocm_options(parser)
    return sdk.rocm_options_from(parser.parse_args(arguments), variables or {})


def test_options_name_sources_and_extras() -> None:
    sources = ("--rocm-index-url", "https://a", "--index-url", "https://b", "--rocm-find-links", "/c")

    options = parse_options(*sources, "--rocm-extras", "profiler,,device-gfx942")

    assert options.source.index_urls == ("https://a", "https://b")
    assert options.source.find_links == (absolute("/c"),)
    assert options.extras == ("profiler", "device-gfx942")


def test_no_option_is_the_default() -> None:
    assert parse_options() == DEFAULT_OPTIONS


@pytest.mark.parametrize(
    ("arguments", "variables", "no_install"),
    [
        pytest.param((), {"ROCM_PACKAGE_NO_INSTALL": "1"}, True, id="variable of a workflow"),
        pytest.param(("--rocm-no-install",), {}, True, id="option"),
        pytest.param(
            ("--rocm-find-links=/x",),
            {"ROCM_PACKAGE_NO_INSTALL": "1"},
            False,
            id="source beside the variable",
        ),
    ],
)
def test_an_image_may_have_rocm(
    arguments: tuple[str, ...], variables: dict[str, str], *, no_install: bool
) -> None:
    assert parse_options(*arguments, variables=variables).source.no_install is no_install


def test_a_given_version_comes_before_the_refs_own(run: LocalRun) -> None:
    assert sdk.find_rocm_version(run.context(), rocm_from(version="7.1.0")) == "7.1.0"
    assert sdk.find_rocm_version(run.context(), DEFAULT_OPTIONS) == ROCM_VERSION


def test_family_cpu_has_no_rocm(run: LocalRun) -> None:
    assert sdk.find_rocm_version(run.context("cpu"), rocm_from(version="7.1.0")) == ""


def test_the_newest_version_is_that_of_the_run(run: LocalRun) -> None:
    run.rocm("7.1.5")

    assert sdk.find_rocm_version(run.context(ref="nightly"), DEFAULT_OPTIONS) == "7.1.5"


def test_the_newest_version_of_a_named_source_comes_before_the_runs(run: LocalRun, links: str) -> None:
    run.rocm("7.1.5")

    assert sdk.find_rocm_version(run.context(ref="nightly"), rocm_from(find_links=(links,))) == "7.2.0"


@pytest.mark.parametrize("index", ["", "dev"])
def test_the_familys_release_index_is_asked_by_default(run: LocalRun, index: str) -> None:
    packages = sdk.find_rocm_packages(run.context("gfx110X-all", ref="nightly"), rocm_from(index_name=index))

    assert packages.index_urls == (release_index_url(index, "gfx110X-all"),)


def test_an_unknown_index_is_refused(run: LocalRun) -> None:
    with pytest.raises(UsageError):
        sdk.find_rocm_packages(run.context(ref="nightly"), rocm_from(index_name="no-such-index"))


def test_the_runs_rocm_is_found_with_its_digests_and_nothing_else(run: LocalRun) -> None:
    files = run.rocm()
    run.rocm(ROCM_VERSION, group="gfx110X-all")
    run.built("torch")

    source = sdk.find_rocm_source(run.context(), DEFAULT_OPTIONS, ROCM_VERSION)

    assert dict(source.digests) == {file.name: file.sha256 for file in files}
    assert "run local" in source.origin


def test_the_runs_rocm_of_another_version_is_refused(run: LocalRun) -> None:
    run.rocm("7.1.0")

    with pytest.raises(MissingInputError) as caught:
        sdk.find_rocm_source(run.context(ref="nightly"), DEFAULT_OPTIONS, "7.2.0")

    assert "7.2.0" in caught.value.message
    assert "7.1.0" in caught.value.message
    # The commands exist as written.
    assert "(nox -s resolve)" in caught.value.hint
    assert "nox -s build_rocm" in caught.value.hint


def test_the_samples_rocm_is_on_no_index(run: LocalRun) -> None:
    run.rocm(run_id="77")

    with pytest.raises(MissingInputError) as caught:
        sdk.find_rocm_source(run.context(), DEFAULT_OPTIONS, ROCM_VERSION)

    assert f"nox -s build_rocm -- --torch-ref sample --gpu-family {FAMILY}" in caught.value.hint


def test_the_samples_rocm_is_found_in_its_run(run: LocalRun) -> None:
    run.rocm(run_id="77")

    source = sdk.find_rocm_source(run.context(run_id="77"), DEFAULT_OPTIONS, ROCM_VERSION)

    assert source.version == ROCM_VERSION


def test_rocm_may_come_from_another_run(run: LocalRun) -> None:
    run.rocm(run_id="77")
    options = rocm_from(run_id="77", store=str(run.root / "out"))

    assert sdk.find_rocm_source(run.context(), options, ROCM_VERSION).version == ROCM_VERSION


@pytest.mark.parametrize("family", ["", "gfx942;gfx1100"])
def test_an_index_of_one_family_needs_one(family: str) -> None:
    with pytest.raises(UsageError, match=family or "none") as caught:
        release_index_url("nightly-v2", family)

    assert "--gpu-family" in caught.value.hint


def test_an_index_of_all_families_needs_none() -> None:
    assert release_index_url("nightly", "") == release_index_url("nightly", "gfx942;gfx1100")


def test_a_misspelt_index_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="'nightly'"):
        release_index_url("nightyl", FAMILY)


# What an installed rocm_sdk answers; a file beside it has other answers.

ROCM_SDK = """
import json, pathlib
ANSWERS = json.loads(pathlib.Path(__file__).with_name("answers.json").read_text())
__version__ = ANSWERS["version"]
def find_libraries(name):
    if name in ("hipfile", "rccl"):
        raise (ModuleNotFoundError if name == "hipfile" else FileNotFoundError)(name)
    return [] if name == "roctx64" else [f"/sdk/lib{name}.so"]
"""
DIST_INFO = """
import os
from rocm_sdk import ANSWERS
class Libraries:
    is_target_specific = not ANSWERS["split"]
ALL_PACKAGES = {"libraries": Libraries}
AVAILABLE_TARGET_FAMILIES = ["gfx942", "gfx950"] if ANSWERS["split"] else ["gfx94X-dcgpu"]
def determine_target_family():
    asked = os.environ.get("ROCM_SDK_TARGET_FAMILY", "gfx942")
    assert asked in AVAILABLE_TARGET_FAMILIES
    return ANSWERS.get("family", asked)
"""
MAIN = """
import sys
from rocm_sdk import ANSWERS
print(ANSWERS["targets"] if sys.argv[1] == "targets" else ANSWERS.get("path") or ANSWERS[sys.argv[2]])
"""


def change_answers(folder: Path, **changes: object) -> None:
    """Let the rocm_sdk in a test's folder answer otherwise."""
    path = folder / "site" / "rocm_sdk" / "answers.json"
    answers = json.loads(path.read_text())
    path.write_text(json.dumps({**answers, **changes}))


@pytest.fixture
def target(run: LocalRun, tmp_path: Path) -> Any:
    """Return an interpreter in whose environment a small rocm_sdk answers."""
    site = tmp_path / "site"
    write_files(site / "rocm_sdk", {"__init__.py": ROCM_SDK, "_dist_info.py": DIST_INFO, "__main__.py": MAIN})
    for folder in ("root/bin", "root/cmake"):
        (tmp_path / folder).mkdir(parents=True)
    answers = {
        "version": "7.1.0",
        "split": False,
        "targets": "gfx942;gfx950",
        "--root": str(tmp_path / "root"),
        "--bin": str(tmp_path / "root" / "bin"),
        "--cmake": str(tmp_path / "root" / "cmake"),
    }
    write_files(site / "rocm_sdk", {"answers.json": json.dumps(answers)})

    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return run.target(executable=python)


def source_of(layout: Layout) -> RocmSource:
    """Return the source that the installed packages came from."""
    return RocmSource(version="7.1.0", packages=linked_source("/wheels"), layout=layout)


def ask(target: Any, *targets: str, libraries: tuple[str, ...] = ()) -> sdk.RocmSdk:
    """Ask split packages for targets, or unsplit ones."""
    source = source_of("split" if targets else "unsplit")
    return sdk.ask_sdk(target, source, family=FAMILY, targets=targets, libraries=libraries)


@pytest.mark.processes
def test_an_installed_sdk_answers_with_folders_and_targets(target: Any, tmp_path: Path) -> None:
    result = ask(target)

    assert result.root == tmp_path / "root"
    assert result.bin == tmp_path / "root" / "bin"
    assert result.cmake == tmp_path / "root" / "cmake"
    assert result.targets == ("gfx942", "gfx950")


@pytest.mark.processes
@pytest.mark.parametrize("is_there", [False, True], ids=["absent", "present"])
def test_an_installed_sdk_is_asked_for_its_parts(target: Any, tmp_path: Path, *, is_there: bool) -> None:
    if is_there:
        for folder in ("lib/llvm/amdgcn/bitcode", "lib/host-math", "lib/rocm_sysdeps"):
            (tmp_path / "root" / folder).mkdir(parents=True)

    result = ask(target)

    assert result.has_device_libs is is_there
    assert result.has_host_math is is_there
    assert result.has_sysdeps is is_there


@pytest.mark.processes
def test_an_installed_sdk_names_the_libraries_that_it_has(target: Any) -> None:
    result = ask(target, libraries=("amdhip64", "hipfile", "rccl", "roctx64"))

    assert result.libraries == {"amdhip64"}


@pytest.fixture
def split_target(target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an interpreter whose rocm_sdk is split, beside a variable that names a family."""
    change_answers(tmp_path, split=True)
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", FAMILY)
    return target


@pytest.mark.processes
def test_a_split_sdk_is_asked_without_a_family(split_target: Any) -> None:
    assert ask(split_target, "gfx942", "gfx950").version == "7.1.0"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("targets", "name"),
    [
        pytest.param(("gfx942", "gfx1100"), "gfx1100", id="target without device code"),
        pytest.param((), "split", id="other layout"),
    ],
)
def test_a_split_sdk_that_lacks_something_is_refused(
    split_target: Any, targets: tuple[str, ...], name: str
) -> None:
    with pytest.raises(RocmError, match=name):
        ask(split_target, *targets)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("answer", "value", "name"),
    [
        pytest.param("version", "7.0.0", "7.0.0", id="other version"),
        pytest.param("family", "gfx110X-all", "gfx110X-all", id="other family"),
        pytest.param("path", "relative", "'relative'", id="relative path"),
        pytest.param("path", "/nonexistent/folder", "/nonexistent/folder", id="no folder"),
        pytest.param("path", " ", "path --root", id="no path"),
        pytest.param("targets", ";", "targets", id="no target"),
        pytest.param("targets", " ", "empty", id="no targets"),
    ],
)
def test_a_wrong_or_empty_answer_is_refused(
    target: Any, tmp_path: Path, answer: str, value: str, name: str
) -> None:
    change_answers(tmp_path, **{answer: value})

    with pytest.raises(RocmError) as caught:
        ask(target)

    assert name in caught.value.message


@pytest.mark.processes
def test_an_sdk_that_prints_something_else_is_refused(target: Any, tmp_path: Path) -> None:
    module = tmp_path / "site" / "rocm_sdk" / "__init__.py"
    module.write_text("print('hello')\n" + module.read_text())

    with pytest.raises(RocmError, match="hello"):
        ask(target)


@pytest.mark.processes
def test_an_absent_sdk_is_refused(target: Any, tmp_path: Path) -> None:
    (tmp_path / "site" / "rocm_sdk").rename(tmp_path / "gone")

    with pytest.raises(RocmError, match="rocm_sdk"):
        ask(target)


@pytest.mark.processes
def test_an_image_says_the_version_and_layout_of_its_rocm(target: Any, tmp_path: Path) -> None:
    change_answers(tmp_path, split=True)

    source = sdk.installed_rocm(target)

    assert source.version == "7.1.0"
    assert source.layout == "split"
    assert source.files == ()
    assert str(target.executable) in source.origin


@pytest.fixture
def linked_environment(run: LocalRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the packages of an environment into which an image's ROCm is linked, twice."""
    if not can_link():
        pytest.skip("no symbolic links can be made here")
    image = tmp_path / "image"
    for name in ("_rocm_sdk_core", "rocm_sdk", "rocm-7.1.0.dist-info", "numpy", "pip"):
        (image / name).mkdir(parents=True)
    (image / "rocm-7.1.0.dist-info" / "METADATA").write_text("Name: rocm")
    environment = tmp_path / "environment"
    environment.mkdir()
    monkeypatch.setattr(sdk, "interpreter", lambda _: replace(run.target(), purelib=image))

    for _attempt in range(2):
        sdk.link_rocm(replace(run.target(), purelib=environment))
    return environment


def test_an_images_rocm_alone_is_linked(linked_environment: Path, tmp_path: Path) -> None:
    names = {path.name for path in linked_environment.iterdir()}

    assert names == {"_rocm_sdk_core", "rocm_sdk", "rocm-7.1.0.dist-info"}
    assert (linked_environment / "_rocm_sdk_core").resolve() == tmp_path / "image" / "_rocm_sdk_core"


def test_the_metadata_of_an_images_rocm_is_no_link(linked_environment: Path) -> None:
    # Installers overlook metadata that is a link.
    assert not (linked_environment / "rocm-7.1.0.dist-info").is_symlink()
