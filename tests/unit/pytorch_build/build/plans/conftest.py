from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest

from core.cli.options import Common
from pytorch_build.build.build import Build, BuildChoices, Dependency
from pytorch_build.build.compilers import Compiler
from pytorch_build.build.plans.common import BuildPlan
from pytorch_build.build.plans.projects import plan_build
from pytorch_build.build.site import Site, TreeFacts
from pytorch_build.build.toolchain import Provided
from pytorch_build.context import Context
from pytorch_build.platforms import LINUX, WINDOWS
from pytorch_build.refs.torch_refs import torch_ref
from pytorch_build.sdk import RocmOptions, RocmSdk
from tests.kit.machines import target_in
from tests.unit.pytorch_build.build.conftest import fake_tree

VERSION = "2.10.0a0+rocm7.10.0a20251120"
SETUP = frozenset({"setup.py", "pyproject.toml"})
PLACES = {
    "linux": (PurePosixPath("/src/torch"), PurePosixPath("/env/bin/python"), PurePosixPath("/env/rocm")),
    "windows": (
        PureWindowsPath("C:/b/torch"),
        PureWindowsPath("C:/env/Scripts/python.exe"),
        PureWindowsPath("C:/env/rocm"),
    ),
}
PROVIDED = {
    "linux": Provided(),
    "windows": Provided(
        openmp=PureWindowsPath("C:/openmp/libomp140.x86_64.dll"),
        uv=PureWindowsPath("C:/uv/bin/uv.dll"),
        licenses={
            "llvm-openmp": PureWindowsPath("C:/openmp/LICENSE"),
            "libuv": PureWindowsPath("C:/uv/LICENSE"),
        },
    ),
}
GCC = {"CXX": Compiler(path="/usr/bin/c++", kind="gcc", version="14.2.0")}

Plan = Callable[..., BuildPlan]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Plan a build on either platform, with anything about it changed."""

    def planned(
        project: str,
        platform: str = "linux",
        *,
        gpu: bool = True,
        gpu_targets: tuple[str, ...] = ("gfx942", "gfx1100"),
        version: str = VERSION,
        triton_version: str = "",
        ref_env: Mapping[str, str] | None = None,
        base_env: Mapping[str, str] | None = None,
        tree: Mapping[str, Any] | None = None,
        provided: Mapping[str, Any] | None = None,
        sdk: Mapping[str, Any] | None = None,
        choices: Mapping[str, Any] | None = None,
        **site: Any,
    ) -> BuildPlan:
        ref = torch_ref("sample")
        projects = {name: replace(source, env=ref_env or {}) for name, source in ref.projects.items()}
        source, python, root = PLACES[platform]
        build = Build(
            context=Context(
                common=Common(root=tmp_path, platform="windows" if platform == "windows" else "linux"),
                ref=replace(ref, projects=projects),
                gpu_family="gfx94X-dcgpu" if gpu else "cpu",
                gpu_targets=(),
            ),
            choices=BuildChoices(
                rocm=RocmOptions(),
                own_trees={},
                mirrors={},
                gpu_targets=";".join(gpu_targets),
                **(choices or {}),
            ),
            target=target_in(tmp_path / "env"),
            project=project,
            tree=fake_tree(path=tmp_path, version=version),
            rocm=None,
            dependencies=[Dependency(project="triton", requirement="", version=triton_version)]
            if triton_version
            else [],
            base_env={"PATH": "/usr/bin"} if base_env is None else base_env,
        )
        rocm = RocmSdk(
            version="7.10.0a20251120",
            root=root,
            bin=root / "bin",
            cmake=root / "lib" / "cmake",
            targets=("gfx942",),
            libraries=frozenset((WINDOWS if platform == "windows" else LINUX).preloads),
        )
        place: dict[str, Any] = {"tree": source, "python": python, "compilers": GCC, **site}
        return plan_build(
            build,
            Site(
                facts=replace(TreeFacts(files=SETUP), **(tree or {})),
                rocm=replace(rocm, **(sdk or {})) if gpu else None,
                provided=replace(PROVIDED[platform], **(provided or {})),
                **place,
            ),
        )

    return planned
