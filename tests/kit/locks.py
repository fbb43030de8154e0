"""Source locks, and the upstream repositories that they are resolved from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytorch_build.lock.source_lock import LockedProject, SourceLock
from pytorch_build.refs.torch_refs import ProjectSource, TorchRef
from tests.kit import repos

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def locked_project(
    project: str = "torch",
    *,
    commit: str = COMMIT,
    base_version: str = "2.10",
    rocm_version: str | None = None,
    cpu_version: str | None = None,
) -> LockedProject:
    """Return a project of a lock, at an origin that is nowhere, with the versions that are named."""
    project_lock = LockedProject(
        project=project, origin="o", ref="r", commit=commit, base_version=base_version
    )
    if rocm_version is not None:
        project_lock.versions["rocm"] = rocm_version
    if cpu_version is not None:
        project_lock.versions["cpu"] = cpu_version
    return project_lock


def source_lock(*projects: LockedProject, torch_ref: str = "mine", rocm_version: str = "7") -> SourceLock:
    """Return a lock of projects."""
    return SourceLock(
        torch_ref=torch_ref,
        release_type="ci",
        rocm_version=rocm_version,
        projects={project.project: project for project in projects},
    )


def locked_commits(lock: SourceLock) -> dict[str, str]:
    """Return the commits of a lock's projects."""
    return {name: project.commit for name, project in lock.projects.items()}


@dataclass(kw_only=True)
class Upstream:
    """Repositories in a folder, each with its project's name, and the torch ref ``mine`` over them."""

    root: Path
    ref: TorchRef = field(
        default_factory=lambda: TorchRef(
            name="mine", projects={}, components=(), pythons=("3.12",), platforms={}
        )
    )

    def commit(self, name: str, texts: Mapping[str, str]) -> str:
        """Commit files to a repository, which is made if it is not there; return the commit."""
        return repos.commit_files(self.root / name, texts)

    def set_ref(self, components: Sequence[str], sources: Mapping[str, Mapping[str, Any]]) -> None:
        """Let the ref name projects, with what it says of each besides its repository and ``main``."""
        projects: dict[str, ProjectSource] = {}
        for name, facts in sources.items():
            defaults = {"project": name, "origin": str(self.root / name), "ref": "main"}
            projects[name] = ProjectSource(**{**defaults, **facts})
        self.ref = replace(self.ref, projects=projects, components=tuple(components))

    def with_source(self, project: str, **changes: Any) -> TorchRef:
        """Return the ref with changes of what it says of a project."""
        source = replace(self.ref.projects[project], **changes)
        return replace(self.ref, projects={**self.ref.projects, project: source})
