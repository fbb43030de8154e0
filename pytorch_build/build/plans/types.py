"""What goes into the plan of a build, and what comes out.

Paths are pure, so that a Windows build can be computed anywhere; what exists on the
machine comes in as facts (`pytorch_build.build.facts` reads them).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePath

    from pytorch_build.build.compiler_cache import CompilerCache


class RocmPaths(Protocol):
    """What an installed ROCm SDK says of itself; `pytorch_build.rocm.sdk.RocmSdk` is one."""

    @property
    def version(self) -> str:
        """The SDK's version."""
        ...

    @property
    def root(self) -> PurePath:
        """Its folder."""
        ...

    @property
    def bin(self) -> PurePath:
        """Its programs."""
        ...

    @property
    def cmake(self) -> PurePath:
        """Its CMake packages."""
        ...

    @property
    def targets(self) -> tuple[str, ...]:
        """GPU targets that it is for."""
        ...


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What a person may choose about a build.

    Attributes:
        compiler_cache: The cache that compilations go through, or None.
        flash_attention: On or off as asked for; None follows the rule in `builds.torch`.
        clean: Remove the project's build folder first.
        max_jobs: Compilers at a time (`needs.max_jobs` computes it); None leaves MAX_JOBS alone.
    """

    compiler_cache: CompilerCache | None = None
    flash_attention: bool | None = None
    clean: bool = False
    max_jobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One wheel to build.

    Attributes:
        project: ``triton``, ``torch``, ``audio``, ``vision`` or ``apex``.
        version: The full version that the source lock promises.
        tree: The source tree.
        python: The target environment's interpreter.
        rocm: The installed SDK; None for family cpu.
        gpu_targets: ``gfx942`` and so on; empty for family cpu.
        torch_version: Full version of the installed torch; empty for triton and torch.
        triton_version: Full version of the installed triton; empty where there is none.
        ref_env: The ref's own build environment: it has the last word.
        build_requirements: What the ref's sources need beyond the project's own requirements.
        options: What a person chose.
    """

    project: str
    version: str
    tree: PurePath
    python: PurePath
    rocm: RocmPaths | None
    gpu_targets: tuple[str, ...] = ()
    torch_version: str = ""
    triton_version: str = ""
    ref_env: Mapping[str, str] = field(default_factory=dict)
    build_requirements: tuple[str, ...] = ()
    options: BuildOptions = field(default_factory=BuildOptions)


@dataclass(frozen=True, kw_only=True)
class RocmFacts:
    """What is there in an SDK.

    Attributes:
        device_libs: ``lib/llvm/amdgcn/bitcode``.
        host_math: ``lib/host-math`` (OpenBLAS).
        sysdeps: ``lib/rocm_sysdeps``.
        libraries: Short names that ``rocm_sdk.find_libraries`` finds.
    """

    device_libs: bool
    host_math: bool
    sysdeps: bool
    libraries: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class TreeFacts:
    """What is there in a source tree.

    Attributes:
        files: Those of the paths that builds ask about which exist, with forward slashes.
        build_backend: ``[build-system] build-backend`` of pyproject.toml, or empty.
        build_requires: ``[build-system] requires`` of pyproject.toml.
        build_env: Content of ``build_env.json``, which checkout writes for triton.
        reads_build_version: setup.py takes its version from BUILD_VERSION.
        git_suffix: What triton's setup.py adds by itself (``+git0123abcd``), or empty.
        llvm_hash: The LLVM commit in triton's ``cmake/llvm-hash.txt``, or empty.
    """

    files: frozenset[str]
    build_backend: str = ""
    build_requires: tuple[str, ...] = ()
    build_env: Mapping[str, str] = field(default_factory=dict)
    reads_build_version: bool = True
    git_suffix: str = ""
    llvm_hash: str = ""


@dataclass(frozen=True, kw_only=True)
class BuildFacts:
    """Everything that a plan has to know of the machine.

    Attributes:
        tree: Of the source tree.
        rocm: Of the SDK; None for family cpu.
        openmp: Windows: the OpenMP runtime that the wheel carries.
        uv: Windows: ``bin/uv.dll`` of libuv's prefix.
        licenses: Licences of what is carried: project to file.
        llvm: Windows: the unpacked LLVM that triton is built against.
    """

    tree: TreeFacts
    rocm: RocmFacts | None = None
    openmp: PurePath | None = None
    uv: PurePath | None = None
    licenses: Mapping[str, PurePath] = field(default_factory=dict)
    llvm: PurePath | None = None


@dataclass(frozen=True, kw_only=True)
class FileDrop:
    """A file that lies in the tree while it is built, and is taken away again afterwards.

    What was there under its name is put back. Exactly one of content and source is given.

    Attributes:
        path: Where, relative to the tree, with forward slashes.
        content: Its text.
        source: A file to copy.
    """

    path: str
    content: str | None = None
    source: PurePath | None = None


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of a build: argument list and folder."""

    argv: tuple[str, ...]
    cwd: PurePath


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """How to build one wheel. Executing it takes no further decision.

    Attributes:
        project: ``torch``.
        distribution: ``torch``: the wheel's name.
        version: The version that the wheel must have.
        env: Additions over the base environment (`builds.environment` lays them over it). They
            are for `commands` alone: the import check runs without them.
        unset: Variables that the commands must not see.
        uninstall: Distributions to take out of the target environment first.
        requirements_files: The project's own, relative to the tree; each exists.
        requirements: To install with them, in the same call.
        as_locked: Distributions that must be the lock's, whatever the project's requirements brought.
        removes: Globs relative to the tree: folders and files to remove before the build.
        file_drops: Files to put into the tree for the time of the build.
        commands: To run, in order.
        wheel_dir: Where the wheel appears.
        wheel_glob: Exactly one file there must match.
        install: Later builds need the wheel installed.
        import_check: Command that must succeed and print something once the wheel is installed;
            to run outside the tree, without `env`.
        notes: What people should know, a sentence each.
        configuration: Digest of everything that a kept build folder depends on. A build folder
            that was made with another one must be removed: CMake would keep its old settings.
    """

    project: str
    distribution: str
    version: str
    env: Mapping[str, str]
    unset: frozenset[str]
    uninstall: tuple[str, ...]
    requirements_files: tuple[str, ...]
    requirements: tuple[str, ...]
    as_locked: tuple[str, ...]
    removes: tuple[str, ...]
    file_drops: tuple[FileDrop, ...]
    commands: tuple[Command, ...]
    wheel_dir: PurePath
    wheel_glob: str
    install: bool
    import_check: tuple[str, ...]
    notes: tuple[str, ...]
    configuration: str
