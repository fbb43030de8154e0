"""A component: everything that the rest of the pipeline has to know of one project that it builds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from core.data import Model

if TYPE_CHECKING:
    from core.run import Platform as PlatformName
    from pytorch_build.build.facts import BuildFacts
    from pytorch_build.build.inputs import BuildInputs
    from pytorch_build.components.steps import BuildSteps
    from pytorch_build.platforms import Platform

    Recipe = Callable[[BuildInputs, BuildFacts], BuildSteps]
    RequiredToolchainParts = Callable[[Platform, Mapping[str, str]], Collection[str]]


class AllowedContents(Model):
    """What wheels of a distribution may bring into an environment.

    Attributes:
        top_level: Files and folders in site-packages.
        programs: Console scripts, and files that are installed beside Python.
        entry_points: ``GROUP:NAME`` of everything that other packages look up.
        requirements: Distributions that METADATA names, with or without an extra.
        data_files: Paths below the environment's root, of the wheel's ``.data/data`` and ``.data/headers``.
        replaces: Distributions that are never installed beside this one, as they hold the same files.
    """

    top_level: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    entry_points: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()

    def __or__(self, addition: AllowedContents) -> AllowedContents:
        """Return what either of the two allows."""
        return AllowedContents(
            top_level=self.top_level + addition.top_level,
            programs=self.programs + addition.programs,
            entry_points=self.entry_points + addition.entry_points,
            requirements=self.requirements + addition.requirements,
            data_files=self.data_files + addition.data_files,
            replaces=self.replaces + addition.replaces,
        )


@dataclass(frozen=True, kw_only=True)
class VersionRule:
    """Where a project's source tree states its version, besides ``version.txt``.

    Attributes:
        requires_version_file: Whether the build itself reads ``version.txt``, so that a tree needs one.
        modules: Python modules that may state it as ``__version__``, in the order in which they are read.
        file_in_torch: A file of torch's tree that states it, and comes before the project's own files.
        setup_files: Files that may add the commit to the version by themselves.
        names_torch: Whether the wheel's version says which torch it is for, where the two differ.
        module_lacks_local_part: Whether the installed module states the version without its local part.
    """

    requires_version_file: bool = False
    modules: tuple[str, ...] = ()
    file_in_torch: str | None = None
    setup_files: tuple[str, ...] = ()
    names_torch: bool = False
    module_lacks_local_part: bool = False


@dataclass(frozen=True, kw_only=True)
class VersionPlace:
    """Members of a wheel that quote its version, or ROCm's, and are edited where that is changed.

    Attributes:
        members: The wheel's members, as a glob whose ``*`` also stands for slashes.
        holds: Whose version it is: the wheel's own, or ROCm's.
        required: Whether such a member has to be there and to hold it.
    """

    members: str
    holds: Literal["own", "rocm"] = "own"
    required: bool = True


class WheelSizes(Model):
    """The limits in bytes of a wheel's size; 0 is no limit, as TOML has no null."""

    minimum: int = 0
    warn_above: int = 0
    error_above: int = 0


class MachineNeed(Model):
    """The disk, memory and headers that a build needs of a machine.

    Attributes:
        disk: GiB of disk for the tree and what is built in it.
        memory: GiB of memory.
        job: GiB of memory for one compiler.
        python_headers: Whether extension modules are compiled, which takes Python.h.
    """

    disk: float = Field(gt=0)
    memory: float = Field(gt=0)
    job: float = Field(gt=0)
    python_headers: bool = True


@dataclass(frozen=True, kw_only=True)
class Component:
    """One project that is built into a wheel.

    Attributes:
        name: What refs, sessions and options call it.
        distribution: What the wheel is called.
        tree_option: The option that names a developer's own tree of it.
        repository: Where it comes from unless a torch ref says otherwise.
        recipe: How upstream's own build makes the wheel.
        built_first: The components that are installed before it is built, in that order.
        required_components: Those of ours that the wheel's metadata requires, at exactly their version.
        third_party_requirements: What the wheel is known to require of others, whatever its version.
        requires_rocm: Whether the wheel's metadata requires ROCm's packages.
        version_rule: Where its version comes from.
        version_places: Where the wheel holds a version besides its metadata.
        allowed: What the wheel may bring into an environment.
        other_names: What other builds of the same wheel are called.
        ships_sources: Whether the wheel holds sources, which are compiled when they are first used.
        ships_static_libraries: Whether the wheel holds static libraries.
        rewrites_cuda: Whether its CUDA sources are rewritten for HIP before it is built.
        loss_without: What a wheel lacks that is built without it; None where nothing is built without it.
        serves_gpus_only: Whether wheels for CPUs have no use for it.
        serves_every_python: Whether one wheel may serve several Pythons.
        has_split_device_code: Whether its device code goes into wheels of its own, as ROCm's does.
        compiles_by_cmake: Whether CMake starts the compilers, rather than setup.py.
        requires_submodules: Whether setup.py refuses a tree without its submodules.
        required_toolchain_parts: Which parts of the toolchain its build needs; None where it needs none.
        sizes: The sizes of its wheel.
        gpu_need: What its build takes of a machine.
        cpu_need: What its build for CPUs takes, where that is less.
        platforms: Where it is built unless a torch ref says otherwise.
    """

    name: str
    distribution: str
    tree_option: str
    repository: str
    recipe: Recipe
    built_first: tuple[str, ...] = ()
    required_components: tuple[str, ...] = ()
    third_party_requirements: tuple[str, ...] = ()
    requires_rocm: bool = False
    version_rule: VersionRule = VersionRule()
    version_places: tuple[VersionPlace, ...] = ()
    allowed: AllowedContents
    other_names: tuple[str, ...] = ()
    ships_sources: bool = False
    ships_static_libraries: bool = False
    rewrites_cuda: bool = False
    loss_without: str | None = None
    serves_gpus_only: bool = False
    serves_every_python: bool = False
    has_split_device_code: bool = False
    compiles_by_cmake: bool = False
    requires_submodules: bool = False
    required_toolchain_parts: RequiredToolchainParts | None = None
    sizes: WheelSizes
    gpu_need: MachineNeed
    cpu_need: MachineNeed | None = None
    platforms: tuple[PlatformName, ...] = ("linux", "windows")

    @property
    def module(self) -> str:
        """The Python module that a user imports."""
        return self.distribution.replace("-", "_")

    def versions_in_module(self, version: str) -> tuple[str, ...]:
        """Return what the installed module's ``__version__`` may be for a wheel of a version."""
        if self.version_rule.module_lacks_local_part:
            return (version, version.partition("+")[0])
        return (version,)

    @property
    def device_prefix(self) -> str:
        """How the names of its device wheels' distributions begin; a GPU target follows."""
        return f"amd-{self.distribution}-device-"
