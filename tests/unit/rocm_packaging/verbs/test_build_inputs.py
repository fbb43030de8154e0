"""When ROCm's packages are built again: `build` works where one of its inputs has changed, and only then."""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from core import files
from core.cli import main
from core.cli.options import ROOT, Common, common_from
from core.data import use_user_file
from rocm_packaging.__main__ import VERBS
from rocm_packaging.packages.build import BuiltPackages, build
from rocm_packaging.packages.inputs import inputs_of
from rocm_packaging.packages.plan import BuildRequest
from rocm_packaging.verbs import build as verb
from tests.kit.artifacts import write_artifact, write_base_artifact
from tests.kit.windows import can_link

FAMILY = "gfx94X-dcgpu"

# Where files lie, and how many processes pack them: none of it is in the packages.
NO_INPUT = {"artifact_dir", "output_dir", "jobs"}

CHANGED_FIELDS: dict[str, Any] = {
    "version": "10.1.0",
    "families": ("gfx110X-all",),
    "platform": "windows",
    "epoch": 1_700_000_000,
    "level": 1,
    "suffix": "_next",
    "platform_tag": "manylinux_2_28_x86_64",
    "linux_families": ("gfx110X-all",),
    "windows_families": ("gfx110X-all",),
    "without": ("fft",),
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change to the inputs of a build: options, variables, or something done to the artifacts."""

    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    edit: Callable[[Path], object] = lambda _artifacts: None


def library(artifacts: Path) -> Path:
    """Return the only library of the family."""
    return artifacts / f"blas_lib_{FAMILY}/x/stage/lib/libhipblas.so.3"


def touch(artifacts: Path) -> None:
    """Change the time of a file alone."""
    os.utime(library(artifacts), ns=(1, 1))


def add_file(artifacts: Path) -> None:
    """Add a file to an artifact."""
    write_artifact(artifacts, f"blas_lib_{FAMILY}", {"lib/libmore.so.1": "text"})


def remove_file(artifacts: Path) -> None:
    """Remove a file of an artifact."""
    library(artifacts).with_name("libhiprand.so.1").unlink()


def link_elsewhere(artifacts: Path) -> None:
    """Let a link lead to another file."""
    link = library(artifacts).with_name("libhipblas.so")
    if not link.is_symlink():
        pytest.skip("no symbolic links can be made here")
    link.unlink()
    link.symlink_to("libother.so.3")


CHANGES = {
    "version": Change(options=("--version", "10.1.0")),
    "version suffix": Change(options=("--version-suffix", "_next")),
    "wheel platform tag": Change(options=("--wheel-platform-tag", "manylinux_2_28_x86_64")),
    "wheel platform tag by variable": Change(variables={"ROCM_SDK_WHEEL_PLATFORM_TAG": "linux_aarch64"}),
    "compression level": Change(options=("--compression-level", "1")),
    "what the artifacts lack": Change(options=("--without", "*,fft")),
    "offered families of Linux": Change(options=("--linux-amdgpu-families", "gfx110X-all")),
    "offered families of Windows": Change(options=("--windows-amdgpu-families", "gfx110X-all")),
    "time of the source": Change(variables={"SOURCE_DATE_EPOCH": "1700000000"}),
    "content of an artifact": Change(edit=lambda artifacts: library(artifacts).write_text("other text")),
    "time of an artifact": Change(edit=touch),
    "a further file": Change(edit=add_file),
    "a file that went": Change(edit=remove_file),
    "target of a link": Change(edit=link_elsewhere),
}


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """Return the smallest set of artifacts of one family, all of text files."""
    folder = tmp_path / "artifacts"
    write_base_artifact(folder, targets=["gfx942"], is_split=False)
    write_artifact(folder, "core-hip_lib_generic", {"lib/libamdhip64.so.7": "hip"})
    write_artifact(folder, "core-hip_dev_generic", {"include/hip/hip.h": "h"})
    libraries = {"lib/libhipblas.so.3": "text", "lib/libhiprand.so.1": "text"}
    write_artifact(folder, f"blas_lib_{FAMILY}", libraries)
    if can_link():
        library(folder).with_name("libhipblas.so").symlink_to("libhipblas.so.3")
    return folder


@pytest.fixture
def build_requests(monkeypatch: pytest.MonkeyPatch) -> list[BuildRequest]:
    """Return a list to which each build adds its request; builds work as ever."""
    requests: list[BuildRequest] = []

    def record_request(request: BuildRequest) -> BuiltPackages:
        requests.append(request)
        return build(request)

    monkeypatch.setattr(verb, "build", record_request)
    return requests


@pytest.fixture
def run_build(artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return the front door: it runs the verb with options and variables, and returns the exit code."""

    # Packages are made in a cache of their own, where no other test makes some.
    def common_in_folder(arguments: argparse.Namespace) -> Common:
        return replace(common_from(arguments), root=tmp_path)

    monkeypatch.setattr(verb, "common_from", common_in_folder)

    def run(*options: str, variables: dict[str, str] | None = None) -> int:
        words = ["build", "--artifact-dir", str(artifacts), "--gpu-family", FAMILY]
        words += ["--store", str(tmp_path / "store"), "--without", "*"]
        with monkeypatch.context() as patch:
            for name, value in (variables or {}).items():
                patch.setenv(name, value)
            return main("rocm_packaging", "", VERBS, [*words, *options])

    return run


def test_does_nothing_where_nothing_has_changed(
    run_build: Callable[..., int], build_requests: list[BuildRequest]
) -> None:
    assert run_build() == 0
    assert run_build() == 0

    assert len(build_requests) == 1


def test_builds_again_where_the_user_says_so(
    run_build: Callable[..., int], build_requests: list[BuildRequest]
) -> None:
    assert run_build() == 0
    assert run_build("--force") == 0

    assert len(build_requests) == 2


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_builds_again_where_one_input_has_changed(
    run_build: Callable[..., int],
    build_requests: list[BuildRequest],
    artifacts: Path,
    change: Change,
) -> None:
    assert run_build() == 0

    change.edit(artifacts)
    assert run_build(*change.options, variables=change.variables) == 0

    assert len(build_requests) == 2


def test_builds_again_where_a_family_means_other_targets(
    run_build: Callable[..., int], build_requests: list[BuildRequest], tmp_path: Path
) -> None:
    assert run_build() == 0

    settings = tmp_path / "pytorch-build.toml"
    settings.write_text('[families.mine]\ntargets = ["gfx942"]\n', encoding="utf-8")
    assert run_build("--config-file", str(settings)) == 0
    use_user_file(None)

    assert len(build_requests) == 2


@pytest.fixture
def request_of_all(artifacts: Path, tmp_path: Path) -> BuildRequest:
    """Return the request to package all artifacts."""
    return BuildRequest(artifact_dir=artifacts, output_dir=tmp_path / "packages", without=("*",))


@pytest.mark.parametrize("name", CHANGED_FIELDS)
def test_every_field_of_a_request_is_an_input(request_of_all: BuildRequest, name: str) -> None:
    changed_request = replace(request_of_all, **{name: CHANGED_FIELDS[name]})

    assert inputs_of(changed_request) != inputs_of(request_of_all)


def test_the_table_of_fields_is_complete() -> None:
    names = {request_field.name for request_field in fields(BuildRequest)}

    assert names == CHANGED_FIELDS.keys() | NO_INPUT


@pytest.mark.parametrize(
    "path",
    [
        "core/files.py",
        "core/wheel/writer.py",
        "rocm_packaging/artifacts.py",
        "rocm_packaging/packages/plan.py",
        "rocm_packaging/templates/rocm/setup.py",
    ],
)
def test_the_code_that_writes_packages_is_an_input(
    request_of_all: BuildRequest, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    inputs_before = inputs_of(request_of_all)

    def digest_of_edited_code(file: Path) -> str:
        return "0" * 64 if file == ROOT / path else files.sha256(file)

    monkeypatch.setattr("rocm_packaging.packages.inputs.sha256", digest_of_edited_code)
    assert inputs_of(request_of_all) != inputs_before
