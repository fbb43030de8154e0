"""What the user did in a tree that is ours: never thrown away, never built by accident.

Edits and commits stop a checkout, unless the user asks to keep them: edits in a named stash, commits as a
branch.
"""

import time
from collections.abc import Iterable, Sequence

from core import console
from core.errors import ProcessError, SourceError
from pytorch_build.sources.git import Repository
from pytorch_build.sources.hipify import EMAIL, identity

UPSTREAM_TAG = "THEROCK_UPSTREAM_DIFFBASE"
_SHOWN = 3
# Holds what an interrupted checkout or build left behind, until another one is interrupted.
INTERRUPTED_REF = "refs/pytorch-build/interrupted"


def edited_paths(git: Repository, *, submodules: bool = False) -> Sequence[str]:
    """Return the edited files of a repository and its untracked ones.

    A repository of the user's own inside the tree is nothing that git would stash, so it
    is not an edit either.
    """
    ignored = "none" if submodules else "all"
    words = ("status", "--porcelain", "--no-renames", "-z", "--untracked-files=all")
    rows = git.names(*words, f"--ignore-submodules={ignored}")
    # With all untracked files listed, no other folder is.
    return [row[3:] for row in rows if not (row.startswith("?? ") and row.endswith("/"))]


def is_clean(git: Repository, *, submodules: bool = False) -> bool:
    """Return whether a repository has no edits and no untracked files."""
    return not edited_paths(git, submodules=submodules)


def has_hidden_files(git: Repository) -> bool:
    """Return whether git is told not to look at files of a tree or its submodules."""
    # A small letter is a file that is assumed to be unchanged, S one that git skips.
    rows = git.names("ls-files", "-v", "-z", "--recurse-submodules")
    return any(row[0].islower() or row[0] == "S" for row in rows)


def show_hidden_files(git: Repository) -> None:
    """Let git look at every file of a repository: the bytes in the tree decide what is an edit."""
    rows = git.names("ls-files", "-v", "-z")
    hidden = "".join(f"{row[2:]}\0" for row in rows if row[0].islower() or row[0] == "S")
    if hidden:
        for flag in ("--no-assume-unchanged", "--no-skip-worktree"):
            git.run("update-index", flag, "-z", "--stdin", stdin=hidden)


def own_commits(git: Repository, ours: Iterable[str]) -> Sequence[str]:
    """List the user's commits on HEAD that nothing else holds: ``hash subject``, newest first."""
    if not git.commit_of("HEAD"):
        return ()
    known = [commit for commit in ours if commit and git.commit_of(commit)]
    log = git.out("log", "--format=%h%x09%ae%x09%s", "HEAD", "--not", *known, "--remotes", "--tags")
    commits: list[str] = []
    for line in log.splitlines():
        short_hash, email, subject = line.split("\t", 2)
        if email != EMAIL:
            commits.append(f"{short_hash} {subject}")
    return commits


def keep_or_refuse_commits(git: Repository, commits: Sequence[str], *, force: bool) -> None:
    """Keep the user's commits as a branch if `force` is given; stop otherwise."""
    branch = f"pytorch-build-kept-{git.commit_of('HEAD')[:8]}"
    if not force:
        raise SourceError(
            f"{git.path} has commits of your own, which a checkout would leave behind:{_listed(commits)}",
            hint=f"--force checks out and keeps them as branch {branch}. To build them, give the tree "
            "as your own (--pytorch-dir and its siblings).",
        )
    git.run("branch", "--force", branch, "HEAD")
    console.warn(f"{git.path}: your own commits are kept as branch {branch}.")


def refuse_edits(git: Repository, paths: Sequence[str]) -> None:
    """Stop at the user's edits."""
    raise SourceError(
        f"{git.path} has edits of your own, which a checkout would overwrite:{_listed(paths)}",
        hint="`nox -s checkout -- --stash` puts them into a named git stash. To build them, give the tree "
        "as your own (--pytorch-dir and its siblings).",
    )


def _listed(lines: Sequence[str]) -> str:
    text = "".join(f"\n  {line}" for line in lines[:_SHOWN])
    if len(lines) > _SHOWN:
        text += f"\n  and {len(lines) - _SHOWN} more"
    return text


def stash_edits(git: Repository) -> str:
    """Put uncommitted edits and untracked files into a stash; return its name."""
    head = git.commit_of("HEAD")
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    name = f"pytorch-build: edits found on {now} UTC at {head[:12]}"
    words = ["stash", "push", "--quiet", "--include-untracked", "--message", name]
    inner_repositories = [path for path in git.untracked() if path.endswith("/")]
    if inner_repositories:
        words += ["--", ":/", *(f":(exclude,top,literal){path}" for path in inner_repositories)]

    env = identity(f"{now} +0000")
    try:
        git.run(*words, env=env)
    except ProcessError:
        # An interrupted merge has entries that a stash takes only when they are settled.
        git.run("add", "--all")
        git.run(*words, env=env)
    return name


def put_interrupted_work_aside(git: Repository) -> None:
    """Take what an interrupted checkout or build left out of a repository, and keep it at a ref of ours.

    Files that the user edited meanwhile are among it, so it is not thrown away.
    """
    if not git.commit_of("HEAD") or is_clean(git):
        return
    stash_edits(git)
    git.run("update-ref", INTERRUPTED_REF, "refs/stash")
    git.run("stash", "drop", "--quiet")
    console.say(
        f"{git.path}: an interrupted run left files, which are kept: `git stash apply {INTERRUPTED_REF}` "
        "there brings them back."
    )
