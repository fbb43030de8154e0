"""Submodules of a tree: listed in Python, fetched by git in parallel, repaired where a clone broke off."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from core import console
from core.errors import ProcessError, SourceError
from pytorch_build.sources.git import TRANSFER_SECONDS, last_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pytorch_build.sources.git import Repository


def submodules(git: Repository) -> Iterator[Repository]:
    """Give a tree's checked-out submodules at every depth, inner ones before their parents."""
    for _, folder in listed(git):
        if (folder / ".git").exists():
            inner = replace(git, path=folder)
            yield from submodules(inner)
            yield inner


def direct(git: Repository) -> Iterator[Repository]:
    """Give a tree's own checked-out submodules, not theirs."""
    for _, folder in listed(git):
        if (folder / ".git").exists():
            yield replace(git, path=folder)


def listed(git: Repository) -> list[tuple[str, Path]]:
    """Read ``.gitmodules``: each submodule's name and folder."""
    if not (git.path / ".gitmodules").is_file():
        return []
    said = git.run("config", "--file", ".gitmodules", "--null", "--get-regexp", r"\.path$", check=False)
    rows = (row.split("\n", 1) for row in said.stdout.split("\0") if "\n" in row)
    found = [(key.removeprefix("submodule.").removesuffix(".path"), git.path / path) for key, path in rows]
    for _, folder in found:
        if not folder.resolve().is_relative_to(git.path.resolve()):
            raise SourceError(f"{git.path}: .gitmodules names a folder outside the tree, {folder}.")
    return found


def update(git: Repository, *, depth: int, jobs: int) -> None:
    """Check out every submodule at the commit that its parent names."""
    if not listed(git):
        return
    words = ("submodule", "update", "--init", "--recursive", "--force", f"--jobs={jobs}")
    console.say(f"Fetching the submodules of {git.path}")
    shallow = [f"--depth={depth}"] if depth else []
    try:
        _synced(git)
        git.run(*words, *shallow, timeout=TRANSFER_SECONDS)
    except ProcessError:
        # a clone that broke off is cloned again, and a server that gives no single
        # commits is asked for the whole history
        _remove_broken(git)
        try:
            _synced(git)
            git.run(*words, timeout=TRANSFER_SECONDS)
        except ProcessError as problem:
            raise SourceError(
                f"The submodules of {git.path} could not be fetched: {last_words(problem)}",
                hint="Check the network and your access, or name a mirror (--git-mirror); then run again.",
            ) from problem


def _synced(git: Repository) -> None:
    """Take origins over from ``.gitmodules``: they may be others than at the last checkout."""
    if (git.path / ".git" / "modules").is_dir():
        git.run("submodule", "--quiet", "sync", "--recursive")


def remove_left(before: Iterable[Path], git: Repository) -> None:
    """Remove folders of submodules that the tree no longer has; git itself leaves them behind.

    Their repositories stay in the tree's own, so that a stash in one is not lost.
    """
    now = {one.path for one in submodules(git)}
    for folder in before:
        if folder not in now and (folder / ".git").is_file():
            shutil.rmtree(folder)


def _remove_broken(git: Repository) -> None:
    modules = git.path / git.out("rev-parse", "--git-dir") / "modules"
    for name, folder in listed(git):
        inner = replace(git, path=folder)
        marker = folder / ".git"
        broken = marker.exists() and not inner.commit_of("HEAD")
        unborn = not marker.exists() and (modules / name).exists()
        if broken or unborn:
            git.run("submodule", "deinit", "--force", "--", folder, check=False)
            shutil.rmtree(modules / name, ignore_errors=True)
        elif marker.exists():
            _remove_broken(inner)
