"""The submodules of managed trees: listed, checked out at the commits that parents name, and removed."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from core import console, files, temporary
from core.errors import ProcessError, SourceError
from pytorch_build.sources.git import TRANSFER_SECONDS, Repository, git_reason, reach_hint

# What git says where a tree names what is nowhere, so that neither network nor access are to blame.
_MISNAMED = re.compile(
    r"not our ref|did not contain|no submodule mapping|No url found|Unable to find current revision"
)
_MISNAMED_HINT = (
    "The commit that is checked out names a submodule that its repository or .gitmodules lacks. "
    "Correct the ref or the pin, and run `nox -s resolve` again."
)


def submodules(git: Repository) -> Iterator[Repository]:
    """Yield the checked-out submodules of a tree at every depth, inner ones before their parents."""
    for inner in direct_submodules(git):
        yield from submodules(inner)
        yield inner


def direct_submodules(git: Repository) -> Iterator[Repository]:
    """Yield the checked-out submodules of a tree itself, not those of submodules."""
    for folder in submodule_folders(git).values():
        if (folder / ".git").exists():
            yield replace(git, path=folder)


def submodule_folders(git: Repository) -> Mapping[str, Path]:
    """Return the folders of the submodules in a tree's ``.gitmodules``, by their names."""
    if not (git.path / ".gitmodules").is_file():
        return {}
    config = git.run(
        "config",
        "--file",
        ".gitmodules",
        "--null",
        "--get-regexp",
        r"\.path$",
        check=False,
    )

    folders: dict[str, Path] = {}
    for row in config.stdout.split("\0"):
        key, line_end, path = row.partition("\n")
        if not line_end:
            continue
        folder = git.path / path
        if not folder.resolve().is_relative_to(git.path.resolve()):
            raise SourceError(f"{git.path}: .gitmodules names a folder outside the tree, {folder}.")
        folders[key.removeprefix("submodule.").removesuffix(".path")] = folder
    return folders


def update_submodules(git: Repository, *, depth: int) -> None:
    """Check out every submodule, at every depth, at the commit that its parent names."""
    if not submodule_folders(git):
        return
    console.echo(f"Fetching the submodules of {git.path}")
    depth_options = [f"--depth={depth}"] if depth else []
    try:
        _run_submodule_update(git, *depth_options)
    except ProcessError:
        # A clone that broke off is cloned again, and a server that gives no single commits is asked for
        # the whole history.
        _remove_broken_clones(git)
        try:
            _run_submodule_update(git)
        except ProcessError as problem:
            raise SourceError(
                f"The submodules of {git.path} could not be fetched: {git_reason(problem)}",
                hint=_MISNAMED_HINT if _MISNAMED.search(problem.output) else reach_hint(problem),
            ) from problem


def _run_submodule_update(git: Repository, *options: str) -> None:
    """Run ``git submodule update``, recursively, with origins as .gitmodules has them now."""
    # Origins are taken over from .gitmodules: they may be others than at the last checkout.
    if (git.path / ".git" / "modules").is_dir():
        git.run("submodule", "--quiet", "sync", "--recursive")
    git.run(
        "submodule",
        "update",
        "--init",
        "--recursive",
        "--force",
        "--jobs=8",
        *options,
        timeout=TRANSFER_SECONDS,
    )


def remove_former_submodules(folders: Iterable[Path], git: Repository) -> None:
    """Remove those of the folders that are submodules no longer; git leaves them behind.

    Their repositories stay in the tree's own, so that a stash in one is not lost.
    """
    current_folders = {submodule.path for submodule in submodules(git)}
    for folder in folders:
        if folder not in current_folders and (folder / ".git").is_file():
            files.remove_folder(folder)


def _remove_broken_clones(git: Repository) -> None:
    """Remove clones of submodules without a commit or without a folder, so that they are cloned anew."""
    modules = git.path / git.read_output("rev-parse", "--git-dir") / "modules"
    for name, folder in submodule_folders(git).items():
        clone = modules / name
        inner = replace(git, path=folder)
        is_checked_out = (folder / ".git").exists()
        if is_checked_out and inner.commit_of("HEAD") is not None:
            _remove_broken_clones(inner)
        elif is_checked_out or clone.exists():
            git.run("submodule", "deinit", "--force", "--", folder, check=False)
            temporary.remove_tree(clone)
