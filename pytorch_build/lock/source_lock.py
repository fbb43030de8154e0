"""The source lock: every repository at a commit, with the versions of the wheels to come.

It is resolved once per run; builds and tests take commits and versions from it alone. In
CI it passes between jobs as one line, with its digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from core import files
from core.data import Document, Model, compact, json_object, validated
from core.errors import DataError, SourceError, nearest
from pytorch_build.components import COMPONENTS
from pytorch_build.sources.git import is_commit

# What wheels are built for.
WheelKind = Literal["rocm", "cpu"]


def kind_of_wheels(*, gpu: bool) -> WheelKind:
    """Return "rocm" for wheels that run on GPUs, and "cpu" for others."""
    return "rocm" if gpu else "cpu"


class LockedProject(Model, validate_by_alias=True, validate_by_name=True, serialize_by_alias=True):
    """One project of a source lock: repository, commit and versions, or a requirement in place of a build."""

    project: str
    origin: str = ""  # as the ref or pin names it
    ref: str = ""  # branch, tag, commit or pin that the commit was resolved from
    commit: str = ""
    base_version: str = ""  # 2.10.0a0; of a prebuilt project the version it pins, if any
    versions: dict[WheelKind, str] = Field(default_factory=dict)
    prebuilt: str = ""  # the requirement that is installed instead of a build
    chosen: bool = False  # the user named `ref`, in the place of the ref's data
    # The project's own build adds the commit to the version, as triton's does. Stored locks say "tagged".
    adds_commit: bool = Field(default=False, alias="tagged")

    @field_validator("project")
    @classmethod
    def _require_component(cls, project: str) -> str:
        """Return a project's name; one that is no component's is an error."""
        if project not in COMPONENTS:
            raise ValueError(f"{project!r} is not a project. {nearest(project, COMPONENTS)}")
        return project

    @model_validator(mode="after")
    def _require_commit(self) -> Self:
        if self.prebuilt:
            return self
        if not is_commit(self.commit):
            raise ValueError(f"{self.project}: {self.commit!r} is not a commit (40 hex digits).")
        if not self.origin or not self.base_version:
            raise ValueError(f"{self.project}: origin and base_version must not be empty.")
        return self


class SourceLock(Document):
    """The commits of a torch ref's projects, and the versions of their wheels to come.

    `resolved` is the time of the resolution in ISO 8601 and UTC; locks of older runs have None. It is no part
    of the digest: the same commits and versions are the same lock, whenever they were resolved.
    """

    schema_version: Literal[1] = 1
    resolved: str | None = None
    torch_ref: str
    release_type: str
    rocm_version: str = ""  # empty where only cpu is built
    projects: dict[str, LockedProject]  # in build order

    def digest(self) -> str:
        """Return the hex SHA-256 of the lock's canonical JSON without the time."""
        return files.digest_of(self.model_dump(mode="json", exclude={"resolved"}))

    @model_validator(mode="after")
    def _require_matching_names(self) -> Self:
        for name, locked in self.projects.items():
            if locked.project != name:
                raise ValueError(f"projects.{name} locks {locked.project}.")
        return self

    def project(self, name: str) -> LockedProject:
        """Return a project's entry in the lock; one that the lock lacks is an error."""
        if name not in self.projects:
            raise SourceError(
                f"The source lock of {self.torch_ref} does not hold {name}. {nearest(name, self.projects)}",
                hint=f"Add {name} to the ref's components and run `nox -s resolve` again.",
            )
        return self.projects[name]

    def version(self, project: str, *, gpu: bool) -> str:
        """Return the full version that a project's wheel will have."""
        locked = self.project(project)
        if locked.prebuilt:
            raise SourceError(f"{project} of {self.torch_ref} is not built: it is {locked.prebuilt}.")

        kind = kind_of_wheels(gpu=gpu)
        if kind not in locked.versions:
            raise SourceError(
                f"The source lock of {self.torch_ref} has no {kind} version of {project}.",
                hint="Run `nox -s resolve -- --rocm-version …` again.",
            )
        return locked.versions[kind]

    def wheel_versions(self, components: Iterable[str], *, gpu: bool) -> Mapping[str, str]:
        """Return the versions of the wheels that will be built of these components, by distribution."""
        kind = kind_of_wheels(gpu=gpu)
        versions: dict[str, str] = {}
        for name in components:
            component = COMPONENTS[name]
            # Wheels for CPUs have no use for triton, whose version is locked all the same.
            if component.serves_gpus_only and not gpu:
                continue
            locked = self.projects.get(name)
            if locked is not None and not locked.prebuilt and kind in locked.versions:
                versions[component.distribution] = locked.versions[kind]
        return versions

    def compact(self) -> str:
        """Return the lock and its digest as one line, for a job output or an environment variable."""
        return compact({"digest": self.digest(), "lock": self.model_dump(mode="json")})

    @classmethod
    def from_compact(cls, text: str) -> SourceLock:
        """Return the lock in a line that `compact` wrote, whose digest must be right."""
        document = json_object(text, where="SOURCE_LOCK")
        lock = validated(
            document.get("lock", {}),
            cls,
            where="SOURCE_LOCK",
            table_name="lock",
        )
        if lock.digest() != document.get("digest"):
            raise DataError(
                "SOURCE_LOCK: the lock does not have the digest that it came with.",
                hint="Pass the job output on unchanged.",
            )
        return lock
