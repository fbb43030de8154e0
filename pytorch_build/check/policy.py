"""What the checks allow, as far as users change it: the project's data, with a user's own over it.

A user's limits stand in a file for ``--policy``, or in the table ``[checks]`` of pytorch-build.toml. Both
have the form of `policy.toml`; lists add to what is there, other values replace it.
"""

from __future__ import annotations

import re  # noqa: TC003 - pydantic reads it
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import Field, field_validator

from core import files
from core.data import (
    Model,
    cached_by_user_file,
    merge_tables,
    read_toml,
    tables_of_user,
    user_file,
    validated,
)
from pytorch_build.components import COMPONENTS, TORCH
from pytorch_build.components.component import (
    AllowedContents,  # noqa: TC001 - pydantic reads it
    WheelSizes,  # noqa: TC001 - pydantic reads it
)

if TYPE_CHECKING:
    from pytorch_build.check import WheelView

POLICY_FILE = Path(__file__).with_name("policy.toml")
USER_TABLE = "checks"


class ForbiddenMembers(Model):
    """A rule against members of wheels, by a pattern of names; `message` says what they are."""

    pattern: re.Pattern[str]
    severity: Literal["error", "warning", "note"] = "error"
    message: str
    distributions: tuple[str, ...] = ("*",)


class LibraryProvider(Model):
    """Distributions whose libraries wheels may need, as they are loaded or on the search path.

    Whoever requires one of `distributions` may expect `libraries`, those in `folders` below site-packages,
    and those of the providers in `includes`; `assumed_by` may without requiring it.
    """

    distributions: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    folders: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    includes: tuple[str, ...] = ()
    assumed_by: tuple[str, ...] = ()

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of all the libraries of these distributions."""
        patterns = list(self.libraries)
        for names in self.folders.values():
            patterns += names
        return tuple(patterns)


class WindowsDlls(Model):
    """DLLs that a wheel for Windows need not hold, by patterns, and folders where DLLs are found."""

    libraries: tuple[str, ...] = ()
    redistributable: tuple[str, ...] = ()
    debug: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


class Policy(Model):
    """What the checks allow; `source` names the user's files that are laid over the project's data."""

    source: str = ""
    exempt_labels: tuple[str, ...] = ()
    device_code: tuple[str, ...] = ()
    system_libraries: tuple[str, ...] = ()
    machine_libraries: tuple[str, ...] = ()
    windows: WindowsDlls = WindowsDlls()
    preloaded: tuple[str, ...] = ()
    sizes: dict[str, WheelSizes] = Field(default_factory=dict)
    forbidden: tuple[ForbiddenMembers, ...] = ()
    providers: dict[str, LibraryProvider] = Field(default_factory=dict)
    startup_files: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    allowed: dict[str, AllowedContents] = Field(default_factory=dict)

    @field_validator("providers")
    @classmethod
    def _require_known_includes(cls, providers: dict[str, LibraryProvider]) -> dict[str, LibraryProvider]:
        """Return the providers; one that includes an unknown provider is an error."""
        for name, provider in providers.items():
            for included_name in provider.includes:
                if included_name not in providers:
                    raise ValueError(f"{name} includes {included_name!r}, which is not a provider")
        return providers


def load_policy(file: Path | None = None) -> Policy:
    """Return the policy that wheels are checked by, a user's file laid over the project's data.

    Raises:
        DataError: The file, or the table in pytorch-build.toml, has a mistake.
    """
    policy = _policy_in_force()
    if file is None:
        return policy
    tables = merge_tables(_project_tables(), tables_of_user(POLICY_FILE, Policy), adding=True)
    return _policy_with_user_tables(tables, read_toml(file), file, base_source=policy.source)


@cached_by_user_file
def _policy_in_force() -> Policy:
    """Return the project's policy, with the table of pytorch-build.toml over it."""
    file = user_file().file
    tables = tables_of_user(POLICY_FILE, Policy)
    if file is None or not tables:
        return validated(_project_tables(), Policy, where=POLICY_FILE)
    return _policy_with_user_tables(
        _project_tables(),
        tables,
        file,
        table_name=USER_TABLE,
    )


def _project_tables() -> dict[str, Any]:
    """Return the tables of the project's policy, with what components say of their wheels."""
    device_code: list[str] = []
    without_requirement: list[str] = []
    sizes: dict[str, Any] = {}
    for component in COMPONENTS.values():
        if TORCH.name in component.built_first and TORCH.name not in component.required_components:
            without_requirement.append(component.distribution)
        if component.has_split_device_code:
            device_code.append(component.distribution)
        sizes[component.distribution] = component.sizes.model_dump()
    tables_of_components = {
        "device_code": device_code,
        "sizes": sizes,
        "providers": {TORCH.name: {"assumed_by": without_requirement}},
    }
    return merge_tables(tables_of_components, read_toml(POLICY_FILE))


def _policy_with_user_tables(
    base_tables: Mapping[str, Any],
    user_tables: Mapping[str, Any],
    file: Path,
    *,
    base_source: str = "",
    table_name: str = "",
) -> Policy:
    """Return a policy of base tables with a user's laid over them, and the user's file as its source."""
    source = f"{file} (sha256 {files.sha256(file)})"
    if base_source:
        source = f"{source} and {base_source}"
    layered_tables = merge_tables(base_tables, user_tables, adding=True)
    layered_tables["source"] = source
    return validated(
        layered_tables,
        Policy,
        where=file,
        table_name=table_name,
    )


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What wheels are checked by: the policy, and what is known of the machine and of ROCm.

    Attributes:
        build_paths: Folders that no text file of a wheel may mention.
        policy: What is allowed.
        loader_libraries: The libraries that the loader of the machine finds that built the wheels.
        members_of_rocm: Where the ROCm wheels around this one have files, by file name; None where that is
            unknown.
        scratch: The folder for temporary files.
        jobs: How many members are read at a time.
    """

    build_paths: tuple[str, ...] = ()
    policy: Policy = field(default_factory=load_policy)
    loader_libraries: frozenset[str] = frozenset()
    members_of_rocm: Mapping[str, Sequence[str]] | None = None
    scratch: Path | None = None
    jobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExpectedLibraries:
    """Patterns of the libraries that a wheel may expect other distributions to have.

    `folders` says where others have some of them; `undeclared` are those of distributions that the wheel does
    not require.
    """

    patterns: tuple[str, ...]
    folders: Mapping[str, tuple[str, ...]]
    undeclared: Mapping[str, tuple[str, ...]]

    def find_undeclared_provider(self, library: str) -> str | None:
        """Return who has a library without being required by the wheel; None where nobody has it."""
        for provider, patterns in self.undeclared.items():
            if matches(library, patterns):
                return provider
        return None


def expected_libraries(view: WheelView) -> ExpectedLibraries:
    """Return which libraries a wheel may expect of the distributions that it requires."""
    policy = view.options.policy
    distribution = view.name.distribution
    names = _names_of_providers(view, policy)
    patterns: list[str] = []
    folders: dict[str, tuple[str, ...]] = {}
    undeclared: dict[str, tuple[str, ...]] = {}
    for name, provider in policy.providers.items():
        if name in names:
            patterns += provider.patterns
            # ROCm's own wheels are laid out by `rocm_packaging`, and are not judged by this.
            if not matches(distribution, provider.distributions):
                folders.update(provider.folders)
        elif distribution not in provider.distributions:
            undeclared[name] = provider.patterns
    return ExpectedLibraries(
        patterns=tuple(patterns),
        folders=folders,
        undeclared=undeclared,
    )


def _names_of_providers(view: WheelView, policy: Policy) -> set[str]:
    """Return the names of the library providers that a wheel requires, and of those that these include."""
    distribution = view.name.distribution
    requirements = view.metadata.requires_dist if view.metadata else ()
    required_names = [required_name(requirement) for requirement in requirements]
    names: set[str] = set()
    for name, provider in policy.providers.items():
        is_required = any(matches(required, provider.distributions) for required in required_names)
        # ROCm's wheels load each other's libraries without requiring one another.
        is_of_provider = matches(distribution, provider.distributions) and distribution != name
        if is_required or is_of_provider or distribution in provider.assumed_by:
            names |= {name, *provider.includes}
    return names


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches any of some shell patterns, in any letter case."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def required_name(requirement: str) -> str:
    """Return the normalized name in a requirement; "" for one that cannot be parsed."""
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return ""
