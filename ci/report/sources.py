"""Sources of a run, from its source locks, and how they differ from those of another run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ci.report.model import Source

if TYPE_CHECKING:
    from ci.report.reading import RunFacts
    from pytorch_build.lock.source_lock import LockedProject, SourceLock

ROCM = "rocm"
_HOSTED = re.compile(r"https://github\.com/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def sources_of(facts: RunFacts, before: RunFacts | None = None) -> tuple[Source, ...]:
    """List every project of every ref, with the commit of the run before."""
    found = []
    for ref, lock in sorted(facts.locks.items()):
        old = before.locks.get(ref) if before else None
        if lock.rocm_version or (old and old.rocm_version):
            found.append(_rocm(lock, old))
        gone = [name for name in old.projects if name not in lock.projects] if old else []
        found += [
            _project_source(ref, name, lock.projects.get(name), old.projects.get(name) if old else None)
            for name in (*lock.projects, *gone)
        ]
    return tuple(found)


def _rocm(lock: SourceLock, old: SourceLock | None) -> Source:
    return Source(
        torch_ref=lock.torch_ref,
        project=ROCM,
        origin="",
        ref="",
        commit="",
        version=lock.rocm_version,
        version_before=old.rocm_version if old else "",
    )


def _project_source(ref: str, name: str, now: LockedProject | None, old: LockedProject | None) -> Source:
    named = now or old
    return Source(
        torch_ref=ref,
        project=name,
        origin=named.origin if named else "",
        ref=now.ref if now else "",
        commit=now.commit if now else "",
        version=_version(now),
        commit_before=old.commit if old else "",
        version_before=_version(old),
        compare=_compare(now, old),
    )


def _version(locked: LockedProject | None) -> str:
    return (locked.prebuilt or locked.base_version) if locked else ""


def commit_url(origin: str, commit: str) -> str:
    """Give the address that shows a commit, where the repository's host is known; else ""."""
    base = origin.removesuffix("/").removesuffix(".git")
    hosted = _HOSTED.fullmatch(base) and _COMMIT.fullmatch(commit)
    return f"{base}/commit/{commit}" if hosted else ""


def _compare(now: LockedProject | None, old: LockedProject | None) -> str:
    """Give the address of what lies between two commits of one repository."""
    if now is None or old is None or now.origin != old.origin or now.commit == old.commit:
        return ""
    if not (commit_url(now.origin, now.commit) and commit_url(old.origin, old.commit)):
        return ""
    base = now.origin.removesuffix("/").removesuffix(".git")
    return f"{base}/compare/{old.commit}...{now.commit}"
