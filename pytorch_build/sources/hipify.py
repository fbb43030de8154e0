"""Upstream's own rewriting of CUDA sources to HIP: ``tools/amd_build/build_amd.py``."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from core import console, process
from core.errors import ProcessError, SourceError
from pytorch_build.sources import edits, submodules

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytorch_build.sources.git import Repository

SCRIPT = "tools/amd_build/build_amd.py"


def can_hipify(tree: Path) -> bool:
    """Say whether a tree brings the script; of upstream's projects only torch does."""
    return (tree / SCRIPT).is_file()


def hipify(tree: Path, python: Path) -> None:
    """Rewrite a tree's sources in place, its submodules' included.

    The same sources give the same result on every machine: an installed HIP, which the
    script would look at, and the user's Python settings are kept from it.
    """
    env = process.inherited(
        HIP_PATH=str(tree / "tools" / "amd_build" / "no-hip"),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONUTF8="1",
        PYTHONHASHSEED="0",
        PYTHONPATH=None,
        PYTHONHOME=None,
        PYTHONSAFEPATH=None,
    )
    console.say(f"Rewriting the CUDA sources of {tree} for HIP")
    try:
        process.capture([python, SCRIPT], cwd=tree, env=env)
    except ProcessError as problem:
        raise SourceError(
            f"hipify failed in {tree}: {problem.message}",
            hint=f"Run `{python} {SCRIPT}` there to see the whole output.",
        ) from problem


def commit_hipified(git: Repository, date: str, before: Mapping[Path, set[str]]) -> str:
    """Commit and tag what hipify changed, submodules first; a clean repository gets neither.

    The commit of a submodule is recorded in its parent's, so that the whole tree is clean.
    """
    inner = {one.path: commit_hipified(one, date, before) for one in submodules.direct(git)}
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
    message = ("--no-verify", "--no-gpg-sign", "--message", edits.HIPIFY_SUBJECT)
    git.run("commit", "--quiet", *message, env=edits.identity(date))
    git.run("tag", "--force", "--no-sign", edits.HIPIFY_TAG, "HEAD")
    return git.commit_of("HEAD")


def all_untracked(git: Repository) -> tuple[str, ...]:
    """List untracked files, those that only the user's own settings ignore included."""
    return replace(git, settings=(*git.settings, f"core.excludesFile={os.devnull}")).untracked()
