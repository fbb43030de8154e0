import shlex
from dataclasses import replace
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.environment import allowed
from core.errors import DataError, RocmError, SourceError
from pytorch_build.build.cache import CompilerCache
from pytorch_build.build.compilers import Compiler
from pytorch_build.platforms import LINUX
from tests.unit.pytorch_build.build.plans.conftest import GCC, Plan

QUIET = "-Wno-error=maybe-uninitialized -Wno-error=uninitialized -Wno-error=restrict"
PROJECTS = ("triton", "torch", "audio", "vision", "apex")


@pytest.mark.parametrize("project", PROJECTS)
def test_programs_of_rocm_and_of_the_environment_come_first(plan: Plan, project: str) -> None:
    env = plan(project, torch_version="2.10.0").env
    assert env["PATH"] == "/env/rocm/bin:/env/bin:/usr/bin"
    assert env["VIRTUAL_ENV"] == "/env"
    assert not {"CC", "CXX", "HIP_CLANG_PATH", "MAX_JOBS", "DISTUTILS_USE_SDK"} & env.keys()
    llvm, base_env = {"llvm": PureWindowsPath("C:/llvm")}, {"Path": r"C:\Windows"}
    env = plan(project, "windows", base_env=base_env, torch_version="2.10.0", provided=llvm).env
    assert env["PATH"] == r"C:\env\rocm\bin;C:\env\Scripts;C:\Windows"
    assert env["VIRTUAL_ENV"] == r"C:\env"
    assert not {"CXXFLAGS", "CPPFLAGS", "LDFLAGS", "LD_LIBRARY_PATH", "PKG_CONFIG_PATH"} & env.keys()


@pytest.mark.parametrize("platform", ["linux", "windows"])
@pytest.mark.parametrize("project", PROJECTS)
def test_family_cpu_knows_nothing_of_rocm(plan: Plan, project: str, platform: str) -> None:
    facts = {"llvm": PureWindowsPath("C:/llvm")}
    made = plan(
        project, platform, gpu=False, provided=facts, version="2.10.0+cpu", torch_version="2.10.0+cpu"
    )
    assert {name for name, value in made.env.items() if "rocm" in f"{name}{value}".lower()} <= {"USE_ROCM"}
    assert {"ROCM_HOME", "ROCM_PATH", "PYTORCH_ROCM_ARCH", "HIP_PATH"} <= made.unset
    assert "LD_LIBRARY_PATH" not in made.env
    assert not [drop for drop in made.overlays if drop.path == "torch/_rocm_init.py"]


def test_what_the_sdk_lacks_is_not_set(plan: Plan) -> None:
    made = plan("audio", torch_version="2.10.0", sdk={"device_libs": False, "host_math": False})
    absent = {"HIP_DEVICE_LIB_PATH", "BLAS", "OpenBLAS_HOME", "OpenBLAS_LIB_NAME"}
    assert not absent & made.env.keys()
    assert "HIP_DEVICE_LIB_PATH" in made.unset, "another ROCm's would be worse than none"


@pytest.mark.parametrize("project", ["torch", "audio", "vision", "apex"])
def test_an_sdk_without_system_libraries_is_refused_on_linux(plan: Plan, project: str) -> None:
    with pytest.raises(RocmError, match="rocm_sysdeps is missing"):
        plan(project, torch_version="2.10.0", sdk={"sysdeps": False})
    plan(project, "windows", torch_version="2.10.0", sdk={"sysdeps": False})


def test_flags_name_a_rocm_whose_path_has_a_space(plan: Plan) -> None:
    env = plan("torch", sdk={"root": PurePosixPath("/my env/rocm")}).env
    # a value that begins and ends with a quote loses both in CMake's cache
    assert env["LDFLAGS"] == "-L'/my env/rocm/lib/rocm_sysdeps/lib'"
    assert shlex.split(env["CXXFLAGS"])[-1] == "-I/my env/rocm/include/roctracer"


@pytest.mark.parametrize("project", ["torch", "audio", "vision", "apex"])
def test_a_users_settings_are_kept_and_added_to(plan: Plan, project: str) -> None:
    mine = {
        "PATH": "/usr/bin",
        "CXXFLAGS": "-O1",
        "CPPFLAGS": "-DX",
        "LDFLAGS": "-fuse-ld=mold",
        "USE_KINETO": "OFF",
        "LD_LIBRARY_PATH": "/mine",
        "PKG_CONFIG_PATH": "/mine/pc",
    }
    env = plan(project, base_env=mine, torch_version="2.10.0").env
    assert env["CXXFLAGS"].startswith(f"-O1 {QUIET}")
    assert env["CPPFLAGS"] == f"-DX {QUIET}"
    assert project != "torch" or env["LDFLAGS"] == "-fuse-ld=mold -L/env/rocm/lib/rocm_sysdeps/lib"
    assert env["USE_KINETO"] == "OFF"
    assert env["LD_LIBRARY_PATH"] == "/env/rocm/lib/rocm_sysdeps/lib:/mine"
    assert env["PKG_CONFIG_PATH"] == "/env/rocm/lib/rocm_sysdeps/lib/pkgconfig:/mine/pc"


@pytest.mark.parametrize("project", PROJECTS)
def test_no_build_sees_a_variable_that_caches_miss(plan: Plan, project: str) -> None:
    base = {"PATH": "/usr/bin", "HCC_AMDGPU_TARGET": "gfx1"}
    made = plan(project, base_env=base, torch_version="2.10.0")
    whole = LINUX.merge(allowed(base), made.env, unset=made.unset)
    assert "HCC_AMDGPU_TARGET" not in whole
    assert whole["PYTORCH_ROCM_ARCH"] == "gfx942;gfx1100"
    with pytest.raises(DataError, match="HCC_AMDGPU_TARGET"):
        plan(project, torch_version="2.10.0", ref_env={"HCC_AMDGPU_TARGET": "gfx942"})


@pytest.mark.parametrize("project", PROJECTS)
def test_the_refs_environment_has_the_last_word(plan: Plan, project: str) -> None:
    made = plan(
        project,
        torch_version="2.10.0",
        max_jobs=8,
        ref_env={"USE_FFMPEG": "0", "MAX_JOBS": "2", "USE_GLOO": "OFF", "HIP_PATH": "/mine"},
    )
    assert {made.env[name] for name in ("USE_FFMPEG", "MAX_JOBS")} == {"0", "2"}
    assert made.env["USE_GLOO"] == "OFF"
    assert "HIP_PATH" not in made.unset


def test_jobs_and_cache_come_from_the_site(plan: Plan) -> None:
    cache = CompilerCache(kind="sccache", program=PurePosixPath("/bin/sccache"))
    made = plan("torch", max_jobs=3, cache=cache)
    assert made.env["MAX_JOBS"] == "3"
    assert made.env["CMAKE_CXX_COMPILER_LAUNCHER"] == "/bin/sccache"
    assert "HIP_CLANG_LAUNCHER" not in made.env, "hipcc of ROCm 7.10 has no launcher"
    windows = plan("torch", "windows", cache=replace(cache, kind="ccache"))
    assert "invalid argument" in windows.notes[0]
    assert windows.env["CMAKE_MSVC_DEBUG_INFORMATION_FORMAT"] == "Embedded"
    by_setup_py = plan("vision", torch_version="2.10.0", base_env={"CXX": "g++-12"}, cache=cache)
    assert by_setup_py.env["CXX"] == "/bin/sccache g++-12"
    assert "CMAKE_CXX_COMPILER_LAUNCHER" not in by_setup_py.env


@pytest.mark.parametrize("project", PROJECTS)
def test_clean_removes_the_build_folder_too(plan: Plan, project: str) -> None:
    assert plan(project, torch_version="2.10.0").removes == ("dist",)
    assert plan(project, torch_version="2.10.0", choices={"clean": True}).removes == ("dist", "build")
    with pytest.raises(SourceError, match="not a source tree of"):
        plan(project, torch_version="2.10.0", tree={"files": frozenset()})


@pytest.mark.parametrize("project", PROJECTS)
def test_no_index_may_answer_for_what_this_pipeline_builds(plan: Plan, project: str) -> None:
    asked = ("setuptools>=60", "torch", "Triton >= 3 ; sys_platform == 'linux'", "numpy")
    made = plan(project, torch_version="2.10.0", tree={"build_requires": asked})
    assert {"setuptools>=60", "numpy"} <= set(made.requirements)
    assert not [line for line in made.requirements if line.lower().startswith(("torch", "triton"))]
    with pytest.raises(SourceError, match=r"pyproject\.toml: invalid requirement"):
        plan(project, torch_version="2.10.0", tree={"build_requires": ("== 3",)})


def test_a_kept_build_folder_is_tied_to_what_it_was_made_with(plan: Plan) -> None:
    first = plan("torch")
    same = plan("torch", base_env={"PATH": "/other"}, max_jobs=2, choices={"clean": True})
    assert same.configuration == first.configuration
    others = [
        plan("torch", gpu_targets=("gfx942",)),
        plan("torch", gpu=False),
        plan("torch", version="2.10.1+rocm7.10.0"),
        plan("torch", python=PurePosixPath("/other/bin/python")),
        plan("torch", ref_env={"USE_X": "1"}),
        # what a user sets reaches CMake, though no plan names it
        *(
            plan("torch", base_env={"PATH": "/usr/bin", name: "1"})
            for name in ("DEBUG", "USE_OPENMP", "ONNX_ML")
        ),
        plan("torch", compilers={"CXX": replace(GCC["CXX"], version="14.3.0")}),
        plan("torch", compilers={"CXX": replace(GCC["CXX"], path="/usr/bin/g++")}),
    ]
    assert len({first.configuration, *(other.configuration for other in others)}) == 11


def test_flags_are_those_of_the_compiler(plan: Plan) -> None:
    clang = {"CXX": Compiler(path="/usr/bin/clang++", kind="clang", version="19.1.7")}
    base = {"PATH": "/usr/bin", "CFLAGS": "-g0"}
    env = plan("torch", gpu=False, version="1.0+cpu", base_env=base, compilers=clang).env
    assert env["CXXFLAGS"] == "-g0 -Wno-unknown-warning-option", "upstream promises it of CFLAGS"
    assert env["CPPFLAGS"] == "-Wno-unknown-warning-option"
    assert "CXXFLAGS" not in plan("torch", gpu=False, version="1.0+cpu", compilers={}).env


def test_a_users_switches_count_and_what_does_not_is_told(plan: Plan) -> None:
    mine = {"USE_GLOO": "0", "USE_MPI": "1", "USE_NUMA": "1", "BUILD_TEST": "1"}
    made = plan("torch", base_env={"PATH": "/usr/bin", **mine})
    assert {name: made.env[name] for name in mine} == mine
    assert made.notes == ()
    overridden = {"USE_CUDA": "1", "ROCM_HOME": "/opt/rocm", "CMAKE_ARGS": "-DX=1"}
    said = "\n".join(plan("torch", base_env={"PATH": "/usr/bin", **overridden}).notes)
    assert "USE_CUDA=1 of your environment is ignored: the build sets OFF." in said
    assert "ROCM_HOME=/opt/rocm of your environment is ignored: the build sets /env/rocm." in said
    assert "This tree does not read CMAKE_ARGS" in said
    assert plan("torch").env["BUILD_TEST"] == "0"


flags = st.text(alphabet="-abcDWO123=", min_size=1, max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PROJECTS), flags, st.sampled_from(["CXXFLAGS", "CPPFLAGS"]))
def test_a_users_flags_stay_first(plan: Plan, project: str, mine: str, name: str) -> None:
    cpu: dict[str, Any] = {"gpu": False, "version": "1.0+cpu", "torch_version": "2.10.0"}
    made, other = (plan(project, base_env=base, **cpu) for base in ({name: mine}, {}))
    assert made.env[name].split(" ", 1)[0] == mine
    assert replace(made, env={}) == replace(other, env={}, configuration=made.configuration)
