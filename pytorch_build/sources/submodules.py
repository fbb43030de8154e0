"""The submodules of managed trees: listed, checked out at the commits that parents name, and removed."""

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core import console
from core.errors import ProcessError, SourceError
from pytorch_build.sources.git import TRANSFER_SECONDS, Repository, last_words

# What git says where a tree names what is nowhere, so that neither network nor access are to blame.
_MISNAMED = re.compile(
    r"not our ref|did not contain|no submodule mapping|No url found|Unable to find current revision"
)


@dataclass(frozen=True, kw_only=True)
class Submodule:
    """A row of ``.gitmodules``."""

    name: str
    folder: Path


def submodules(git: Repository) -> Iterator[Repository]:
    """Return a tree's checked-out submodules at every depth, inner ones before their parents."""
    for inner in direct_submodules(git):
        yield from submodules(inner)
        yield inner


def direct_submodules(git: Repository) -> Iterator[Repository]:
    """Return a tree's own checked-out submodules, not theirs."""
    for submodule in list_submodules(git):
        if (submodule.folder / ".git").exists():
            yield replace(git, path=submodule.folder)


def list_submodules(git: Repository) -> Sequence[Submodule]:
    """Read ``.gitmodules``."""
    if not (git.path / ".gitmodules").is_file():
        return ()
    words = ("config", "--file", ".gitmodules", "--null", "--get-regexp", r"\.path$")
    answer = git.run(*words, check=False)

    rows: list[Submodule] = []
    for row in answer.stdout.split("\0"):
        key, line_end, path = row.partition("\n")
        if not line_end:
            continue
        folder = git.path / path
        if not folder.resolve().is_relative_to(git.path.resolve()):
            raise SourceError(f"{git.path}: .gitmodules names a folder outside the tree, {folder}.")
        name = key.removeprefix("submodule.").removesuffix(".path")
        rows.append(Submodule(name=name, folder=folder))
    return rows


def update_submodules(git: Repository, *, depth: int) -> None:
    """Check out every submodule at the commit that its parent names."""
    if not list_submodules(git):
        return
    console.echo(f"Fetching the submodules of {git.path}")
    depth_words = [f"--depth={depth}"] if depth else []
    try:
        _update(git, *depth_words)
    except ProcessError:
        # A clone that broke off is cloned again, and a server that gives no single commits is asked for
        # the whole history.
        _remove_broken_clones(git)
        try:
            _update(git)
        except ProcessError as problem:
            raise SourceError(
                f"The submodules of {git.path} could not be fetched: {last_words(problem)}",
                hint=_hint_for(problem),
            ) from problem


def _update(git: Repository, *words: str) -> None:
    # Origins are taken over from .gitmodules: they may be others than at the last checkout.
    if (git.path / ".git" / "modules").is_dir():
        git.run("submodule", "--quiet", "sync", "--recursive")
    update = ("submodule", "update", "--init", "--recursive", "--force", "--jobs=8")
    git.run(*update, *words, timeout=TRANSFER_SECONDS)


def _hint_for(problem: ProcessError) -> str:
    if _MISNAMED.search(problem.output):
        return (
            "The commit that is checked out names a submodule that its repository or .gitmodules lacks. "
            "Correct the ref or the pin, and run `nox -s resolve` again."
        )
    return "Check the network and your access, or name a mirror (--git-mirror); then run again."


def remove_former_submodules(folders: Iterable[Path], git: Repository) -> None:
    """Remove folders of submodules that the tree no longer has; git itself leaves them behind.

    Their repositories stay in the tree's own, so that a stash in one is not lost.
    """
    current_folders = {submodule.path for submodule in submodules(git)}
    for folder in folders:
        if folder not in current_folders and (folder / ".git").is_file():
            shutil.rmtree(folder)


def _remove_broken_clones(git: Repository) -> None:
    modules = git.path / git.out("rev-parse", "--git-dir") / "modules"
    for submodule in list_submodules(git):
        folder = submodule.folder
        inner = replace(git, path=folder)
        has_marker = (folder / ".git").exists()
        is_broken = has_marker and not inner.commit_of("HEAD")
        is_unborn = not has_marker and (modules / submodule.name).exists()
        if is_broken or is_unborn:
            git.run("submodule", "deinit", "--force", "--", folder, check=False)
            shutil.rmtree(modules / submodule.name, ignore_errors=True)
        elif has_marker:
            _remove_broken_clones(inner)
