"""Builds of the sample's projects, planned for a machine that is nowhere, on Linux or on Windows."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any

from pytorch_build.build.cache import CompilerCache
from pytorch_build.build.compilers import Compiler
from pytorch_build.build.facts import BuildFacts, TreeFacts
from pytorch_build.build.inputs import BuildInputs, Dependency, RocmIdentity, build_flags
from pytorch_build.build.plan import BuildPlan, plan_build
from pytorch_build.build.toolchain import ToolchainParts
from pytorch_build.components import COMPONENTS
from pytorch_build.platforms import PLATFORMS
from pytorch_build.sdk import RocmSdk

PROJECTS = tuple(COMPONENTS)
ROCM_VERSION = "7.10.0a20251120"
TORCH_VERSION = f"2.10.0a0+rocm{ROCM_VERSION}"
# Such as a project has whose folder is a source tree.
TREE_FACTS = TreeFacts(files=frozenset({"setup.py", "pyproject.toml"}))
GCC = Compiler(path="/usr/bin/c++", kind="gcc", version="14.2.0")

TREES: dict[str, PurePath] = {
    "linux": PurePosixPath("/src/torch"),
    "windows": PureWindowsPath("C:/b/torch"),
}
PYTHONS: dict[str, PurePath] = {
    "linux": PurePosixPath("/env/bin/python"),
    "windows": PureWindowsPath("C:/env/Scripts/python.exe"),
}
SDK_ROOTS: dict[str, PurePath] = {
    "linux": PurePosixPath("/env/rocm"),
    "windows": PureWindowsPath("C:/env/rocm"),
}
WINDOWS_LIBRARIES = ToolchainParts(
    openmp=PureWindowsPath("C:/openmp/libomp140.x86_64.dll"),
    libuv=PureWindowsPath("C:/uv/bin/uv.dll"),
    licenses={
        "llvm-openmp": PureWindowsPath("C:/openmp/LICENSE"),
        "libuv": PureWindowsPath("C:/uv/LICENSE"),
    },
)


def rocm_sdk(platform: str = "linux", **changes: Any) -> RocmSdk:
    """Return a ROCm SDK that lacks nothing, with changes of its fields."""
    root = SDK_ROOTS[platform]
    sdk = RocmSdk(
        version=ROCM_VERSION,
        root=root,
        bin=root / "bin",
        cmake=root / "lib" / "cmake",
        targets=("gfx942",),
        libraries=frozenset(PLATFORMS[platform].preloads),
    )
    return replace(sdk, **changes)


def build_inputs(**changes: Any) -> BuildInputs:
    """Return the inputs of a build for two GPU targets, with changes of its fields."""
    inputs = BuildInputs(
        source={"commit": "1" * 40},
        version=TORCH_VERSION,
        python="3.12.4",
        rocm=RocmIdentity(version=ROCM_VERSION, layout="split", content={"rocm.tar.gz": "aa"}),
        gpu_targets=("gfx942", "gfx1100"),
        ref_env={},
        flags={},
        lock_sha256="bb",
        code_digest="cc",
    )
    return replace(inputs, **changes)


def build_facts(platform: str = "linux", **changes: Any) -> BuildFacts:
    """Return the facts of a build with ROCm on a platform, with changes of its fields."""
    facts = BuildFacts(
        platform=PLATFORMS[platform],
        gpu_family="gfx94X-dcgpu",
        tree=TREES[platform],
        python=PYTHONS[platform],
        tree_facts=TREE_FACTS,
        rocm=rocm_sdk(platform),
        toolchain_parts=WINDOWS_LIBRARIES if platform == "windows" else ToolchainParts(),
        compilers={"CXX": GCC},
        user_env={"PATH": "/usr/bin"},
    )
    return replace(facts, **changes)


def plan_project(
    project: str,
    platform: str = "linux",
    *,
    has_gpu: bool = True,
    gpu_targets: tuple[str, ...] = ("gfx942", "gfx1100"),
    version: str = TORCH_VERSION,
    triton_version: str = "",
    torch_version: str = "",
    ref_env: Mapping[str, str] | None = None,
    base_env: Mapping[str, str] | None = None,
    facts: TreeFacts = TREE_FACTS,
    toolchain_parts: ToolchainParts | None = None,
    sdk: RocmSdk | None = None,
    flash_attention: bool | None = None,
    clean: bool = False,
    python: PurePath | None = None,
    compilers: Mapping[str, Compiler] | None = None,
    compiler_cache: CompilerCache | None = None,
    max_jobs: int | None = None,
) -> BuildPlan:
    """Return the plan of a project's build.

    `version` is its own, `triton_version` and `torch_version` are those of what it stands on, where that is
    installed. `ref_env` are the variables that its torch ref sets, `base_env` those of the user.
    """
    user_env = {"PATH": "/usr/bin"} if base_env is None else base_env
    dependencies: tuple[Dependency, ...] = ()
    if triton_version:
        dependencies = (Dependency(project="triton", requirement="triton.whl", version=triton_version),)
    inputs = build_inputs(
        version=version,
        gpu_targets=gpu_targets if has_gpu else (),
        dependencies=dependencies,
        ref_env=ref_env or {},
        flash_attention=flash_attention,
        flags=build_flags(user_env),
    )
    machine_and_tree = build_facts(
        platform,
        tree_facts=facts,
        torch_version=torch_version or None,
        compiler_cache=compiler_cache,
        max_jobs=max_jobs,
        user_env=user_env,
    )
    if sdk is not None:
        machine_and_tree = replace(machine_and_tree, rocm=sdk)
    if not has_gpu:
        inputs = replace(inputs, rocm=None)
        machine_and_tree = replace(machine_and_tree, rocm=None, gpu_family="cpu")
    if toolchain_parts is not None:
        machine_and_tree = replace(machine_and_tree, toolchain_parts=toolchain_parts)
    if python is not None:
        machine_and_tree = replace(machine_and_tree, python=python)
    if compilers is not None:
        machine_and_tree = replace(machine_and_tree, compilers=compilers)
    return plan_build(COMPONENTS[project], inputs, machine_and_tree, clean=clean)
