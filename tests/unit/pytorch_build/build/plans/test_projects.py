from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import pytest

from core.errors import MissingInputError, SourceError
from pytorch_build.build.plans.common import Overlay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.pytorch_build.build.plans.conftest import Plan

TORCH = "2.10.0a0+rocm7.10.0a20251120"


def common(plan: Plan, platform: str, *, gpu: bool = True, **request: Any) -> dict[str, str]:
    """Environment of a build less what its own project adds: triton's has the least."""
    facts = {"llvm": PureWindowsPath("C:/llvm")}
    env = dict(plan("triton", platform, gpu=gpu, provided=facts, **request).env)
    own = {"BUILD_DIR", "INCLUDE_DIRS", "LIBRARY_DIR", "SYSPATH"}
    return {
        name: value
        for name, value in env.items()
        if not name.startswith("TRITON_") and name not in {f"LLVM_{end}" for end in own}
    }


SYSDEPS = {
    "PKG_CONFIG_PATH": "/env/rocm/lib/rocm_sysdeps/lib/pkgconfig",
    "LD_LIBRARY_PATH": "/env/rocm/lib/rocm_sysdeps/lib",
}


def added(plan: Plan, project: str, platform: str = "linux", *, gpu: bool = True) -> Mapping[str, str]:
    """What one project's environment has beyond the common one."""
    env = plan(project, platform, gpu=gpu, torch_version=TORCH).env
    shared = common(plan, platform, gpu=gpu)
    assert {name: env[name] for name in shared if name in env} == shared
    return {name: value for name, value in env.items() if name not in shared}


AUDIO = {
    "BUILD_VERSION": TORCH,
    "BUILD_NUMBER": "1",
    "PYTORCH_VERSION": TORCH,
    "USE_ROCM": "1",
    "USE_CUDA": "0",
    "USE_FFMPEG": "1",
    "USE_OPENMP": "1",
    "BUILD_SOX": "0",
}
VISION = {
    "BUILD_VERSION": TORCH,
    "VERSION_NAME": TORCH,
    "BUILD_NUMBER": "1",
    "PYTORCH_VERSION": TORCH,
    "FORCE_CUDA": "1",
    "TORCHVISION_USE_NVJPEG": "0",
    "TORCHVISION_USE_VIDEO_CODEC": "0",
}
APEX = {"BUILD_VERSION": TORCH, "BUILD_NUMBER": "1"}
SDK = {"DISTUTILS_USE_SDK": "1"}


@pytest.mark.parametrize(
    ("project", "platform", "expected"),
    [
        ("audio", "linux", AUDIO | SYSDEPS),
        ("audio", "windows", AUDIO | SDK),
        ("vision", "linux", VISION | SYSDEPS),
        ("vision", "windows", VISION | SDK),
        ("apex", "linux", APEX | SYSDEPS),
        ("apex", "windows", APEX),
    ],
)
def test_environment_with_rocm(plan: Plan, project: str, platform: str, expected: dict[str, str]) -> None:
    assert added(plan, project, platform) == expected


@pytest.mark.parametrize(
    ("project", "platform", "expected"),
    [
        ("audio", "linux", AUDIO | {"USE_ROCM": "0"}),
        ("audio", "windows", AUDIO | SDK | {"USE_ROCM": "0"}),
        ("vision", "linux", VISION | {"FORCE_CUDA": "0"}),
        ("vision", "windows", VISION | SDK | {"FORCE_CUDA": "0"}),
        ("apex", "linux", APEX),
    ],
)
def test_environment_of_family_cpu(plan: Plan, project: str, platform: str, expected: dict[str, str]) -> None:
    assert added(plan, project, platform, gpu=False) == expected


def test_audio_passes_the_job_count_to_cmake(plan: Plan) -> None:
    env = plan("audio", torch_version=TORCH, max_jobs=2).env
    assert env["CMAKE_BUILD_PARALLEL_LEVEL"] == env["MAX_JOBS"] == "2"


@pytest.mark.parametrize(("project", "wheel"), [("audio", "torchaudio"), ("vision", "torchvision")])
def test_audio_and_vision_run_setup_py(plan: Plan, project: str, wheel: str) -> None:
    made = plan(project, torch_version=TORCH, tree={"build_requires": ("setuptools>=60",)})
    (command,) = made.commands
    assert command.argv == ("/env/bin/python", "setup.py", "bdist_wheel")
    assert command.cwd == PurePosixPath("/src/torch")
    assert (made.distribution, made.wheel_glob) == (wheel, f"{wheel}-*.whl")
    assert made.wheel_dir == PurePosixPath("/src/torch/dist")
    assert {"setuptools", "wheel", "ninja", "setuptools>=60"} <= set(made.requirements)
    assert not made.uninstall


@pytest.mark.parametrize("project", ["audio", "vision", "apex"])
def test_what_is_built_against_torch_needs_it(plan: Plan, project: str) -> None:
    with pytest.raises(MissingInputError, match="torch is not installed") as missing:
        plan(project)
    assert "nox -s build_torch" in missing.value.hint


def test_apex_compiles_gpu_sources_where_there_is_a_gpu(plan: Plan) -> None:
    start = ("/env/bin/python", "-m", "build", "--wheel", "--no-isolation", "-C--build-option=--cpp_ext")
    assert plan("apex", torch_version=TORCH).commands[0].argv == (*start, "-C--build-option=--cuda_ext")
    assert plan("apex", gpu=False, torch_version=TORCH).commands[0].argv == start


def test_apex_that_ignores_build_version_is_told_by_file(plan: Plan) -> None:
    assert plan("apex", torch_version=TORCH).overlays == ()
    made = plan("apex", torch_version=TORCH, tree={"reads_build_version": False})
    assert made.overlays == (Overlay(path="version.txt", content=f"{TORCH}\n"),)


TRITON = "3.6.0+rocm7.10.0a20251120"
APPEND = {"TRITON_APPEND_CMAKE_ARGS": "-DCMAKE_FIND_USE_CMAKE_ENVIRONMENT_PATH=FALSE"}


def own(plan_env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in plan_env.items() if name.startswith(("TRITON_", "LLVM_"))}


def test_triton_on_linux(plan: Plan) -> None:
    files = frozenset({"setup.py", "python/requirements.txt"})
    made = plan("triton", version=TRITON, tree={"files": files, "build_requires": ("pybind11>=2.13.1",)})
    assert own(made.env) == APPEND | {"TRITON_WHEEL_VERSION_SUFFIX": "+rocm7.10.0a20251120"}
    assert not {"LD_LIBRARY_PATH", "PKG_CONFIG_PATH", "LDFLAGS"} & made.env.keys()
    assert [command.argv for command in made.commands] == [("/env/bin/python", "setup.py", "bdist_wheel")]
    assert made.uninstall == ("triton",)
    assert made.requirements_files == ("python/requirements.txt",)
    assert made.requirements == ("setuptools", "wheel", "pybind11>=2.13.1")
    assert made.wheel_glob == "triton-*.whl"


def test_older_triton_is_built_in_its_python_folder(plan: Plan) -> None:
    files = frozenset({"python/setup.py", "python/requirements.txt"})
    made = plan("triton", version=TRITON, tree={"files": files}, choices={"clean": True})
    assert made.commands[0].cwd == PurePosixPath("/src/torch/python")
    assert made.wheel_dir == PurePosixPath("/src/torch/python/dist")
    assert made.removes == ("python/dist", "python/build")


def test_build_env_of_the_checkout_goes_in_front_of_the_suffix(plan: Plan) -> None:
    build_env = {"TRITON_WHEEL_VERSION_SUFFIX": ".post1", "TRITON_OFFLINE_BUILD": "1"}
    env = plan("triton", version=TRITON, tree={"build_env": build_env}).env
    assert env["TRITON_WHEEL_VERSION_SUFFIX"] == ".post1+rocm7.10.0a20251120"
    assert env["TRITON_OFFLINE_BUILD"] == "1"
    env = plan("triton", version=TRITON, tree={"build_env": {"TRITON_WHEEL_VERSION_SUFFIX": ""}}).env
    assert env["TRITON_WHEEL_VERSION_SUFFIX"] == "+rocm7.10.0a20251120"


def test_triton_keeps_its_name_from_the_refs_environment(plan: Plan) -> None:
    made = plan("triton", version=TRITON, ref_env={"TRITON_WHEEL_NAME": "pytorch-triton-rocm"})
    assert made.uninstall == ("pytorch-triton-rocm",)
    assert made.wheel_glob == "pytorch_triton_rocm-*.whl"


def test_triton_adds_the_commit_itself_to_versions_that_have_it(plan: Plan) -> None:
    tree = {"git_suffix": "+git0123abcd"}
    tagged = "3.6.0+git0123abcd.devrocm7.10.0.dev0.abc"
    made = plan("triton", version=tagged, tree=tree)
    # behind the commit's plus, as a version holds one
    assert made.env["TRITON_WHEEL_VERSION_SUFFIX"] == ".devrocm7.10.0.dev0.abc"
    assert len(made.commands) == 1
    assert plan("triton", version="3.6.0+git0123abcd", tree=tree).env["TRITON_WHEEL_VERSION_SUFFIX"] == ""


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


def test_triton_of_family_cpu(plan: Plan) -> None:
    env = plan("triton", gpu=False, version="3.6.0+cpu.sample").env
    assert env["TRITON_WHEEL_VERSION_SUFFIX"] == "+cpu.sample"
    assert plan("triton", gpu=False, version="3.6.0").env["TRITON_WHEEL_VERSION_SUFFIX"] == ""
