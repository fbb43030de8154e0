"""The versions of a package in an index, a page or a folder, among which is searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from ci.bisection.differences import RevisionFacts
from ci.bisection.search import Revision, day_of, find_revision
from core import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci import install
    from ci.bisection.request import BisectRequest


@dataclass(frozen=True, kw_only=True)
class IndexVersions:
    """The versions of the first package that is installed."""

    request: BisectRequest

    @property
    def python(self) -> str | None:
        """The Python that the options name."""
        return self.request.python

    @property
    def description(self) -> str:
        """What a search that is continued knows its versions by."""
        parts = (self.request.source.description, self.python)
        return " ".join(part for part in parts if part)

    @property
    def _subject(self) -> str:
        return canonicalize_name(self.request.packages[0].name)

    def list_revisions(self) -> Sequence[Revision]:
        """Return versions by the days that they name; of branches that go on side by side, the ends' ones."""
        source = self.request.source
        tag = self.request.interpreter(self.python).tag
        versions = list(source.versions(self._subject, tag))
        if not versions:
            raise source.missing_error(self.request.packages[0].name)

        # The source has the newest first.
        versions.reverse()
        revisions = [Revision(name=version, started=day_of(version) or "") for version in versions]
        revisions.sort(key=lambda revision: revision.started)
        branches = self._branches_of_ends(revisions)
        if not branches:
            return revisions

        revisions_of_branches = [revision for revision in revisions if _branch_of(revision.name) in branches]
        if len(revisions_of_branches) < len(revisions):
            span = " to ".join(sorted(branches))
            console.say(f"Searched is {span}; for others name versions, not days.")
        return revisions_of_branches

    def _branches_of_ends(self, revisions: Sequence[Revision]) -> set[str]:
        """Return the branches of the ends, which nightly versions belong to."""
        branches: set[str] = set()
        for text in (self.request.good, self.request.bad):
            end = find_revision(revisions, text)
            if end.started:
                branches.add(_branch_of(end.name))
        return branches

    def request_packages(self, revision: Revision) -> install.InstallRequest:
        """Return the packages, the first one in this version."""
        return self.request.request_installation(
            self.request.source,
            versions={self._subject: revision.name},
            family=self.request.common.gpu_family,
            python=self.python,
        )

    def read_facts(self, _revision: Revision) -> RevisionFacts:
        """Return nothing: the packages say it, once they are installed."""
        return RevisionFacts()


def _branch_of(version: str) -> str:
    """Return a version without its local part: ``2.11.0a0``."""
    branch, _, _ = version.partition("+")
    return branch
