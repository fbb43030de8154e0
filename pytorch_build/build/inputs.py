"""The inputs of a build: everything that its wheel depends on, as the record digests it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files
from core.env.locks import BUILDS, target_lock
from core.environment import need_of

if TYPE_CHECKING:
    from pytorch_build.build.request import BuildRequest
    from pytorch_build.components import Component
    from pytorch_build.sources.trees import Tree
    from rocm_packaging.origin import RocmSource
    from rocm_packaging.packages.layouts import Layout

# The rules that all builds follow; each component's own are in its module.
_SHARED_RULES = (
    "build/execution.py",
    "build/facts.py",
    "build/plan.py",
    "build/search_paths.py",
    "build/stage.py",
    "components/steps.py",
    "platforms.*",
    "split/*.py",
)


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """One component that is installed before a build: a wheel of the run, or a prebuilt requirement.

    Attributes:
        project: The component's name.
        requirement: What is installed: the wheel's path, or a requirement.
        version: Its version; None for a prebuilt one that its requirement does not pin.
        digest: The wheel's SHA-256; None for what is not a wheel of the run.
        third_party_requirements: What the wheel requires of others than us.
        is_assumed: Whether it is not there yet, and a dry run goes on as if it was.
    """

    project: str
    requirement: str
    version: str | None = None
    digest: str | None = None
    third_party_requirements: tuple[str, ...] = ()
    is_assumed: bool = False

    @property
    def identity(self) -> dict[str, str]:
        """What a record compares the dependency by: the wheel's digest, else the requirement."""
        if self.digest is None:
            return {"requirement": self.requirement}
        return {"digest": self.digest}


@dataclass(frozen=True, kw_only=True)
class RocmIdentity:
    """The ROCm that a wheel is built against: the digests of its files, or where it is installed."""

    version: str
    layout: Layout
    content: Mapping[str, str] | str

    def to_json(self) -> list[Any]:
        """Return version, layout and content as the list that records store."""
        return [self.version, self.layout, self.content]


@dataclass(frozen=True, kw_only=True)
class BuildInputs:
    """Everything that a wheel depends on: a record with the same inputs makes a build unnecessary.

    A recipe sees nothing of a build but these, and facts of machine and tree that follow from them or that
    the wheel does not depend on.

    Attributes:
        source: The commit and what is done to it, or a developer's tree and its edits.
        version: The wheel's full version.
        python: The version of the Python that it is built for.
        rocm: The ROCm that it is built against; None for CPUs.
        rocm_extras: ROCm's extras that are installed besides those that builds need.
        gpu_targets: The targets of its device code.
        dependencies: The components that are installed before it is built.
        ref_env: The variables that the torch ref sets for this component.
        build_requirements: What the torch ref installs in the place of locked requirements.
        flash_attention: Whether it was asked for; None where that is left to the recipe.
        is_split: Whether device code goes into wheels of its own.
        flags: The user's variables that steer compilers and upstream's builds; secrets in them are masked.
        lock_sha256: The lock of build requirements.
        code_digest: The rules that builds follow: a changed rule is a changed input.
    """

    source: Mapping[str, Any]
    version: str
    python: str
    rocm: RocmIdentity | None = None
    rocm_extras: tuple[str, ...] = ()
    gpu_targets: tuple[str, ...] = ()
    dependencies: tuple[Dependency, ...] = ()
    ref_env: Mapping[str, str]
    build_requirements: tuple[str, ...] = ()
    flash_attention: bool | None = None
    is_split: bool = False
    flags: Mapping[str, str]
    lock_sha256: str
    code_digest: str

    def to_json(self) -> dict[str, Any]:
        """Return the inputs as records store them; other keys or values would make every wheel anew."""
        return {
            "source": self.source,
            "version": self.version,
            "python": self.python,
            "rocm": self.rocm.to_json() if self.rocm is not None else None,
            "rocm_extras": list(self.rocm_extras),
            "gpu_targets": list(self.gpu_targets),
            "dependencies": self.dependency_identities,
            "ref_env": dict(self.ref_env),
            "build_requirements": list(self.build_requirements),
            "flash_attention": self.flash_attention,
            "split": self.is_split,
            "flags": dict(self.flags),
            "lock": self.lock_sha256,
            "code": self.code_digest,
        }

    @property
    def digest(self) -> str:
        """The SHA-256 of all inputs, by which a record tells whether the wheel must be built again."""
        return files.digest_of(self.to_json())

    @property
    def dependency_identities(self) -> dict[str, dict[str, str]]:
        """What a record compares each dependency by, by component."""
        return {dependency.project: dependency.identity for dependency in self.dependencies}

    def dependency(self, project: str) -> Dependency | None:
        """Return a component that is installed before the build; None where it is not."""
        for dependency in self.dependencies:
            if dependency.project == project:
                return dependency
        return None

    def version_of(self, project: str) -> str | None:
        """Return the version of a component that is installed before the build; None if there is none."""
        dependency = self.dependency(project)
        return None if dependency is None else dependency.version


def inputs_of(
    request: BuildRequest,
    tree: Tree,
    rocm_source: RocmSource | None,
    dependencies: tuple[Dependency, ...],
) -> BuildInputs:
    """Return all inputs of a requested wheel, given its source tree, its ROCm and its dependencies."""
    context = request.context
    rocm = None
    is_split = False
    if rocm_source is not None:
        rocm = RocmIdentity(
            version=rocm_source.version,
            layout=rocm_source.layout,
            content=dict(rocm_source.digests) or rocm_source.origin,
        )
        has_split_rocm = rocm_source.layout == "split"
        is_split = has_split_rocm and request.may_split and request.component.has_split_device_code

    # For a Python without a lock of build requirements, what one would be made from.
    common = context.common
    requirements_lock = target_lock(common, request.target) or common.root / "requirements" / f"{BUILDS}.in"
    return BuildInputs(
        source=tree.inputs,
        version=tree.version,
        python=request.target.version,
        rocm=rocm,
        rocm_extras=request.rocm.extras if context.gpu else (),
        gpu_targets=request.gpu_targets,
        dependencies=dependencies,
        ref_env=request.source.env,
        build_requirements=request.source.build_requirements,
        flash_attention=request.flash_attention,
        is_split=is_split,
        flags=build_flags(request.user_env),
        lock_sha256=files.sha256(requirements_lock),
        code_digest=digest_of_rules(request.component),
    )


def build_flags(user_env: Mapping[str, str]) -> dict[str, str]:
    """Return the user's variables that change what compilers and upstream's builds make, secrets masked."""
    flags: dict[str, str] = {}
    for name, value in sorted(user_env.items()):
        if need_of(name) == "build flags":
            flags[name] = console.mask(value)
    return flags


def digest_of_rules(component: Component) -> str:
    """Return a digest of the source code that decides how a component is built.

    Another component's module does not count, so that a new one leaves the wheels of all others as they are.
    """
    package = Path(__file__).parents[1]
    digests: dict[str, str] = {}
    for pattern in (*_SHARED_RULES, f"components/{component.name}.py"):
        for path in package.glob(pattern):
            digests[str(path.relative_to(package))] = files.sha256(path)
    return files.digest_of(digests)
