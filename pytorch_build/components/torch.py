"""torch: switches, flash attention, what the wheel requires, and the files that it carries.

A wheel for ROCm carries ``torch/_rocm_init.py``, whose ``initialize()`` torch's ``__init__`` calls. It loads
ROCm's libraries out of the ``rocm-sdk-*`` wheels with global symbols, so that torch's own libraries, and
anything that looks a library up by an unversioned name, find them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from core.errors import MissingInputError, RocmError, UsageError
from pytorch_build.components.component import (
    AllowedContents,
    Component,
    MachineNeed,
    VersionPlace,
    VersionRule,
    WheelSizes,
)
from pytorch_build.components.steps import (
    BuildSteps,
    Overlay,
    build_command,
    rocm_library_variables,
    setuptools_variables,
)

if TYPE_CHECKING:
    from pytorch_build.build.facts import BuildFacts
    from pytorch_build.build.inputs import BuildInputs
    from pytorch_build.platforms import Platform

ROCM_INIT = "torch/_rocm_init.py"

# Without these torch cannot work, so their absence is an error of the SDK.
REQUIRED_LIBRARIES = ("amdhip64", "hiprtc", "hipblas")

# Attention kernels (aotriton) exist for these targets. One of them in a wheel is enough.
_ATTENTION_TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx11", "gfx12")

# The lock's version. Older wheels of ninja loop (1.11.1) or break link.exe's response files (1.13.0).
NINJA_FOR_WINDOWS = "1.13.2"

OPENMP_DLL = "libomp140.x86_64.dll"

# These are built by flash attention's own CMake code, which git ignores.
_ATTENTION_DLLS = ("torch/lib/aotriton_v2.dll", "torch/lib/liblzma.dll")


# What its wheels may require: each of them, some with an extra, and those for a GPU.
_REQUIREMENTS = (
    "filelock",
    "fsspec",
    "jinja2",
    "networkx",
    "numpy",
    "setuptools",
    "sympy",
    "typing-extensions",
)
_REQUIREMENTS_OF_EXTRAS = ("opt-einsum", "optree", "pyyaml")
_REQUIREMENTS_FOR_GPUS = (
    "triton",
    "triton-*",
    "pytorch-triton*",
    "rocm",
    "rocm-*",
    "amd-torch-device-*",
    "cuda-*",
    "nvidia-*",
    "intel-*",
    "mkl",
    "tbb",
    "tcmlib",
    "umf",
    "onemkl-*",
    "dpcpp-*",
    "impi-rt",
)


def torch_steps(inputs: BuildInputs, facts: BuildFacts) -> BuildSteps:
    """Return the commands, variables and requirements that build torch's wheel."""
    has_attention = uses_flash_attention(
        inputs.flash_attention,
        platform=facts.platform,
        gpu_targets=inputs.gpu_targets if facts.rocm else (),
        triton_version=inputs.version_of("triton"),
    )
    overlays = tuple(_overlays(inputs, facts))

    arguments = _build_arguments(facts, overlays, has_attention=has_attention)

    # A file of an earlier build for ROCm would make a wheel for CPUs ask for rocm_sdk.
    stale_files = () if facts.rocm else (ROCM_INIT, f"build/lib*/{ROCM_INIT}")
    return BuildSteps(
        env=_torch_variables(inputs, facts, has_attention=has_attention),
        commands=(build_command(facts, *arguments),),
        uninstall=("torch",),
        requirements_files=("requirements.txt", "requirements-build.txt"),
        requirements=("build", *facts.tree_facts.build_requires),
        as_locked=("ninja",) if facts.platform.windows else (),
        removes=stale_files,
        overlays=overlays,
        notes=tuple(_notes(facts)),
    )


def uses_flash_attention(
    requested: bool | None,  # noqa: FBT001 - the answer itself
    *,
    platform: Platform,
    gpu_targets: tuple[str, ...],
    triton_version: str | None,
) -> bool:
    """Return whether torch is built with flash attention: as requested, else where it works."""
    lacks_triton = triton_version is None and not platform.windows
    if requested and not gpu_targets:
        raise UsageError(f"{platform.flash_flag} needs GPU targets, and family cpu has none.")
    if requested and lacks_triton:
        raise UsageError(
            f"{platform.flash_flag} needs triton, and triton is not installed.",
            hint="Build it first: nox -s build_triton. Or leave the flag out.",
        )
    if requested is not None:
        return requested

    has_kernels = any(target.startswith(_ATTENTION_TARGETS) for target in gpu_targets)
    return has_kernels and not lacks_triton


def _build_arguments(
    facts: BuildFacts,
    overlays: Sequence[Overlay],
    *,
    has_attention: bool,
) -> Iterator[str]:
    """Yield the arguments of ``python -m build``."""
    yield "--no-isolation"
    if facts.platform.windows and _refuses_locked_ninja(facts):
        yield "--skip-dependency-check"

    # scikit-build-core leaves out what git ignores, these files among them.
    if facts.tree_facts.uses_scikit_build_core:
        included_files = [overlay.path for overlay in overlays if overlay.path.startswith("torch/")]
        if facts.platform.windows and has_attention:
            included_files += _ATTENTION_DLLS
        for path in included_files:
            yield f"-Cwheel.force-include.{path}={path}"


def _refuses_locked_ninja(facts: BuildFacts) -> bool:
    """Return whether pyproject.toml excludes the locked ninja, so that `build` would refuse it."""
    from packaging.requirements import Requirement

    for line in facts.tree_facts.build_requires:
        requirement = Requirement(line)
        if requirement.name == "ninja" and not requirement.specifier.contains(NINJA_FOR_WINDOWS):
            return True
    return False


def _torch_variables(
    inputs: BuildInputs,
    facts: BuildFacts,
    *,
    has_attention: bool,
) -> dict[str, str]:
    """Return the environment variables of torch's build."""
    attention = "ON" if has_attention else "OFF"
    # What the wheel requires besides upstream's requirements.
    requirements: list[str] = []
    if facts.rocm:
        requirements.append(f"rocm[libraries]=={facts.rocm.version}")
    if (triton_version := inputs.version_of("triton")) is not None:
        requirements.append(f"triton=={triton_version}")

    env = {
        "USE_ROCM": "ON" if facts.rocm else "OFF",
        "USE_CUDA": "OFF",
        "USE_MPI": facts.variable("USE_MPI") or "OFF",
        "USE_NUMA": facts.variable("USE_NUMA") or "OFF",
        # Upstream's C++ tests are many steps, and nothing here runs them.
        "BUILD_TEST": facts.variable("BUILD_TEST") or "0",
        "PYTORCH_BUILD_VERSION": inputs.version,
        "PYTORCH_BUILD_NUMBER": "1",
        "PYTORCH_EXTRA_INSTALL_REQUIREMENTS": "|".join(requirements),
        "USE_FLASH_ATTENTION": attention,
        "USE_MEM_EFF_ATTENTION": attention,
    }
    if facts.platform.windows:
        env |= setuptools_variables(facts)
        env |= _libuv_variables(inputs, facts)
        env["BUILD_TEST"] = "0"  # tests of the C++ library do not compile there
        return env

    return env | _rocm_flags(facts) | rocm_library_variables(facts)


def _rocm_flags(facts: BuildFacts) -> dict[str, str]:
    """Return CXXFLAGS and LDFLAGS that lead to ROCm's libdrm and roctracer; none for CPUs."""
    if not facts.rocm:
        return {}

    sysdeps = facts.rocm.root / "lib" / "rocm_sysdeps"
    header_folders = (f"{sysdeps}/include", f"{facts.rocm.root}/include/roctracer")
    # Quoted behind the letter: CMake drops quotes around a whole value when it reads its cache again.
    header_flags = " ".join(f"-I{quote(folder)}" for folder in header_folders)
    library_flag = f"-L{quote(f'{sysdeps}/lib')}"
    return {
        "CXXFLAGS": f"{facts.compiler_flags().get('CXXFLAGS', '')} {header_flags}".strip(),
        "LDFLAGS": f"{facts.user_env.get('LDFLAGS', '').strip()} {library_flag}".strip(),
    }


def _libuv_variables(inputs: BuildInputs, facts: BuildFacts) -> dict[str, str]:
    """Return the variable by which gloo finds libuv, without which torch would lack distributed."""
    libuv = facts.toolchain_parts.libuv
    if libuv:
        return {"libuv_ROOT": str(libuv.parent.parent)}

    if is_switched_on("USE_DISTRIBUTED", facts.platform, {**facts.user_env, **inputs.ref_env}):
        raise MissingInputError(
            "torch's distributed needs libuv on Windows.",
            hint="Name one with libuv_ROOT, or build without distributed: USE_DISTRIBUTED=0.",
        )
    return {}


def is_switched_on(switch: str, platform: Platform, variables: Mapping[str, str]) -> bool:
    """Return whether a switch of torch's CMake code is on, as it is unless a variable turns it off."""
    value = platform.find_variable(variables, switch)
    return value.upper() not in {"0", "OFF", "NO", "FALSE", "N"}


def required_toolchain_parts(platform: Platform, variables: Mapping[str, str]) -> Sequence[str]:
    """Return what a build must find or provide: on Windows libuv and OpenMP, unless named or off."""
    if not platform.windows:
        return ()

    parts: list[str] = []
    has_own_libuv = bool(platform.find_variable(variables, "libuv_ROOT"))
    if not has_own_libuv and is_switched_on("USE_DISTRIBUTED", platform, variables):
        parts.append("libuv")
    if is_switched_on("USE_OPENMP", platform, variables):
        parts.append("openmp")
    return parts


def _overlays(inputs: BuildInputs, facts: BuildFacts) -> Iterator[Overlay]:
    """Yield the files that are put into torch's tree for the build: ROCm's loader, DLLs, licences."""
    if facts.rocm:
        libraries = preloaded_libraries(facts.platform, facts.rocm.libraries)
        yield Overlay(
            path=ROCM_INIT,
            content=rocm_init_text(libraries, rocm_version=facts.rocm.version),
        )
    if not facts.platform.windows:
        return

    parts = facts.toolchain_parts
    uses_openmp = is_switched_on("USE_OPENMP", facts.platform, {**facts.user_env, **inputs.ref_env})
    if parts.openmp:
        yield Overlay(
            path=f"torch/lib/{OPENMP_DLL}",
            source=parts.openmp,
        )
    elif facts.rocm and uses_openmp:
        raise MissingInputError(
            f"torch's libraries need {OPENMP_DLL}, and there is none that the wheel may carry.",
            hint="Let the build download it, or name a mirror of its address: --git-mirror.",
        )
    if parts.libuv:
        yield Overlay(
            path=f"torch/lib/{parts.libuv.name}",
            source=parts.libuv,
        )
    # torch's own license-files take these along.
    for name, path in parts.licenses.items():
        yield Overlay(
            path=f"third_party/{name}/LICENSE",
            source=path,
        )


def _notes(facts: BuildFacts) -> Iterator[str]:
    """Yield sentences on what a user should know before torch is built."""
    if facts.rocm:
        absent = [name for name in facts.platform.preloads if name not in facts.rocm.libraries]
        if absent:
            yield f"This ROCm has no {', '.join(absent)}: torch will not load them first."
    if facts.platform.windows and facts.compiler_cache and facts.compiler_cache.kind == "ccache":
        yield "If aotriton fails with 'invalid argument', build without --compiler-cache ccache."
    if "CMAKE_ARGS" in facts.user_env and not facts.tree_facts.uses_scikit_build_core:
        yield "This tree does not read CMAKE_ARGS: set variables that begin with CMAKE_, USE_ or BUILD_."


def preloaded_libraries(platform: Platform, available: Collection[str]) -> tuple[str, ...]:
    """Return the libraries that torch loads first, as far as the SDK has them."""
    absent = [name for name in REQUIRED_LIBRARIES if name not in available]
    if absent:
        raise RocmError(
            f"The ROCm SDK has no {', '.join(absent)}, without which torch cannot be imported.",
            hint="Install rocm[libraries,devel] completely: nox -s install_rocm.",
        )
    return tuple(name for name in platform.preloads if name in available)


def rocm_init_text(libraries: Sequence[str], *, rocm_version: str) -> str:
    """Return the text of ``_rocm_init.py``: what to load, and the version to compare with at run time."""
    lines = "".join(f"            {name!r},\n" for name in libraries)
    return (
        '"""Loads ROCm\'s libraries before torch\'s own. Written when this wheel was built."""\n'
        "\n\n"
        "def initialize():\n"
        "    import rocm_sdk\n"
        "\n"
        "    rocm_sdk.initialize_process(\n"
        "        preload_shortnames=[\n"
        f"{lines}"
        "        ],\n"
        f"        check_version={rocm_version!r},\n"
        "    )\n"
    )


TORCH = Component(
    name="torch",
    distribution="torch",
    tree_option="--pytorch-dir",
    repository="https://github.com/pytorch/pytorch.git",
    recipe=torch_steps,
    built_first=("triton",),
    third_party_requirements=(
        "filelock",
        "typing-extensions>=4.10",
        "sympy>=1.13.3",
        "networkx>=2.5.1",
        "jinja2",
        "fsspec>=0.8.5",
        "setuptools",
    ),
    required_components=("triton",),
    requires_rocm=True,
    version_rule=VersionRule(requires_version_file=True),
    version_places=(
        VersionPlace(members="torch/_rocm_init.py", holds="rocm"),
        VersionPlace(members="torch/version.py"),
    ),
    allowed=AllowedContents(
        # auditwheel and delvewheel put copies of libraries into NAME.libs.
        top_level=("torch", "torchgen", "functorch", "torch.libs"),
        programs=("torchrun", "torchfrtrace", "convert-caffe2-to-onnx", "convert-onnx-to-caffe2"),
        entry_points=("torchrun.logs_specs:default", "torch.distributed.backends:*"),
        requirements=(*_REQUIREMENTS, *_REQUIREMENTS_OF_EXTRAS, *_REQUIREMENTS_FOR_GPUS),
        data_files=("Library/bin/*",),  # MKL and its like, on Windows
    ),
    ships_static_libraries=True,
    rewrites_cuda=True,
    has_split_device_code=True,
    compiles_by_cmake=True,
    requires_submodules=True,
    required_toolchain_parts=required_toolchain_parts,
    sizes=WheelSizes(minimum=20_000_000, warn_above=6_000_000_000, error_above=20_000_000_000),
    gpu_need=MachineNeed(disk=40, memory=8, job=4.0),  # one HIP kernel file for several targets
    # Measured, with everything on 4 GiB of disk, and rounded up.
    cpu_need=MachineNeed(disk=5, memory=4, job=1.5),
)
