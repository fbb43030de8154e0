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


@dataclass(frozen=True, kw_only=True)
class Found:
    """Where a project is: its repository at a commit, and the name that led there."""

    project: str
    origin: str
    ref: str
    commit: str

    @property
    def where(self) -> str:
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
    names = [name for name in COMPONENTS if name in {"torch", *ref.components} & ref.projects.keys()]
    if not names:
        raise DataError(f"Torch ref {ref.name} has no components.", hint="Give it components to build.")
    work = _Resolution(
        ref=ref,
        reader=Reader(cache=cache, origins=origins or Origins()),
        explicit=explicit or {},
        require_related_commit=require_related_commit,
    ).with_torch()
    with ThreadPoolExecutor(max_workers=len(names)) as pool:
        locked = list(pool.map(work.locked, names))
    suffixes = _suffixes(ref, rocm_version)
    torch_version = next((one.base_version for one in locked if one.project == "torch"), "")
    projects = {}
    for one in locked:
        made = {
            kind: versions.wheel_version(
                one.base_version,
                suffix,
                release_type=release_type,
                commit=one.commit,
                tagged=one.tagged,
                torch=torch_version if ref.projects[one.project].torch_in_version else "",
            )
            for kind, suffix in ({} if one.prebuilt else suffixes).items()
        }
        projects[one.project] = one.model_copy(update={"versions": made})
    return SourceLock(
        torch_ref=ref.name, release_type=release_type, rocm_version=rocm_version, projects=projects
    )


def _suffixes(ref: TorchRef, rocm_version: str) -> Mapping[Kind, str]:
    suffixes: dict[Kind, str] = {"cpu": versions.cpu_suffix(ref.local_label)}
    if rocm_version:
        suffix = versions.version_suffix(rocm_version)
        labelled = not ref.local_label or ref.local_label in re.split(r"[.+]", suffix)
        suffixes = {"rocm": suffix if labelled else f"{suffix}.{ref.local_label}", **suffixes}
    return suffixes


_PINS = {"triton": versions.TRITON_PIN_FILE, "related_commits": versions.RELATED_COMMITS_FILE}


@dataclass(frozen=True, kw_only=True)
class _Resolution:
    ref: TorchRef
    reader: Reader
    explicit: Mapping[str, str]
    require_related_commit: bool
    # torch, as far as its tree answers for other projects
    torch: Found | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def with_torch(self) -> _Resolution:
        """Find torch first: its tree names commits and versions of others."""
        source = self.ref.projects.get("torch")
        if source is None or source.prebuilt:
            return self
        found = self._found(source, self.explicit.get("torch") or source.ref)
        rules = (component.version_rule for component in COMPONENTS.values())
        stating_files = (rule.file_in_torch for rule in rules if rule.file_in_torch is not None)
        named = (versions.VERSION_FILE, *stating_files, *_PINS.values())
        return replace(self, torch=found, files=self.reader.texts(found.origin, found.commit, named))

    def locked(self, project: str) -> LockedProject:
        source = self.ref.projects[project]
        if source.prebuilt:
            return prebuilt(project, source.prebuilt)
        given = self.explicit.get(project)
        found = self.torch if project == "torch" and self.torch else None if given else self._pinned(source)
        if not (found or given or source.ref):
            raise self._unpinned(source)
        found = found or self._found(source, given or source.ref)
        setup_files = COMPONENTS[project].version_rule.setup_files
        setup = self.reader.texts(found.origin, found.commit, setup_files) if setup_files else {}
        return LockedProject(
            project=project,
            origin=found.origin,
            ref=found.ref,
            commit=found.commit,
            base_version=self._base_version(found),
            tagged=any(map(versions.adds_commit, setup.values())),
        )

    def _where(self, path: str) -> str:
        return f"{path} {self.torch.where}" if self.torch else path

    def _pinned(self, source: ProjectSource) -> Found | None:
        origin, commit, path = source.origin, "", _PINS.get(source.pin, "")
        where = self._where(path)
        if source.pin == "triton" and path in self.files:
            commit = versions.parse_commit_pin(self.files[path], where)
        elif source.pin == "related_commits":
            rows = versions.parse_related_commits(self.files.get(path, ""), where)
            row = rows.get(COMPONENTS[source.project].distribution)
            if row is None and self.require_related_commit:
                raise self._unpinned(source)
            commit = row.commit if row else ""
            if row and not source.own_origin and origin != row.origin:
                origin = row.origin
                require_safe(origin, f"{where}: {source.project}")
        if not commit:
            return None
        try:
            self.reader.require_commit(origin, commit)
        except SourceError as problem:
            raise _prefixed(f"{source.project} is pinned by {where}: ", problem) from problem
        return Found(project=source.project, origin=origin, ref=commit, commit=commit)

    def _unpinned(self, source: ProjectSource) -> SourceError:
        reason = "torch is prebuilt or not known"
        if self.torch:
            path = _PINS.get(source.pin, versions.RELATED_COMMITS_FILE)
            what = "does not exist" if source.pin == "triton" else "has no such row"
            reason = f"{self._where(path)} {what}"
        return SourceError(
            f"Torch ref {self.ref.name}: the commit of {source.project} should come from torch's tree, "
            f"but {reason}.",
            hint=f"Give it a ref: in the refs file, [refs.{self.ref.name}.{source.project}] ref = …",
        )

    def _found(self, source: ProjectSource, ref: str) -> Found:
        try:
            commit = self.reader.commit(source.origin, ref)
        except SourceError as problem:
            raise _prefixed(f"{source.project} of torch ref {self.ref.name}: ", problem) from problem
        return Found(project=source.project, origin=source.origin, ref=ref, commit=commit)

    def _base_version(self, found: Found) -> str:
        rule = COMPONENTS[found.project].version_rule
        if rule.file_in_torch is not None and rule.file_in_torch in self.files:
            return versions.parse_version(self.files[rule.file_in_torch], self._where(rule.file_in_torch))
        modules = rule.modules
        texts = self.files
        if found is not self.torch:
            texts = self.reader.texts(found.origin, found.commit, (versions.VERSION_FILE, *modules))
        if versions.VERSION_FILE in texts:
            return versions.parse_version(
                texts[versions.VERSION_FILE], f"{versions.VERSION_FILE} {found.where}"
            )
        for path in modules:
            if said := versions.module_version(texts.get(path, ""), f"{path} {found.where}"):
                return said
        raise SourceError(
            f"{versions.VERSION_FILE} {found.where} does not exist, "
            f"so the version of {found.project} is unknown.",
            hint="Check that origin and ref are those of this project.",
        )


def _prefixed(start: str, problem: FatalError) -> SourceError:
    return SourceError(start + problem.message, hint=problem.hint)


def prebuilt(project: str, requirement: str) -> LockedProject:
    """Lock a project that is installed instead of built, as its requirement."""
    expected = COMPONENTS[project].distribution
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement as problem:
        raise DataError(
            f"{project}: prebuilt = {requirement!r} is not a requirement: {problem}."
        ) from problem
    if parsed.name.lower() != expected:
        raise DataError(f"{project}: prebuilt = {requirement!r} is not a requirement on {expected}.")
    exact = [s.version for s in parsed.specifier if s.operator == "==" and not s.version.endswith("*")]
    return LockedProject(
        project=project, prebuilt=requirement, base_version=exact[0].partition("+")[0] if exact else ""
    )
