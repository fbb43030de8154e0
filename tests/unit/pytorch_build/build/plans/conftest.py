from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytorch_build.build.plans import plan_build
from pytorch_build.build.plans.common import BuildFacts, BuildOptions, BuildRequest, RocmFacts, TreeFacts
from pytorch_build.platforms import platform_named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytorch_build.build.plans.common import BuildPlan

BOTH = frozenset(platform_named("windows").PRELOADS)
ALL = BOTH | frozenset(platform_named("linux").PRELOADS)


@dataclass(frozen=True, kw_only=True)
class Sdk:
    version: str
    root: PurePath
    bin: PurePath
    cmake: PurePath
    targets: tuple[str, ...]


def sdk(root: PurePath, version: str = "7.10.0a20251120") -> Sdk:
    return Sdk(
        version=version,
        root=root,
        bin=root / "bin",
        cmake=root / "lib" / "cmake",
        targets=("gfx942",),
    )


class Plan(Protocol):
    def __call__(
        self,
        project: str,
        platform: str = "linux",
        *,
        gpu: bool = True,
        base_env: Mapping[str, str] | None = None,
        tree: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        rocm_facts: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> BuildPlan: ...


LINUX = BuildRequest(
    project="torch",
    version="2.10.0a0+rocm7.10.0a20251120",
    tree=PurePosixPath("/src/torch"),
    python=PurePosixPath("/env/bin/python"),
    rocm=sdk(PurePosixPath("/env/rocm")),
    gpu_targets=("gfx942", "gfx1100"),
)
WINDOWS = replace(
    LINUX,
    tree=PureWindowsPath("C:/b/torch"),
    python=PureWindowsPath("C:/env/Scripts/python.exe"),
    rocm=sdk(PureWindowsPath("C:/env/rocm")),
)
SETUP = frozenset({"setup.py", "pyproject.toml"})
TOOLCHAIN: dict[str, Any] = {
    "openmp": PureWindowsPath("C:/openmp/libomp140.x86_64.dll"),
    "uv": PureWindowsPath("C:/uv/bin/uv.dll"),
    "licenses": {
        "llvm-openmp": PureWindowsPath("C:/openmp/LICENSE"),
        "libuv": PureWindowsPath("C:/uv/LICENSE"),
    },
}
ROCM = RocmFacts(device_libs=True, host_math=True, sysdeps=True, libraries=ALL)


@pytest.fixture
def plan() -> Plan:
    """Plan a build on either platform, with anything about it changed."""

    def planned(
        project: str,
        platform: str = "linux",
        *,
        gpu: bool = True,
        base_env: Mapping[str, str] | None = None,
        tree: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        rocm_facts: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> BuildPlan:
        whole = WINDOWS if platform == "windows" else LINUX
        if not gpu:
            whole = replace(whole, rocm=None, gpu_targets=())
        whole = replace(whole, project=project, options=BuildOptions(**(options or {})))
        known = BuildFacts(
            tree=replace(TreeFacts(files=SETUP), **(tree or {})),
            rocm=replace(ROCM, libraries=BOTH if platform == "windows" else ALL, **(rocm_facts or {})),
            **(TOOLCHAIN if platform == "windows" else {}),
        )
        known = replace(known, **(facts or {})) if gpu else replace(known, rocm=None, **(facts or {}))
        return plan_build(
            replace(whole, **request),
            known,
            platform=platform_named(platform),
            base_env={"PATH": "/usr/bin"} if base_env is None else base_env,
        )

    return planned
