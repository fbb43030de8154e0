"""The tree that a build works in: managed by us at the lock's commit, or a developer's own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import files
from core.data import read_text
from core.errors import FatalError, origin
from pytorch_build.components import COMPONENTS
from pytorch_build.lock import versions
from pytorch_build.lock.stored import origins
from pytorch_build.sources import checkout as sources
from pytorch_build.sources import hipify
from pytorch_build.sources.copies import TreeCopy

if TYPE_CHECKING:
    from pytorch_build.build.request import BuildOptions
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import LockedProject, SourceLock
    from pytorch_build.sources.snapshots import Snapshot

# What torch's setup.py requires of a tree without .gitmodules (`get_submodule_folders`).
_TORCH_SUBMODULES = ("gloo", "cpuinfo", "onnx", "fbgemm", "cutlass")
_SUBMODULE_PATH = re.compile(r"(?m)^\s*path\s*=\s*(.+?)\s*$")


@dataclass(frozen=True, kw_only=True)
class ManagedTree:
    """A tree at ``src/{ref}/{project}``, as the source lock says."""

    locked: LockedProject
    version: str
    path: Path
    options: sources.CheckoutOptions

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The locked commit, and what is done to it."""
        return {"origin": self.locked.origin, "commit": self.locked.commit, "hipify": self.options.hipify}

    @contextmanager
    def checked_out(self) -> Iterator[Path]:
        """Check out what does not exist yet, and build in it one at a time."""
        with _build_lock(self.path):
            sources.checkout(self.locked, self.path, self.options)
            with sources.building(self.path):
                yield self.path


@dataclass(frozen=True, kw_only=True)
class DevelopersTree:
    """A tree that a developer named: built from a copy of ours that follows it, never changed."""

    copy: TreeCopy
    snapshot: Snapshot
    version: str
    hipify: bool

    @property
    def path(self) -> Path:
        """The folder that is built in."""
        return self.copy.path

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Its commit, the digest of its edits, and how many files they are in."""
        return {
            "tree": str(self.copy.source),
            "commit": self.snapshot.commit,
            "diff": self.snapshot.digest or "",
            "edited": self.snapshot.edited,
            "hipify": self.hipify,
        }

    @contextmanager
    def checked_out(self) -> Iterator[Path]:
        """Bring the copy up to date, and build in it one at a time."""
        with _build_lock(self.path):
            self.copy.require_unchanged(self.snapshot)
            self.copy.update(self.snapshot)
            if self.hipify and hipify.can_hipify(self.path):
                hipify.hipify(self.path)
            try:
                yield self.path
            except FatalError as problem:
                self._name_developers_files(problem)
                raise

    def _name_developers_files(self, problem: FatalError) -> None:
        """Name the developer's files in an error in the place of their copies, which are not to be edited."""
        first_problem = origin(problem)
        if first_problem is None or first_problem.cause is None:
            return
        cause = first_problem.cause
        around = tuple(self._with_developers_files(line) for line in cause.around)
        message = self._with_developers_files(cause.message)
        first_problem.cause = cause.model_copy(update={"around": around, "message": message})

    def _with_developers_files(self, line: str) -> str:
        def developers_file(match: re.Match[str]) -> str:
            path = self.copy.source / match[1]
            # What a build made is nowhere else.
            return str(path) if path.exists() else match[0]

        copied_file = re.escape(f"{self.path}{os.sep}") + r"([^\s:'\"(),;]+)"
        return re.sub(copied_file, developers_file, line)


Tree = ManagedTree | DevelopersTree  # what is built from


@contextmanager
def _build_lock(tree: Path) -> Iterator[None]:
    with files.locked(tree.parent / f".{tree.name}.build.lock", what=str(tree)):
        yield


def checkout_options(
    context: Context, choices_depth: int, mirrors: Mapping[str, str], project: str
) -> sources.CheckoutOptions:
    """Return how a ref's project is checked out."""
    return sources.CheckoutOptions(
        depth=choices_depth,
        hipify=context.ref.projects[project].hipify,
        force=context.common.force,
        origins=origins(context.common, context.ref, mirrors),
    )


def place(context: Context, project: str, own: Path | None = None) -> Path:
    """Return where a project is built: its managed tree, or the one copy of a developer's for all refs."""
    if own is None:
        return sources.tree_path(context.common.sources, context.ref.name, project)
    return context.common.sources / ".own" / f"{project}-{files.sha256_text(str(own))[:12]}"


def tree_copy(context: Context, project: str, tree: Path) -> TreeCopy:
    """Return the copy in which a developer's tree is built."""
    path = place(context, project, tree).absolute()
    return TreeCopy(source=tree.absolute(), path=path, cache=context.common.cache / "snapshots" / path.name)


def managed_tree(context: Context, options: BuildOptions, lock: SourceLock, project: str) -> ManagedTree:
    """Return the managed tree of a project."""
    return ManagedTree(
        locked=lock.project(project),
        version=lock.version(project, gpu=context.gpu),
        path=place(context, project),
        options=checkout_options(context, options.depth, options.mirrors, project),
    )


def developers_tree(
    context: Context, tree: Path, project: str, *, rocm_version: str, lock: Callable[[], SourceLock]
) -> DevelopersTree:
    """Return a developer's tree as it is now, with a version of its own.

    The version is the tree's base version, or the lock's where it names none, with the run's suffix and the
    digest of its edits.
    """
    copy = tree_copy(context, project, tree)
    snapshot = copy.snapshot()
    base_version = base_version_of(tree, project) or lock().project(project).base_version
    suffix = (
        versions.version_suffix(rocm_version) if context.gpu else versions.cpu_suffix(context.ref.local_label)
    )
    if snapshot.digest is not None:
        suffix = versions.edited(suffix, files.sha256_text(f"{snapshot.commit} {snapshot.digest}"))

    return DevelopersTree(
        copy=copy,
        snapshot=snapshot,
        version=versions.wheel_version(
            base_version,
            suffix,
            release_type=context.common.release_type,
            commit=snapshot.commit,
            tagged=_adds_commit(tree, project),
        ),
        hipify=context.gpu and context.ref.projects[project].hipify,
    )


def _adds_commit(tree: Path, project: str) -> bool:
    """Return whether a project's own build adds the commit to its version, as triton's does."""
    setup_files = [tree / name for name in COMPONENTS[project].version_rule.setup_files]
    return any(versions.adds_commit(read_text(path)) for path in setup_files if path.is_file())


def lacks(tree: Path, project: str, env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Find what a developer's tree lacks to be built, before anything is copied; each with a hint."""
    if not (tree / ".git").exists():
        return  # what that is, is said by whoever opens it
    if not any((tree / name).is_file() for name in ("setup.py", "pyproject.toml", "python/setup.py")):
        hint = "Give the folder of a git checkout of the project."
        yield f"{tree} has neither setup.py nor pyproject.toml: there is nothing to build.", hint
    component = COMPONENTS[project]
    name = component.distribution
    if not any((tree / folder / name).is_dir() for folder in ("", "src", "python")):
        hint = f"It is given to {component.tree_option}; each project has an option of its own."
        yield f"{tree} holds no package {name}, so it is no tree of {project}.", hint
    try:
        base_version_of(tree, project)
    except FatalError as problem:
        yield problem.message, problem.hint

    # As torch's setup.py looks, which has them fetched where they are missing: into the copy.
    if component.requires_submodules and not env.get("USE_SYSTEM_LIBS"):
        missing = list(_missing_submodules(tree, tree))
        if missing:
            yield (
                f"Submodules of {tree} are not initialised: {', '.join(missing)}.",
                f"Run: git -C {tree} submodule update --init --recursive",
            )


def _missing_submodules(tree: Path, folder: Path) -> Iterator[str]:
    """Yield the paths of submodules in a tree that have no files, those of submodules included."""
    gitmodules = folder / ".gitmodules"
    if gitmodules.is_file():
        paths = _SUBMODULE_PATH.findall(read_text(gitmodules))
    elif folder == tree and _requires_submodules(tree):
        paths = [f"third_party/{name}" for name in _TORCH_SUBMODULES]
    else:
        return

    for path in paths:
        submodule = folder / path
        if not submodule.is_dir() or not any(submodule.iterdir()):
            yield submodule.relative_to(tree).as_posix()
        else:
            yield from _missing_submodules(tree, submodule)


def _requires_submodules(tree: Path) -> bool:
    """Return whether torch's setup.py will not go on without its submodules; the sample's has none."""
    setup = tree / "setup.py"
    return setup.is_file() and "def get_submodule_folders" in read_text(setup)


def base_version_of(tree: Path, project: str) -> str:
    """Read the version that a tree names, in ``version.txt`` or triton's package; "" where it names none."""
    version_file = tree / versions.VERSION_FILE
    rule = COMPONENTS[project].version_rule
    if rule.requires_version_file or version_file.is_file():
        return versions.parse_version(read_text(version_file), str(version_file))

    for name in rule.modules:
        module = tree / name
        if module.is_file():
            version = versions.module_version(read_text(module), str(module))
            if version:
                return version
    return ""
