from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import DataError, RocmError, SourceError, UsageError
from pytorch_build.build.cache import CompilerCache
from pytorch_build.build.plans import environment, plan_build
from pytorch_build.build.plans.common import BuildFacts, BuildRequest, TreeFacts, gpu_targets
from pytorch_build.platforms import platform_named

if TYPE_CHECKING:
    from tests.unit.pytorch_build.build.plans.conftest import Plan

QUIET = "-Wno-error=maybe-uninitialized -Wno-error=uninitialized -Wno-error=restrict"
PROJECTS = ("triton", "torch", "audio", "vision", "apex")


def test_an_unknown_project_is_named(plan: Plan) -> None:
    with pytest.raises(UsageError, match="'tritn'") as unknown:
        plan("tritn")
    assert "triton" in unknown.value.hint


@pytest.mark.parametrize("project", PROJECTS)
def test_every_build_on_linux_shares_this(plan: Plan, project: str) -> None:
    env = plan(project, torch_version="2.10.0").env
    shared = {
        "PYTHONUTF8": "1",
        "CMAKE_PREFIX_PATH": "/env/rocm/lib/cmake",
        "ROCM_HOME": "/env/rocm",
        "ROCM_PATH": "/env/rocm",
        "PYTORCH_ROCM_ARCH": "gfx942;gfx1100",
        "USE_KINETO": "ON",
        "USE_GLOO": "ON",
        "PATH": "/env/rocm/bin:/env/bin:/usr/bin",
        "VIRTUAL_ENV": "/env",
        "HIP_DEVICE_LIB_PATH": "/env/rocm/lib/llvm/amdgcn/bitcode",
        "BLAS": "OpenBLAS",
        "OpenBLAS_HOME": "/env/rocm/lib/host-math",
        "OpenBLAS_LIB_NAME": "rocm-openblas",
        "CPPFLAGS": QUIET,
    }
    assert {name: env.get(name) for name in shared} == shared
    assert env["CXXFLAGS"].startswith(QUIET)
    assert not {"CC", "CXX", "HIP_CLANG_PATH", "MAX_JOBS", "DISTUTILS_USE_SDK"} & env.keys()


@pytest.mark.parametrize("project", PROJECTS)
def test_every_build_on_windows_shares_this(plan: Plan, project: str) -> None:
    llvm = PureWindowsPath("C:/llvm")
    env = plan(
        project,
        "windows",
        base_env={"Path": r"C:\Windows"},
        torch_version="2.10.0",
        facts={"llvm": llvm},
    ).env
    shared = {
        "PYTHONUTF8": "1",
        "CMAKE_PREFIX_PATH": r"C:\env\rocm\lib\cmake",
        "ROCM_HOME": r"C:\env\rocm",
        "ROCM_PATH": r"C:\env\rocm",
        "PYTORCH_ROCM_ARCH": "gfx942;gfx1100",
        "USE_KINETO": "OFF",
        "USE_GLOO": "ON",
        "PATH": r"C:\env\rocm\bin;C:\env\Scripts;C:\Windows",
        "VIRTUAL_ENV": r"C:\env",
        "HIP_DEVICE_LIB_PATH": r"C:\env\rocm\lib\llvm\amdgcn\bitcode",
        "BLAS": "OpenBLAS",
        "OpenBLAS_HOME": r"C:\env\rocm\lib\host-math",
        "OpenBLAS_LIB_NAME": "rocm-openblas",
        "CC": r"C:\env\rocm\lib\llvm\bin\clang-cl.exe",
        "CXX": r"C:\env\rocm\lib\llvm\bin\clang-cl.exe",
        "HIP_CLANG_PATH": "C:/env/rocm/lib/llvm/bin",
    }
    assert {name: env.get(name) for name in shared} == shared
    assert not {"CXXFLAGS", "CPPFLAGS", "LDFLAGS", "LD_LIBRARY_PATH", "PKG_CONFIG_PATH"} & env.keys()


@pytest.mark.parametrize("platform", ["linux", "windows"])
@pytest.mark.parametrize("project", PROJECTS)
def test_family_cpu_knows_nothing_of_rocm(plan: Plan, project: str, platform: str) -> None:
    facts = {"llvm": PureWindowsPath("C:/llvm")}
    made = plan(project, platform, gpu=False, facts=facts, version="2.10.0+cpu", torch_version="2.10.0+cpu")
    assert {name for name, value in made.env.items() if "rocm" in f"{name}{value}".lower()} <= {"USE_ROCM"}
    assert {"ROCM_HOME", "ROCM_PATH", "PYTORCH_ROCM_ARCH", "HIP_PATH"} <= made.unset
    assert "LD_LIBRARY_PATH" not in made.env
    assert not [drop for drop in made.file_drops if drop.path == "torch/_rocm_init.py"]


def test_what_the_sdk_lacks_is_not_set(plan: Plan) -> None:
    made = plan("audio", torch_version="2.10.0", rocm_facts={"device_libs": False, "host_math": False})
    absent = {"HIP_DEVICE_LIB_PATH", "BLAS", "OpenBLAS_HOME", "OpenBLAS_LIB_NAME"}
    assert not absent & made.env.keys()
    assert "HIP_DEVICE_LIB_PATH" in made.unset, "another ROCm's would be worse than none"


@pytest.mark.parametrize("project", ["torch", "audio", "vision", "apex"])
def test_an_sdk_without_system_libraries_is_refused_on_linux(plan: Plan, project: str) -> None:
    with pytest.raises(RocmError, match="rocm_sysdeps is missing"):
        plan(project, torch_version="2.10.0", rocm_facts={"sysdeps": False})
    plan(project, "windows", torch_version="2.10.0", rocm_facts={"sysdeps": False})


@pytest.mark.parametrize("project", ["torch", "audio", "vision", "apex"])
def test_a_persons_settings_are_kept_and_added_to(plan: Plan, project: str) -> None:
    mine = {
        "PATH": "/usr/bin",
        "CXXFLAGS": "-O1",
        "CPPFLAGS": "-DX",
        "USE_KINETO": "OFF",
        "LD_LIBRARY_PATH": "/mine",
        "PKG_CONFIG_PATH": "/mine/pc",
    }
    env = plan(project, base_env=mine, torch_version="2.10.0").env
    assert env["CXXFLAGS"].startswith(f"-O1 {QUIET}")
    assert env["CPPFLAGS"] == f"-DX {QUIET}"
    assert env["USE_KINETO"] == "OFF"
    assert env["LD_LIBRARY_PATH"] == "/env/rocm/lib/rocm_sysdeps/lib:/mine"
    assert env["PKG_CONFIG_PATH"] == "/env/rocm/lib/rocm_sysdeps/lib/pkgconfig:/mine/pc"


def test_the_process_environment_plays_no_part(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    before = plan("torch")
    monkeypatch.setenv("CXXFLAGS", "-O0")
    monkeypatch.setenv("USE_KINETO", "OFF")
    assert plan("torch") == before


@pytest.mark.parametrize("project", PROJECTS)
def test_no_build_gets_its_gpu_targets_from_a_variable_that_caches_miss(plan: Plan, project: str) -> None:
    base = {"PATH": "/usr/bin", "HCC_AMDGPU_TARGET": "gfx900", "PYTHONPATH": "/leak", "KEPT": "1"}
    made = plan(project, base_env=base, torch_version="2.10.0")
    whole = environment(made, platform=platform_named("linux"), base_env=base)
    assert not {"HCC_AMDGPU_TARGET", "PYTHONPATH"} & whole.keys()
    assert whole["KEPT"] == "1"
    assert whole["PYTORCH_ROCM_ARCH"] == "gfx942;gfx1100"
    with pytest.raises(DataError, match="HCC_AMDGPU_TARGET"):
        plan(project, torch_version="2.10.0", ref_env={"HCC_AMDGPU_TARGET": "gfx942"})


@pytest.mark.parametrize("project", PROJECTS)
def test_the_refs_environment_has_the_last_word(plan: Plan, project: str) -> None:
    made = plan(
        project,
        torch_version="2.10.0",
        options={"max_jobs": 8},
        ref_env={"USE_FFMPEG": "0", "MAX_JOBS": "2", "USE_GLOO": "OFF", "HIP_PATH": "/mine"},
    )
    assert {made.env[name] for name in ("USE_FFMPEG", "MAX_JOBS")} == {"0", "2"}
    assert made.env["USE_GLOO"] == "OFF"
    assert "HIP_PATH" not in made.unset


def test_jobs_and_cache_come_from_the_options(plan: Plan) -> None:
    cache = CompilerCache(kind="sccache", program=PurePosixPath("/bin/sccache"))
    options = {"max_jobs": 3, "compiler_cache": cache}
    made = plan("torch", options=options)
    assert made.env["MAX_JOBS"] == "3"
    assert made.env["CMAKE_CXX_COMPILER_LAUNCHER"] == "/bin/sccache"
    assert "HIP_CLANG_LAUNCHER" not in made.env, "hipcc of ROCm 7.10 has no launcher"
    by_setup_py = plan("vision", torch_version="2.10.0", base_env={"CXX": "g++-12"}, options=options)
    assert by_setup_py.env["CXX"] == "/bin/sccache g++-12"
    assert "CMAKE_CXX_COMPILER_LAUNCHER" not in by_setup_py.env


@pytest.mark.parametrize("project", PROJECTS)
def test_what_is_built_sees_no_credentials_of_the_run(plan: Plan, project: str) -> None:
    mine = {
        "PATH": "/usr/bin",
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "of-the-run",
        "AWS_SESSION_TOKEN": "of-the-run",
    }
    made = plan(project, base_env=mine, torch_version="2.10.0")
    env = environment(made, platform=platform_named("linux"), base_env=mine)
    assert not [name for name in env if name.startswith("AWS_")]


@pytest.mark.parametrize("project", PROJECTS)
def test_clean_removes_the_build_folder_too(plan: Plan, project: str) -> None:
    assert plan(project, torch_version="2.10.0").removes == ("dist",)
    assert plan(project, torch_version="2.10.0", options={"clean": True}).removes == ("dist", "build")


@pytest.mark.parametrize("project", PROJECTS)
def test_a_tree_without_setup_is_refused(plan: Plan, project: str) -> None:
    with pytest.raises(SourceError, match="no source tree of"):
        plan(project, torch_version="2.10.0", tree={"files": frozenset()})


@pytest.mark.parametrize("project", PROJECTS)
def test_what_the_ref_needs_is_installed_with_the_rest(plan: Plan, project: str) -> None:
    made = plan(project, torch_version="2.10.0", build_requirements=("setuptools<81", "wheel"))
    assert "setuptools<81" in made.requirements
    assert len(set(made.requirements)) == len(made.requirements)


@pytest.mark.parametrize("project", PROJECTS)
def test_no_index_may_answer_for_what_this_pipeline_builds(plan: Plan, project: str) -> None:
    asked = ("setuptools>=60", "torch", "Triton >= 3 ; sys_platform == 'linux'", "numpy")
    made = plan(project, torch_version="2.10.0", tree={"build_requires": asked})
    assert {"setuptools>=60", "numpy"} <= set(made.requirements)
    assert not [line for line in made.requirements if line.lower().startswith(("torch", "triton"))]
    with pytest.raises(SourceError, match=r"pyproject\.toml: '== 3' is no requirement"):
        plan(project, torch_version="2.10.0", tree={"build_requires": ("== 3",)})


def test_gpu_builds_without_targets_or_facts_are_refused(plan: Plan) -> None:
    with pytest.raises(RocmError, match="no GPU targets"):
        plan("torch", gpu_targets=())
    with pytest.raises(RocmError, match="Nothing is known"):
        plan("torch", facts={"rocm": None})


def test_a_kept_build_folder_is_tied_to_what_it_was_made_with(plan: Plan) -> None:
    first = plan("torch")
    same = plan("torch", base_env={"PATH": "/other"}, options={"max_jobs": 2, "clean": True})
    assert same.configuration == first.configuration
    others = [
        plan("torch", gpu_targets=("gfx942",)),
        plan("torch", gpu=False),
        plan("torch", version="2.10.1+rocm7.10.0"),
        plan("torch", python=PurePosixPath("/other/bin/python")),
        plan("torch", ref_env={"USE_X": "1"}),
    ]
    assert len({first.configuration, *(other.configuration for other in others)}) == 6


def test_targets_come_from_the_nearest_source() -> None:
    sdk = ("gfx942", "gfx942", "gfx950")
    assert gpu_targets(asked="", inherited="", sdk=sdk) == ("gfx942", "gfx950")
    assert gpu_targets(asked="", inherited="gfx1100,gfx1101", sdk=sdk) == ("gfx1100", "gfx1101")
    assert gpu_targets(asked="gfx90a:xnack+;gfx908", inherited="gfx1100", sdk=sdk) == (
        "gfx90a:xnack+",
        "gfx908",
    )


def test_what_is_no_target_is_refused() -> None:
    with pytest.raises(UsageError, match="'gfx94X' in --pytorch-rocm-arch"):
        gpu_targets(asked="gfx942,gfx94X", inherited="", sdk=())
    with pytest.raises(UsageError, match="'native' in PYTORCH_ROCM_ARCH"):
        gpu_targets(asked="", inherited="native", sdk=())
    with pytest.raises(RocmError, match="no GPU targets"):
        gpu_targets(asked=" ", inherited=";", sdk=())


targets = st.lists(st.from_regex(r"gfx(9[0-9a-f]{2}|1[0-9]{3})", fullmatch=True), min_size=1, unique=True)


@given(targets, st.sampled_from([",", ";", " ", ", "]))
def test_targets_keep_their_order_through_any_separator(words: list[str], separator: str) -> None:
    assert gpu_targets(asked=separator.join(words), inherited="", sdk=()) == tuple(words)


flags = st.text(alphabet="-abcDWO123=", min_size=1, max_size=20)


@given(st.sampled_from(PROJECTS), flags, st.sampled_from(["CXXFLAGS", "CPPFLAGS"]))
def test_a_persons_flags_stay_first(project: str, mine: str, name: str) -> None:
    request = BuildRequest(
        project=project,
        version="1.0+cpu",
        tree=PurePosixPath("/src"),
        python=PurePosixPath("/env/bin/python"),
        rocm=None,
        torch_version="2.10.0",
    )
    facts = BuildFacts(tree=TreeFacts(files=frozenset({"setup.py"})))
    linux = platform_named("linux")
    made = plan_build(request, facts, platform=linux, base_env={name: mine})
    assert made.env[name].split(" ", 1)[0] == mine
    assert replace(made, env={}) == replace(
        plan_build(request, facts, platform=linux, base_env={}), env={}, configuration=made.configuration
    )
