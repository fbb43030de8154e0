"""Variables of reports: those of CI servers and of images, and those that are set to nothing."""

import os
from typing import Any

import pytest

from core import process
from core.cli import options
from core.environment import allowed
from core.errors import UsageError
from pytorch_build.build.inputs import build_flags
from tests.kit.build_plans import plan_project
from tests.kit.front_doors import Package, run_verb

# What servers, workflows and images say of a job or of themselves.
OF_A_JOB = (
    "AMDGPU_FAMILIES",
    "BUILD_BUILDID",
    "BUILD_BUILDNUMBER",
    "BUILD_DISPLAY_NAME",
    "BUILD_ENVIRONMENT",
    "BUILD_ID",
    "BUILD_NUMBER",
    "BUILD_REASON",
    "BUILD_REPOSITORY_NAME",
    "BUILD_SOURCEBRANCH",
    "BUILD_SOURCESDIRECTORY",
    "BUILD_SOURCEVERSION",
    "BUILD_TAG",
    "BUILD_URL",
    "BUILD_USER",
    "BUILD_VARIANT",
    "BUILD_VCS_NUMBER",
    "CMAKE_VERSION",
    "GPU_FAMILY",
    "LLVM_VERSION",
    "PYTORCH_BRANCH",
    "PYTORCH_FINAL_PACKAGE_DIR",
    "PYTORCH_ROOT",
    "ROCM_PACKAGE_VERSION",
    "ROCM_VERSION",
    "TEST_FLAGS",
    "TORCH_INDEX_URL",
    "TORCH_REF",
    "TORCH_TESTS",
    "TORCH_VERSION",
    "TRITON_VERSION",
)

# What a developer sets so that a wheel is another one.
OF_A_BUILD = (
    "APEX_BUILD_CPP_OPS",
    "BUILD_FUNCTORCH",
    "BUILD_SOX",
    "BUILD_TEST",
    "CC",
    "CMAKE_BUILD_TYPE",
    "CXXFLAGS",
    "FFMPEG_ROOT",
    "HIPCC_COMPILE_FLAGS_APPEND",
    "LLVM_SYSPATH",
    "TORCHVISION_USE_WEBP",
    "TORCH_XPU_ARCH_LIST",
    "TRITON_BUILD_WITH_CLANG_LLD",
    "TRITON_PTXAS_PATH",
    "USE_DISTRIBUTED",
    "USE_SYSTEM_LIBS",
    "libuv_ROOT",
)


# https://github.com/MicrosoftDocs/azure-devops-docs/issues/4051
# https://github.com/pytorch/pytorch/issues/177640
# Every variable that begins with BUILD_ or TORCH_ was passed to setup.py, and made a job's build another one.
@pytest.mark.parametrize("name", OF_A_JOB)
def test_a_jobs_variables_are_no_input_and_reach_no_build(name: str) -> None:
    variables = {name: "of-the-job"}

    assert build_flags(variables) == {}
    assert allowed(variables) == {}


@pytest.mark.parametrize("name", OF_A_BUILD)
def test_a_developers_switches_are_inputs_and_reach_the_build(name: str) -> None:
    variables = {name: "of-the-developer"}

    assert build_flags(variables) == variables
    assert allowed(variables) == variables


# How fast a build goes leaves its wheel as it is.
@pytest.mark.parametrize("name", ["CMAKE_BUILD_PARALLEL_LEVEL", "MAKEFLAGS", "MAX_JOBS", "NINJA_STATUS"])
def test_the_speed_of_a_build_reaches_it_and_is_no_input(name: str) -> None:
    variables = {name: "4"}

    assert build_flags(variables) == {}
    assert allowed(variables) == variables


# https://github.com/pypa/cibuildwheel/issues/1969
# A workflow sets a variable to nothing where an input is not given.
def test_an_empty_variable_is_like_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        "AWS_ENDPOINT_URL",
        "CFLAGS",
        "CMAKE_PREFIX_PATH",
        "INVOKED_FROM",
        "SOURCE_DATE_EPOCH",
        "USE_NCCL",
    )
    for name in names:
        monkeypatch.setenv(name, "")

    exit_code = run_verb("ci", "cells", "ci")

    assert exit_code == 0
    assert not set(names).intersection(options.environment())
    assert not set(names).intersection(process.inherited())
    assert not set(names).intersection(os.environ)  # noqa: TID251 - libraries read it themselves


# https://github.com/pypa/cibuildwheel/issues/1969
# setuptools and uv ended with a ValueError of theirs, after minutes.
@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("pytorch_build", ("build", "audio")),
        ("pytorch_build", ("test-smoke",)),
        ("rocm_packaging", ("build",)),
    ],
    ids=["build_audio", "test_smoke", "build_rocm"],
)
def test_refuses_a_date_that_is_no_number_before_any_work(
    package: Package,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1e9")

    exit_code = run_verb(package, *words, "--torch-ref=sample")

    assert exit_code == UsageError.exit_code
    assert "SOURCE_DATE_EPOCH=1e9" in capsys.readouterr().err


# https://github.com/pytorch/pytorch/issues/87711
# conda-build and Visual Studio's prompts name a generator, and CMake failed in the folder of another one.
@pytest.mark.parametrize("project", ["triton", "torch", "audio"])
def test_builds_take_ninja_whatever_generator_is_named(project: str) -> None:
    variables = {
        "CMAKE_GENERATOR": "Unix Makefiles",
        "CMAKE_GENERATOR_PLATFORM": "x64",
        "CMAKE_GENERATOR_TOOLSET": "v143",
    }
    torch: dict[str, Any] = {"torch_version": "2.10.0"} if project == "audio" else {}

    plan = plan_project(project, base_env={"PATH": "/usr/bin", **variables}, **torch)

    assert plan.env["CMAKE_GENERATOR"] == "Ninja"
    assert plan.unset >= {"CMAKE_GENERATOR_PLATFORM", "CMAKE_GENERATOR_TOOLSET"}
    for name in variables:
        assert any(note.startswith(f"{name}=") for note in plan.notes), name
    assert build_flags(variables) == {}
