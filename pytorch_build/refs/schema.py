"""The shape of refs files: the embedded one, and those of users."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from core.data import Model

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
