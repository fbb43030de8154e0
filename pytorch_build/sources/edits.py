"""What the user did in a tree that is ours: never thrown away, never built by accident.

Uncommitted edits go to a named stash before a tree is reset; commits stop the stage, or are
kept as a branch. What an interrupted run of our own left is told from them by content.
"""

import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from core import console, process
from core.errors import ProcessError, SourceError
from pytorch_build.sources.git import Repository, direct_submodules

UPSTREAM_TAG = "THEROCK_UPSTREAM_DIFFBASE"
HIPIFY_TAG = "THEROCK_HIPIFY_DIFFBASE"
AUTHOR = "pytorch-build"
EMAIL = "pytorch-build@localhost"
SCRIPT = "tools/amd_build/build_amd.py"
_SHOWN = 3
_NOTHING = "0" * 40


@dataclass(frozen=True, kw_only=True)
class Stash:
    """Edits that were put aside in one repository."""

    git: Repository
    commit: str
    head: str


def identity(date: str) -> Mapping[str, str]:
    """Return the environment of a commit of ours: who, and when (any date that git reads)."""
    facts = {"NAME": AUTHOR, "EMAIL": EMAIL, "DATE": date}
    return {f"GIT_{who}_{what}": fact for who in ("AUTHOR", "COMMITTER") for what, fact in facts.items()}


def is_clean(git: Repository, *, submodules: bool = False) -> bool:
    """Return whether a repository has no edits and no untracked files.

    A repository of the user's own inside the tree is nothing that git would stash, so it
    is not an edit either.
    """
    ignored = "none" if submodules else "all"
    words = ("status", "--porcelain", "-z", "--untracked-files=all", f"--ignore-submodules={ignored}")
    # with all untracked files listed, no other folder is
    return all(entry.startswith("?? ") and entry.endswith("/") for entry in git.names(*words))


def own_commits(git: Repository, ours: Iterable[str]) -> tuple[str, ...]:
    """List the user's commits on HEAD that nothing else holds: ``hash subject``, newest first."""
    if not git.commit_of("HEAD"):
        return ()
    known = [commit for commit in ours if commit and git.commit_of(commit)]
    log = git.out("log", "--format=%h%x09%ae%x09%s", "HEAD", "--not", *known, "--remotes", "--tags")
    rows = [line.split("\t", 2) for line in log.splitlines()]
    return tuple(f"{short} {subject}" for short, email, subject in rows if email != EMAIL)


def keep_or_refuse(git: Repository, commits: tuple[str, ...], *, force: bool) -> None:
    """Keep the user's commits as a branch if `force` is given; stop otherwise."""
    branch = f"pytorch-build-kept-{git.commit_of('HEAD')[:8]}"
    if not force:
        listed = "".join(f"\n  {commit}" for commit in commits[:_SHOWN])
        more = f"\n  and {len(commits) - _SHOWN} more" if len(commits) > _SHOWN else ""
        raise SourceError(
            f"{git.path} has commits of your own, which a checkout would leave behind:{listed}{more}",
            hint=f"--force checks out and keeps them as branch {branch}. To build them, give the tree "
            "as your own (--pytorch-dir and its siblings).",
        )
    git.run("branch", "--force", branch, "HEAD")
    console.warn(f"{git.path}: your own commits are kept as branch {branch}.")


def put_aside(git: Repository) -> Stash | None:
    """Put uncommitted edits and untracked files into a named stash; nothing where there are none."""
    head = git.commit_of("HEAD")
    if not head or is_clean(git):
        return None
    found = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    words = ["stash", "push", "--quiet", "--include-untracked", "--message"]
    message = f"pytorch-build: edits found on {found} UTC at {head[:12]}"
    others = [f":(exclude,top,literal){path}" for path in git.untracked() if path.endswith("/")]
    paths = ["--", ":/", *others] if others else []
    env = identity(f"{found} +0000")
    try:
        git.run(*words, message, *paths, env=env)
    except ProcessError:
        # an interrupted merge has entries that a stash takes only when they are settled
        git.run("add", "--all")
        git.run(*words, message, *paths, env=env)
    return Stash(git=git, commit=git.commit_of("refs/stash"), head=head)


def drop_if_ours(stash: Stash, ours: Iterable[str]) -> bool:
    """Drop a stash that holds nothing but what a checkout or hipify of ours had written.

    An interrupted run leaves files as they are in one of the commits `ours`, or the first
    part of such a file. What differs from all of them is the user's, and the stash stays.
    """
    git = stash.git
    trees = [_tree(git, commit) for commit in (stash.head, *ours)]
    if not all(_came_from(git, trees, path, blob) for path, blob in _contents(stash).items()):
        console.warn(
            f"{git.path}: edits were put into a stash. `git stash list` there names it, "
            "`git stash pop` brings them back."
        )
        return False
    if git.commit_of("refs/stash") == stash.commit:
        git.run("stash", "drop", "--quiet")
    return True


def _contents(stash: Stash) -> Mapping[str, str]:
    """What a stash changes: path -> blob, all zeros for a deleted file."""
    raw = stash.git.names("diff-tree", "-r", "-z", "--no-renames", f"{stash.commit}^1", stash.commit)
    changed = {path: entry.split()[3] for entry, path in zip(raw[::2], raw[1::2], strict=True)}
    if stash.git.commit_of(f"{stash.commit}^3"):
        changed |= _tree(stash.git, f"{stash.commit}^3")
    return changed


def _tree(git: Repository, commit: str) -> Mapping[str, str]:
    entries = (entry.split("\t", 1) for entry in git.names("ls-tree", "-r", "-z", "--full-tree", commit))
    return {path: fields.split()[2] for fields, path in entries}


def _came_from(git: Repository, trees: list[Mapping[str, str]], path: str, blob: str) -> bool:
    candidates = {tree.get(path, _NOTHING) for tree in trees}
    if blob in candidates or blob == _NOTHING:
        return blob in candidates
    text = git.run("cat-file", "blob", blob).stdout
    originals = (git.run("cat-file", "blob", one).stdout for one in candidates if one != _NOTHING)
    return any(original.startswith(text) for original in originals)


def can_hipify(tree: Path) -> bool:
    """Return whether a tree brings the script; of upstream's projects only torch does."""
    return (tree / SCRIPT).is_file()


def hipify(tree: Path) -> None:
    """Rewrite a tree's sources in place, its submodules' included.

    The same sources give the same result on every machine: an installed HIP, which the
    script would look at, and the user's Python settings are kept from it.
    """
    env = process.handed_on(
        HIP_PATH=str(tree / "tools" / "amd_build" / "no-hip"),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONUTF8="1",
        PYTHONHASHSEED="0",
    )
    console.echo(f"Rewriting the CUDA sources of {tree} for HIP")
    try:
        process.capture([sys.executable, SCRIPT], cwd=tree, env=env)
    except ProcessError as problem:
        raise SourceError(
            f"hipify failed in {tree}: {problem.message}",
            hint=f"Run `{sys.executable} {SCRIPT}` there to see the whole output.",
        ) from problem


def commit_hipified(git: Repository, date: str, before: Mapping[Path, set[str]]) -> str:
    """Commit and tag what hipify changed, submodules first; a clean repository gets neither.

    The commit of a submodule is recorded in its parent's, so that the whole tree is clean.
    """
    inner = {one.path: commit_hipified(one, date, before) for one in direct_submodules(git)}
    git.run("add", "--update", "--", ":/")
    made = set(all_untracked(git)) - before.get(git.path, set())
    if made:
        names = "".join(f"{path}\0" for path in sorted(made))
        git.run("add", "--force", "--pathspec-from-file=-", "--pathspec-file-nul", stdin=names)
    for folder, commit in inner.items():
        if commit:
            path = folder.relative_to(git.path).as_posix()
            git.run("update-index", "--cacheinfo", f"160000,{commit},{path}")
    if git.run("diff", "--cached", "--quiet", "--ignore-submodules=none", check=False).returncode == 0:
        return ""
    message = ("--no-verify", "--no-gpg-sign", "--message", "DO NOT SUBMIT: HIPIFY")
    git.run("commit", "--quiet", *message, env=identity(date))
    git.run("tag", "--force", "--no-sign", HIPIFY_TAG, "HEAD")
    return git.commit_of("HEAD")


def all_untracked(git: Repository) -> tuple[str, ...]:
    """List untracked files, those that only the user's own settings ignore included."""
    return replace(git, settings=(*git.settings, f"core.excludesFile={os.devnull}")).untracked()
