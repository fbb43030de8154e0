"""Managed source trees: a locked project becomes a tree that is tagged, hipified and repaired.

The contract of the field: the upstream commit is tagged ``THEROCK_UPSTREAM_DIFFBASE``, what
hipify changes is committed as ``DO NOT SUBMIT: HIPIFY`` and tagged ``THEROCK_HIPIFY_DIFFBASE``,
both in submodules too. A tree's files and the hipify commit depend on the lock alone.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, files
from core.errors import ProcessError, SourceError
from core.run import key_name
from pytorch_build.sources import edits, hipify
from pytorch_build.sources.edits import UPSTREAM_TAG
from pytorch_build.sources.git import Origins, Repository, git_reason, is_damaged
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
    """How a source tree is checked out: history, submodules, hipify, and what is done with edits.

    Attributes:
        depth: How many commits of history are fetched; 0 for all.
        submodules: Whether submodules are checked out, too.
        hipify: Whether CUDA sources are rewritten for HIP.
        force: Whether the user's commits are kept as a branch, where a checkout would stop at them.
        stash: Whether the user's edits are put into a stash, where a checkout would stop at them.
        origins: How origins are reached.
    """

    depth: int = 1
    submodules: bool = True
    hipify: bool = False
    force: bool = False
    stash: bool = False
    origins: Origins = field(default_factory=Origins)


@dataclass(frozen=True, kw_only=True)
class SourceTree:
    """A source tree that is checked out as the lock says.

    Attributes:
        path: Its folder.
        commit: The locked commit.
        head: What is checked out: that commit, or the one that hipify made of it.
        changed_by_checkout: Whether the checkout did anything.
        stashes: The names of the stashes that edits were put into, by the repositories' folders.
    """

    path: Path
    commit: str
    head: str
    changed_by_checkout: bool
    stashes: Mapping[Path, str] = field(default_factory=dict)


def tree_path(sources: Path, torch_ref: str, project: str) -> Path:
    """Return the path of a project's managed tree, in the folder of all source trees."""
    return sources / key_name(torch_ref) / project


def checkout(locked: LockedProject, tree: Path, options: CheckoutOptions) -> SourceTree:
    """Check a locked project out into a folder, tag and hipify it; do nothing where that is done already.

    What an interrupted run left is repaired. Ignored files, build folders among them, stay.

    Raises:
        SourceError: The tree has edits or commits of the user's, and the options do not say to keep them.
    """
    if locked.prebuilt:
        raise SourceError(
            f"{locked.project} is prebuilt ({locked.prebuilt}): there is nothing to check out.",
        )
    git = _repository(locked, tree, options)
    with _tree_lock(git.path):
        try:
            source_tree = _find_unchanged(git, locked, options)
            if source_tree is None:
                source_tree = _Checkout(git=git, locked=locked, options=options).perform()
        except ProcessError as problem:
            if not is_damaged(git):
                raise
            raise SourceError(
                f"{git.path} has lost files of its repository: {git_reason(problem)}",
                hint="Remove it, or move it away if it has edits of yours; then run again.",
            ) from problem
    return source_tree


def unchanged_tree(locked: LockedProject, tree: Path, options: CheckoutOptions) -> SourceTree | None:
    """Return a tree that is checked out as the lock says; None where `checkout` has something to do."""
    if not tree.is_dir():
        return None
    git = _repository(locked, tree, options)
    with _tree_lock(git.path):
        return _find_unchanged(git, locked, options)


def _repository(locked: LockedProject, tree: Path, options: CheckoutOptions) -> Repository:
    """Return the git repository of a tree, with the settings that reach the project's origin."""
    return Repository(
        path=tree.absolute(),
        settings=options.origins.settings(locked.origin),
    )


def upstream_commit(tree: Path) -> str:
    """Return the commit that a managed tree was checked out at, before hipify, by its tag."""
    commit: str | None = None
    if (tree / ".git").exists():
        commit = Repository(path=tree).commit_of(UPSTREAM_TAG)
    if commit is None:
        raise SourceError(f"{tree} has no tag {UPSTREAM_TAG}.", hint="Run `nox -s checkout` first.")
    return commit


@contextmanager
def prepared_for_build(tree: Path) -> Iterator[None]:
    """Put a tree's HEAD at the upstream commit for the block, and let git ignore what a build leaves.

    What is untracked afterwards and was not before goes into ``.git/info/exclude``, in
    submodules too. While it lasts no checkout touches the tree, and HEAD names the upstream
    commit: upstream's build asks git for it (``torch.version.git_version``). A build that is
    killed leaves HEAD there, with the sources hipified; the next checkout sets it right.
    """
    git = Repository(path=tree)
    with _tree_lock(tree):
        repositories = [*submodules(git), git]
        untracked_before: dict[Path, set[str]] = {}
        for repository in repositories:
            untracked_before[repository.path] = set(repository.untracked_files())
        state = _read_state(git)
        _write_state(git, {**state, "head": None})
        upstream = upstream_commit(tree)
        git.run("update-ref", "--no-deref", "HEAD", upstream)
        try:
            yield
        finally:
            head = git.commit_of(HIPIFY_TAG) or upstream
            git.run("update-ref", "--no-deref", "HEAD", head)
            for repository in repositories:
                new_paths = set(repository.untracked_files()) - untracked_before[repository.path]
                _exclude_from_git(repository, sorted(new_paths))
            _write_state(git, state)


def _tree_lock(tree: Path) -> AbstractContextManager[None]:
    """Return the file lock that is held while a tree is changed."""
    lock = tree.parent / f".{tree.name}.lock"
    return files.locked(lock, what=str(tree))


def _exclude_from_git(git: Repository, paths: Sequence[str]) -> None:
    """Let git ignore these paths of a repository from now on (``info/exclude``)."""
    if not paths:
        return
    exclude_file = git.path / git.read_output("rev-parse", "--git-dir") / "info" / "exclude"
    text = ""
    if exclude_file.is_file():
        text = exclude_file.read_text(encoding="utf-8")
    for path in paths:
        pattern = re.sub(r"[*?\[\]\\!# ]", r"\\\g<0>", path)
        text += f"/{pattern}\n"
    files.write_text(exclude_file, text)


# --- The state of a tree ----------------------------------------------------------------------

# What was requested last, and the HEAD that the tree has since. While a checkout or a build is at work there,
# it has none, so that one which is killed is known by it.


def _read_state(git: Repository) -> dict[str, object]:
    """Return what the last checkout noted of a tree, its request and its HEAD; empty if it noted nothing."""
    state_file = git.path / ".git" / _STATE
    try:
        state = json.loads(state_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _write_state(git: Repository, state: Mapping[str, object]) -> None:
    """Note a tree's request and HEAD in its .git folder."""
    state_file = git.path / ".git" / _STATE
    files.write_json(state_file, state)


def _describe_request(locked: LockedProject, options: CheckoutOptions) -> dict[str, object]:
    """Return what a checkout is asked for, as a tree's state has it."""
    return {
        "origin": locked.origin,
        "commit": locked.commit,
        "submodules": options.submodules,
        "hipify": options.hipify,
        "full": options.depth == 0,
    }


def _find_unchanged(
    git: Repository,
    locked: LockedProject,
    options: CheckoutOptions,
) -> SourceTree | None:
    """Return the tree of a finished checkout for the same request if nothing has changed since; else None."""
    state = _read_state(git)
    head = state.get("head")
    request = _describe_request(locked, options)
    if not isinstance(head, str) or state.get("request") != request:
        return None
    index_lock = git.path / ".git" / "index.lock"
    if index_lock.exists():
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
    return SourceTree(
        path=git.path,
        commit=locked.commit,
        head=head,
        changed_by_checkout=False,
    )


# --- A checkout -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Checkout:
    """One checkout of a locked project into a repository, which has something to do."""

    git: Repository
    locked: LockedProject
    options: CheckoutOptions

    def perform(self) -> SourceTree:
        """Fetch the commit, keep or refuse the user's edits and commits, and check out; return the tree."""
        git = self.git
        was_interrupted = self._prepare_repository()
        self._fetch()
        repositories = [*submodules(git), git]
        stashes = self._stash_or_refuse_edits(repositories, was_interrupted=was_interrupted)
        # The user's commits are kept as branches where that was requested, and refused otherwise.
        for repository in repositories:
            commits = edits.commits_of_user(repository, self._tool_commits(repository))
            if commits:
                edits.keep_or_refuse_commits(repository, commits, force=self.options.force)

        request = _describe_request(self.locked, self.options)
        _write_state(git, {"request": request, "head": None})
        head = self._restore_hipified() or self._check_out_anew()
        former_folders = [repository.path for repository in repositories]
        remove_former_submodules(former_folders, git)
        _write_state(git, {"request": request, "head": head})
        return SourceTree(
            path=git.path,
            commit=self.locked.commit,
            head=head,
            changed_by_checkout=True,
            stashes=stashes,
        )

    def _prepare_repository(self) -> bool:
        """Make the repository where it is missing; return whether an earlier checkout was interrupted."""
        git = self.git
        folder = git.path / ".git"
        if folder.is_file():
            raise SourceError(
                f"{git.path} is a worktree or submodule of another repository.",
                hint="Name another folder.",
            )

        state = _read_state(git)
        was_interrupted = "head" in state and state["head"] is None
        has_commit = folder.exists() and git.commit_of("HEAD") is not None
        has_files = git.path.exists() and any(path.name != ".git" for path in git.path.iterdir())
        if has_files and not has_commit and not was_interrupted:
            raise SourceError(
                f"{git.path} holds files but is not a git repository with a commit.",
                hint="Name another folder, or move what it holds.",
            )

        _remove_stale_locks(folder)
        git.init(self.options.origins.address(self.locked.origin))
        if git.commit_of("HEAD") is None:
            _write_state(git, {"head": None})
            return True
        return was_interrupted

    def _fetch(self) -> None:
        """Fetch the locked commit with as many commits of history as the options say; all refs if refused."""
        git = self.git
        commit = self.locked.commit
        depth = self.options.depth
        is_shallow = git.read_output("rev-parse", "--is-shallow-repository") == "true"
        lacks_history = depth == 0 and is_shallow
        has_commit = git.commit_of(commit) is not None
        if has_commit and not lacks_history:
            return

        origin = self.locked.origin
        console.echo(f"Fetching {origin} at {commit[:12]}")
        options = ["--no-recurse-submodules", "--no-tags"]
        if depth:
            options.append(f"--depth={depth}")
        elif is_shallow:
            options.append("--unshallow")
        if git.fetch(origin, *options, "origin", commit):
            return

        # The server gives no single commits, or lacks this one.
        every_branch = "+refs/heads/*:refs/remotes/origin/*"
        git.fetch(origin, "--no-recurse-submodules", "--tags", "origin", every_branch)
        if git.commit_of(commit) is None:
            raise SourceError(
                f"{origin} does not have {commit} any more; it was {self.locked.ref!r} when it was locked.",
                hint="Run `nox -s resolve` again for a new source lock.",
            )

    def _stash_or_refuse_edits(
        self,
        repositories: Sequence[Repository],
        *,
        was_interrupted: bool,
    ) -> Mapping[Path, str]:
        """Stash the user's edits if that was requested, else fail; return stashes' names by folder."""
        stashes: dict[Path, str] = {}
        for repository in repositories:
            edits.unhide_files(repository)
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

    def _tool_commits(self, git: Repository) -> Sequence[str]:
        """Return the commits of a repository that checkouts made or fetched, and not the user."""
        is_submodule = git.path != self.git.path
        names = [UPSTREAM_TAG, HIPIFY_TAG, UPSTREAM_REF]
        if not is_submodule:
            names.append(self.locked.commit)

        commits: list[str] = []
        for name in names:
            commit = git.commit_of(name)
            if commit is not None:
                commits.append(commit)
        if is_submodule:
            commits += _commits_named_by_parent(git)
        return commits

    def _restore_hipified(self) -> str | None:
        """Check out an earlier hipify commit of the locked commit, and return it; None without one."""
        git = self.git
        if not self.options.hipify:
            return None
        hipified = git.commit_of(HIPIFY_TAG)
        if hipified is None:
            return None
        bases = {git.commit_of(f"{hipified}^"), git.commit_of(UPSTREAM_TAG)}
        if bases != {self.locked.commit}:
            return None

        try:
            self._move_head(hipified)
        except SourceError:
            # A submodule was cloned again, and its hipify commit is nowhere else.
            return None
        return hipified

    def _move_head(self, commit: str) -> None:
        """Check out a commit, and the submodules at the commits that it names."""
        self.git.run("checkout", "--quiet", "--force", "--detach", commit)
        if self.options.submodules:
            update_submodules(self.git, depth=self.options.depth)

    def _check_out_anew(self) -> str:
        """Check out the upstream commit, tag and hipify it; return the commit that HEAD is at then."""
        git = self.git
        commit = self.locked.commit
        # Written before HEAD moves, so that an interrupted checkout is known as ours.
        git.run("update-ref", UPSTREAM_REF, commit)
        self._move_head(commit)
        # A half clone has had no commit to compare with: files that are not upstream's are known now.
        edits.put_interrupted_work_aside(git)

        repositories = [*submodules(git), git]
        for repository in repositories:
            repository.run("tag", "--force", "--no-sign", UPSTREAM_TAG, "HEAD")
            old_hipified = repository.commit_of(HIPIFY_TAG)
            if old_hipified is not None:
                repository.run("tag", "--delete", HIPIFY_TAG)
        if not self.options.hipify or not hipify.can_hipify(git.path):
            return commit

        untracked_before: dict[Path, set[str]] = {}
        for repository in repositories:
            untracked_before[repository.path] = set(hipify.all_untracked_files(repository))
        hipify.hipify(git.path)
        date = git.read_output("show", "--no-patch", "--format=%cI", commit)
        hipified = hipify.commit_hipified(git, date, untracked_before)
        if hipified is None:
            return commit
        return hipified


def _commits_named_by_parent(git: Repository) -> Sequence[str]:
    """Return the commits that a submodule's parent names for it, in its HEAD and in its index."""
    query = git.run("rev-parse", "--show-superproject-working-tree", check=False)
    top = query.stdout.strip()
    if not top:
        return ()

    parent = replace(git, path=Path(top))
    submodule_folder = git.path.resolve()
    path = submodule_folder.relative_to(parent.path.resolve()).as_posix()
    commits: list[str] = []
    for name in (f"HEAD:{path}", f":{path}"):
        query = parent.run("rev-parse", "--verify", "--quiet", name, check=False)
        if query.returncode == 0:
            commits.append(query.stdout.strip())
    return commits


def _remove_stale_locks(folder: Path) -> None:
    """Remove lock files of a git that was killed, after giving one that runs a moment to end."""
    modules = folder / "modules"
    refs = folder / "refs"
    locks = list(refs.rglob("*.lock"))
    submodule_folders = [head.parent for head in modules.rglob("HEAD")]
    for repository in (folder, *submodule_folders):
        locks += [repository / name for name in _LOCK_NAMES]

    deadline = time.monotonic() + _LOCK_SECONDS
    while time.monotonic() < deadline:
        if not any(map(Path.exists, locks)):
            return
        time.sleep(0.1)
    for lock in filter(Path.exists, locks):
        console.say(f"Removing {lock}, which an interrupted git left")
        lock.unlink(missing_ok=True)
