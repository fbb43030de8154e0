"""One build, from source lock to recorded wheel: what it depends on, and the work where that has changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files
from core.env.locks import BUILDS, target_lock
from core.run import stage
from core.run.records import Cell, record_name
from core.run.stage import Made, Stage
from pytorch_build.build.course import Course
from pytorch_build.build.dependencies import dependency_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.run.records import Record
    from pytorch_build.build.build import Build

# a person's variables that change what upstream's builds and compilers make
_FLAGS = re.compile(
    r"CC|CXX|DEBUG|REL_WITH_DEB_INFO|SOURCE_DATE_EPOCH|BLAS|[A-Z]*FLAGS"
    r"|(USE|BUILD|CMAKE|TORCH|PYTORCH|TORCHVISION|TRITON|APEX|LLVM)_\w+"
)
# what CI servers set to another value for every job, and what says how fast to build
_PASSING = frozenset(
    {"BUILD_ID", "BUILD_NUMBER", "BUILD_TAG", "BUILD_URL", "CMAKE_BUILD_PARALLEL_LEVEL", "PYTORCH_ROCM_ARCH"}
)
_CODE = (
    *("build/plans", "platforms", "split"),
    "build/rocm_init.py",
    "build/execution.py",
    "build/making.py",
)


def perform(build: Build) -> Record | None:
    """Build one wheel into the run's outputs, unless a record says that nothing has changed."""
    context = build.context
    cell = Cell(python=build.target.tag, torch_ref=context.ref.name, gpu_family=context.gpu_family)
    run = Stage(
        name=f"build_{build.project}",
        common=context.common,
        artifact_group=context.artifact_group,
        cell=cell,
        output_dir=build.choices.output_dir,
    )

    course = Course()

    def work() -> Made:
        # imported where there is work: most runs find that nothing has changed
        from pytorch_build.build.making import make

        return make(build, record_name(run.name, cell), course)

    return stage.perform(run, inputs(build), work, so_far=course.details)


def inputs(build: Build) -> dict[str, Any]:
    """Say everything that the wheel depends on."""
    lock = target_lock(build.context.common, build.target)
    source = build.context.ref.projects.get(build.project)
    return {
        "source": build.tree.inputs,
        "version": build.tree.version,
        "python": build.target.version,
        "rocm": None
        if build.rocm is None
        else [build.rocm.version, build.rocm.layout, dict(build.rocm.digests) or build.rocm.origin],
        "rocm_extras": list(build.choices.rocm.extras) if build.context.gpu else [],
        "gpu_targets": list(build.gpu_targets),
        "dependencies": dependency_inputs(build.dependencies),
        "ref_env": dict(source.env) if source else {},
        "build_requirements": list(source.build_requirements) if source else [],
        "flash_attention": build.choices.flash_attention,
        "split": build.splits,
        "flags": _flags(build.base_env),
        "lock": files.sha256(lock or build.context.common.root / "requirements" / f"{BUILDS}.in"),
        "code": _code_digest(),
    }


def _flags(base_env: Mapping[str, str]) -> dict[str, str]:
    """Take a person's variables that reach the build out of the environment."""
    return {
        name: console.mask(value)
        for name, value in sorted(base_env.items())
        if _FLAGS.fullmatch(name) and name not in _PASSING
    }


def _code_digest() -> str:
    """Hash the rules that builds follow, so that a changed rule is a changed input."""
    here = Path(__file__).parents[1]
    paths = [
        path
        for name in _CODE
        for path in ([here / name] if name.endswith(".py") else (here / name).glob("*.py"))
    ]
    return files.digest_of({str(path.relative_to(here)): files.sha256(path) for path in paths})
