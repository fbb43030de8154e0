"""torch: switches, flash attention, what the wheel requires, and the files it carries.

A wheel for ROCm carries ``torch/_rocm_init.py``, whose ``initialize()`` torch's ``__init__`` calls. It loads
ROCm's libraries out of the ``rocm-sdk-*`` wheels with global symbols, so that torch's own libraries, and
anything that looks a library up by an unversioned name, find them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from core.errors import MissingInputError, RocmError, UsageError
from pytorch_build.build.machine import load_needs
from pytorch_build.build.plans import common
from pytorch_build.build.toolchain import load_toolchain

if TYPE_CHECKING:
    from pytorch_build.build.build import Build
    from pytorch_build.build.site import Site
    from pytorch_build.platforms import Platform

ROCM_INIT = "torch/_rocm_init.py"
# Without these torch cannot work, so their absence is an error of the SDK.
REQUIRED = ("amdhip64", "hiprtc", "hipblas")


def plan(build: Build, site: Site) -> common.BuildPlan:
    """Plan torch's wheel."""
    triton = build.dependency("triton")
    triton_version, windows = triton.version if triton else "", build.platform.windows
    flash = flash_attention(
        build.choices.flash_attention,
        platform=build.platform,
        gpu_targets=build.gpu_targets if site.rocm else (),
        triton_version=triton_version,
    )
    overlays = tuple(_overlays(build, site))
    arguments = ["--no-isolation", *_unchecked(build, site)]
    if site.facts.build_backend.startswith("scikit_build_core."):
        # it would leave these out, as git ignores them; with flash attention the build adds libraries
        included = [one.path for one in overlays if one.path.startswith("torch/")]
        included += ["torch/lib/aotriton_v2.dll", "torch/lib/liblzma.dll"] if windows and flash else []
        arguments += [f"-Cwheel.force-include.{path}={path}" for path in included]
    # configured alone first, where the tree can: it is verified before hours of compiling
    argv = (str(site.python), "setup.py", "build", "--cmake-only")
    alone = [common.Command(argv=argv, cwd=site.tree)] if site.facts.configures_alone else []
    return common.BuildPlan(
        distribution="torch",
        env=_env(build, site, triton_version, attention="ON" if flash else "OFF"),
        commands=(*alone, common.build_command(build, site, *arguments)),
        cmake_cache="build/CMakeCache.txt",
        uninstall=("torch",),
        requirements_files=("requirements.txt", "requirements-build.txt"),
        requirements=("build", *common.build_requires(site)),
        # older wheels of ninja loop (1.11.1) or break link.exe's response files (1.13.0) on Windows
        as_locked=("ninja",) if windows else (),
        # A file of an earlier build for ROCm would make this wheel ask for rocm_sdk.
        removes=() if site.rocm else (ROCM_INIT, f"build/lib*/{ROCM_INIT}"),
        overlays=overlays,
        notes=tuple(_notes(build, site)),
    )


def flash_attention(
    wanted: bool | None,  # noqa: FBT001 - the answer itself
    *,
    platform: Platform,
    gpu_targets: tuple[str, ...],
    triton_version: str,
) -> bool:
    """Decide on flash and memory-efficient attention: as wanted, else where targets and triton allow it."""
    needs_triton = not platform.windows and not triton_version
    if wanted and not gpu_targets:
        raise UsageError(f"{platform.flash_flag} needs GPU targets, and family cpu has none.")
    if wanted and needs_triton:
        raise UsageError(
            f"{platform.flash_flag} needs triton, and triton is not installed.",
            hint="Build it first: nox -s build_triton. Or leave the flag out.",
        )
    if wanted is not None:
        return wanted
    # the attention kernels (aotriton) exist for these; one of them is enough
    kernels = ("gfx90a", "gfx942", "gfx950", "gfx11", "gfx12")
    return not needs_triton and any(target.startswith(kernels) for target in gpu_targets)


def _env(build: Build, site: Site, triton_version: str, *, attention: str) -> dict[str, str]:
    requires = [f"rocm[libraries]=={site.rocm.version}"] if site.rocm else []
    requires += [f"triton=={triton_version}"] if triton_version else []
    env = common.common_env(build, site) | {
        "USE_ROCM": "ON" if site.rocm else "OFF",
        "USE_CUDA": "OFF",
        "USE_MPI": common.chosen(build, "USE_MPI", "OFF"),
        "USE_NUMA": common.chosen(build, "USE_NUMA", "OFF"),
        # many steps, and no stage runs upstream's C++ tests
        "BUILD_TEST": common.chosen(build, "BUILD_TEST", "0"),
        "PYTORCH_BUILD_VERSION": build.tree.version,
        "PYTORCH_BUILD_NUMBER": "1",
        "PYTORCH_EXTRA_INSTALL_REQUIREMENTS": "|".join(requires),
        "USE_FLASH_ATTENTION": attention,
        "USE_MEM_EFF_ATTENTION": attention,
    }
    if build.platform.windows:
        # Tests of the C++ library do not compile there.
        return env | common.windows_env(build) | _libuv_env(build, site) | {"BUILD_TEST": "0"}
    if site.rocm:
        # the bundled libdrm (for rocm_smi's headers), and kineto's roctracer
        rocm, sysdeps = site.rocm.root, site.rocm.root / "lib" / "rocm_sysdeps"
        # quoted behind the letter: CMake drops quotes around a whole value when it reads its cache again
        headers = " ".join(f"-I{quote(one)}" for one in (f"{sysdeps}/include", f"{rocm}/include/roctracer"))
        libraries = f"-L{quote(f'{sysdeps}/lib')}"
        env["CXXFLAGS"] = f"{env.get('CXXFLAGS', '')} {headers}".strip()
        env["LDFLAGS"] = f"{build.base_env.get('LDFLAGS', '').strip()} {libraries}".strip()
    return env | common.sysdeps_env(build, site)


def _libuv_env(build: Build, site: Site) -> dict[str, str]:
    """Lead gloo to libuv; without it torch would silently be built without distributed."""
    if site.provided.uv:
        return {"libuv_ROOT": str(site.provided.uv.parent.parent)}
    if is_distributed(build):
        raise MissingInputError(
            "torch's distributed needs libuv on Windows.",
            hint="Name one with libuv_ROOT, or build without distributed: USE_DISTRIBUTED=0.",
        )
    return {}


def is_distributed(build: Build) -> bool:
    """Return whether torch is built with distributed, which needs libuv on Windows."""
    value = build.platform.find_variable({**build.base_env, **build.source.env}, "USE_DISTRIBUTED")
    return value.upper() not in {"0", "OFF", "NO", "FALSE", "N"}


def _unchecked(build: Build, site: Site) -> tuple[str, ...]:
    """Keep `build` from refusing the lock's ninja where the project requires one that does not work."""
    usable = load_needs().tools.ninja_windows
    required = [Requirement(line) for line in common.build_requires(site)]
    refused = any(one.name == "ninja" and not one.specifier.contains(usable) for one in required)
    return ("--skip-dependency-check",) if build.platform.windows and refused else ()


def _overlays(build: Build, site: Site) -> Iterator[common.Overlay]:
    if site.rocm:
        names = preload_names(build.platform, site.rocm.libraries)
        yield common.Overlay(path=ROCM_INIT, content=rocm_init_text(names, rocm_version=site.rocm.version))
    if not build.platform.windows:
        return
    openmp, provided = load_toolchain().openmp.dll, site.provided
    if provided.openmp:
        yield common.Overlay(path=f"torch/lib/{openmp}", source=provided.openmp)
    elif site.rocm:
        raise MissingInputError(
            f"torch's libraries need {openmp}, and there is none that the wheel may carry.",
            hint="Let the build download it, or name a mirror of its address: --git-mirror.",
        )
    if provided.uv:
        yield common.Overlay(path=f"torch/lib/{provided.uv.name}", source=provided.uv)
    # torch's own license-files take these along
    for name, path in provided.licenses.items():
        yield common.Overlay(path=f"third_party/{name}/LICENSE", source=path)


def _notes(build: Build, site: Site) -> Iterator[str]:
    known = site.rocm.libraries if site.rocm else build.platform.preloads
    if absent := [name for name in build.platform.preloads if name not in known]:
        yield f"This ROCm has no {', '.join(absent)}: torch will not load them first."
    if build.platform.windows and site.cache and site.cache.kind == "ccache":
        yield "If aotriton fails with 'invalid argument', build without --compiler-cache ccache."
    if "CMAKE_ARGS" in build.base_env and not site.facts.build_backend.startswith("scikit_build_core."):
        yield "This tree does not read CMAKE_ARGS: set variables that begin with CMAKE_, USE_ or BUILD_."


def preload_names(platform: Platform, available: Collection[str]) -> tuple[str, ...]:
    """Return the libraries to load first that the SDK has."""
    if lacking := [name for name in REQUIRED if name not in available]:
        raise RocmError(
            f"The ROCm SDK has no {', '.join(lacking)}, without which torch cannot be imported.",
            hint="Install rocm[libraries,devel] completely: nox -s install_rocm.",
        )
    return tuple(name for name in platform.preloads if name in available)


def rocm_init_text(names: Sequence[str], *, rocm_version: str) -> str:
    """Return the text of ``_rocm_init.py``: what to load, and the version to compare with at run time."""
    listed = "".join(f"            {name!r},\n" for name in names)
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
