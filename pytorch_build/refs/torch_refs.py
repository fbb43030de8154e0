"""Torch refs as data: which repositories and commits a name stands for.

The embedded `refs.toml` knows upstream's branches, AMD's release branches and the sample;
a file of the user's own adds refs or overrides them, with the same tables.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from core.cli.options import OWN_FILE
from core.data import Model, key_path, merged, read_toml, tables_of_user, user_file, validated
from core.errors import DataError, UsageError, nearest
from core.run import PLATFORMS

PROJECTS: tuple[str, ...] = ("triton", "torch", "audio", "vision", "apex")
DISTRIBUTIONS: Mapping[str, str] = MappingProxyType(
    {"triton": "triton", "torch": "torch", "audio": "torchaudio", "vision": "torchvision", "apex": "apex"}
)
# the options that name a developer's own tree of each project
OWN_TREES: Mapping[str, str] = MappingProxyType(
    {
        "triton": "--triton-dir",
        "torch": "--pytorch-dir",
        "audio": "--pytorch-audio-dir",
        "vision": "--pytorch-vision-dir",
        "apex": "--apex-dir",
    }
)
SAMPLE_SCHEME = "sample:"
REFS_FILE = Path(__file__).with_name("refs.toml")


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
class TorchRef:
    """A torch ref as one platform builds it."""

    name: str
    projects: Mapping[str, ProjectSource]
    components: tuple[str, ...]  # what gets built, in build order
    pythons: tuple[str, ...]
    platforms: Mapping[str, Status]  # how it is supported on each
    default_family: str = ""  # where none is given; only the sample has one, as it has a ROCm version
    rocm_version: str = ""
    local_label: str = ""  # of the wheels' local version, besides the ROCm version
    # for the documentation's table: its name, whose branches these are, and whether it has a row
    title: str = ""
    source: str = ""
    listed: bool = True

    def only(self, components: Iterable[str]) -> TorchRef:
        """Narrow down what gets built, keeping the build order."""
        wanted = set(components)
        for name in wanted:
            if name not in PROJECTS:
                raise UsageError(f"Unknown component {name!r}. {nearest(name, PROJECTS)}")
            if name not in self.projects:
                raise UsageError(f"Torch ref {self.name} has no {name}. {nearest(name, self.projects)}")
        return replace(self, components=tuple(name for name in PROJECTS if name in wanted))


# ref tables as plain data, each with the file to name in an error
_Tables = Mapping[str, tuple[dict[str, Any], Path]]


@functools.cache
def embedded() -> RefsFile:
    """Read the embedded refs file: its tables as written, features and history included."""
    return validated(read_toml(REFS_FILE), RefsFile, where=REFS_FILE)


def load_refs(*, platform: str = "linux") -> Mapping[str, TorchRef]:
    """Read the embedded refs and the user's own over them, as one platform builds them."""
    tables, _ = _layers()
    return {name: _torch_ref(name, tables, platform) for name in tables}


def default_ref() -> str:
    """Name the ref that is built where none is given."""
    return _layers()[1]


def torch_ref(name: str, *, platform: str = "linux") -> TorchRef:
    """Find one torch ref as one platform builds it."""
    tables, _ = _layers()
    if name not in tables:
        raise UsageError(
            f"Unknown torch ref {name!r}. {nearest(name, tables)}",
            hint=f"Name a known one, or add it to a file of your own ({OWN_FILE} or --config-file).",
        )
    return _torch_ref(name, tables, platform)


def _layers() -> tuple[_Tables, str]:
    """Lay the user's refs over the embedded ones; return them, and the name of the default."""
    tables = {name: _plain(table) for name, table in embedded().refs.items()}
    files = dict.fromkeys(tables, REFS_FILE)
    default = embedded().default
    path = user_file().file
    if path is not None:
        user = validated(tables_of_user(REFS_FILE, UserFile), UserFile, where=path)
        for name, table in user.refs.items():
            _add_user_table(tables, name, _plain(table), path)
            files[name] = path
        default = user.default or default
        if default not in tables:
            raise DataError(f"{path}: default: {default!r} is not a ref. {nearest(default, tables)}")
    return {name: (_extended(name, tables, file), file) for name, file in files.items()}, default


def _plain(table: RefTable) -> dict[str, Any]:
    return table.model_dump(exclude_unset=True)


def _add_user_table(tables: dict[str, dict[str, Any]], name: str, table: dict[str, Any], file: Path) -> None:
    for project in PROJECTS:
        row = table.get(project, {})
        for one in (row, row.get("windows", {})):
            if "ref" in one or one.get("prebuilt"):
                # what the user writes down comes before a pin
                one.setdefault("pin", "")
            if one.get("origin"):
                one["origin"] = absolute_origin(one["origin"], file.parent)
    tables[name] = merged(tables.get(name, {}), table)


def absolute_origin(origin: str, folder: Path) -> str:
    """Make an origin that is a path absolute, relative to `folder`; URLs stay as they are."""
    if origin.startswith(SAMPLE_SCHEME) or not re.search(r"^[./~]|^[A-Za-z]:[\\/]|^[^:@]+$", origin):
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


def _torch_ref(name: str, tables: _Tables, platform: str) -> TorchRef:
    plain, file = tables[name]
    table = validated(plain, RefTable, where=file)
    projects = {
        project: _project_source(name, project, given, file, platform)
        for project in PROJECTS
        if (given := getattr(table, project)) is not None
    }
    where = f"{file}: {key_path(('refs', name, 'components'))}"
    for component in table.components or ():
        if component not in PROJECTS:
            raise DataError(f"{where}: unknown component {component!r}. {nearest(component, PROJECTS)}")
        if component not in projects:
            hint = f"Add a table {key_path(('refs', name, component))}."
            raise DataError(f"{where}: {component!r} has no source.", hint=hint)
    rows: dict[str, PlatformTable] = {each: getattr(table, each) or PlatformTable() for each in PLATFORMS}
    named = next((one for one in (rows[platform].components, table.components) if one is not None), PROJECTS)
    built = [one for one in PROJECTS if one in named and one in projects and not projects[one].prebuilt]
    return TorchRef(
        name=name,
        projects=projects,
        components=tuple(built),
        pythons=table.pythons or embedded().refs["nightly"].pythons,
        platforms={each: row.status for each, row in rows.items()},
        title=table.title or name,
        **table.model_dump(include={"default_family", "rocm_version", "local_label", "source", "listed"}),
    )


def _project_source(name: str, project: str, given: ProjectTable, file: Path, platform: str) -> ProjectSource:
    layers = (given, given.windows if platform == "windows" else None)
    over = [one.model_dump(exclude={"windows"}, exclude_none=True) for one in layers if one]
    defaults = embedded().projects[project].model_dump(exclude_none=True)
    row = functools.reduce(operator.or_, over, defaults)
    source = ProjectSource(project=project, own_origin=any(one.get("origin") for one in over), **row)
    if not (source.prebuilt or source.ref or source.pin):
        where = key_path(("refs", name, project))
        raise DataError(
            f"{file}: {where}: neither `ref`, `pin` nor `prebuilt` says what to take.",
            hint=f'Add ref = "…" to {where} in {file}.',
        )
    return source


Status = Literal["supported", "unsupported", "previously-built", "off"]
Pin = Literal["", "related_commits", "triton"]


class ProjectTable(Model):
    """One project's table of a ref, where what is absent comes from its defaults; or these."""

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
    """A ref's support on one platform."""

    status: Status = "supported"
    components: tuple[str, ...] | None = None


class RefTable(Model):
    """One ``[refs.NAME]`` table."""

    extends: str = ""
    title: str = ""
    source: str = "your own refs file"
    listed: bool = True
    components: tuple[str, ...] | None = None
    pythons: tuple[str, ...] = ()
    default_family: str = ""
    rocm_version: str = ""
    local_label: str = ""
    linux: PlatformTable | None = None
    windows: PlatformTable | None = None
    triton: ProjectTable | None = None
    torch: ProjectTable | None = None
    audio: ProjectTable | None = None
    vision: ProjectTable | None = None
    apex: ProjectTable | None = None


class UserFile(Model):
    """A refs file of the user's own."""

    default: str = ""
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

    projects: dict[str, ProjectTable]
    history: tuple[HistoryRow, ...] = ()
    features: tuple[FeatureRow, ...] = ()
