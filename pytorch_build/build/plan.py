"""The plan of a build: its environment variables, commands and files. Executing it takes no further decision.

There is one planner, for `--dry-run`, for Windows on Linux and for the build itself. It is pure: what it has
to know stands in the inputs and in the facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core.env.installer import InstallerCall
from core.environment import need_of
from core.errors import DataError, SourceError
from core.files import digest_of
from pytorch_build.build.cache import launcher_env
from pytorch_build.build.search_paths import rocm_folders
from pytorch_build.components import Component, distributions
from pytorch_build.components.steps import BuildSteps
from pytorch_build.lock.versions import without_edit_marks

if TYPE_CHECKING:
    from pytorch_build.build.facts import BuildFacts
    from pytorch_build.build.inputs import BuildInputs
    from pytorch_build.sdk import RocmSdk

# A GPU target given by this variable is not part of a compiler cache's key.
_TARGET_VARIABLE = "HCC_AMDGPU_TARGET"

# Another ROCm installation's variables, which would lead hipcc and CMake there.
_OTHER_ROCM = frozenset({"HIP_PATH", "HIP_DEVICE_LIB_PATH", "HIP_CLANG_PATH", "HIP_CLANG_LAUNCHER"})
_ANY_ROCM = _OTHER_ROCM | {"ROCM_HOME", "ROCM_PATH", "PYTORCH_ROCM_ARCH"}

# Settings of Visual Studio's generators, which ninja's refuses.
_OTHER_GENERATORS = frozenset(
    {
        "CMAKE_GENERATOR_INSTANCE",
        "CMAKE_GENERATOR_PLATFORM",
        "CMAKE_GENERATOR_TOOLSET",
        "CMAKE_GENERATOR_TOOLSET_VERSION",
    }
)

# The needs of environment.toml whose variables steer a build.
_STEERING_NEEDS = frozenset({"build flags", "compilers", "ROCm and GPUs"})

# What differs from run to run and leaves a build folder's contents as they are.
_TRANSIENT = frozenset({"PATH", "MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL"})


@dataclass(frozen=True, kw_only=True)
class BuildPlan(BuildSteps):
    """How to build one wheel: the recipe's steps, completed by what all builds share.

    Attributes:
        project: The component's name.
        distribution: The wheel's name.
        version: The wheel's version, which the build has to arrive at by itself.
        unset: The user's variables that must not reach the build.
        search_folders: The folders of ROCm below site-packages that the wheel's libraries search.
        split_for: The ROCm whose device packages the wheel's device code joins; None for a wheel that has it.
        configuration: A digest of what a build folder's contents depend on.
    """

    project: str
    distribution: str
    version: str
    unset: frozenset[str] = frozenset()
    search_folders: tuple[str, ...] = ()
    split_for: str | None = None
    configuration: str = ""

    @property
    def wheel_dir(self) -> PurePath:
        """The folder that the commands leave the wheel in."""
        return self.commands[-1].cwd / "dist"

    @property
    def wheel_glob(self) -> str:
        """The pattern of the one wheel that the commands leave in `wheel_dir`."""
        return f"{self.distribution.replace('-', '_')}-*.whl"


def plan_build(
    component: Component,
    inputs: BuildInputs,
    facts: BuildFacts,
    *,
    clean: bool = False,
) -> BuildPlan:
    """Return the plan of a wheel's build: variables, commands, requirements and files.

    Args:
        component: What is built.
        inputs: What the wheel depends on.
        facts: What is known of machine, tree and ROCm.
        clean: Whether the build folder is deleted first.
    """
    steps = component.recipe(inputs, facts)
    # The ref's environment has the last word.
    env = {**shared_variables(component, inputs, facts), **steps.env, **inputs.ref_env}
    if _TARGET_VARIABLE in inputs.ref_env:
        raise DataError(
            f"The ref's env of {component.name} sets {_TARGET_VARIABLE}, which compiler caches do not see.",
            hint="Give GPU targets by --gpu-family or --pytorch-rocm-arch.",
        )

    # An older wheel goes first, and with `clean` what was compiled.
    folder = steps.commands[-1].cwd.relative_to(facts.tree)
    removes = [(folder / "dist").as_posix()]
    if clean:
        removes.append((folder / "build").as_posix())
    removes += steps.removes

    unset = (_OTHER_ROCM if facts.rocm else _ANY_ROCM) | _OTHER_GENERATORS
    unset -= env.keys()

    search_folders: tuple[str, ...] = ()
    split_for: str | None = None
    if inputs.rocm is not None:
        search_folders = rocm_folders(inputs.rocm.layout, facts.gpu_family)
        split_for = inputs.rocm.version if inputs.is_split else None
    return BuildPlan(
        project=component.name,
        distribution=steps.distribution or component.distribution,
        version=inputs.version,
        uninstall=steps.uninstall,
        requirements_files=tuple(name for name in steps.requirements_files if name in facts.tree_facts.files),
        requirements=tuple(dict.fromkeys(_third_party_requirements(steps, facts))),
        as_locked=steps.as_locked,
        env=env,
        unset=unset,
        commands=steps.commands,
        removes=tuple(removes),
        overlays=steps.overlays,
        search_folders=search_folders,
        split_for=split_for,
        notes=(*steps.notes, *_ignored_variables(facts, env, unset)),
        configuration=_configuration_digest(inputs, facts, env),
    )


def plan_environment(
    inputs: BuildInputs, *, locked: InstallerCall, rocm: InstallerCall | None
) -> tuple[InstallerCall, ...]:
    """Return the installer's calls that fill the build environment: lock, ROCm, then our own wheels.

    It is planned before all else, as ROCm says what it is once it is installed.

    Args:
        inputs: What the wheel depends on.
        locked: The call for the locked requirements.
        rocm: The call for ROCm; None for CPUs, and where ROCm is linked from another Python.
    """
    calls = [locked]
    if inputs.build_requirements:
        calls.append(InstallerCall(requirements=inputs.build_requirements))
    if rocm is not None:
        calls.append(rocm)

    # Our wheels are installed by their files alone, and what they require of third parties by name.
    third_party_requirements: set[str] = set()
    for dependency in inputs.dependencies:
        is_ours = dependency.digest is not None
        calls.append(
            InstallerCall(
                requirements=(dependency.requirement,),
                dependencies=not is_ours,
                whose="ours" if is_ours else "prebuilt",
            )
        )
        third_party_requirements.update(dependency.third_party_requirements)
    if third_party_requirements:
        calls.append(InstallerCall(requirements=tuple(sorted(third_party_requirements))))
    return tuple(calls)


def shared_variables(
    component: Component,
    inputs: BuildInputs,
    facts: BuildFacts,
) -> dict[str, str]:
    """Return the environment variables that every component's build gets."""
    platform = facts.platform
    scripts = facts.python.parent
    search_path = [str(facts.rocm.bin) if facts.rocm else "", str(scripts), facts.variable("PATH")]
    env = {
        "PYTHONUTF8": "1",
        "USE_KINETO": facts.variable("USE_KINETO") or platform.kineto,
        "USE_GLOO": facts.variable("USE_GLOO") or "ON",
        # The build environment has ninja, and recipes and checks rely on it.
        "CMAKE_GENERATOR": "Ninja",
        # CMake looks for Python here first, and the tool's own environment may be active.
        "VIRTUAL_ENV": str(scripts.parent),
        # Programs of ROCm, of the environment, and of the user, in this order.
        "PATH": facts.platform.path_separator.join(filter(None, search_path)),
    }
    if facts.rocm:
        env |= _rocm_variables(inputs, facts.rocm)
    env |= platform.compiler_settings(facts.rocm.root if facts.rocm else None, facts.user_env)
    env |= facts.compiler_flags()
    env |= launcher_env(
        facts.compiler_cache,
        platform=platform.name,
        rocm_version=facts.rocm.version if facts.rocm else "",
        compiles_by_cmake=component.compiles_by_cmake,
        base_env=facts.user_env,
    )
    if facts.max_jobs is not None:
        env["MAX_JOBS"] = str(facts.max_jobs)
    return env


def _rocm_variables(inputs: BuildInputs, rocm: RocmSdk) -> dict[str, str]:
    """Return the environment variables by which builds find ROCm."""
    env = {
        "CMAKE_PREFIX_PATH": str(rocm.cmake),
        "ROCM_HOME": str(rocm.root),
        "ROCM_PATH": str(rocm.root),
        "PYTORCH_ROCM_ARCH": ";".join(inputs.gpu_targets),
    }
    if rocm.has_device_libs:
        # With ROCM_PATH set, clang does not find its device libraries by itself.
        env["HIP_DEVICE_LIB_PATH"] = str(rocm.root / "lib" / "llvm" / "amdgcn" / "bitcode")
    if rocm.has_host_math:
        env["BLAS"] = "OpenBLAS"
        env["OpenBLAS_HOME"] = str(rocm.root / "lib" / "host-math")
        env["OpenBLAS_LIB_NAME"] = "rocm-openblas"
    return env


def _third_party_requirements(steps: BuildSteps, facts: BuildFacts) -> Iterator[str]:
    """Yield a recipe's requirements without ROCm and our own distributions."""
    installed_by_us = {"rocm", *distributions()}
    for line in steps.requirements:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as problem:
            message = f"{facts.tree / 'pyproject.toml'}: invalid requirement: {problem}"
            raise SourceError(message) from problem
        if canonicalize_name(requirement.name) not in installed_by_us:
            yield line


def _configuration_digest(
    inputs: BuildInputs,
    facts: BuildFacts,
    env: Mapping[str, str],
) -> str:
    """Return a digest of all that a build folder's contents depend on: settings, flags and compilers."""
    lasting_env: dict[str, str] = {}
    for name, value in env.items():
        if name not in _TRANSIENT:
            # An edit compiles what it changes, in the folder that there is.
            lasting_env[name] = without_edit_marks(value)

    settings = {
        "python": str(facts.python),
        "env": lasting_env,
        "flags": inputs.flags,
        "compilers": {name: asdict(compiler) for name, compiler in facts.compilers.items()},
    }
    return digest_of(settings)


def _ignored_variables(
    facts: BuildFacts,
    env: Mapping[str, str],
    unset: frozenset[str],
) -> Iterator[str]:
    """Yield a sentence for each of the user's variables that steers a build and that the plan overrides."""
    for name in sorted((env.keys() | unset) - _TRANSIENT):
        user_value = facts.variable(name)
        planned_value = env.get(name, "")
        if not user_value or user_value in planned_value:
            continue
        if need_of(name) in _STEERING_NEEDS:
            yield (
                f"{name}={user_value} of your environment is ignored: "
                f"the build sets {planned_value or 'nothing'}."
            )
