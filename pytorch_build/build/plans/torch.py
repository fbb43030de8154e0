"""torch: switches, flash attention, what the wheel requires, and the files it carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from core.errors import MissingInputError, RocmError, UsageError
from pytorch_build.build.machine import load_needs
from pytorch_build.build.plans.common import (
    FileDrop,
    Steps,
    build_command,
    build_requires,
    close,
    common_env,
    sysdeps_env,
    windows_env,
)
from pytorch_build.build.toolchain import load_toolchain

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytorch_build.build.plans.common import BuildPlan, Context, RocmFacts, RocmPaths
    from pytorch_build.platforms import Platform


# GPU targets that the attention kernels (aotriton) exist for; one of them is enough.
_FLASH_TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx11", "gfx12")
# Names of the git-ignored libraries that a Windows build with flash attention leaves in torch/lib.
_FLASH_DLLS = ("aotriton_v2.dll", "liblzma.dll")
_OFF = frozenset({"0", "OFF", "NO", "FALSE", "N"})


def flash_attention(
    wanted: bool | None,  # noqa: FBT001 - the answer itself
    *,
    platform: Platform,
    gpu_targets: tuple[str, ...],
    triton_version: str,
) -> bool:
    """Decide whether torch is built with flash and memory-efficient attention.

    A person's word counts. Else Linux needs triton for it, and some target must have kernels;
    Windows needs no triton.
    """
    needs_triton = platform.NAME == "linux" and not triton_version
    if wanted and not gpu_targets:
        raise UsageError(f"{platform.FLASH_FLAG} needs GPU targets, and family cpu has none.")
    if wanted and needs_triton:
        raise UsageError(
            f"{platform.FLASH_FLAG} needs triton, and triton is not installed.",
            hint="Build it first: nox -s build_triton. Or leave the flag out.",
        )
    if wanted is not None:
        return wanted
    return not needs_triton and any(target.startswith(_FLASH_TARGETS) for target in gpu_targets)


def plan(context: Context) -> BuildPlan:
    """Plan torch's wheel."""
    request = context.request
    flash = flash_attention(
        request.options.flash_attention,
        platform=context.platform,
        gpu_targets=request.gpu_targets if request.rocm else (),
        triton_version=request.triton_version,
    )
    drops, notes = _file_drops(context)
    arguments = ["--no-isolation", *_unchecked(context)]
    if context.facts.tree.build_backend.startswith("scikit_build_core."):
        arguments += _force_includes(context, drops, flash=flash)
    steps = Steps(
        distribution="torch",
        env=_env(context, flash=flash),
        commands=(build_command(context, *arguments),),
        import_code="import torch; print(torch.__version__, torch.cuda.is_available())",
        uninstall=("torch",),
        requirements_files=("requirements.txt", "requirements-build.txt"),
        requirements=("build", *build_requires(context)),
        # older wheels of ninja loop (1.11.1) or break link.exe's response files (1.13.0) on Windows
        as_locked=("ninja",) if context.windows else (),
        # A file of an earlier build for ROCm would make this wheel ask for rocm_sdk.
        removes=() if request.rocm else (PATH, f"build/lib*/{PATH}"),
        file_drops=drops,
        install=True,
        notes=notes,
    )
    return close(context, steps)


def _env(context: Context, *, flash: bool) -> dict[str, str]:
    request = context.request
    attention = "ON" if flash else "OFF"
    requires = [f"rocm[libraries]=={request.rocm.version}"] if request.rocm else []
    if request.triton_version:
        requires.append(f"triton=={request.triton_version}")
    env = common_env(context) | {
        "USE_ROCM": "ON" if request.rocm else "OFF",
        "USE_CUDA": "OFF",
        "USE_MPI": "OFF",
        "USE_NUMA": "OFF",
        "PYTORCH_BUILD_VERSION": request.version,
        "PYTORCH_BUILD_NUMBER": "1",
        "PYTORCH_EXTRA_INSTALL_REQUIREMENTS": "|".join(requires),
        "USE_FLASH_ATTENTION": attention,
        "USE_MEM_EFF_ATTENTION": attention,
    }
    if context.windows:
        # Tests of the C++ library do not compile there.
        return env | windows_env(context) | _libuv_env(context) | {"BUILD_TEST": "0"}
    return env | sysdeps_env(context) | (_linux_flags(context, env, request.rocm) if request.rocm else {})


def _libuv_env(context: Context) -> dict[str, str]:
    """Lead gloo to libuv; without it torch would be built without distributed, and nobody would be told."""
    if context.facts.uv:
        return {"libuv_ROOT": str(context.facts.uv.parent.parent)}
    chosen = {**context.base_env, **context.request.ref_env}
    if context.platform.find_variable(chosen, "USE_DISTRIBUTED").upper() not in _OFF:
        raise MissingInputError(
            "torch's distributed needs libuv on Windows.",
            hint="Provide it: nox -s prepare. Or build without distributed: USE_DISTRIBUTED=0.",
        )
    return {}


def _unchecked(context: Context) -> tuple[str, ...]:
    """Keep `build` from refusing the lock's ninja where the project asks for one that does not work."""
    usable = load_needs().tools.ninja_windows
    asked = [Requirement(line) for line in build_requires(context)]
    refused = any(one.name == "ninja" and not one.specifier.contains(usable) for one in asked)
    return ("--skip-dependency-check",) if context.windows and refused else ()


def _linux_flags(context: Context, env: dict[str, str], rocm: RocmPaths) -> dict[str, str]:
    """Find the bundled libdrm (for rocm_smi's headers) and kineto's roctracer."""
    sysdeps = rocm.root / "lib" / "rocm_sysdeps"
    headers = f"-I{sysdeps / 'include'} -I{rocm.root / 'include' / 'roctracer'}"
    linker = context.base_env.get("LDFLAGS", "").strip()
    return {
        "CXXFLAGS": f"{env.get('CXXFLAGS', '')} {headers}".strip(),
        "LDFLAGS": f"{linker} -L{sysdeps / 'lib'}".strip(),
    }


def _file_drops(context: Context) -> tuple[tuple[FileDrop, ...], tuple[str, ...]]:
    request, facts = context.request, context.facts
    drops: list[FileDrop] = []
    notes: list[str] = []
    if request.rocm and facts.rocm:
        drop, absent = _rocm_init(context.platform, request.rocm, facts.rocm)
        drops.append(drop)
        if absent:
            notes.append(f"This ROCm has no {', '.join(absent)}: torch will not load them first.")
    if context.windows:
        openmp = load_toolchain().openmp.dll
        if facts.openmp:
            drops.append(FileDrop(path=f"torch/lib/{openmp}", source=facts.openmp))
        elif request.rocm:
            raise MissingInputError(
                f"torch's libraries need {openmp}, and there is none that the wheel may carry.",
                hint="Provide it: nox -s prepare.",
            )
        if facts.uv:
            drops.append(FileDrop(path=f"torch/lib/{facts.uv.name}", source=facts.uv))
        # torch's own license-files take these along
        drops += [
            FileDrop(path=f"third_party/{name}/LICENSE", source=path) for name, path in facts.licenses.items()
        ]
        if request.options.compiler_cache and request.options.compiler_cache.kind == "ccache":
            notes.append("If aotriton fails with 'invalid argument', build without --compiler-cache ccache.")
    return tuple(drops), tuple(notes)


def _rocm_init(platform: Platform, rocm: RocmPaths, facts: RocmFacts) -> tuple[FileDrop, tuple[str, ...]]:
    preloads = preload_names(platform, facts.libraries)
    text = rocm_init_text(preloads, rocm_version=rocm.version)
    return FileDrop(path=PATH, content=text), preloads.absent


def _force_includes(context: Context, drops: tuple[FileDrop, ...], *, flash: bool) -> list[str]:
    """Name the files that scikit-build-core would leave out, as git ignores them."""
    paths = [drop.path for drop in drops if drop.path.startswith("torch/")]
    if context.windows and flash:
        paths += [f"torch/lib/{name}" for name in _FLASH_DLLS]
    return [f"-Cwheel.force-include.{path}={path}" for path in paths]


# Without these torch cannot work, so their absence is an error of the SDK.
REQUIRED = ("amdhip64", "hiprtc", "hipblas")
PATH = "torch/_rocm_init.py"


@dataclass(frozen=True, kw_only=True)
class Preloads:
    """Libraries that torch loads first."""

    names: tuple[str, ...]
    absent: tuple[str, ...]


def preload_names(platform: Platform, available: Collection[str]) -> Preloads:
    """Choose the libraries to load first, out of those that the SDK really has.

    One name in the list that the SDK cannot find breaks ``import torch`` for everybody,
    so the list follows the SDK, as long as it has what torch cannot do without.
    """
    lacking = [name for name in REQUIRED if name not in available]
    if lacking:
        raise RocmError(
            f"The ROCm SDK has no {', '.join(lacking)}, without which torch cannot be imported.",
            hint="Install rocm[libraries,devel] completely: nox -s install_rocm.",
        )
    names = tuple(name for name in platform.PRELOADS if name in available)
    return Preloads(names=names, absent=tuple(name for name in platform.PRELOADS if name not in names))


def rocm_init_text(preloads: Preloads, *, rocm_version: str) -> str:
    """Write the file for an SDK: what to load, and the version to compare with at run time."""
    if not preloads.names or not rocm_version:
        raise RocmError("A torch wheel for ROCm needs libraries to load first and a ROCm version.")
    listed = "".join(f"            {name!r},\n" for name in preloads.names)
    return (
        '"""Loads ROCm\'s libraries before torch\'s own. Written when this wheel was built."""\n'
        "\n\n"
        "def initialize():\n"
        "    import rocm_sdk\n"
        "\n"
        "    rocm_sdk.initialize_process(\n"
        "        preload_shortnames=[\n"
        f"{listed}"
        "        ],\n"
        f"        check_version={rocm_version!r},\n"
        "    )\n"
    )


def query_code(platform: Platform) -> str:
    """Give Python code for the target environment that prints which libraries its SDK has.

    It prints one short name a line; its lines are what `preload_names` takes. A name that the
    SDK does not know, has no file for, or skips on this platform is not printed; an SDK
    without its libraries' wheel fails in several ways, and each means the same here.
    """
    return (
        "import rocm_sdk\n"
        f"for name in {platform.PRELOADS!r}:\n"
        "    try:\n"
        "        found = rocm_sdk.find_libraries(name)\n"
        "    except Exception:\n"
        "        continue\n"
        "    if found:\n"
        "        print(name)\n"
    )
