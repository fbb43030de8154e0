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
    """What a person may choose about a build."""

    compiler_cache: CompilerCache | None = None
    flash_attention: bool | None = None
    clean: bool = False
    max_jobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One wheel to build."""

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
    """What is there in an SDK."""

    device_libs: bool
    host_math: bool
    sysdeps: bool
    libraries: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class TreeFacts:
    """What is there in a source tree."""

    files: frozenset[str]
    build_backend: str = ""
    build_requires: tuple[str, ...] = ()
    build_env: Mapping[str, str] = field(default_factory=dict)
    reads_build_version: bool = True
    git_suffix: str = ""
    llvm_hash: str = ""


@dataclass(frozen=True, kw_only=True)
class BuildFacts:
    """Everything that a plan has to know of the machine."""

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
    """How to build one wheel. Executing it takes no further decision."""

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
