"""Refs and files of repositories, read where they are: nothing is cloned.

Branches and tags are answered by ``git ls-remote``; files are read at a commit through a
shallow fetch without blobs, kept in a small cache of repositories.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core import files
from core.errors import ProcessError, SourceError
from pytorch_build.lock import pins
from pytorch_build.sources.git import (
    ANSWER_SECONDS,
    TRANSFER_SECONDS,
    Origins,
    Repository,
    last_words,
    ls_remote,
    refuses_commits,
    unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads refs and files of origins, without cloning them."""

    cache: Path
    origins: Origins = field(default_factory=Origins)

    def commit(self, origin: str, ref: str) -> str:
        """Resolve a branch, tag or commit; an annotated tag to the commit it stands for.

        As in git, a tag comes before a branch of the same name.
        """
        if pins.is_commit(ref):
            return self.fetched(origin, ref).commit_of(ref)
        names = [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"]
        if ref == "HEAD" or ref.startswith("refs/"):
            names = [f"{ref}^{{}}", ref]
        found = ls_remote(origin, tuple(names), self.origins)
        for name in names:
            if name in found:
                return found[name]
        hint = "Correct the ref, or give another origin."
        if re.fullmatch(r"[0-9a-f]{7,39}", ref):
            hint = "If it is a commit, write all 40 digits."
        raise SourceError(f"{origin} has no branch or tag {ref!r}.", hint=hint)

    def fetched(self, origin: str, commit: str) -> Repository:
        """Fetch a commit's tree into the cache, unless it is there."""
        address = self.origins.address(origin)
        path = self.cache / files.sha256_text(address)[:16]
        git = Repository(path=path, settings=self.origins.settings(origin))
        with files.locked(self.cache / f"{path.name}.lock", what=f"the cache of {origin}"):
            _ensure_cache(git, address)
            # a ref of our own says that a commit is there: asking git for the commit itself
            # would make it fetch, as objects may be missing from these repositories
            kept = f"refs/kept/{commit}"
            if git.run("show-ref", "--verify", "--quiet", kept, check=False).returncode != 0:
                _fetch(git, origin, commit)
                git.run("update-ref", kept, commit)
        return git

    def texts(self, origin: str, commit: str, paths: Iterable[str]) -> Mapping[str, str]:
        """Read files at a commit: path -> text, of those that exist there."""
        git = self.fetched(origin, commit)
        listed = git.names("ls-tree", "-z", "--name-only", commit, "--", *paths)
        try:
            return {
                path: git.run("cat-file", "blob", f"{commit}:{path}", timeout=ANSWER_SECONDS).stdout
                for path in listed
            }
        except ProcessError as problem:
            raise unreachable(origin, problem) from problem


def _ensure_cache(git: Repository, address: str) -> None:
    if (git.path / "complete").is_file():
        return
    git.path.mkdir(parents=True, exist_ok=True)
    git.run("init", "--quiet", "--bare", "--template=")
    if git.run("remote", "add", "origin", address, check=False).returncode != 0:
        git.run("remote", "set-url", "origin", address)
    (git.path / "complete").touch()


def _fetch(git: Repository, origin: str, commit: str) -> None:
    """Fetch a commit and its trees; a server that gives no single commits is asked for all refs."""
    fetch = ("fetch", "--quiet", "--filter=blob:none", "--no-tags", "--no-write-fetch-head")
    try:
        git.run(*fetch, "--depth=1", "origin", commit, timeout=TRANSFER_SECONDS)
    except ProcessError as problem:
        if not refuses_commits(problem):
            raise unreachable(origin, problem) from problem
        try:
            git.run(*fetch, "origin", "+refs/*:refs/fetched/*", timeout=TRANSFER_SECONDS)
        except ProcessError as second:
            raise unreachable(origin, second) from second
        if not git.commit_of(commit):
            raise SourceError(
                f"{origin} does not have the commit {commit}: {last_words(problem)}",
                hint="It may lie in a fork, or have been removed; correct the ref or the pin.",
            ) from problem
    if not git.commit_of(commit):
        raise SourceError(f"{origin}: {commit} is no commit.")
