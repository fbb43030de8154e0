"""A torch ref becomes a source lock: commits by asking the origins, versions by reading their files.

torch comes first: its tree names commits and versions of other projects. Then every other
project is found, side by side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from core.errors import DataError, FatalError, SourceError
from pytorch_build.lock import versions
from pytorch_build.lock.source_lock import Kind, LockedProject, SourceLock
from pytorch_build.refs.torch_refs import DISTRIBUTIONS, PROJECTS, ProjectSource, TorchRef
from pytorch_build.sources.git import Origins, Reader, require_safe


@dataclass(frozen=True, kw_only=True)
class Found:
    """Where a project is: its repository at a commit, and the name that led there."""

    project: str
    origin: str
    ref: str
    commit: str


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
    work = _Resolution(
        ref=ref,
        reader=Reader(cache=cache, origins=origins or Origins()),
        explicit=explicit or {},
        require_related_commit=require_related_commit,
    )
    suffixes = _suffixes(ref, rocm_version)
    names = [name for name in PROJECTS if name in {"torch", *ref.components} & ref.projects.keys()]
    if not names:
        raise DataError(f"Torch ref {ref.name} has no components.", hint="Give it components to build.")
    torch = work.torch()
    with ThreadPoolExecutor(max_workers=len(names)) as pool:
        locked = list(pool.map(lambda name: work.locked(name, torch), names))
    torch_version = next((one.base_version for one in locked if one.project == "torch"), "")
    projects = {}
    for one in locked:
        named = torch_version if ref.projects[one.project].torch_in_version else ""
        made = {} if one.prebuilt else _versions(one, suffixes, release_type, named)
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


def _versions(
    project: LockedProject, suffixes: Mapping[Kind, str], release_type: str, torch: str
) -> dict[Kind, str]:
    return {
        kind: versions.wheel_version(
            project.base_version,
            suffix,
            release_type=release_type,
            commit=project.commit,
            tagged=project.tagged,
            torch=torch,
        )
        for kind, suffix in suffixes.items()
    }


@dataclass(frozen=True, kw_only=True)
class _Torch:
    """torch's own tree, as far as it answers for other projects."""

    found: Found | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def where(self, path: str) -> str:
        return f"{path} of {self.found.origin} at {self.found.commit[:12]}" if self.found else path


@dataclass(frozen=True, kw_only=True)
class _Resolution:
    ref: TorchRef
    reader: Reader
    explicit: Mapping[str, str]
    require_related_commit: bool

    def torch(self) -> _Torch:
        """Find torch first: its tree names commits and versions of others."""
        source = self.ref.projects.get("torch")
        if source is None or source.prebuilt:
            return _Torch()
        found = self._found(source, self.explicit.get("torch") or source.ref)
        version, triton = versions.VERSION_FILE, (versions.TRITON_PIN_FILE, versions.TRITON_VERSION_FILE)
        named = (version, versions.RELATED_COMMITS_FILE, *triton)
        return _Torch(found=found, files=self.reader.texts(found.origin, found.commit, named))

    def locked(self, project: str, torch: _Torch) -> LockedProject:
        source = self.ref.projects[project]
        if source.prebuilt:
            return prebuilt(project, source.prebuilt)
        found = torch.found if project == "torch" and torch.found else self._find(source, torch)
        setup_files = versions.SETUP_FILES if project == "triton" else ()
        setup = self.reader.texts(found.origin, found.commit, setup_files) if setup_files else {}
        return LockedProject(
            project=project,
            origin=found.origin,
            ref=found.ref,
            commit=found.commit,
            base_version=self._base_version(found, torch),
            tagged=any(map(versions.adds_commit, setup.values())),
        )

    def _find(self, source: ProjectSource, torch: _Torch) -> Found:
        given = self.explicit.get(source.project)
        if not given and (pinned := self._pinned(source, torch)):
            return pinned
        ref = given or source.ref
        if not ref:
            raise self._unpinned(source, torch)
        return self._found(source, ref)

    def _pinned(self, source: ProjectSource, torch: _Torch) -> Found | None:
        if source.pin == "triton":
            if versions.TRITON_PIN_FILE not in torch.files:
                return None
            where = torch.where(versions.TRITON_PIN_FILE)
            commit = versions.parse_commit_pin(torch.files[versions.TRITON_PIN_FILE], where)
            return self._by_pin(source, source.origin, commit, where)
        if source.pin == "related_commits":
            where = torch.where(versions.RELATED_COMMITS_FILE)
            rows = versions.parse_related_commits(torch.files.get(versions.RELATED_COMMITS_FILE, ""), where)
            row = rows.get(DISTRIBUTIONS[source.project])
            if row is None and self.require_related_commit:
                raise self._unpinned(source, torch)
            if row is None:
                return None
            origin = source.origin
            if not source.own_origin and origin != row.origin:
                origin = row.origin
                require_safe(origin, f"{where}: {source.project}")
            return self._by_pin(source, origin, row.commit, where)
        return None

    def _by_pin(self, source: ProjectSource, origin: str, commit: str, where: str) -> Found:
        try:
            self.reader.fetched(origin, commit)
        except SourceError as problem:
            raise _prefixed(f"{source.project} is pinned by {where}: ", problem) from problem
        return Found(project=source.project, origin=origin, ref=commit, commit=commit)

    def _unpinned(self, source: ProjectSource, torch: _Torch) -> SourceError:
        if torch.found is None:
            reason = "torch is prebuilt or not known"
        elif source.pin == "triton":
            reason = f"{torch.where(versions.TRITON_PIN_FILE)} does not exist"
        else:
            reason = f"{torch.where(versions.RELATED_COMMITS_FILE)} has no such row"
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

    def _base_version(self, found: Found, torch: _Torch) -> str:
        if found.project == "triton" and versions.TRITON_VERSION_FILE in torch.files:
            where = torch.where(versions.TRITON_VERSION_FILE)
            return versions.parse_version(torch.files[versions.TRITON_VERSION_FILE], where)
        modules = versions.TRITON_MODULES if found.project == "triton" else ()
        texts = torch.files
        if found is not torch.found:
            texts = self.reader.texts(found.origin, found.commit, (versions.VERSION_FILE, *modules))
        where = f"of {found.origin} at {found.commit[:12]}"
        if versions.VERSION_FILE in texts:
            return versions.parse_version(texts[versions.VERSION_FILE], f"{versions.VERSION_FILE} {where}")
        for path in modules:
            if said := versions.module_version(texts.get(path, ""), f"{path} {where}"):
                return said
        raise SourceError(
            f"{versions.VERSION_FILE} {where} does not exist, so the version of {found.project} is unknown.",
            hint="Check that origin and ref are those of this project.",
        )


def _prefixed(start: str, problem: FatalError) -> SourceError:
    return SourceError(start + problem.message, hint=problem.hint)


def prebuilt(project: str, requirement: str) -> LockedProject:
    """Lock a project that is installed instead of built, as its requirement."""
    expected = DISTRIBUTIONS[project]
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
