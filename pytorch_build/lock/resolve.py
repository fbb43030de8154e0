"""A torch ref becomes a source lock: commits by asking the origins, versions by reading their files.

torch comes first: its tree names commits and versions of other projects. Then every other
project is found, side by side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from core.errors import DataError, SourceError
from pytorch_build.components import COMPONENTS
from pytorch_build.lock import versions
from pytorch_build.lock.source_lock import LockedProject, SourceLock, WheelKind
from pytorch_build.sources.git import OriginReader, Origins, require_safe_origin

if TYPE_CHECKING:
    from pytorch_build.refs.torch_refs import ProjectSource, TorchRef


# The files in torch's tree that pin commits of other projects, by the name of the pin.
_PIN_FILES = {"triton": versions.TRITON_PIN_FILE, "related_commits": versions.RELATED_COMMITS_FILE}


def resolve(
    ref: TorchRef,
    *,
    rocm_version: str,
    release_type: str,
    cache: Path,
    origins: Origins | None = None,
    explicit_refs: Mapping[str, str] | None = None,
    require_related_commit: bool = False,
) -> SourceLock:
    """Find the commits and versions of a torch ref's projects, and return them as a source lock.

    Args:
        ref: What is locked.
        rocm_version: The ROCm that wheels for GPUs are built against; "" where there is none.
        release_type: Says the form of versions.
        cache: The folder that keeps what was read of origins.
        origins: How origins are reached.
        explicit_refs: Refs by project. They come before pins in torch's tree, and these before the ref's own.
        require_related_commit: Whether torch has to pin every project that it may pin.
    """
    needed_names = {"torch", *ref.components} & ref.projects.keys()
    names = [name for name in COMPONENTS if name in needed_names]
    if not names:
        raise DataError(f"Torch ref {ref.name} has no components.", hint="Give it components to build.")

    search = _Search(
        ref=ref,
        reader=OriginReader(cache=cache, origins=origins or Origins()),
        explicit_refs=explicit_refs or {},
        require_related_commit=require_related_commit,
    )
    search = search.locate_torch()
    with ThreadPoolExecutor(max_workers=len(names)) as pool:
        locked_projects = list(pool.map(search.lock_project, names))

    projects = {locked.project: locked for locked in locked_projects}
    return SourceLock(
        torch_ref=ref.name,
        release_type=release_type,
        rocm_version=rocm_version,
        projects=_add_wheel_versions(projects, ref, rocm_version=rocm_version, release_type=release_type),
    )


def _add_wheel_versions(
    projects: Mapping[str, LockedProject], ref: TorchRef, *, rocm_version: str, release_type: str
) -> dict[str, LockedProject]:
    """Return locked projects with the versions that their wheels will have."""
    torch_version: str | None = None
    if "torch" in projects:
        torch_version = projects["torch"].base_version or None

    suffix_by_kind = _suffixes_by_kind(ref, rocm_version)
    versioned_projects: dict[str, LockedProject] = {}
    for name, project in projects.items():
        if project.prebuilt:
            versioned_projects[name] = project
            continue

        wheel_versions: dict[WheelKind, str] = {}
        for kind, suffix in suffix_by_kind.items():
            wheel_versions[kind] = versions.wheel_version(
                project.base_version,
                suffix,
                release_type=release_type,
                commit=project.commit,
                adds_commit=project.adds_commit,
                torch_version=torch_version if ref.projects[name].torch_in_version else None,
            )
        versioned_projects[name] = project.model_copy(update={"versions": wheel_versions})
    return versioned_projects


def _suffixes_by_kind(ref: TorchRef, rocm_version: str) -> Mapping[WheelKind, str]:
    """Return the local version suffixes of wheels with ROCm, if there is one, and of those without."""
    suffix_by_kind: dict[WheelKind, str] = {}
    if rocm_version:
        suffix = versions.version_suffix(rocm_version)
        # The sample's own ROCm has its label, too.
        labels = re.split(r"[.+]", suffix)
        if ref.local_label and ref.local_label not in labels:
            suffix = f"{suffix}.{ref.local_label}"
        suffix_by_kind["rocm"] = suffix
    suffix_by_kind["cpu"] = versions.cpu_suffix(ref.local_label)
    return suffix_by_kind


# --- Where projects are -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Location:
    """A project's repository and commit, and the branch, tag or pin that named the commit."""

    project: str
    origin: str
    ref: str
    commit: str

    def describe_file(self, path: str) -> str:
        """Return a text for errors that names a file, the project's repository and the commit."""
        short_commit = self.commit[:12]
        return f"{path} of {self.origin} at {short_commit}"


@dataclass(frozen=True, kw_only=True)
class _Search:
    """The search for the commits and versions of one torch ref's projects.

    Attributes:
        ref: The torch ref.
        reader: Reads origins.
        explicit_refs: Refs that the user named, by project.
        require_related_commit: Whether torch has to pin every project that it may pin.
        torch_location: Where torch is; None where it has no tree: it is prebuilt, or the ref has none.
        torch_files: The texts of those files of torch's tree that say something of projects, by path.
    """

    ref: TorchRef
    reader: OriginReader
    explicit_refs: Mapping[str, str]
    require_related_commit: bool
    torch_location: _Location | None = None
    torch_files: Mapping[str, str] = field(default_factory=dict)

    def locate_torch(self) -> _Search:
        """Return this search with torch's commit, and the texts of its files that pin other projects."""
        source = self.ref.projects.get("torch")
        if source is None or source.prebuilt:
            return self

        ref = self.explicit_refs.get("torch") or source.ref
        location = self._resolve_ref(source, ref)
        paths = [versions.VERSION_FILE, *_PIN_FILES.values()]
        for component in COMPONENTS.values():
            version_file = component.version_rule.file_in_torch
            if version_file is not None:
                paths.append(version_file)
        texts = self.reader.read_texts(location.origin, location.commit, paths)
        return replace(
            self,
            torch_location=location,
            torch_files=texts,
        )

    def lock_project(self, project: str) -> LockedProject:
        """Return a project at its commit, with the version that its files state."""
        source = self.ref.projects[project]
        if source.prebuilt:
            return locked_prebuilt_project(project, source.prebuilt)

        location = self._locate(source)
        return LockedProject(
            project=project,
            origin=location.origin,
            ref=location.ref,
            commit=location.commit,
            base_version=self._base_version(location),
            adds_commit=self._adds_commit(location),
        )

    def _locate(self, source: ProjectSource) -> _Location:
        """Return a project's commit by the user's ref, else by torch's pin, else by the torch ref."""
        if source.project == "torch" and self.torch_location is not None:
            return self.torch_location

        explicit_ref = self.explicit_refs.get(source.project)
        if explicit_ref:
            return self._resolve_ref(source, explicit_ref)

        pinned_location = self._follow_pin(source)
        if pinned_location is not None:
            return pinned_location
        if not source.ref:
            raise self._missing_pin_error(source)
        return self._resolve_ref(source, source.ref)

    def _resolve_ref(self, source: ProjectSource, ref: str) -> _Location:
        """Return the commit of a project that a branch or tag of its repository names."""
        try:
            commit = self.reader.resolve_commit(source.origin, ref)
        except SourceError as problem:
            message = f"{source.project} of torch ref {self.ref.name}: {problem.message}"
            raise SourceError(message, hint=problem.hint) from problem
        return _Location(
            project=source.project,
            origin=source.origin,
            ref=ref,
            commit=commit,
        )

    # --- Pins ---------------------------------------------------------------------------------

    def _follow_pin(self, source: ProjectSource) -> _Location | None:
        """Return the commit of a project that torch's tree pins; None where it has no pin."""
        pin_file = _PIN_FILES.get(source.pin)
        if pin_file is None:
            return None

        text = self.torch_files.get(pin_file)
        file_description = self._describe_file_of_torch(pin_file)
        origin = source.origin
        if source.pin == "triton":
            if text is None:
                return None
            commit = versions.parse_commit_pin(text, file_description)
        else:
            related_commits = versions.parse_related_commits(text or "", file_description)
            related_commit = related_commits.get(COMPONENTS[source.project].distribution)
            if related_commit is None:
                if self.require_related_commit:
                    raise self._missing_pin_error(source)
                return None
            commit = related_commit.commit
            if not source.has_own_origin and origin != related_commit.origin:
                origin = related_commit.origin
                require_safe_origin(origin, f"{file_description}: {source.project}")

        try:
            self.reader.require_commit(origin, commit)
        except SourceError as problem:
            message = f"{source.project} is pinned by {file_description}: {problem.message}"
            raise SourceError(message, hint=problem.hint) from problem
        return _Location(
            project=source.project,
            origin=origin,
            ref=commit,
            commit=commit,
        )

    def _describe_file_of_torch(self, path: str) -> str:
        """Return a text for errors that names a file of torch, its repository and the commit."""
        if self.torch_location is None:
            return path
        return self.torch_location.describe_file(path)

    def _missing_pin_error(self, source: ProjectSource) -> SourceError:
        """Return the error for a project that torch's tree should pin and does not."""
        if self.torch_location is None:
            reason = "torch is prebuilt or not known"
        elif source.pin == "triton":
            reason = f"{self._describe_file_of_torch(versions.TRITON_PIN_FILE)} does not exist"
        else:
            reason = f"{self._describe_file_of_torch(versions.RELATED_COMMITS_FILE)} has no such row"
        return SourceError(
            f"Torch ref {self.ref.name}: the commit of {source.project} should come from torch's tree, "
            f"but {reason}.",
            hint=f"Give it a ref: in the refs file, [refs.{self.ref.name}.{source.project}] ref = …",
        )

    # --- Versions -----------------------------------------------------------------------------

    def _base_version(self, location: _Location) -> str:
        """Return the version that a project's files state, or torch's tree in their place."""
        rule = COMPONENTS[location.project].version_rule
        file_in_torch = rule.file_in_torch
        if file_in_torch is not None and file_in_torch in self.torch_files:
            text = self.torch_files[file_in_torch]
            file_description = self._describe_file_of_torch(file_in_torch)
            return versions.parse_version(text, file_description)

        texts = self.torch_files
        if location is not self.torch_location:
            paths = (versions.VERSION_FILE, *rule.modules)
            texts = self.reader.read_texts(location.origin, location.commit, paths)

        version_file = location.describe_file(versions.VERSION_FILE)
        if versions.VERSION_FILE in texts:
            text = texts[versions.VERSION_FILE]
            return versions.parse_version(text, version_file)
        for path in rule.modules:
            text = texts.get(path, "")
            file_description = location.describe_file(path)
            version = versions.module_version(text, file_description)
            if version is not None:
                return version
        raise SourceError(
            f"{version_file} does not exist, so the version of {location.project} is unknown.",
            hint="Check that origin and ref are those of this project.",
        )

    def _adds_commit(self, location: _Location) -> bool:
        """Return whether a project's own build adds the commit to its version, as triton's does."""
        setup_files = COMPONENTS[location.project].version_rule.setup_files
        if not setup_files:
            return False
        texts = self.reader.read_texts(location.origin, location.commit, setup_files)
        return any(versions.adds_commit(text) for text in texts.values())


def locked_prebuilt_project(project: str, requirement: str) -> LockedProject:
    """Return the entry in a lock of a project that is installed by a requirement, not built."""
    distribution = COMPONENTS[project].distribution
    try:
        parsed_requirement = Requirement(requirement)
    except InvalidRequirement as problem:
        raise DataError(
            f"{project}: prebuilt = {requirement!r} is not a requirement: {problem}."
        ) from problem
    if parsed_requirement.name.lower() != distribution:
        raise DataError(f"{project}: prebuilt = {requirement!r} is not a requirement on {distribution}.")

    base_version = ""
    for specifier in parsed_requirement.specifier:
        is_pinned = specifier.operator == "==" and not specifier.version.endswith("*")
        if is_pinned:
            base_version = specifier.version.partition("+")[0]
    return LockedProject(
        project=project,
        prebuilt=requirement,
        base_version=base_version,
    )
