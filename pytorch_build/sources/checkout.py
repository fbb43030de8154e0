"""Managed source trees: a locked project becomes a tree that is tagged, hipified and repaired.

The contract of the field: the upstream commit is tagged ``THEROCK_UPSTREAM_DIFFBASE``, what
hipify changes is committed as ``DO NOT SUBMIT: HIPIFY`` and tagged ``THEROCK_HIPIFY_DIFFBASE``,
both in submodules too. A tree's files and the hipify commit depend on the lock alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, files
from core.errors import SourceError
from core.run import key_name
from pytorch_build.sources import edits
from pytorch_build.sources.edits import HIPIFY_TAG, UPSTREAM_TAG, Stash
from pytorch_build.sources.git import Origins, Repository, remove_left, submodules, update_submodules

if TYPE_CHECKING:
    from pytorch_build.lock.source_lock import LockedProject

_STATE = "pytorch-build.json"
UPSTREAM_REF = "refs/pytorch-build/upstream"


@dataclass(frozen=True, kw_only=True)
class CheckoutOptions:
    """How trees are checked out."""

    depth: int = 1
    submodules: bool = True
    hipify: bool = False
    force: bool = False
    origins: Origins = field(default_factory=Origins)


@dataclass(frozen=True, kw_only=True)
class SourceTree:
    """A tree that is as the lock says."""

    path: Path
    commit: str
    head: str
    changed: bool
    stashed: tuple[Path, ...] = ()


def tree_path(sources: Path, torch_ref: str, project: str) -> Path:
    """Return where a project's managed tree lies below the folder of source trees."""
    return sources / key_name(torch_ref) / project


def checkout(locked: LockedProject, tree: Path, options: CheckoutOptions) -> SourceTree:
    """Make a tree what the lock says, whatever state it is in; do nothing if it is that already.

    Ignored files, build folders among them, stay. Uncommitted edits go to a named stash.
    """
    if locked.prebuilt:
        raise SourceError(f"{locked.project} is prebuilt ({locked.prebuilt}): there is nothing to check out.")
    tree = tree.absolute()
    git = Repository(path=tree, settings=options.origins.settings(locked.origin))
    with _locked(tree):
        if source_tree := _unchanged(git, locked, options):
            return source_tree
        return _Checkout(git=git, locked=locked, options=options).perform()


def unchanged_tree(locked: LockedProject, tree: Path, options: CheckoutOptions) -> SourceTree | None:
    """Return a tree that is what the lock says; None where `checkout` has something to do."""
    tree = tree.absolute()
    git = Repository(path=tree, settings=options.origins.settings(locked.origin))
    if not tree.is_dir():
        return None
    with _locked(tree):
        return _unchanged(git, locked, options)


def upstream_commit(tree: Path) -> str:
    """Return the upstream commit of a managed tree: what versions and ``git_version`` name."""
    commit = Repository(path=tree).commit_of(UPSTREAM_TAG) if (tree / ".git").exists() else ""
    if not commit:
        raise SourceError(f"{tree} has no tag {UPSTREAM_TAG}.", hint="Run `nox -s checkout` first.")
    return commit


@contextmanager
def building(tree: Path) -> Iterator[None]:
    """Build in a tree: files that the build leaves are none of the user's edits later on.

    What is untracked afterwards and was not before goes into ``.git/info/exclude``, in
    submodules too. While it lasts no checkout touches the tree, and HEAD names the upstream
    commit: upstream's build asks git for it (``torch.version.git_version``). A build that is
    killed leaves HEAD there, with the sources hipified; the next checkout sets it right.
    """
    git = Repository(path=tree)
    with _locked(tree):
        repositories = [*submodules(git), git]
        before = {one.path: set(one.untracked()) for one in repositories}
        git.run("update-ref", "--no-deref", "HEAD", upstream_commit(tree))
        try:
            yield
        finally:
            git.run("update-ref", "--no-deref", "HEAD", git.commit_of(HIPIFY_TAG) or upstream_commit(tree))
            for one in repositories:
                _exclude(one, sorted(set(one.untracked()) - before[one.path]))


def _locked(tree: Path) -> AbstractContextManager[None]:
    return files.locked(tree.parent / f".{tree.name}.lock", what=str(tree))


def _exclude(git: Repository, paths: list[str]) -> None:
    if not paths:
        return
    target = git.path / git.out("rev-parse", "--git-dir") / "info" / "exclude"
    present = target.read_text(encoding="utf-8") if target.is_file() else ""
    lines = ["/" + "".join(f"\\{c}" if c in "*?[]\\!# " else c for c in path) for path in paths]
    files.write_text(target, present + "".join(f"{line}\n" for line in lines))


def _request(locked: LockedProject, options: CheckoutOptions) -> dict[str, object]:
    return {
        "origin": locked.origin,
        "commit": locked.commit,
        "submodules": options.submodules,
        "hipify": options.hipify,
        "full": options.depth == 0,
    }


def _unchanged(git: Repository, locked: LockedProject, options: CheckoutOptions) -> SourceTree | None:
    """Recognise a finished checkout of the same request with nothing changed since, in two git calls."""
    folder = git.path / ".git"
    try:
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or half a one: the slow way repairs it
        return None
    head = state.get("head") if isinstance(state, dict) else None
    if not head or state.get("request") != _request(locked, options) or (folder / "index.lock").exists():
        return None
    expected = {"HEAD": head, UPSTREAM_TAG: locked.commit}
    expected |= {HIPIFY_TAG: head} if head != locked.commit else {}
    said = git.run("rev-parse", *(f"{name}^{{commit}}" for name in expected), check=False).stdout.split()
    if said != list(expected.values()) or not edits.is_clean(git, submodules=True):
        return None
    return SourceTree(path=git.path, commit=locked.commit, head=head, changed=False)


@dataclass(frozen=True, kw_only=True)
class _Checkout:
    """One checkout that has something to do."""

    git: Repository
    locked: LockedProject
    options: CheckoutOptions

    def perform(self) -> SourceTree:
        locked, git = self.locked, self.git
        self._prepare()
        (git.path / ".git" / _STATE).unlink(missing_ok=True)
        self._fetch()
        repositories = [*submodules(git), git]
        ours = {one.path: self._ours(one) for one in repositories}
        for one in repositories:
            if commits := edits.own_commits(one, ours[one.path]):
                edits.keep_or_refuse(one, commits, force=self.options.force)
        stashes = [stash for one in repositories if (stash := edits.put_aside(one))]
        head = self._restored() or self._rebuilt(stashes)
        remove_left(ours, git)
        kept = [
            stash.git.path
            for stash in stashes
            if not edits.drop_if_ours(stash, [*ours[stash.git.path], *self._ours(stash.git)])
        ]
        state = {"request": _request(locked, self.options), "head": head}
        files.write_json(git.path / ".git" / _STATE, state)
        return SourceTree(path=git.path, commit=locked.commit, head=head, changed=True, stashed=tuple(kept))

    def _prepare(self) -> None:
        """Make the repository, or settle what an interrupted git left in it."""
        git, folder = self.git, self.git.path / ".git"
        if folder.is_file():
            raise SourceError(
                f"{git.path} is a worktree or submodule of another repository.", hint="Name another folder."
            )
        if git.path.exists() and not folder.exists() and any(git.path.iterdir()):
            raise SourceError(
                f"{git.path} holds files but is not a git repository.",
                hint="Name another folder, or move what it holds.",
            )
        _remove_stale_locks(folder)
        git.init(self.options.origins.address(self.locked.origin))

    def _fetch(self) -> None:
        git, commit, depth = self.git, self.locked.commit, self.options.depth
        shallow = git.out("rev-parse", "--is-shallow-repository") == "true"
        if git.commit_of(commit) and not (depth == 0 and shallow):
            return
        origin = self.locked.origin
        console.echo(f"Fetching {origin} at {commit[:12]}")
        how = [f"--depth={depth}"] if depth else ["--unshallow"] if shallow else []
        words = (origin, "--no-recurse-submodules")
        if git.fetch(*words, "--no-tags", *how, "origin", commit):
            return
        # the server gives no single commits, or lacks this one
        git.fetch(*words, "--tags", "origin", "+refs/heads/*:refs/remotes/origin/*")
        if not git.commit_of(commit):
            raise SourceError(
                f"{origin} does not have {commit} any more; it was {self.locked.ref!r} when it was locked.",
                hint="Run `nox -s resolve` again for a new source lock.",
            )

    def _ours(self, git: Repository) -> list[str]:
        """Commits that a checkout of ours put into a repository of the tree."""
        top = git.path == self.git.path
        names = [UPSTREAM_TAG, HIPIFY_TAG, UPSTREAM_REF, *([self.locked.commit] if top else [])]
        found = [commit for name in names if (commit := git.commit_of(name))]
        return found if top else [*found, *_named_by_parent(git)]

    def _restored(self) -> str:
        """Go back to a hipify commit that is whole; nothing where there is none."""
        git, commit = self.git, self.locked.commit
        hipified = git.commit_of(HIPIFY_TAG) if self.options.hipify else ""
        if not hipified or {git.commit_of(f"{hipified}^"), git.commit_of(UPSTREAM_TAG)} != {commit}:
            return ""
        git.run("checkout", "--quiet", "--force", "--detach", hipified)
        try:
            if self.options.submodules:
                update_submodules(git, depth=self.options.depth)
        except SourceError:
            # a submodule was cloned again, and its hipify commit is nowhere else
            return ""
        return hipified

    def _rebuilt(self, stashes: list[Stash]) -> str:
        """Check out the upstream commit, tag it, and hipify."""
        git, commit = self.git, self.locked.commit
        # said before HEAD moves, so that an interrupted checkout is known as ours
        git.run("update-ref", UPSTREAM_REF, commit)
        git.run("checkout", "--quiet", "--force", "--detach", commit)
        if self.options.submodules:
            update_submodules(git, depth=self.options.depth)
        # a half clone has no commit to stash on: files that are not upstream's are found now
        if leftover := edits.put_aside(git):
            stashes.append(leftover)
        repositories = [*submodules(git), git]
        for one in repositories:
            one.run("tag", "--force", "--no-sign", UPSTREAM_TAG, "HEAD")
            if one.commit_of(HIPIFY_TAG):
                one.run("tag", "--delete", HIPIFY_TAG)
        if not (self.options.hipify and edits.can_hipify(git.path)):
            return commit
        before = {one.path: set(edits.all_untracked(one)) for one in repositories}
        edits.hipify(git.path)
        date = git.out("show", "--no-patch", "--format=%cI", commit)
        return edits.commit_hipified(git, date, before) or commit


def _named_by_parent(git: Repository) -> list[str]:
    """Commits of a submodule that its parent names, in its HEAD and in its index."""
    top = git.run("rev-parse", "--show-superproject-working-tree", check=False).stdout.strip()
    if not top:
        return []
    parent = replace(git, path=Path(top))
    path = git.path.resolve().relative_to(Path(top).resolve()).as_posix()
    said = (
        parent.run("rev-parse", "--verify", "--quiet", f"{where}:{path}", check=False)
        for where in ("HEAD", "")
    )
    return [one.stdout.strip() for one in said if one.returncode == 0]


def _remove_stale_locks(folder: Path) -> None:
    """Remove lock files of a git that was killed; one that is at work is given a moment."""
    names = ("index.lock", "HEAD.lock", "shallow.lock", "config.lock", "packed-refs.lock")
    roots = [folder, *(path.parent for path in (folder / "modules").rglob("HEAD"))]
    locks = [*(root / name for root in roots for name in names), *(folder / "refs").rglob("*.lock")]
    deadline = time.monotonic() + 2.0
    while (stale := [path for path in locks if path.exists()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for path in stale:
        console.say(f"Removing {path}, which an interrupted git left")
        path.unlink(missing_ok=True)
