from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import pytest

from core.errors import MissingInputError, SourceError
from pytorch_build.build.plans.common import Overlay
from tests.unit.pytorch_build.build.plans.conftest import Plan

TORCH = "2.10.0a0+rocm7.10.0a20251120"


@pytest.mark.parametrize(
    ("project", "changes"),
    [
        ("audio", {"USE_ROCM": ("1", "0")}),
        ("vision", {"FORCE_CUDA": ("1", "0")}),
        ("apex", {}),
    ],
)
@pytest.mark.parametrize("platform", ["linux", "windows"])
def test_environment_of_family_cpu(
    plan: Plan, project: str, platform: str, changes: dict[str, tuple[str, str]]
) -> None:
    """What a build for ROCm gets is compared with upstream's."""
    cpu, gpu = (plan(project, platform, gpu=gpu, torch_version=TORCH).env for gpu in (False, True))
    kept = {name: value for name, value in gpu.items() if name in cpu and name != "PATH"}
    differing = {name: (value, cpu[name]) for name, value in kept.items() if value != cpu[name]}
    assert differing == changes
    assert set(cpu) <= set(gpu)
    if project != "apex":
        assert cpu["PYTORCH_VERSION"] == TORCH


@pytest.mark.parametrize("project", ["audio", "vision", "apex"])
def test_what_is_built_against_torch_needs_it(plan: Plan, project: str) -> None:
    with pytest.raises(MissingInputError, match="torch is not installed") as missing:
        plan(project)
    assert "nox -s build_torch" in missing.value.hint


def test_apex_compiles_gpu_sources_where_there_is_a_gpu(plan: Plan) -> None:
    start = ("/env/bin/python", "-m", "build", "--wheel", "--no-isolation", "-C--build-option=--cpp_ext")
    assert plan("apex", torch_version=TORCH).commands[0].argv == (*start, "-C--build-option=--cuda_ext")
    assert plan("apex", gpu=False, torch_version=TORCH).commands[0].argv == start
    assert plan("apex", torch_version=TORCH).overlays == ()
    made = plan("apex", torch_version=TORCH, tree={"reads_build_version": False})
    assert made.overlays == (Overlay(path="version.txt", content=f"{TORCH}\n"),)
    env = plan("audio", torch_version=TORCH, max_jobs=2).env
    assert env["CMAKE_BUILD_PARALLEL_LEVEL"] == env["MAX_JOBS"] == "2"


TRITON = "3.6.0+rocm7.10.0a20251120"
APPEND = {"TRITON_APPEND_CMAKE_ARGS": "-DCMAKE_FIND_USE_CMAKE_ENVIRONMENT_PATH=FALSE"}


def own(plan_env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in plan_env.items() if name.startswith(("TRITON_", "LLVM_"))}


def test_older_triton_is_built_in_its_python_folder(plan: Plan) -> None:
    files = frozenset({"python/setup.py", "python/requirements.txt"})
    made = plan("triton", version=TRITON, tree={"files": files}, choices={"clean": True})
    assert made.commands[0].cwd == PurePosixPath("/src/torch/python")
    assert made.wheel_dir == PurePosixPath("/src/torch/python/dist")
    assert made.removes == ("python/dist", "python/build")


@pytest.mark.parametrize(
    ("version", "tree", "suffix"),
    [
        # the checkout's own goes in front
        (TRITON, {"build_env": {"TRITON_WHEEL_VERSION_SUFFIX": ".post1"}}, f".post1{TRITON[5:]}"),
        (TRITON, {"build_env": {"TRITON_WHEEL_VERSION_SUFFIX": ""}}, TRITON[5:]),
        # its setup adds the commit; behind the commit's plus, as a version holds one
        ("3.6.0+git0123abcd.devrocm7.10", {"git_suffix": "+git0123abcd"}, ".devrocm7.10"),
        ("3.6.0+git0123abcd", {"git_suffix": "+git0123abcd"}, ""),
        ("3.6.0+cpu.sample", {}, "+cpu.sample"),
        ("3.6.0", {}, ""),
    ],
)
def test_the_suffix_that_tritons_version_gets(plan: Plan, version: str, tree: Any, suffix: str) -> None:
    made = plan("triton", gpu=version == TRITON, version=version, tree=tree)
    assert made.env["TRITON_WHEEL_VERSION_SUFFIX"] == suffix
    assert len(made.commands) == 1


@pytest.mark.parametrize("version", [TRITON, "3.6.0", "3.6.0+git0123abcdef.rocm7", "3.6.0+git89abcdef.rocm7"])
def test_a_version_without_the_commit_that_triton_adds_is_refused(plan: Plan, version: str) -> None:
    with pytest.raises(SourceError, match=r"adds its commit to the version, 3\.6\.0\+git0123abcd,"):
        plan("triton", version=version, tree={"git_suffix": "+git0123abcd"})


def test_triton_on_windows(plan: Plan) -> None:
    made = plan("triton", "windows", version=TRITON, provided={"llvm": PureWindowsPath("C:/b/llvm")})
    assert own(made.env) == APPEND | {
        "TRITON_WHEEL_VERSION_SUFFIX": "+rocm7.10.0a20251120",
        "LLVM_BUILD_DIR": r"C:\b\llvm",
        "LLVM_INCLUDE_DIRS": r"C:\b\llvm\include",
        "LLVM_LIBRARY_DIR": r"C:\b\llvm\lib",
        "LLVM_SYSPATH": r"C:\b\llvm",
        "TRITON_BUILD_PROTON": "OFF",
        "TRITON_WHEEL_NAME": "triton",
    }
    python = r"C:\env\Scripts\python.exe"
    assert [command.argv for command in made.commands] == [(python, "-m", "build", "--wheel")]
    assert made.requirements == ("build", "wheel")
    assert (made.uninstall, made.requirements_files) == ((), ())


def test_triton_on_windows_needs_its_llvm(plan: Plan) -> None:
    with pytest.raises(MissingInputError, match="an LLVM of its own") as caught:
        plan("triton", "windows", version=TRITON, tree={"llvm_hash": "0123456789abcdef"})
    assert "/llvm-01234567-windows-x64.tar.gz and name its folder in LLVM_SYSPATH" in caught.value.hint
