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

from core.errors import DataError, FatalError, SourceError
from pytorch_build.components import COMPONENTS
from pytorch_build.lock import versions
from pytorch_build.lock.source_lock import Kind, LockedProject, SourceLock
from pytorch_build.sources.git import Origins, Reader, require_safe

if TYPE_CHECKING:
    from pytorch_build.refs.torch_refs import ProjectSource, TorchRef


# The files in torch's tree that pin commits of other projects, by the name of the pin.
_PIN_FILES = {"triton": versions.TRITON_PIN_FILE, "related_commits": versions.RELATED_COMMITS_FILE}


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where a project is: its repository at a commit, and the name that led there."""

    project: str
    origin: str
    ref: str
    commit: str

    @property
    def description(self) -> str:
        """Where its files are, for errors."""
        return f"of {self.origin} at {self.commit[:12]}"


def resolve(
    ref: TorchRef,
    *,
    rocm_version: str,
    release_type: str,
    cache: Path,
    origins: Origins | None = None,
    explicit: Mapping[str, str] | None = None,
    require_related_commit: bool = False,
) -> SourceLock:
    """Resolve a torch ref's components, and its torch, into a source lock.

    A ref given in `explicit` comes before a pin in torch's tree, and that before the ref's
    default. Origins are asked side by side.
    """
    needed = {"torch", *ref.components} & ref.projects.keys()
    names = [name for name in COMPONENTS if name in needed]
    if not names:
        raise DataError(f"Torch ref {ref.name} has no components.", hint="Give it components to build.")

    resolution = _Resolution(
        ref=ref,
        reader=Reader(cache=cache, origins=origins or Origins()),
        explicit=explicit or {},
        require_related_commit=require_related_commit,
    ).with_torch()
    with ThreadPoolExecutor(max_workers=len(names)) as pool:
        projects = dict(zip(names, pool.map(resolution.lock, names), strict=True))

    torch_version = projects["torch"].base_version if "torch" in projects else ""
    suffixes = _suffixes(ref, rocm_version)
    for name, project in projects.items():
        if project.prebuilt:
            continue
        wheel_versions: dict[Kind, str] = {}
        for kind, suffix in suffixes.items():
            wheel_versions[kind] = versions.wheel_version(
                project.base_version,
                suffix,
                release_type=release_type,
                commit=project.commit,
                tagged=project.tagged,
                torch=torch_version if ref.projects[name].torch_in_version else "",
            )
        projects[name] = project.model_copy(update={"versions": wheel_versions})
    return SourceLock(
        torch_ref=ref.name, release_type=release_type, rocm_version=rocm_version, projects=projects
    )


def _suffixes(ref: TorchRef, rocm_version: str) -> Mapping[Kind, str]:
    """Return the local version of wheels with ROCm, if there is one, and of those without."""
    suffixes: dict[Kind, str] = {}
    if rocm_version:
        suffix = versions.version_suffix(rocm_version)
        if ref.local_label and ref.local_label not in re.split(r"[.+]", suffix):
            suffix = f"{suffix}.{ref.local_label}"
        suffixes["rocm"] = suffix
    suffixes["cpu"] = versions.cpu_suffix(ref.local_label)
    return suffixes


@dataclass(frozen=True, kw_only=True)
class _Resolution:
    """One resolution of a torch ref; `torch` and its files are what torch's tree says of other projects."""

    ref: TorchRef
    reader: Reader
    explicit: Mapping[str, str]
    require_related_commit: bool
    torch: Location | None = None
    torch_files: Mapping[str, str] = field(default_factory=dict)

    def with_torch(self) -> _Resolution:
        """Find torch first: its tree names commits and versions of others."""
        source = self.ref.projects.get("torch")
        if source is None or source.prebuilt:
            return self
        torch = self._find(source, self.explicit.get("torch") or source.ref)
        stating_files = [component.version_rule.file_in_torch for component in COMPONENTS.values()]
        paths = [versions.VERSION_FILE, *_PIN_FILES.values(), *filter(None, stating_files)]
        return replace(self, torch=torch, torch_files=self.reader.texts(torch.origin, torch.commit, paths))

    def lock(self, project: str) -> LockedProject:
        """Lock a project at its commit, with the version that its files state."""
        source = self.ref.projects[project]
        if source.prebuilt:
            return prebuilt(project, source.prebuilt)

        location = self._locate(source)
        setup_files = COMPONENTS[project].version_rule.setup_files
        setup_texts: Mapping[str, str] = {}
        if setup_files:
            setup_texts = self.reader.texts(location.origin, location.commit, setup_files)
        return LockedProject(
            project=project,
            origin=location.origin,
            ref=location.ref,
            commit=location.commit,
            base_version=self._base_version(location),
            tagged=any(versions.adds_commit(text) for text in setup_texts.values()),
        )

    def _locate(self, source: ProjectSource) -> Location:
        """Find a project by the ref that the user named, else by torch's pin, else by the ref's data."""
        if source.project == "torch" and self.torch is not None:
            return self.torch
        explicit_ref = self.explicit.get(source.project)
        if explicit_ref:
            return self._find(source, explicit_ref)
        pinned_location = self._follow_pin(source)
        if pinned_location is not None:
            return pinned_location
        if not source.ref:
            raise self._missing_pin(source)
        return self._find(source, source.ref)

    def _find(self, source: ProjectSource, ref: str) -> Location:
        try:
            commit = self.reader.commit(source.origin, ref)
        except SourceError as problem:
            raise _prefixed(f"{source.project} of torch ref {self.ref.name}: ", problem) from problem
        return Location(project=source.project, origin=source.origin, ref=ref, commit=commit)

    def _follow_pin(self, source: ProjectSource) -> Location | None:
        """Find a project where torch's tree pins it; return None where it has no pin."""
        pin_file = _PIN_FILES.get(source.pin)
        if pin_file is None:
            return None
        where = self._in_torch(pin_file)
        text = self.torch_files.get(pin_file)

        origin = source.origin
        commit: str | None = None
        if source.pin == "triton":
            if text is not None:
                commit = versions.parse_commit_pin(text, where)
        else:
            rows = versions.parse_related_commits(text or "", where)
            row = rows.get(COMPONENTS[source.project].distribution)
            if row is None and self.require_related_commit:
                raise self._missing_pin(source)
            if row is not None:
                commit = row.commit
                if not source.own_origin and origin != row.origin:
                    origin = row.origin
                    require_safe(origin, f"{where}: {source.project}")
        if commit is None:
            return None

        try:
            self.reader.require_commit(origin, commit)
        except SourceError as problem:
            raise _prefixed(f"{source.project} is pinned by {where}: ", problem) from problem
        return Location(project=source.project, origin=origin, ref=commit, commit=commit)

    def _missing_pin(self, source: ProjectSource) -> SourceError:
        reason = "torch is prebuilt or not known"
        if self.torch is not None:
            pin_file = _PIN_FILES.get(source.pin, versions.RELATED_COMMITS_FILE)
            problem = "does not exist" if source.pin == "triton" else "has no such row"
            reason = f"{self._in_torch(pin_file)} {problem}"
        return SourceError(
            f"Torch ref {self.ref.name}: the commit of {source.project} should come from torch's tree, "
            f"but {reason}.",
            hint=f"Give it a ref: in the refs file, [refs.{self.ref.name}.{source.project}] ref = …",
        )

    def _in_torch(self, path: str) -> str:
        """Name a file of torch's tree, for errors."""
        if self.torch is None:
            return path
        return f"{path} {self.torch.description}"

    def _base_version(self, location: Location) -> str:
        rule = COMPONENTS[location.project].version_rule
        if rule.file_in_torch is not None and rule.file_in_torch in self.torch_files:
            text = self.torch_files[rule.file_in_torch]
            return versions.parse_version(text, self._in_torch(rule.file_in_torch))

        texts = self.torch_files
        if location is not self.torch:
            paths = (versions.VERSION_FILE, *rule.modules)
            texts = self.reader.texts(location.origin, location.commit, paths)
        version_file = f"{versions.VERSION_FILE} {location.description}"
        if versions.VERSION_FILE in texts:
            return versions.parse_version(texts[versions.VERSION_FILE], version_file)
        for path in rule.modules:
            version = versions.module_version(texts.get(path, ""), f"{path} {location.description}")
            if version:
                return version
        raise SourceError(
            f"{version_file} does not exist, so the version of {location.project} is unknown.",
            hint="Check that origin and ref are those of this project.",
        )


def _prefixed(start: str, problem: FatalError) -> SourceError:
    return SourceError(start + problem.message, hint=problem.hint)


def prebuilt(project: str, requirement: str) -> LockedProject:
    """Lock a project that is installed instead of built, as its requirement."""
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
        if specifier.operator == "==" and not specifier.version.endswith("*"):
            base_version = specifier.version.partition("+")[0]
    return LockedProject(project=project, prebuilt=requirement, base_version=base_version)
