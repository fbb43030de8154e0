"""Hipify: CUDA sources become HIP's, by the script that torch's tree brings, and are committed as ours."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from core import console, process
from core.errors import ProcessError, SourceError
from pytorch_build.sources.git import Repository
from pytorch_build.sources.submodules import direct_submodules

HIPIFY_TAG = "THEROCK_HIPIFY_DIFFBASE"
AUTHOR = "pytorch-build"
EMAIL = "pytorch-build@localhost"
SCRIPT = "tools/amd_build/build_amd.py"


def commit_identity(date: str) -> Mapping[str, str]:
    """Return the git variables that set author, committer and date of a commit of ours."""
    return {
        "GIT_AUTHOR_NAME": AUTHOR,
        "GIT_AUTHOR_EMAIL": EMAIL,
        "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_NAME": AUTHOR,
        "GIT_COMMITTER_EMAIL": EMAIL,
        "GIT_COMMITTER_DATE": date,
    }


def can_hipify(tree: Path) -> bool:
    """Return whether a tree has the script that rewrites CUDA sources, as only torch's has."""
    return (tree / SCRIPT).is_file()


def hipify(tree: Path) -> None:
    """Rewrite the CUDA sources of a tree and its submodules for HIP, in place, by torch's script.

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
        process.capture(
            [sys.executable, SCRIPT],
            cwd=tree,
            env=env,
        )
    except ProcessError as problem:
        raise SourceError(
            f"hipify failed in {tree}: {problem.message}",
            hint=f"Run `{sys.executable} {SCRIPT}` there to see the whole output.",
        ) from problem


def commit_hipified(
    git: Repository,
    date: str,
    untracked_before: Mapping[Path, set[str]],
) -> str | None:
    """Commit and tag what hipify changed, submodules first; return the commit, None where nothing changed.

    The commit of a submodule is recorded in its parent's, so that the whole tree is clean.

    Args:
        git: The repository.
        date: The date of the commit.
        untracked_before: The files that each repository did not track before, by its folder.
    """
    inner_commits: dict[Path, str] = {}
    for inner in direct_submodules(git):
        inner_commit = commit_hipified(inner, date, untracked_before)
        if inner_commit is not None:
            inner_commits[inner.path] = inner_commit

    git.run("add", "--update", "--", ":/")
    new_paths = set(all_untracked_files(git))
    new_paths -= untracked_before.get(git.path, set())
    if new_paths:
        names = "".join(f"{path}\0" for path in sorted(new_paths))
        git.run(
            "add",
            "--force",
            "--pathspec-from-file=-",
            "--pathspec-file-nul",
            stdin=names,
        )
    for folder, inner_commit in inner_commits.items():
        path = folder.relative_to(git.path).as_posix()
        git.run("update-index", "--cacheinfo", f"160000,{inner_commit},{path}")

    difference = git.run(
        "diff",
        "--cached",
        "--quiet",
        "--ignore-submodules=none",
        check=False,
    )
    if difference.returncode == 0:
        return None
    git.run(
        "commit",
        "--quiet",
        "--no-verify",
        "--no-gpg-sign",
        "--message",
        "DO NOT SUBMIT: HIPIFY",
        env=commit_identity(date),
    )
    git.run("tag", "--force", "--no-sign", HIPIFY_TAG, "HEAD")
    return git.read_output("rev-parse", "HEAD")


def all_untracked_files(git: Repository) -> tuple[str, ...]:
    """Return the paths of untracked files, those that only the user's settings ignore included."""
    settings = (*git.settings, f"core.excludesFile={os.devnull}")
    return replace(git, settings=settings).untracked_files()
