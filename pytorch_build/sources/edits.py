"""What the user did in a tree that is ours: never thrown away, never built by accident.

Edits and commits stop a checkout, unless the user asks to keep them: edits in a named stash, commits as a
branch.
"""

import time
from collections.abc import Iterable, Sequence

from core import console
from core.errors import ProcessError, SourceError
from pytorch_build.sources.git import Repository
from pytorch_build.sources.hipify import EMAIL, commit_identity

UPSTREAM_TAG = "THEROCK_UPSTREAM_DIFFBASE"
# Holds what an interrupted checkout or build left behind, until another one is interrupted.
INTERRUPTED_REF = "refs/pytorch-build/interrupted"

_MOST_LINES = 3  # of edits or commits in an error


# --- Edits ------------------------------------------------------------------------------------


def edited_paths(git: Repository, *, submodules: bool = False) -> Sequence[str]:
    """Return the paths of a repository's edited and untracked files.

    A repository of the user's own inside the tree is nothing that git would stash, so it
    is not an edit either.
    """
    ignored_changes = "none" if submodules else "all"
    rows = git.read_fields(
        "status",
        "--porcelain",
        "--no-renames",
        "-z",
        "--untracked-files=all",
        f"--ignore-submodules={ignored_changes}",
    )
    paths: list[str] = []
    for row in rows:
        state = row[:2]
        path = row[3:]
        # With all untracked files listed, no other folder is.
        is_repository = state == "??" and path.endswith("/")
        if not is_repository:
            paths.append(path)
    return paths


def is_clean(git: Repository, *, submodules: bool = False) -> bool:
    """Return whether a repository has no edits and no untracked files."""
    return not edited_paths(git, submodules=submodules)


def has_hidden_files(git: Repository) -> bool:
    """Return whether files are marked assume-unchanged or skip-worktree, so that git overlooks edits."""
    return any(map(_is_hidden, git.read_fields("ls-files", "-v", "-z", "--recurse-submodules")))


def unhide_files(git: Repository) -> None:
    """Clear the marks assume-unchanged and skip-worktree of all files, so that git sees every edit."""
    hidden_rows = list(filter(_is_hidden, git.read_fields("ls-files", "-v", "-z")))
    if not hidden_rows:
        return
    names = "".join(f"{row[2:]}\0" for row in hidden_rows)
    for flag in ("--no-assume-unchanged", "--no-skip-worktree"):
        git.run("update-index", flag, "-z", "--stdin", stdin=names)


def _is_hidden(row: str) -> bool:
    """Return whether a row of ``ls-files -v`` has the mark assume-unchanged or skip-worktree."""
    # A small letter is a file that is assumed to be unchanged, S one that git skips.
    tag = row[0]
    return tag.islower() or tag == "S"


def refuse_edits(git: Repository, paths: Sequence[str]) -> None:
    """Raise the error for a repository whose edits a checkout would overwrite."""
    raise SourceError(
        f"{git.path} has edits of your own, which a checkout would overwrite:{_list_first(paths)}",
        hint="`nox -s checkout -- --stash` puts them into a named git stash. To build them, give the tree "
        "as your own (--pytorch-dir and its siblings).",
    )


def stash_edits(git: Repository) -> str:
    """Put a repository's edits and untracked files into a git stash, and return its name."""
    head = git.read_output("rev-parse", "HEAD")
    time_text = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    name = f"pytorch-build: edits found on {time_text} UTC at {head[:12]}"

    command = ["stash", "push", "--quiet", "--include-untracked", "--message", name]
    # git would not stash repositories of the user's own, which are listed as folders.
    inner_repositories = [path for path in git.untracked_files() if path.endswith("/")]
    if inner_repositories:
        exclusions = [f":(exclude,top,literal){path}" for path in inner_repositories]
        command += ["--", ":/", *exclusions]

    env = commit_identity(f"{time_text} +0000")
    try:
        git.run(*command, env=env)
    except ProcessError:
        # An interrupted merge has entries that a stash takes only when they are settled.
        git.run("add", "--all")
        git.run(*command, env=env)
    return name


def put_interrupted_work_aside(git: Repository) -> None:
    """Move what an interrupted checkout or build left in a repository to a git ref of our own.

    Files that the user edited meanwhile are among it, so it is not thrown away.
    """
    if git.commit_of("HEAD") is None or is_clean(git):
        return
    stash_edits(git)
    git.run("update-ref", INTERRUPTED_REF, "refs/stash")
    git.run("stash", "drop", "--quiet")
    console.say(
        f"{git.path}: an interrupted run left files, which are kept: `git stash apply {INTERRUPTED_REF}` "
        "there brings them back."
    )


# --- Commits ----------------------------------------------------------------------------------


def commits_of_user(git: Repository, tool_commits: Iterable[str]) -> Sequence[str]:
    """Return the user's commits on HEAD that no tag or remote branch has: ``hash subject``, newest first.

    `tool_commits` are those that a checkout made or fetched.
    """
    if git.commit_of("HEAD") is None:
        return ()
    existing_commits = [commit for commit in tool_commits if git.commit_of(commit) is not None]
    log = git.read_output(
        "log",
        "--format=%h%x09%ae%x09%s",
        "HEAD",
        "--not",
        *existing_commits,
        "--remotes",
        "--tags",
    )

    commits: list[str] = []
    for line in log.splitlines():
        short_hash, email, subject = line.split("\t", 2)
        if email != EMAIL:
            commits.append(f"{short_hash} {subject}")
    return commits


def keep_or_refuse_commits(
    git: Repository,
    commits: Sequence[str],
    *,
    force: bool,
) -> None:
    """Keep the user's commits as a branch if `force` is set, else fail."""
    head = git.read_output("rev-parse", "HEAD")
    branch = f"pytorch-build-kept-{head[:8]}"
    if not force:
        raise SourceError(
            f"{git.path} has commits of your own, which a checkout would leave behind:{_list_first(commits)}",
            hint=f"--force checks out and keeps them as branch {branch}. To build them, give the tree "
            "as your own (--pytorch-dir and its siblings).",
        )
    git.run("branch", "--force", branch, "HEAD")
    console.warn(f"{git.path}: your own commits are kept as branch {branch}.")


def _list_first(lines: Sequence[str]) -> str:
    """Return a text of the first lines of a list, and of how many more there are."""
    listed_lines = list(lines[:_MOST_LINES])
    remaining_count = len(lines) - len(listed_lines)
    if remaining_count:
        listed_lines.append(f"and {remaining_count} more")
    return "".join(f"\n  {line}" for line in listed_lines)
