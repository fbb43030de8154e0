"""Managed source trees: a locked project becomes a tree that is tagged, hipified and repaired.

The contract of the field: the upstream commit is tagged ``THEROCK_UPSTREAM_DIFFBASE``, what
hipify changes is committed as ``DO NOT SUBMIT: HIPIFY`` and tagged ``THEROCK_HIPIFY_DIFFBASE``,
both in submodules too. A tree's files and the hipify commit depend on the lock alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, files
from core.errors import SourceError
from core.run import key_name
from pytorch_build.sources import edits, hipify
from pytorch_build.sources.edits import UPSTREAM_TAG
from pytorch_build.sources.git import Origins, Repository
from pytorch_build.sources.hipify import HIPIFY_TAG
from pytorch_build.sources.submodules import remove_former_submodules, submodules, update_submodules

if TYPE_CHECKING:
    from pytorch_build.lock.source_lock import LockedProject

UPSTREAM_REF = "refs/pytorch-build/upstream"
_STATE = "pytorch-build.json"
_LOCK_NAMES = ("index.lock", "HEAD.lock", "shallow.lock", "config.lock", "packed-refs.lock")
_LOCK_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class CheckoutOptions:
    """How trees are checked out."""

    depth: int = 1
    submodules: bool = True
    hipify: bool = False
    force: bool = False  # the user's commits are kept as a branch
    stash: bool = False  # the user's edits are put into a stash
    origins: Origins = field(default_factory=Origins)


@dataclass(frozen=True, kw_only=True)
class SourceTree:
    """A tree that is as the lock says."""

    path: Path
    commit: str
    head: str
    changed: bool
    stashes: Mapping[Path, str] = field(default_factory=dict)  # repository with edits -> name of the stash


def tree_path(sources: Path, torch_ref: str, project: str) -> Path:
    """Return where a project's managed tree lies below the folder of source trees."""
    return sources / key_name(torch_ref) / project


def checkout(locked: LockedProject, tree: Path, options: CheckoutOptions) -> SourceTree:
    """Make a tree what the lock says; do nothing if it is that already.

    What an interrupted run left is repaired. Ignored files, build folders among them, stay.

    Raises:
        SourceError: The tree has edits or commits of the user's, and the options do not say to keep them.
    """
    if locked.prebuilt:
        raise SourceError(f"{locked.project} is prebuilt ({locked.prebuilt}): there is nothing to check out.")
    tree = tree.absolute()
    git = Repository(path=tree, settings=options.origins.settings(locked.origin))
    with _locked(tree):
        source_tree = _unchanged(git, locked, options)
        if source_tree is not None:
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
        untracked_before = {repository.path: set(repository.untracked()) for repository in repositories}
        state = _read_state(git)
        _write_state(git, {**state, "head": None})
        git.run("update-ref", "--no-deref", "HEAD", upstream_commit(tree))
        try:
            yield
        finally:
            git.run("update-ref", "--no-deref", "HEAD", git.commit_of(HIPIFY_TAG) or upstream_commit(tree))
            for repository in repositories:
                new_paths = set(repository.untracked()) - untracked_before[repository.path]
                _exclude(repository, sorted(new_paths))
            _write_state(git, state)


def _locked(tree: Path) -> AbstractContextManager[None]:
    return files.locked(tree.parent / f".{tree.name}.lock", what=str(tree))


def _exclude(git: Repository, paths: Sequence[str]) -> None:
    """Let git ignore files of a repository from now on."""
    if not paths:
        return
    target = git.path / git.out("rev-parse", "--git-dir") / "info" / "exclude"
    text = target.read_text(encoding="utf-8") if target.is_file() else ""
    for path in paths:
        pattern = "".join(f"\\{character}" if character in "*?[]\\!# " else character for character in path)
        text += f"/{pattern}\n"
    files.write_text(target, text)


# The state of a tree: what was requested last, and the HEAD that it has since. While a checkout or a build is
# at work there, it has none, so that one which is killed is known by it.


def _read_state(git: Repository) -> dict[str, object]:
    """Return the state of a tree; an empty one where there is none, or half a one."""
    try:
        state = json.loads((git.path / ".git" / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _write_state(git: Repository, state: Mapping[str, object]) -> None:
    files.write_json(git.path / ".git" / _STATE, state)


def _request(locked: LockedProject, options: CheckoutOptions) -> dict[str, object]:
    return {
        "origin": locked.origin,
        "commit": locked.commit,
        "submodules": options.submodules,
        "hipify": options.hipify,
        "full": options.depth == 0,
    }


def _unchanged(git: Repository, locked: LockedProject, options: CheckoutOptions) -> SourceTree | None:
    """Recognise a finished checkout of the same request with nothing changed since, in three git calls."""
    state = _read_state(git)
    head = state.get("head")
    if not isinstance(head, str) or state.get("request") != _request(locked, options):
        return None
    if (git.path / ".git" / "index.lock").exists():
        return None

    expected_commits = {"HEAD": head, UPSTREAM_TAG: locked.commit}
    if head != locked.commit:
        expected_commits[HIPIFY_TAG] = head
    names = [f"{name}^{{commit}}" for name in expected_commits]
    commits = git.run("rev-parse", *names, check=False).stdout.split()
    if commits != list(expected_commits.values()):
        return None
    if edits.has_hidden_files(git) or not edits.is_clean(git, submodules=True):
        return None
    return SourceTree(path=git.path, commit=locked.commit, head=head, changed=False)


@dataclass(frozen=True, kw_only=True)
class _Checkout:
    """One checkout that has something to do."""

    git: Repository
    locked: LockedProject
    options: CheckoutOptions

    def perform(self) -> SourceTree:
        git = self.git
        was_interrupted = self._prepare()
        self._fetch()
        repositories = [*submodules(git), git]
        stashes = self._settle_edits(repositories, was_interrupted=was_interrupted)
        self._settle_commits(repositories)

        request = _request(self.locked, self.options)
        _write_state(git, {"request": request, "head": None})
        head = self._restore() or self._rebuild()
        remove_former_submodules([repository.path for repository in repositories], git)
        _write_state(git, {"request": request, "head": head})
        return SourceTree(path=git.path, commit=self.locked.commit, head=head, changed=True, stashes=stashes)

    def _prepare(self) -> bool:
        """Make the repository, or settle what an interrupted git left in it; return whether one did."""
        git = self.git
        folder = git.path / ".git"
        if folder.is_file():
            raise SourceError(
                f"{git.path} is a worktree or submodule of another repository.", hint="Name another folder."
            )
        state = _read_state(git)
        was_interrupted = "head" in state and state["head"] is None
        has_files = git.path.exists() and any(path.name != ".git" for path in git.path.iterdir())
        if has_files and not was_interrupted and not (folder.exists() and git.commit_of("HEAD")):
            raise SourceError(
                f"{git.path} holds files but is not a git repository with a commit.",
                hint="Name another folder, or move what it holds.",
            )
        _remove_stale_locks(folder)
        git.init(self.options.origins.address(self.locked.origin))
        if not git.commit_of("HEAD"):
            _write_state(git, {"head": None})
            return True
        return was_interrupted

    def _fetch(self) -> None:
        git = self.git
        commit = self.locked.commit
        depth = self.options.depth
        is_shallow = git.out("rev-parse", "--is-shallow-repository") == "true"
        if git.commit_of(commit) and not (depth == 0 and is_shallow):
            return

        origin = self.locked.origin
        console.echo(f"Fetching {origin} at {commit[:12]}")
        words = [origin, "--no-recurse-submodules"]
        depth_words: list[str] = []
        if depth:
            depth_words = [f"--depth={depth}"]
        elif is_shallow:
            depth_words = ["--unshallow"]
        if git.fetch(*words, "--no-tags", *depth_words, "origin", commit):
            return
        # The server gives no single commits, or lacks this one.
        git.fetch(*words, "--tags", "origin", "+refs/heads/*:refs/remotes/origin/*")
        if not git.commit_of(commit):
            raise SourceError(
                f"{origin} does not have {commit} any more; it was {self.locked.ref!r} when it was locked.",
                hint="Run `nox -s resolve` again for a new source lock.",
            )

    def _settle_edits(
        self, repositories: Sequence[Repository], *, was_interrupted: bool
    ) -> Mapping[Path, str]:
        """Put the user's edits into stashes where that was requested, and stop at them otherwise."""
        stashes: dict[Path, str] = {}
        for repository in repositories:
            edits.show_hidden_files(repository)
            if was_interrupted:
                edits.put_interrupted_work_aside(repository)
                continue
            paths = edits.edited_paths(repository)
            if not paths:
                continue
            if not self.options.stash:
                edits.refuse_edits(repository, paths)
            stashes[repository.path] = edits.stash_edits(repository)
        return stashes

    def _settle_commits(self, repositories: Sequence[Repository]) -> None:
        for repository in repositories:
            commits = edits.own_commits(repository, self._commits_of_ours(repository))
            if commits:
                edits.keep_or_refuse_commits(repository, commits, force=self.options.force)

    def _commits_of_ours(self, git: Repository) -> Sequence[str]:
        """List the commits that a checkout of ours put into a repository of the tree."""
        names = [UPSTREAM_TAG, HIPIFY_TAG, UPSTREAM_REF]
        if git.path == self.git.path:
            names.append(self.locked.commit)
        commits = [commit for name in names if (commit := git.commit_of(name))]
        if git.path != self.git.path:
            commits += _named_by_parent(git)
        return commits

    def _restore(self) -> str | None:
        """Go back to a hipify commit that is whole; return it, or None where there is none."""
        git = self.git
        commit = self.locked.commit
        hipified = git.commit_of(HIPIFY_TAG) if self.options.hipify else ""
        if not hipified or {git.commit_of(f"{hipified}^"), git.commit_of(UPSTREAM_TAG)} != {commit}:
            return None
        git.run("checkout", "--quiet", "--force", "--detach", hipified)
        try:
            if self.options.submodules:
                update_submodules(git, depth=self.options.depth)
        except SourceError:
            # A submodule was cloned again, and its hipify commit is nowhere else.
            return None
        return hipified

    def _rebuild(self) -> str:
        """Check out the upstream commit, tag it, and hipify; return HEAD."""
        git = self.git
        commit = self.locked.commit
        # Written before HEAD moves, so that an interrupted checkout is known as ours.
        git.run("update-ref", UPSTREAM_REF, commit)
        git.run("checkout", "--quiet", "--force", "--detach", commit)
        if self.options.submodules:
            update_submodules(git, depth=self.options.depth)
        # A half clone has had no commit to compare with: files that are not upstream's are known now.
        edits.put_interrupted_work_aside(git)

        repositories = [*submodules(git), git]
        for repository in repositories:
            repository.run("tag", "--force", "--no-sign", UPSTREAM_TAG, "HEAD")
            if repository.commit_of(HIPIFY_TAG):
                repository.run("tag", "--delete", HIPIFY_TAG)
        if not (self.options.hipify and hipify.can_hipify(git.path)):
            return commit

        untracked_before = {
            repository.path: set(hipify.all_untracked(repository)) for repository in repositories
        }
        hipify.hipify(git.path)
        date = git.out("show", "--no-patch", "--format=%cI", commit)
        return hipify.commit_hipified(git, date, untracked_before) or commit


def _named_by_parent(git: Repository) -> Sequence[str]:
    """Return the commits of a submodule that its parent names, in its HEAD and in its index."""
    answer = git.run("rev-parse", "--show-superproject-working-tree", check=False)
    top = answer.stdout.strip()
    if not top:
        return ()

    parent = replace(git, path=Path(top))
    path = git.path.resolve().relative_to(Path(top).resolve()).as_posix()
    commits: list[str] = []
    for revision in ("HEAD", ""):
        answer = parent.run("rev-parse", "--verify", "--quiet", f"{revision}:{path}", check=False)
        if answer.returncode == 0:
            commits.append(answer.stdout.strip())
    return commits


def _remove_stale_locks(folder: Path) -> None:
    """Remove lock files of a git that was killed; one that is at work is given a moment."""
    repositories = [folder, *(path.parent for path in (folder / "modules").rglob("HEAD"))]
    locks = [repository / name for repository in repositories for name in _LOCK_NAMES]
    locks += (folder / "refs").rglob("*.lock")

    deadline = time.monotonic() + _LOCK_SECONDS
    while any(lock.exists() for lock in locks) and time.monotonic() < deadline:
        time.sleep(0.1)
    for lock in locks:
        if lock.exists():
            console.say(f"Removing {lock}, which an interrupted git left")
            lock.unlink(missing_ok=True)
