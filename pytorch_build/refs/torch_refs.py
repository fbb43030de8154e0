"""Torch refs as data: which repositories and commits a name stands for.

The embedded `refs.toml` knows upstream's branches, AMD's release branches and the sample;
a file of the user's own adds refs or overrides them, with the same tables.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from core.cli.options import OWN_FILE
from core.data import (
    Model,
    cached_by_user_file,
    key_path,
    merge_tables,
    read_toml,
    tables_of_user,
    user_file,
    validated,
)
from core.errors import DataError, UsageError, nearest
from core.families import FamilyName  # noqa: TC001 - pydantic reads it
from core.run import PLATFORMS
from pytorch_build.components import COMPONENTS, MachineNeed, find_component

SAMPLE_SCHEME = "sample:"
REFS_FILE = Path(__file__).with_name("refs.toml")


# --- Tables of a refs file --------------------------------------------------------------------

Status = Literal["supported", "unsupported", "previously-built", "off"]
Pin = Literal["", "related_commits", "triton"]


class ProjectTable(Model):
    """A torch ref's table on one of its components; what it leaves out, the component says."""

    origin: str | None = None
    ref: str | None = None
    pin: Pin | None = None
    prebuilt: str | None = None
    hipify: bool | None = None
    torch_in_version: bool | None = None
    env: dict[str, str] | None = None
    build_requirements: tuple[str, ...] | None = None
    windows: ProjectTable | None = None


class PlatformTable(Model):
    """A torch ref's table on one platform: how it is supported there, and what is built."""

    status: Status = "supported"
    components: tuple[str, ...] | None = None


def _require_component(name: str) -> str:
    """Return a table's name as it is; raise ValueError where no component has it."""
    if name not in COMPONENTS:
        known_names = [*RefTable.model_fields, *COMPONENTS]
        raise ValueError(f"unknown key. {nearest(name, known_names)}")
    return name


class RefTable(Model, extra="allow"):
    """One ``[refs.NAME]`` table as it is written, with a table for each of its components."""

    __pydantic_extra__: dict[Annotated[str, AfterValidator(_require_component)], ProjectTable]

    extends: str = ""
    title: str = ""
    source: str = "your own refs file"
    listed: bool = True
    components: tuple[str, ...] | None = None
    pythons: tuple[str, ...] = ()
    default_family: str = ""
    rocm_version: str = ""
    rocm_families: tuple[FamilyName, ...] = ()
    local_label: str = ""
    publishable: bool = True
    full_size: bool = True
    gpu_code: bool = True
    whole_tests: bool = True
    need: MachineNeed | None = None
    linux: PlatformTable | None = None
    windows: PlatformTable | None = None

    @property
    def projects(self) -> Mapping[str, ProjectTable]:
        """The tables of components, in build order."""
        tables = self.__pydantic_extra__
        return {name: tables[name] for name in COMPONENTS if name in tables}


class UserRefsFile(Model):
    """Content of a refs file of the user's own: torch refs, and which is the default."""

    default: str = ""
    refs: dict[str, RefTable] = Field(default_factory=dict)


class HistoryRow(Model):
    """A row of the support table on a version that was built once; it follows that of `after`."""

    title: str
    after: str
    linux: Status
    windows: Status


class FeatureRow(Model):
    """A row of the table of features: how each platform supports it."""

    name: str
    linux: Status
    windows: Status
    note: str = ""
    issue: str = ""


class RefsFile(UserRefsFile):
    """Content of the embedded refs file: torch refs, and rows of the documentation's tables."""

    history: tuple[HistoryRow, ...] = ()
    features: tuple[FeatureRow, ...] = ()


# --- Torch refs -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProjectSource:
    """Where a torch ref takes a project from: a branch or pin of a repository, or a prebuilt wheel."""

    project: str
    origin: str
    ref: str = ""
    prebuilt: str = ""
    pin: str = ""
    has_own_origin: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    build_requirements: tuple[str, ...] = ()
    hipify: bool = False
    torch_in_version: bool = False


@dataclass(frozen=True, kw_only=True)
class TorchRef:
    """A torch ref as one platform builds it.

    Attributes:
        name: What options call it.
        projects: Where each component comes from.
        components: What is built, in build order.
        pythons: The versions of Python that it is built for.
        platforms: How it is supported on each platform.
        default_family: The GPU family that is built where none is given; "" for this machine's.
        rocm_version: The one ROCm that it is built against, which its runs package themselves; "" for any.
        rocm_families: The GPU families that this ROCm is for; () for all.
        local_label: What the local version of its wheels has besides ROCm's version.
        is_publishable: Whether its wheels may be released. Others are rehearsed with.
        has_full_size: Whether its wheels are as large as upstream's; miniatures are as small as they like.
        has_gpu_code: Whether its device code runs on a GPU; without it, tests do without a GPU, too.
        has_whole_tests: Whether it has upstream's whole tests, so that a skip rule without a test is stale.
        need: What each of its builds takes of a machine; None where components say it.
        title: Its name in the documentation's table.
        source: Whose branches these are, there.
        listed: Whether it has a row there.
    """

    name: str
    projects: Mapping[str, ProjectSource]
    components: tuple[str, ...]
    pythons: tuple[str, ...]
    platforms: Mapping[str, Status]
    default_family: str = ""
    rocm_version: str = ""
    rocm_families: tuple[str, ...] = ()
    local_label: str = ""
    is_publishable: bool = True
    has_full_size: bool = True
    has_gpu_code: bool = True
    has_whole_tests: bool = True
    need: MachineNeed | None = None
    title: str = ""
    source: str = ""
    listed: bool = True

    def with_only_components(self, components: Iterable[str]) -> TorchRef:
        """Return the ref with only these components to build, in build order."""
        wanted = set(components)
        for name in wanted:
            find_component(name)  # refuses a name that is no component's
            if name not in self.projects:
                raise UsageError(f"Torch ref {self.name} has no {name}. {nearest(name, self.projects)}")
        return replace(self, components=tuple(name for name in COMPONENTS if name in wanted))


@functools.cache
def embedded_refs_file() -> RefsFile:
    """Return the content of the embedded refs file, as it is written."""
    return validated(read_toml(REFS_FILE), RefsFile, where=REFS_FILE)


def load_refs(*, platform: str = "linux") -> Mapping[str, TorchRef]:
    """Return all torch refs by name, the user's over the embedded ones, as one platform builds them."""
    tables, files, _default = _layered_tables()
    return {name: _torch_ref(name, tables[name], file, platform) for name, file in files.items()}


def default_ref() -> str:
    """Return the name of the ref that is built where none is given."""
    _tables, _files, default = _layered_tables()
    return default


def torch_ref(name: str, *, platform: str = "linux") -> TorchRef:
    """Return the torch ref of a name as one platform builds it; an unknown name is an error."""
    tables, files, _default = _layered_tables()
    if name not in tables:
        raise UsageError(
            f"Unknown torch ref {name!r}. {nearest(name, tables)}",
            hint=f"Name a known one, or add it to a file of your own ({OWN_FILE} or --config-file).",
        )
    return _torch_ref(name, tables[name], files[name], platform)


@cached_by_user_file
def rehearsal_labels() -> frozenset[str]:
    """Return the local version labels of torch refs that are for rehearsals and never published."""
    return frozenset(ref.local_label for ref in load_refs().values() if not ref.is_publishable)


def is_for_rehearsals(version: str) -> bool:
    """Return whether a wheel's local version has the label of a ref for rehearsals, such as the sample."""
    local_version = re.sub("[_-]", ".", version.partition("+")[2])
    return any(f".{label}." in f".{local_version}." for label in rehearsal_labels())


def _layered_tables() -> tuple[Mapping[str, dict[str, Any]], Mapping[str, Path], str]:
    """Return the tables of all refs, the user's over ours, the file of each, and the default's name."""
    tables = {name: table.model_dump(exclude_unset=True) for name, table in embedded_refs_file().refs.items()}
    files = dict.fromkeys(tables, REFS_FILE)
    default = embedded_refs_file().default

    path = user_file().file
    if path is not None:
        user = validated(tables_of_user(REFS_FILE, UserRefsFile), UserRefsFile, where=path)
        for name, table in user.refs.items():
            user_table = _resolve_user_table(table.model_dump(exclude_unset=True), path)
            tables[name] = merge_tables(tables.get(name, {}), user_table)
            files[name] = path
        default = user.default or default
        if default not in tables:
            raise DataError(f"{path}: default: {default!r} is not a ref. {nearest(default, tables)}")

    return {name: _extended_table(name, tables, file) for name, file in files.items()}, files, default


def _resolve_user_table(table: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return a user's table of a ref with absolute origins, and no pin where it says `ref`."""
    for name in COMPONENTS:
        project_table = table.get(name, {})
        for source in (project_table, project_table.get("windows", {})):
            if "ref" in source or source.get("prebuilt"):
                # What the user writes down comes before a pin.
                source.setdefault("pin", "")
            if source.get("origin"):
                source["origin"] = absolute_origin(source["origin"], file.parent)
    return table


def absolute_origin(origin: str, folder: Path) -> str:
    """Return an origin that is a path as an absolute path; URLs and the sample's stay as they are."""
    is_path = re.search(r"^[./~]|^[A-Za-z]:[\\/]|^[^:@]+$", origin) is not None
    if origin.startswith(SAMPLE_SCHEME) or not is_path:
        return origin
    return str((folder / Path(origin).expanduser()).resolve())


def _extended_table(name: str, tables: Mapping[str, dict[str, Any]], file: Path) -> dict[str, Any]:
    """Return a ref's table merged over those of the refs that it extends."""
    chain = [name]
    while base := tables[chain[-1]].get("extends"):
        where = key_path(("refs", chain[-1], "extends"))
        if base not in tables:
            raise DataError(f"{file}: {where}: {base!r} is not a ref. {nearest(base, tables)}")
        if base in chain:
            raise DataError(f"{file}: {where}: {' extends '.join([*chain, base])}: this never ends.")
        chain.append(base)

    table: dict[str, Any] = {}
    for ancestor in reversed(chain):
        table = merge_tables(table, tables[ancestor])
    return table


def _components_to_build(
    names: Container[str],
    projects: Mapping[str, ProjectSource],
) -> Iterator[str]:
    """Yield those of the named components that a ref builds from source, in build order."""
    for name in COMPONENTS:
        project = projects.get(name)
        if project is None or project.prebuilt:
            continue
        if name in names:
            yield name


def _torch_ref(name: str, plain_table: Mapping[str, Any], file: Path, platform: str) -> TorchRef:
    """Return a torch ref as a platform builds it, from its table in a file."""
    table = validated(plain_table, RefTable, where=file)
    projects = {
        project: _project_source(name, project, project_table, file, platform)
        for project, project_table in table.projects.items()
    }
    _require_sources(name, table, projects, file)
    if not table.publishable and not table.local_label:
        where = key_path(("refs", name, "publishable"))
        raise DataError(
            f"{file}: {where}: wheels that are not published are known by the ref's local_label.",
            hint=f'Add local_label = "…" to {key_path(("refs", name))}.',
        )

    platform_tables = {
        "linux": table.linux or PlatformTable(),
        "windows": table.windows or PlatformTable(),
    }
    # As that platform's row says, or the ref, or the components.
    names = platform_tables[platform].components
    if names is None:
        names = table.components
    if names is None:
        names = tuple(component.name for component in COMPONENTS.values() if platform in component.platforms)
    return TorchRef(
        name=name,
        projects=projects,
        components=tuple(_components_to_build(names, projects)),
        pythons=table.pythons or embedded_refs_file().refs["nightly"].pythons,
        platforms={each: platform_tables[each].status for each in PLATFORMS},
        default_family=table.default_family,
        rocm_version=table.rocm_version,
        rocm_families=table.rocm_families,
        local_label=table.local_label,
        is_publishable=table.publishable,
        has_full_size=table.full_size,
        has_gpu_code=table.gpu_code,
        has_whole_tests=table.whole_tests,
        need=table.need,
        title=table.title or name,
        source=table.source,
        listed=table.listed,
    )


def _require_sources(name: str, table: RefTable, projects: Mapping[str, ProjectSource], file: Path) -> None:
    """Fail for a ref that builds an unknown component, or one that it has no table of."""
    where = f"{file}: {key_path(('refs', name, 'components'))}"
    for component in table.components or ():
        if component not in COMPONENTS:
            raise DataError(f"{where}: unknown component {component!r}. {nearest(component, COMPONENTS)}")
        if component not in projects:
            hint = f"Add a table {key_path(('refs', name, component))}."
            raise DataError(f"{where}: {component!r} has no source.", hint=hint)


def _project_source(name: str, project: str, table: ProjectTable, file: Path, platform: str) -> ProjectSource:
    """Return where a ref takes a component from on a platform."""
    component = COMPONENTS[project]
    values: dict[str, Any] = {
        "origin": component.repository,
        "hipify": component.rewrites_cuda,
        "torch_in_version": component.version_rule.names_torch,
    }
    tables = [table]
    if platform == "windows" and table.windows is not None:
        tables.append(table.windows)
    for project_table in tables:
        values |= project_table.model_dump(exclude={"windows"}, exclude_none=True)

    has_own_origin = any(project_table.origin for project_table in tables)
    source = ProjectSource(project=project, has_own_origin=has_own_origin, **values)
    if not (source.prebuilt or source.ref or source.pin):
        where = key_path(("refs", name, project))
        raise DataError(
            f"{file}: {where}: neither `ref`, `pin` nor `prebuilt` says what to take.",
            hint=f'Add ref = "…" to {where} in {file}.',
        )
    return source
