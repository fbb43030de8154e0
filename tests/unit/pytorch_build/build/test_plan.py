import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.env.installer import InstallerCall
from core.environment import allowed
from core.errors import DataError, RocmError, SourceError
from pytorch_build.build.cache import CompilerCache
from pytorch_build.build.compilers import Compiler
from pytorch_build.build.facts import TreeFacts
from pytorch_build.build.inputs import BuildInputs, Dependency
from pytorch_build.build.plan import plan_build, plan_environment
from pytorch_build.components import COMPONENTS
from tests.kit.build_plans import (
    GCC,
    PROJECTS,
    ROCM_VERSION,
    TREE_FACTS,
    WINDOWS_LIBRARIES,
    build_facts,
    build_inputs,
    plan_project,
    rocm_sdk,
)
from tests.kit.platforms import LINUX

QUIET_FLAGS = "-Wno-error=maybe-uninitialized -Wno-error=uninitialized -Wno-error=restrict"
WITH_LLVM = replace(WINDOWS_LIBRARIES, llvm=PureWindowsPath("C:/llvm"))
# All but triton are built on an installed torch, or are torch.
ON_TORCH = [project for project in PROJECTS if project != "triton"]
SCCACHE = CompilerCache(kind="sccache", program=PurePosixPath("/bin/sccache"))
SYSDEPS = "/env/rocm/lib/rocm_sysdeps/lib"

each_project = pytest.mark.parametrize("project", PROJECTS)


# Programs and variables of ROCm


@each_project
def test_puts_rocms_and_the_environments_programs_first_on_linux(project: str) -> None:
    env = plan_project(project, torch_version="2.10.0").env

    assert env["PATH"] == "/env/rocm/bin:/env/bin:/usr/bin"
    assert env["VIRTUAL_ENV"] == "/env"
    assert not {"CC", "CXX", "HIP_CLANG_PATH", "MAX_JOBS", "DISTUTILS_USE_SDK"} & env.keys()


@each_project
def test_puts_rocms_and_the_environments_programs_first_on_windows(project: str) -> None:
    env = plan_project(
        project,
        "windows",
        base_env={"Path": r"C:\Windows"},
        torch_version="2.10.0",
        toolchain_parts=WITH_LLVM,
    ).env

    assert env["PATH"] == r"C:\env\rocm\bin;C:\env\Scripts;C:\Windows"
    assert env["VIRTUAL_ENV"] == r"C:\env"
    assert not {"CXXFLAGS", "CPPFLAGS", "LDFLAGS", "LD_LIBRARY_PATH", "PKG_CONFIG_PATH"} & env.keys()


@pytest.mark.parametrize("platform", ["linux", "windows"])
@each_project
def test_tells_a_build_of_family_cpu_nothing_of_rocm(project: str, platform: str) -> None:
    plan = plan_project(
        project,
        platform,
        has_gpu=False,
        toolchain_parts=WITH_LLVM,
        version="2.10.0+cpu",
        torch_version="2.10.0+cpu",
    )

    naming_rocm = {name for name, value in plan.env.items() if "rocm" in f"{name}{value}".lower()}
    assert naming_rocm <= {"USE_ROCM"}
    assert {"ROCM_HOME", "ROCM_PATH", "PYTORCH_ROCM_ARCH", "HIP_PATH"} <= plan.unset
    assert "LD_LIBRARY_PATH" not in plan.env
    assert not [overlay for overlay in plan.overlays if overlay.path == "torch/_rocm_init.py"]


def test_sets_no_variable_for_what_the_sdk_lacks() -> None:
    sdk = rocm_sdk(has_device_libs=False, has_host_math=False)

    plan = plan_project("audio", torch_version="2.10.0", sdk=sdk)

    absent = {"HIP_DEVICE_LIB_PATH", "BLAS", "OpenBLAS_HOME", "OpenBLAS_LIB_NAME"}
    assert not absent & plan.env.keys()
    # Another ROCm's device libraries would be worse than none.
    assert "HIP_DEVICE_LIB_PATH" in plan.unset


@pytest.mark.parametrize("project", ON_TORCH)
def test_rejects_an_sdk_without_system_libraries_on_linux(project: str) -> None:
    with pytest.raises(RocmError, match="rocm_sysdeps"):
        plan_project(project, torch_version="2.10.0", sdk=rocm_sdk(has_sysdeps=False))


@pytest.mark.parametrize("project", ON_TORCH)
def test_accepts_an_sdk_without_system_libraries_on_windows(project: str) -> None:
    sdk = rocm_sdk("windows", has_sysdeps=False)

    assert plan_project(project, "windows", torch_version="2.10.0", sdk=sdk).commands


def test_quotes_the_path_of_a_rocm_with_a_space_in_flags() -> None:
    env = plan_project("torch", sdk=rocm_sdk(root=PurePosixPath("/my env/rocm"))).env

    # A value that begins and ends with a quote loses both in CMake's cache.
    assert env["LDFLAGS"] == "-L'/my env/rocm/lib/rocm_sysdeps/lib'"
    assert shlex.split(env["CXXFLAGS"])[-1] == "-I/my env/rocm/include/roctracer"


# The user's variables


@pytest.mark.parametrize("project", ON_TORCH)
def test_keeps_a_users_flags_and_adds_to_them(project: str) -> None:
    flags = {"PATH": "/usr/bin", "CXXFLAGS": "-O1", "CPPFLAGS": "-DX", "USE_KINETO": "OFF"}

    env = plan_project(project, base_env=flags, torch_version="2.10.0").env

    assert env["CXXFLAGS"].startswith(f"-O1 {QUIET_FLAGS}")
    assert env["CPPFLAGS"] == f"-DX {QUIET_FLAGS}"
    assert env["USE_KINETO"] == "OFF"


@pytest.mark.parametrize("project", ON_TORCH)
def test_puts_rocms_system_libraries_before_a_users_search_paths(project: str) -> None:
    paths = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/mine", "PKG_CONFIG_PATH": "/mine/pc"}

    env = plan_project(project, base_env=paths, torch_version="2.10.0").env

    assert env["LD_LIBRARY_PATH"] == f"{SYSDEPS}:/mine"
    assert env["PKG_CONFIG_PATH"] == f"{SYSDEPS}/pkgconfig:/mine/pc"


def test_adds_rocms_system_libraries_to_a_users_linker_flags() -> None:
    env = plan_project("torch", base_env={"PATH": "/usr/bin", "LDFLAGS": "-fuse-ld=mold"}).env

    assert env["LDFLAGS"] == f"-fuse-ld=mold -L{SYSDEPS}"


@each_project
def test_hides_a_variable_that_compiler_caches_do_not_see(project: str) -> None:
    base_env = {"PATH": "/usr/bin", "HCC_AMDGPU_TARGET": "gfx1"}

    plan = plan_project(project, base_env=base_env, torch_version="2.10.0")

    build_env = LINUX.merge(allowed(base_env), plan.env, unset=plan.unset)
    assert "HCC_AMDGPU_TARGET" not in build_env
    assert build_env["PYTORCH_ROCM_ARCH"] == "gfx942;gfx1100"


@each_project
def test_rejects_a_ref_that_sets_a_variable_that_compiler_caches_do_not_see(project: str) -> None:
    with pytest.raises(DataError, match="HCC_AMDGPU_TARGET"):
        plan_project(project, torch_version="2.10.0", ref_env={"HCC_AMDGPU_TARGET": "gfx942"})


@each_project
def test_lets_the_refs_variables_override_all_others(project: str) -> None:
    ref_env = {"USE_FFMPEG": "0", "MAX_JOBS": "2", "USE_GLOO": "OFF", "HIP_PATH": "/mine"}

    plan = plan_project(project, torch_version="2.10.0", max_jobs=8, ref_env=ref_env)

    assert plan.env.items() >= {"USE_FFMPEG": "0", "MAX_JOBS": "2", "USE_GLOO": "OFF"}.items()
    assert "HIP_PATH" not in plan.unset


def test_takes_a_users_switches() -> None:
    switches = {"USE_GLOO": "0", "USE_MPI": "1", "USE_NUMA": "1", "BUILD_TEST": "1"}

    plan = plan_project("torch", base_env={"PATH": "/usr/bin", **switches})

    assert plan.env.items() >= switches.items()
    assert plan.notes == ()


def test_builds_no_tests_of_upstream_unless_a_user_asks_for_them() -> None:
    assert plan_project("torch").env["BUILD_TEST"] == "0"


@pytest.mark.parametrize(
    ("name", "setting", "facts_in_note"),
    [
        ("USE_CUDA", "1", ["USE_CUDA=1", "OFF"]),
        ("ROCM_HOME", "/opt/rocm", ["ROCM_HOME=/opt/rocm", "/env/rocm"]),
        ("CMAKE_ARGS", "-DX=1", ["CMAKE_ARGS"]),
    ],
)
def test_notes_a_variable_of_the_user_that_is_ignored(
    name: str, setting: str, facts_in_note: list[str]
) -> None:
    plan = plan_project("torch", base_env={"PATH": "/usr/bin", name: setting})

    (note,) = plan.notes
    assert [fact for fact in facts_in_note if fact not in note] == []


@given(
    project=st.sampled_from(PROJECTS),
    flag=st.text(alphabet="-abcDWO123=", min_size=1, max_size=20),
    name=st.sampled_from(["CXXFLAGS", "CPPFLAGS"]),
)
def test_puts_a_users_flags_first(project: str, flag: str, name: str) -> None:
    cpu: dict[str, Any] = {"has_gpu": False, "version": "1.0+cpu", "torch_version": "2.10.0"}

    plan = plan_project(project, base_env={name: flag}, **cpu)
    plan_without_flag = plan_project(project, base_env={}, **cpu)

    assert plan.env[name].split(" ", 1)[0] == flag
    # Nothing else changes but the environment, and the digest of it.
    expected = replace(plan_without_flag, env={}, configuration=plan.configuration)
    assert replace(plan, env={}) == expected


# Compilers, their cache and their number


def test_sets_the_number_of_jobs_and_the_compiler_cache() -> None:
    env = plan_project("torch", max_jobs=3, compiler_cache=SCCACHE).env

    assert env["MAX_JOBS"] == "3"
    assert env["CMAKE_CXX_COMPILER_LAUNCHER"] == "/bin/sccache"
    # hipcc of ROCm 7.10 starts no launcher.
    assert "HIP_CLANG_LAUNCHER" not in env


def test_starts_the_compiler_cache_by_compiler_name_where_cmake_is_not_used() -> None:
    base_env = {"CXX": "g++-12"}

    env = plan_project("vision", torch_version="2.10.0", base_env=base_env, compiler_cache=SCCACHE).env

    assert env["CXX"] == "/bin/sccache g++-12"
    assert "CMAKE_CXX_COMPILER_LAUNCHER" not in env


def test_notes_that_ccache_may_fail_on_windows() -> None:
    plan = plan_project("torch", "windows", compiler_cache=replace(SCCACHE, kind="ccache"))

    assert "invalid argument" in plan.notes[0]
    assert plan.env["CMAKE_MSVC_DEBUG_INFORMATION_FORMAT"] == "Embedded"


def test_takes_the_flags_that_the_compiler_knows() -> None:
    clang = {"CXX": Compiler(path="/usr/bin/clang++", kind="clang", version="19.1.7")}
    base_env = {"PATH": "/usr/bin", "CFLAGS": "-g0"}

    env = plan_project("torch", has_gpu=False, version="1.0+cpu", base_env=base_env, compilers=clang).env

    # Upstream promises that CFLAGS are used for C++, too.
    assert env["CXXFLAGS"] == "-g0 -Wno-unknown-warning-option"
    assert env["CPPFLAGS"] == "-Wno-unknown-warning-option"


def test_sets_no_flags_without_a_compiler() -> None:
    env = plan_project("torch", has_gpu=False, version="1.0+cpu", compilers={}).env

    assert "CXXFLAGS" not in env


# Trees and build folders


@each_project
@pytest.mark.parametrize(("clean", "removed"), [(False, ("dist",)), (True, ("dist", "build"))])
def test_removes_the_build_folder_for_a_clean_build_alone(
    project: str, removed: tuple[str, ...], *, clean: bool
) -> None:
    assert plan_project(project, torch_version="2.10.0", clean=clean).removes == removed


@each_project
def test_rejects_a_folder_that_holds_no_project(project: str) -> None:
    with pytest.raises(SourceError, match="not a source tree"):
        plan_project(project, torch_version="2.10.0", facts=TreeFacts(files=frozenset()))


@each_project
def test_asks_no_index_for_what_the_pipeline_builds(project: str) -> None:
    requires = ("setuptools>=60", "torch", "Triton >= 3 ; sys_platform == 'linux'", "numpy")
    facts = replace(TREE_FACTS, build_requires=requires)

    plan = plan_project(project, torch_version="2.10.0", facts=facts)

    assert {"setuptools>=60", "numpy"} <= set(plan.requirements)
    assert not [line for line in plan.requirements if line.lower().startswith(("torch", "triton"))]


@each_project
def test_names_the_file_of_an_invalid_build_requirement(project: str) -> None:
    facts = replace(TREE_FACTS, build_requires=("== 3",))

    with pytest.raises(SourceError, match=r"pyproject\.toml"):
        plan_project(project, torch_version="2.10.0", facts=facts)


def test_keeps_a_build_folder_for_the_same_configuration() -> None:
    first = plan_project("torch")

    same = plan_project("torch", base_env={"PATH": "/other"}, max_jobs=2, clean=True)

    assert same.configuration == first.configuration


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"gpu_targets": ("gfx942",)}, id="GPU targets"),
        pytest.param({"has_gpu": False}, id="family"),
        pytest.param({"version": "2.10.1+rocm7.10.0"}, id="version"),
        pytest.param({"python": PurePosixPath("/other/bin/python")}, id="Python"),
        pytest.param({"ref_env": {"USE_X": "1"}}, id="ref's variable"),
        # What a user sets reaches CMake, though no plan names it.
        pytest.param({"base_env": {"PATH": "/usr/bin", "DEBUG": "1"}}, id="DEBUG"),
        pytest.param({"base_env": {"PATH": "/usr/bin", "USE_OPENMP": "1"}}, id="USE_OPENMP"),
        pytest.param({"base_env": {"PATH": "/usr/bin", "ONNX_ML": "1"}}, id="ONNX_ML"),
        pytest.param({"compilers": {"CXX": replace(GCC, version="14.3.0")}}, id="compiler's version"),
        pytest.param({"compilers": {"CXX": replace(GCC, path="/usr/bin/g++")}}, id="compiler's path"),
    ],
)
def test_keeps_no_build_folder_of_another_configuration(changes: Mapping[str, Any]) -> None:
    assert plan_project("torch", **changes).configuration != plan_project("torch").configuration


# The environment of a build


TRITON = Dependency(project="triton", requirement="/run/triton.whl", version="3.6.0", digest="bb")
LOCKED = InstallerCall(requirements=("setuptools",))
ROCM_PACKAGES = InstallerCall(requirements=(f"rocm=={ROCM_VERSION}",), whose="ours")


def plan_calls(inputs: BuildInputs) -> tuple[InstallerCall, ...]:
    """Return the calls that make the environment of a build with ROCm."""
    return plan_environment(inputs, locked=LOCKED, rocm=ROCM_PACKAGES)


def test_installs_locked_requirements_then_rocm_then_triton() -> None:
    locked, rocm, triton = plan_calls(build_inputs(dependencies=(TRITON,)))

    assert locked == LOCKED
    assert rocm == ROCM_PACKAGES
    assert triton.requirements == ("/run/triton.whl",)
    # What it requires of ours is there already; what it requires of others is installed by name.
    assert not triton.dependencies
    assert triton.sources is None


def test_installs_by_name_what_a_dependency_requires_of_others() -> None:
    triton = replace(TRITON, third_party_requirements=("numpy", "filelock"))

    calls = plan_calls(build_inputs(dependencies=(triton,)))

    assert calls[-1].requirements == ("filelock", "numpy")
    assert len(calls) == 4


def test_installs_a_prebuilt_dependency_with_what_it_requires() -> None:
    torch = Dependency(project="torch", requirement="torch==2.13.0")

    calls = plan_calls(build_inputs(dependencies=(torch,)))

    assert calls[-1].requirements == ("torch==2.13.0",)
    assert calls[-1].dependencies
    assert calls[-1].whose == "prebuilt"


def test_installs_a_refs_build_requirements_behind_the_locked_ones() -> None:
    inputs = build_inputs(build_requirements=("setuptools<70",))

    assert plan_calls(inputs)[1].requirements == ("setuptools<70",)


# Device code and search paths


@pytest.mark.parametrize(("is_split", "split_for"), [(True, ROCM_VERSION), (False, None)])
def test_plans_the_split_of_device_code(*, is_split: bool, split_for: str | None) -> None:
    plan = plan_build(COMPONENTS["torch"], build_inputs(is_split=is_split), build_facts())

    assert plan.split_for == split_for


def test_plans_search_paths_to_rocms_libraries_where_there_is_rocm() -> None:
    assert "_rocm_sdk_libraries/lib" in plan_project("torch").search_folders
    assert plan_project("torch", has_gpu=False).search_folders == ()
