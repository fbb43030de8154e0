from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath, PureWindowsPath

import pytest

from core.errors import MissingInputError, SourceError
from pytorch_build.build.facts import TreeFacts
from pytorch_build.components.steps import Overlay
from tests.kit.build_plans import ROCM_VERSION, TREE_FACTS, WINDOWS_LIBRARIES, plan_project

TORCH_VERSION = f"2.10.0a0+rocm{ROCM_VERSION}"
TRITON_VERSION = f"3.6.0+rocm{ROCM_VERSION}"
TRITON_LOCAL_VERSION = f"+rocm{ROCM_VERSION}"
ADDS_COMMIT = replace(TREE_FACTS, git_suffix="+git0123abcd")


# audio, vision and apex, which are built on torch


@pytest.mark.parametrize(
    ("project", "switches"),
    [
        ("audio", {"USE_ROCM": ("1", "0")}),
        ("vision", {"FORCE_CUDA": ("1", "0")}),
        ("apex", {}),
    ],
)
@pytest.mark.parametrize("platform", ["linux", "windows"])
def test_turns_gpu_switches_off_for_family_cpu(
    project: str, platform: str, switches: Mapping[str, tuple[str, str]]
) -> None:
    # What a build for ROCm gets is compared with upstream's in another test.
    gpu_env = plan_project(project, platform, torch_version=TORCH_VERSION).env
    cpu_env = plan_project(project, platform, has_gpu=False, torch_version=TORCH_VERSION).env

    differing: dict[str, tuple[str, str]] = {}
    for name in (gpu_env.keys() & cpu_env.keys()) - {"PATH"}:
        if gpu_env[name] != cpu_env[name]:
            differing[name] = (gpu_env[name], cpu_env[name])
    assert differing == switches
    assert set(cpu_env) <= set(gpu_env)


@pytest.mark.parametrize("project", ["audio", "vision"])
def test_pins_the_torch_that_is_installed(project: str) -> None:
    env = plan_project(project, has_gpu=False, torch_version=TORCH_VERSION).env

    assert env["PYTORCH_VERSION"] == TORCH_VERSION


@pytest.mark.parametrize("project", ["audio", "vision", "apex"])
def test_requires_an_installed_torch(project: str) -> None:
    with pytest.raises(MissingInputError, match="torch") as caught:
        plan_project(project)

    assert "nox -s build_torch" in caught.value.hint


@pytest.mark.parametrize(
    ("has_gpu", "options"),
    [
        (True, ["-C--build-option=--cpp_ext", "-C--build-option=--cuda_ext"]),
        (False, ["-C--build-option=--cpp_ext"]),
    ],
)
def test_compiles_apexs_gpu_sources_where_there_is_a_gpu(options: list[str], *, has_gpu: bool) -> None:
    plan = plan_project("apex", has_gpu=has_gpu, torch_version=TORCH_VERSION)

    start = ["/env/bin/python", "-m", "build", "--wheel", "--no-isolation"]
    assert list(plan.commands[0].argv) == [*start, *options]
    assert plan.overlays == ()


def test_writes_the_version_of_an_apex_that_reads_no_variable() -> None:
    facts = replace(TREE_FACTS, reads_build_version=False)

    plan = plan_project("apex", torch_version=TORCH_VERSION, facts=facts)

    assert plan.overlays == (Overlay(path="version.txt", content=f"{TORCH_VERSION}\n"),)


def test_limits_the_jobs_of_every_build_system_of_audio() -> None:
    env = plan_project("audio", torch_version=TORCH_VERSION, max_jobs=2).env

    assert env["MAX_JOBS"] == "2"
    assert env["CMAKE_BUILD_PARALLEL_LEVEL"] == "2"


# triton


def test_builds_an_older_triton_in_its_python_folder() -> None:
    facts = TreeFacts(files=frozenset({"python/setup.py", "python/requirements.txt"}))

    plan = plan_project("triton", version=TRITON_VERSION, facts=facts, clean=True)

    assert plan.commands[0].cwd == PurePosixPath("/src/torch/python")
    assert plan.wheel_dir == PurePosixPath("/src/torch/python/dist")
    assert plan.removes == ("python/dist", "python/build")


@pytest.mark.parametrize(
    ("version", "facts", "suffix"),
    [
        pytest.param(
            TRITON_VERSION,
            replace(TREE_FACTS, build_env={"TRITON_WHEEL_VERSION_SUFFIX": ".post1"}),
            f".post1{TRITON_LOCAL_VERSION}",
            id="behind the tree's suffix",
        ),
        pytest.param(
            TRITON_VERSION,
            replace(TREE_FACTS, build_env={"TRITON_WHEEL_VERSION_SUFFIX": ""}),
            TRITON_LOCAL_VERSION,
            id="tree's suffix is empty",
        ),
        # The setup script adds the commit behind a plus, and a version holds one plus.
        pytest.param("3.6.0+git0123abcd.devrocm7.10", ADDS_COMMIT, ".devrocm7.10", id="behind the commit"),
        pytest.param("3.6.0+git0123abcd", ADDS_COMMIT, "", id="commit alone"),
        pytest.param("3.6.0+cpu.sample", TREE_FACTS, "+cpu.sample", id="CPU"),
        pytest.param("3.6.0", TREE_FACTS, "", id="no local version"),
    ],
)
def test_gives_tritons_setup_the_rest_of_its_version(version: str, facts: TreeFacts, suffix: str) -> None:
    has_gpu = version == TRITON_VERSION

    plan = plan_project("triton", has_gpu=has_gpu, version=version, facts=facts)

    assert plan.env["TRITON_WHEEL_VERSION_SUFFIX"] == suffix
    assert len(plan.commands) == 1


@pytest.mark.parametrize(
    "version", [TRITON_VERSION, "3.6.0", "3.6.0+git0123abcdef.rocm7", "3.6.0+git89abcdef.rocm7"]
)
def test_rejects_a_version_without_the_commit_that_triton_adds(version: str) -> None:
    with pytest.raises(SourceError, match=r"3\.6\.0\+git0123abcd\b"):
        plan_project("triton", version=version, facts=ADDS_COMMIT)


def test_builds_triton_with_its_own_llvm_on_windows() -> None:
    libraries = replace(WINDOWS_LIBRARIES, llvm=PureWindowsPath("C:/b/llvm"))

    env = plan_project("triton", "windows", version=TRITON_VERSION, toolchain_parts=libraries).env

    settings = {name: value for name, value in env.items() if name.startswith(("TRITON_", "LLVM_"))}
    assert settings == {
        "TRITON_APPEND_CMAKE_ARGS": "-DCMAKE_FIND_USE_CMAKE_ENVIRONMENT_PATH=FALSE",
        "TRITON_WHEEL_VERSION_SUFFIX": TRITON_LOCAL_VERSION,
        "LLVM_BUILD_DIR": r"C:\b\llvm",
        "LLVM_INCLUDE_DIRS": r"C:\b\llvm\include",
        "LLVM_LIBRARY_DIR": r"C:\b\llvm\lib",
        "LLVM_SYSPATH": r"C:\b\llvm",
        "TRITON_BUILD_PROTON": "OFF",
        "TRITON_WHEEL_NAME": "triton",
    }


def test_isolates_tritons_build_on_windows() -> None:
    libraries = replace(WINDOWS_LIBRARIES, llvm=PureWindowsPath("C:/b/llvm"))

    plan = plan_project("triton", "windows", version=TRITON_VERSION, toolchain_parts=libraries)

    python = r"C:\env\Scripts\python.exe"
    assert [command.argv for command in plan.commands] == [(python, "-m", "build", "--wheel")]
    assert plan.requirements == ("build", "wheel")
    assert plan.uninstall == ()
    assert plan.requirements_files == ()


def test_names_the_llvm_that_triton_lacks_on_windows() -> None:
    facts = replace(TREE_FACTS, llvm_hash="0123456789abcdef")

    with pytest.raises(MissingInputError, match="LLVM") as caught:
        plan_project("triton", "windows", version=TRITON_VERSION, facts=facts)

    assert "/llvm-01234567-windows-x64.tar.gz" in caught.value.hint
    assert "LLVM_SYSPATH" in caught.value.hint
