"""Torch refs as data: which repositories and commits a name stands for.

The embedded `refs.toml` knows upstream's branches, AMD's release branches and the sample;
a file of the user's own adds refs or overrides them, with the same tables.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from core.data import Model, key_path, merged, read_toml, validated
from core.errors import DataError, MissingInputError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


PROJECTS: tuple[str, ...] = ("triton", "torch", "audio", "vision", "apex")
DISTRIBUTIONS: Mapping[str, str] = MappingProxyType(
    {"triton": "triton", "torch": "torch", "audio": "torchaudio", "vision": "torchvision", "apex": "apex"}
)
PLATFORMS: tuple[str, ...] = ("linux", "windows")
SAMPLE_SCHEME = "sample:"
REFS_FILE = Path(__file__).with_name("refs.toml")
USER_FILE_NAME = "pytorch-build.toml"

_PATH_ORIGIN = re.compile(r"^[./~]|^[A-Za-z]:[\\/]|^[^:@]+$")


@dataclass(frozen=True, kw_only=True)
class ProjectSource:
    """Where one project of one torch ref comes from."""

    project: str
    origin: str
    ref: str = ""
    prebuilt: str = ""
    pin: str = ""
    own_origin: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    build_requirements: tuple[str, ...] = ()
    hipify: bool = False
    torch_in_version: bool = False


@dataclass(frozen=True, kw_only=True)
class PlatformSupport:
    """How a torch ref is supported on one platform, and what is built there."""

    status: str
    components: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TorchRef:
    """A torch ref as one platform builds it.

    Attributes:
        name: Its name in the refs file.
        projects: The sources it knows, by project.
        components: What gets built, in build order.
        pythons: The Python versions it is built for.
        platforms: Support by platform name.
        default_family: The GPU family where none is given; only the sample has one.
        rocm_version: The ROCm version where none is given; only the sample has one.
        local_label: What the wheels' local version carries besides the ROCm version.
        title: Its name in the documentation's table.
        source: Whose branches these are, for the documentation's table.
        listed: Whether the documentation's table has a row for it.
    """

    name: str
    projects: Mapping[str, ProjectSource]
    components: tuple[str, ...]
    pythons: tuple[str, ...]
    platforms: Mapping[str, PlatformSupport]
    default_family: str = ""
    rocm_version: str = ""
    local_label: str = ""
    title: str = ""
    source: str = ""
    listed: bool = True

    def only(self, components: Iterable[str]) -> TorchRef:
        """Narrow down what gets built, keeping the build order.

        Raises:
            UsageError: A component that is no project, or that this ref has no source for.
        """
        wanted = set(components)
        for name in wanted:
            if name not in PROJECTS:
                raise UsageError(f"Unknown component {name!r}. {nearest(name, PROJECTS)}")
            if name not in self.projects:
                raise UsageError(f"Torch ref {self.name} has no {name}. {nearest(name, self.projects)}")
        return replace(self, components=tuple(name for name in PROJECTS if name in wanted))


@dataclass(frozen=True, kw_only=True)
class _Layered:
    """Ref tables as plain data, and for each ref the file to name in an error."""

    default: str
    tables: Mapping[str, dict[str, Any]]
    files: Mapping[str, Path]


@functools.cache
def embedded() -> RefsFile:
    """Read the embedded refs file: its tables as written, features and history included."""
    return validated(read_toml(REFS_FILE), RefsFile, where=REFS_FILE)


def refs_file_in_use(refs_file: Path | None, cwd: Path) -> Path | None:
    """Find the user's refs file: the one given, else ``pytorch-build.toml`` in `cwd`, else none."""
    if refs_file is not None:
        path = refs_file if refs_file.is_absolute() else cwd / refs_file
        if not path.is_file():
            raise MissingInputError(f"The refs file {path} does not exist.", hint="Correct --refs-file.")
        return path
    implicit = cwd / USER_FILE_NAME
    return implicit if implicit.is_file() else None


def load_refs(
    refs_file: Path | None = None, cwd: Path | None = None, *, platform: str = "linux"
) -> Mapping[str, TorchRef]:
    """Read the embedded refs and the user's own over them, as one platform builds them.

    Args:
        refs_file: The user's file; else ``pytorch-build.toml`` in `cwd` is taken if there.
        cwd: The working directory (default: no user's file unless `refs_file` is given).
        platform: ``linux`` or ``windows``.

    Raises:
        MissingInputError: `refs_file` does not exist.
        DataError: A refs file that breaks its schema, or a ref that cannot be meant.
    """
    layered = _layers(refs_file, cwd)
    return {name: _torch_ref(name, layered, platform) for name in layered.tables}


def default_ref(refs_file: Path | None = None, cwd: Path | None = None) -> str:
    """Name the ref that is built where none is given."""
    return _layers(refs_file, cwd).default


def torch_ref(
    name: str, refs_file: Path | None = None, cwd: Path | None = None, *, platform: str = "linux"
) -> TorchRef:
    """Find one torch ref as one platform builds it."""
    layered = _layers(refs_file, cwd)
    if name not in layered.tables:
        raise UsageError(
            f"Unknown torch ref {name!r}. {nearest(name, layered.tables)}",
            hint=f"Name a known one, or add it to a file of your own ({USER_FILE_NAME} or --refs-file).",
        )
    return _torch_ref(name, layered, platform)


def _layers(refs_file: Path | None, cwd: Path | None) -> _Layered:
    own = embedded()
    tables = {name: _plain(table) for name, table in own.refs.items()}
    files = dict.fromkeys(tables, REFS_FILE)
    default = own.default or "nightly"
    path = refs_file_in_use(refs_file, cwd or Path.cwd()) if refs_file or cwd else None
    if path is not None:
        user = validated(read_toml(path), UserFile, where=path)
        for name, table in user.refs.items():
            _add_user_table(tables, name, _plain(table), path)
            files[name] = path
        default = user.default or default
        if default not in tables:
            raise DataError(f"{path}: default: {default!r} is not a ref. {nearest(default, tables)}")
    return _Layered(
        default=default,
        tables={name: _extended(name, tables, files[name]) for name in tables},
        files=files,
    )


def _plain(table: RefTable) -> dict[str, Any]:
    return table.model_dump(exclude_unset=True)


def _add_user_table(tables: dict[str, dict[str, Any]], name: str, table: dict[str, Any], file: Path) -> None:
    for project in PROJECTS:
        rows = [row for row in (table.get(project), (table.get(project) or {}).get("windows")) if row]
        for row in rows:
            if "ref" in row:
                # a ref that the user writes down comes before a pin
                row.setdefault("pin", "")
            if row.get("origin"):
                row["origin"] = absolute_origin(row["origin"], file.parent)
            if row.get("prebuilt"):
                row.setdefault("pin", "")
    tables[name] = merged(tables.get(name, {}), table)


def absolute_origin(origin: str, folder: Path) -> str:
    """Make an origin that is a path absolute, relative to `folder`; URLs stay as they are."""
    if origin.startswith(SAMPLE_SCHEME) or not _PATH_ORIGIN.search(origin):
        return origin
    return str((folder / Path(origin).expanduser()).resolve())


def _extended(name: str, tables: Mapping[str, dict[str, Any]], file: Path) -> dict[str, Any]:
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
        table = merged(table, tables[ancestor])
    return table


def _torch_ref(name: str, layered: _Layered, platform: str) -> TorchRef:
    file = layered.files[name]
    table = validated(layered.tables[name], RefTable, where=file)
    projects = {
        project: _project_source(name, project, given, file, platform)
        for project in PROJECTS
        if (given := getattr(table, project)) is not None
    }
    platforms = {each: _platform_support(table, each, projects) for each in PLATFORMS}
    components = _components(name, table, platforms[platform], projects, file)
    return TorchRef(
        name=name,
        projects=projects,
        components=components,
        pythons=table.pythons or embedded().refs["nightly"].pythons or (),
        platforms=platforms,
        default_family=table.default_family or "",
        rocm_version=table.rocm_version or "",
        local_label=table.local_label or "",
        title=table.title or name,
        source=table.source or "your own refs file",
        listed=table.listed is not False,
    )


def _project_source(name: str, project: str, given: ProjectTable, file: Path, platform: str) -> ProjectSource:
    defaults = embedded().projects[project]
    layers = [given]
    if platform == "windows":
        layers += [given.windows] if given.windows else []
    row: dict[str, Any] = defaults.model_dump(exclude={"distribution"})
    for layer in layers:
        row |= layer.model_dump(exclude={"windows"}, exclude_none=True)
    own_origin = any(layer.origin for layer in layers)
    source = ProjectSource(project=project, own_origin=own_origin, **row)
    if not (source.prebuilt or source.ref or source.pin):
        where = key_path(("refs", name, project))
        raise DataError(
            f"{file}: {where}: neither `ref`, `pin` nor `prebuilt` says what to take.",
            hint=f'Add ref = "…" to {where} in {file}.',
        )
    return source


def _platform_support(
    table: RefTable, platform: str, projects: Mapping[str, ProjectSource]
) -> PlatformSupport:
    given: PlatformTable = getattr(table, platform) or PlatformTable()
    names = given.components if given.components is not None else table.components
    if names is None:
        names = tuple(project for project, source in projects.items() if not source.prebuilt)
    built = tuple(p for p in PROJECTS if p in names and p in projects and not projects[p].prebuilt)
    return PlatformSupport(status=given.status, components=built)


def _components(
    name: str, table: RefTable, support: PlatformSupport, projects: Mapping[str, ProjectSource], file: Path
) -> tuple[str, ...]:
    where = f"{file}: {key_path(('refs', name, 'components'))}"
    for component in table.components or ():
        if component not in PROJECTS:
            raise DataError(f"{where}: unknown component {component!r}. {nearest(component, PROJECTS)}")
        if component not in projects:
            raise DataError(
                f"{where}: {component!r} has no source.",
                hint=f"Add a table {key_path(('refs', name, component))}.",
            )
    return support.components


Status = Literal["supported", "unsupported", "previously-built", "off"]
Pin = Literal["", "related_commits", "triton"]


class ProjectTable(Model):
    """One project's table of a ref; what is absent comes from the project's defaults."""

    origin: str | None = None
    ref: str | None = None
    pin: Pin | None = None
    prebuilt: str | None = None
    hipify: bool | None = None
    torch_in_version: bool | None = None
    env: dict[str, str] | None = None
    build_requirements: tuple[str, ...] | None = None
    windows: ProjectTable | None = None


class DefaultsTable(Model):
    """What a project takes where a ref does not say."""

    origin: str
    distribution: str
    hipify: bool = False
    torch_in_version: bool = False


class PlatformTable(Model):
    """A ref's support on one platform."""

    status: Status = "supported"
    components: tuple[str, ...] | None = None


class RefTable(Model):
    """One ``[refs.NAME]`` table."""

    extends: str | None = None
    title: str | None = None
    source: str | None = None
    listed: bool | None = None
    components: tuple[str, ...] | None = None
    pythons: tuple[str, ...] | None = None
    default_family: str | None = None
    rocm_version: str | None = None
    local_label: str | None = None
    linux: PlatformTable | None = None
    windows: PlatformTable | None = None
    triton: ProjectTable | None = None
    torch: ProjectTable | None = None
    audio: ProjectTable | None = None
    vision: ProjectTable | None = None
    apex: ProjectTable | None = None


class UserFile(Model):
    """A refs file of the user's own."""

    default: str | None = None
    refs: dict[str, RefTable] = Field(default_factory=dict)


class HistoryRow(Model):
    """A version that was built once; `after` names the ref whose row it follows."""

    title: str
    after: str
    linux: Status
    windows: Status


class FeatureRow(Model):
    """A feature's support by platform."""

    name: str
    linux: Status
    windows: Status
    note: str = ""
    issue: str = ""


class RefsFile(UserFile):
    """The embedded refs file."""

    projects: dict[str, DefaultsTable]
    history: tuple[HistoryRow, ...] = ()
    features: tuple[FeatureRow, ...] = ()
