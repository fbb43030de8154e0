"""The tree that a build works in: managed by us at the lock's commit, or a developer's own."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from core import files
from core.data import read_text
from core.errors import SourceError
from pytorch_build.lock import pins, versions
from pytorch_build.lock.stored import origins
from pytorch_build.sources import checkout as sources
from pytorch_build.sources import hipify
from pytorch_build.sources.checkout import CheckoutOptions, tree_path
from pytorch_build.sources.own_tree import mirror

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from core.cli.options import Common
    from pytorch_build.build.build import BuildChoices
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import LockedProject, SourceLock
    from pytorch_build.sources.own_tree import OwnTree


class Tree(Protocol):
    """A source tree to build from."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What a record says of it."""
        ...

    @property
    def version(self) -> str:
        """The full version of the wheel to come."""
        ...

    def checked_out(self) -> AbstractContextManager[Path]:
        """Make it ready, and hold it while it is built in."""
        ...


@dataclass(frozen=True, kw_only=True)
class ManagedTree:
    """A tree at ``src/{ref}/{project}``, as the source lock says."""

    locked: LockedProject
    version: str
    path: Path
    options: CheckoutOptions

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The locked commit, and what is done to it."""
        return {"origin": self.locked.origin, "commit": self.locked.commit, "hipify": self.options.hipify}

    @contextmanager
    def checked_out(self) -> Iterator[Path]:
        """Check out what is not there yet, and build in it one at a time."""
        with files.locked(self.path.parent / f".{self.path.name}.build.lock", what=str(self.path)):
            sources.checkout(self.locked, self.path, self.options)
            with sources.building(self.path):
                yield self.path


@dataclass(frozen=True, kw_only=True)
class DevelopersTree:
    """A tree that a developer named: built from a copy of ours that follows it, never changed."""

    project: str
    own: OwnTree
    version: str
    hipify: bool

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Its commit and the digest of its edits."""
        return {
            "tree": str(self.own.source),
            "commit": self.own.commit,
            "diff": self.own.diff_digest,
            "hipify": self.hipify,
        }

    @contextmanager
    def checked_out(self) -> Iterator[Path]:
        """Bring the copy up to date, and build in it one at a time."""
        path = self.own.path
        with files.locked(path.parent / f".{path.name}.build.lock", what=str(path)):
            copy = mirror(self.own.source, path)
            if copy.diff_digest != self.own.diff_digest or copy.commit != self.own.commit:
                raise SourceError(
                    f"{self.own.source} was changed while its build began.", hint="Run the same again."
                )
            if self.hipify and hipify.can_hipify(path):
                hipify.hipify(path, Path(sys.executable))
            yield path


def checkout_options(
    context: Context, choices_depth: int, mirrors: Mapping[str, str], project: str
) -> CheckoutOptions:
    """Say how a ref's project is checked out."""
    return CheckoutOptions(
        depth=choices_depth,
        hipify=context.ref.projects[project].hipify,
        force=context.common.force,
        origins=origins(context.common, context.ref, mirrors),
    )


def managed_tree(context: Context, choices: BuildChoices, lock: SourceLock, project: str) -> ManagedTree:
    """Find the managed tree of a project."""
    common = context.common
    return ManagedTree(
        locked=lock.project(project),
        version=lock.version(project, gpu=context.gpu),
        path=tree_path(common.sources, context.ref.name, project),
        options=checkout_options(context, choices.depth, choices.mirrors, project),
    )


def developers_tree(
    context: Context, tree: Path, project: str, *, rocm_version: str, base_version: str
) -> DevelopersTree:
    """Take a developer's own tree: its base version with the run's suffix."""
    common = context.common
    own = mirror(tree, own_path(common, tree, project))
    version = own_version(
        context, base_version, rocm_version=rocm_version, commit=own.commit, tagged=tags_itself(tree, project)
    )
    source = context.ref.projects.get(project)
    return DevelopersTree(
        project=project,
        own=own,
        version=version,
        hipify=context.gpu and source is not None and source.hipify,
    )


def own_path(common: Common, tree: Path, project: str) -> Path:
    """Say where the copy of a developer's tree lies: one a tree and project, whatever ref it is built for."""
    return common.sources / ".own" / f"{project}-{files.sha256_text(str(tree))[:12]}"


def tags_itself(tree: Path, project: str) -> bool:
    """Say whether the build of a developer's tree adds the commit to the version, as triton's does."""
    setups = (tree / name for name in pins.SETUP_FILES)
    return project == "triton" and any(pins.adds_commit(read_text(one)) for one in setups if one.is_file())


def own_version(context: Context, base_version: str, *, rocm_version: str, commit: str, tagged: bool) -> str:
    """Return the full version of a wheel from a developer's tree at a commit."""
    suffix = versions.cpu_suffix(context.ref.local_label)
    if context.gpu:
        suffix = versions.version_suffix(rocm_version)
    return versions.wheel_version(
        base_version, suffix, release_type=context.common.release_type, commit=commit, tagged=tagged
    )


def base_version_of(tree: Path) -> str:
    """Read a tree's ``version.txt``; "" where it has none, as triton's."""
    if not tree.is_dir():
        raise SourceError(f"{tree} is not there.", hint="Give the folder of a git checkout of the project.")
    path = tree / pins.VERSION_FILE
    return pins.parse_version(read_text(path), str(path)) if path.is_file() else ""
