"""Builds of the sample's projects, planned for a machine that is nowhere, on Linux or on Windows."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

from core.cli.options import Common
from pytorch_build.build.build import Build, BuildChoices, Dependency
from pytorch_build.build.cache import CompilerCache
from pytorch_build.build.compilers import Compiler
from pytorch_build.build.plans.common import BuildPlan
from pytorch_build.build.plans.projects import plan_build
from pytorch_build.build.site import Site, TreeFacts
from pytorch_build.build.toolchain import Provided
from pytorch_build.context import Context
from pytorch_build.platforms import PLATFORMS
from pytorch_build.refs.torch_refs import TorchRef, torch_ref
from pytorch_build.sdk import RocmOptions, RocmSdk
from tests.kit.builds import ready_tree
from tests.kit.machines import target_in

PROJECTS = ("triton", "torch", "audio", "vision", "apex")
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
WINDOWS_LIBRARIES = Provided(
    openmp=PureWindowsPath("C:/openmp/libomp140.x86_64.dll"),
    uv=PureWindowsPath("C:/uv/bin/uv.dll"),
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


@cache
def sample_ref() -> TorchRef:
    """Return the sample's torch ref, which is read once for all plans."""
    return torch_ref("sample")


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
    provided: Provided | None = None,
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
    common = Common(root=Path("/checkout"), platform="windows" if platform == "windows" else "linux")
    sample = sample_ref()
    projects = {name: replace(source, env=ref_env or {}) for name, source in sample.projects.items()}
    dependencies: list[Dependency] = []
    if triton_version:
        dependencies.append(Dependency(project="triton", requirement="", version=triton_version))

    build = Build(
        context=Context(
            common=common,
            ref=replace(sample, projects=projects),
            gpu_family="gfx94X-dcgpu" if has_gpu else "cpu",
            gpu_targets=(),
        ),
        choices=BuildChoices(
            rocm=RocmOptions(),
            own_trees={},
            mirrors={},
            gpu_targets=";".join(gpu_targets),
            flash_attention=flash_attention,
            clean=clean,
        ),
        target=target_in(Path("/env")),
        project=project,
        tree=ready_tree(Path("/src"), version=version),
        rocm=None,
        dependencies=dependencies,
        base_env={"PATH": "/usr/bin"} if base_env is None else base_env,
    )

    if provided is None:
        provided = WINDOWS_LIBRARIES if platform == "windows" else Provided()
    site = Site(
        tree=TREES[platform],
        python=PYTHONS[platform] if python is None else python,
        facts=facts,
        rocm=(sdk or rocm_sdk(platform)) if has_gpu else None,
        provided=provided,
        torch_version=torch_version,
        cache=compiler_cache,
        compilers={"CXX": GCC} if compilers is None else compilers,
        max_jobs=max_jobs,
    )
    return plan_build(build, site)
