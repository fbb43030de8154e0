"""triton: ROCm's fork on Linux; triton-windows on Windows, where refs leave it out unless they name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import MissingInputError, SourceError
from pytorch_build.components.component import (
    AllowedContents,
    Component,
    MachineNeed,
    VersionPlace,
    VersionRule,
    WheelSizes,
)
from pytorch_build.components.steps import BuildSteps, build_command, setup_command

if TYPE_CHECKING:
    from pytorch_build.build.facts import BuildFacts
    from pytorch_build.build.inputs import BuildInputs

_NAME_VARIABLE = "TRITON_WHEEL_NAME"
_SUFFIX_VARIABLE = "TRITON_WHEEL_VERSION_SUFFIX"

# What its wheels may require.
_REQUIREMENTS = ("filelock", "importlib-metadata", "setuptools", "rocm", "rocm-*")
_REQUIREMENTS_OF_EXTRAS = (
    "autopep8",
    "cmake",
    "isort",
    "lit",
    "llnl-hatchet",
    "matplotlib",
    "numpy",
    "pandas",
    "pytest",
    "pytest-*",
    "scipy",
    "tabulate",
    "torch",
)

# Upstream's builds of LLVM for triton, by the first digits of LLVM's commit.
_LLVM_URL = "https://oaitriton.blob.core.windows.net/public/llvm-builds/llvm-{commit:.8}-windows-x64.tar.gz"


def triton_steps(inputs: BuildInputs, facts: BuildFacts) -> BuildSteps:
    """Return the commands, variables and requirements that build triton's wheel."""
    # build_env.json is what the checkout leaves for the build of its commit.
    env = dict(facts.tree_facts.build_env)
    env[_SUFFIX_VARIABLE] = env.get(_SUFFIX_VARIABLE, "") + _version_suffix(inputs, facts)
    # ROCm's CMake folder is on CMAKE_PREFIX_PATH, and MLIR must not find ROCm's LLVM there.
    env["TRITON_APPEND_CMAKE_ARGS"] = "-DCMAKE_FIND_USE_CMAKE_ENVIRONMENT_PATH=FALSE"

    if facts.platform.windows:
        return BuildSteps(
            distribution=inputs.ref_env.get(_NAME_VARIABLE, "triton"),
            env=env | _windows_variables(facts),
            commands=(build_command(facts),),
            requirements=("build", "wheel"),
        )

    # A ref may build it under another name, as upstream does with pytorch-triton-rocm.
    distribution = inputs.ref_env.get(_NAME_VARIABLE) or env.get(_NAME_VARIABLE) or "triton"
    # Up to triton 3.3 setup.py lay in python/.
    folder = "python" if "python/setup.py" in facts.tree_facts.files else ""
    return BuildSteps(
        distribution=distribution,
        env=env,
        commands=(setup_command(facts, folder=folder),),
        uninstall=(distribution,),
        requirements_files=("python/requirements.txt",),
        requirements=("setuptools", "wheel", *facts.tree_facts.build_requires),
    )


def _version_suffix(inputs: BuildInputs, facts: BuildFacts) -> str:
    """Return the version suffix to give to triton's setup.py, which puts the commit in front of it."""
    base_version, plus, local_version = inputs.version.partition("+")
    commit_suffix = facts.tree_facts.git_suffix.lower()
    if not commit_suffix:
        return plus + local_version

    suffix = f"+{local_version}".removeprefix(commit_suffix)
    if suffix and not suffix.startswith("."):
        raise SourceError(
            f"triton's setup.py adds its commit to the version, {base_version}{commit_suffix}, "
            f"and {inputs.version} is to be built.",
            hint="The source lock is older than the tree: run `nox -s resolve` again.",
        )
    return suffix


def _windows_variables(facts: BuildFacts) -> dict[str, str]:
    """Return the variables that lead triton's build to its LLVM, which on Windows it does not download."""
    llvm = facts.toolchain_parts.llvm
    if llvm is None:
        llvm_url = _LLVM_URL.format(commit=facts.tree_facts.llvm_hash or "COMMIT")
        raise MissingInputError(
            "triton on Windows is built against an LLVM of its own, and none was given.",
            hint=f"Unpack {llvm_url} and name its folder in LLVM_SYSPATH.",
        )
    return {
        "LLVM_BUILD_DIR": str(llvm),
        "LLVM_INCLUDE_DIRS": str(llvm / "include"),
        "LLVM_LIBRARY_DIR": str(llvm / "lib"),
        "LLVM_SYSPATH": str(llvm),
        "TRITON_BUILD_PROTON": "OFF",
        "TRITON_WHEEL_NAME": "triton",
    }


TRITON = Component(
    name="triton",
    distribution="triton",
    tree_option="--triton-dir",
    repository="https://github.com/ROCm/triton.git",
    recipe=triton_steps,
    third_party_requirements=("setuptools>=40.8.0",),
    version_rule=VersionRule(
        modules=("python/triton/__init__.py", "triton/__init__.py"),
        file_in_torch=".ci/docker/triton_version.txt",
        setup_files=("setup.py", "python/setup.py"),
        # Its __init__.py states the base version as a constant, whatever suffix the wheel carries.
        module_lacks_local_part=True,
    ),
    # It writes its public version there, unless its build is told the whole one.
    version_places=(VersionPlace(members="triton/__init__.py", required=False),),
    allowed=AllowedContents(
        top_level=("triton", "triton.libs"),
        programs=("proton", "proton-viewer"),
        entry_points=("triton.backends:*",),
        requirements=(*_REQUIREMENTS, *_REQUIREMENTS_OF_EXTRAS),
    ),
    other_names=("triton-rocm", "pytorch-triton", "pytorch-triton-rocm"),
    loss_without="flash attention",
    serves_gpus_only=True,
    compiles_by_cmake=True,
    sizes=WheelSizes(minimum=20_000_000, warn_above=1_000_000_000),
    gpu_need=MachineNeed(disk=12, memory=8, job=2.0),  # its own LLVM, unpacked, and the build folder
    platforms=("linux",),
)
