"""The tree that a build works in: managed by us at the lock's commit, or a developer's own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import files
from core.data import read_text
from core.errors import EnvironmentSetupError, FatalError, SourceError, error_with_cause
from pytorch_build.components import COMPONENTS
from pytorch_build.lock import versions
from pytorch_build.lock.stored import prepare_origins
from pytorch_build.sdk import find_rocm_version
from pytorch_build.sources import checkout as sources
from pytorch_build.sources import hipify
from pytorch_build.sources.copies import TreeCopy

if TYPE_CHECKING:
    from pytorch_build.build.request import BuildRequest
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import LockedProject
    from pytorch_build.sources.snapshots import Snapshot

# What torch's setup.py requires of a tree without .gitmodules (`get_submodule_folders`).
_TORCH_SUBMODULES = ("gloo", "cpuinfo", "onnx", "fbgemm", "cutlass")
_SUBMODULE_PATH = re.compile(r"(?m)^\s*path\s*=\s*(.+?)\s*$")


@dataclass(frozen=True, kw_only=True)
class ManagedTree:
    """The source tree of a project at the lock's commit, which this tool checks out to build it."""

    locked: LockedProject
    version: str
    path: Path
    options: sources.CheckoutOptions

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The repository, the commit and the use of hipify, as a build's record has them."""
        return {
            "origin": self.locked.origin,
            "commit": self.locked.commit,
            "hipify": self.options.hipify,
        }

    @contextmanager
    def checked_out(self) -> Iterator[Path]:
        """Check the tree out if it is not, and give its folder to one build at a time."""
        with _build_lock(self.path):
            sources.checkout(self.locked, self.path, self.options)
            with sources.prepared_for_build(self.path):
                yield self.path


@dataclass(frozen=True, kw_only=True)
class DevelopersTree:
    """A source tree that a developer named: a copy of it is built, and it is never changed."""

    copy: TreeCopy
    snapshot: Snapshot
    version: str
    hipify: bool

    @property
    def path(self) -> Path:
        """The folder of the copy, in which is built."""
        return self.copy.path

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The commit, the digest of edits and the number of edited files, as a build's record has them."""
        return {
            "tree": str(self.copy.source),
            "commit": self.snapshot.commit,
            "diff": self.snapshot.digest or "",
            "edited": self.snapshot.edited_count,
            "hipify": self.hipify,
        }

    @contextmanager
    def checked_out(self) -> Iterator[Path]:
        """Bring the copy up to date, and give its folder to one build at a time."""
        with _build_lock(self.path):
            if self.copy.snapshot() != self.snapshot:
                source = self.copy.source
                raise SourceError(f"{source} changed while its build began.", hint="Run it again.")
            self.copy.update(self.snapshot)
            if self.hipify and hipify.can_hipify(self.path):
                hipify.hipify(self.path)
            try:
                yield self.path
            except FatalError as problem:
                self._name_developers_files(problem)
                raise

    def _name_developers_files(self, problem: FatalError) -> None:
        """Replace paths in the copy by the developer's own files in an error's cause."""
        first_problem = error_with_cause(problem)
        if first_problem is None or first_problem.cause is None:
            return
        cause = first_problem.cause
        around = tuple(map(self._with_developers_files, cause.around))
        message = self._with_developers_files(cause.message)
        first_problem.cause = cause.model_copy(update={"around": around, "message": message})

    def _with_developers_files(self, line: str) -> str:
        """Return a line with paths in the copy replaced by those of the developer's files."""

        def developers_file(match: re.Match[str]) -> str:
            """Return the developer's file for a path in the copy; the path itself where there is none."""
            path = self.copy.source / match[1]
            # What a build made is nowhere else.
            return str(path) if path.exists() else match[0]

        folder = re.escape(f"{self.path}{os.sep}")
        copied_file = folder + r"([^\s:'\"(),;]+)"
        return re.sub(copied_file, developers_file, line)


Tree = ManagedTree | DevelopersTree  # what is built from


def _build_lock(tree: Path) -> AbstractContextManager[None]:
    """Return the file lock that is held while a tree is built in."""
    return files.locked(tree.parent / f".{tree.name}.build.lock", what=str(tree))


# --- Finding the tree of a build --------------------------------------------------------------


def checkout_options(
    context: Context,
    depth: int,
    mirrors: Mapping[str, str],
    project: str,
) -> sources.CheckoutOptions:
    """Return the options to check out a project of the context's torch ref with."""
    return sources.CheckoutOptions(
        depth=depth,
        hipify=context.ref.projects[project].hipify,
        force=context.common.force,
        origins=prepare_origins(context.common, context.ref, mirrors),
    )


def build_tree_path(context: Context, project: str, own_tree: Path | None = None) -> Path:
    """Return the folder in which a project is built: its managed tree, or a copy of the developer's."""
    folder = context.common.sources
    if own_tree is None:
        return sources.tree_path(folder, context.ref.name, project)
    tree_id = files.sha256_text(str(own_tree))[:12]
    return folder / ".own" / f"{project}-{tree_id}"


def tree_copy(context: Context, project: str, tree: Path) -> TreeCopy:
    """Return the copy of a developer's tree in which a project is built; nothing is copied yet."""
    path = build_tree_path(context, project, tree).absolute()
    cache = context.common.cache / "snapshots" / path.name
    return TreeCopy(
        source=tree.absolute(),
        path=path,
        cache=cache,
    )


def managed_tree(request: BuildRequest) -> ManagedTree:
    """Return the managed tree of a requested build, at the commit in the source lock."""
    context = request.context
    project = request.component.name
    return ManagedTree(
        locked=request.lock.project(project),
        version=request.lock.version(project, gpu=context.gpu),
        path=build_tree_path(context, project),
        options=checkout_options(context, request.depth, request.mirrors, project),
    )


def developers_tree(request: BuildRequest, tree: Path) -> DevelopersTree:
    """Take a snapshot of a developer's tree, and return the tree to build with the version of its wheel.

    The version is the tree's base version, or the lock's where it names none, with the run's suffix and the
    digest of its edits.
    """
    context = request.context
    project = request.component.name
    copy = tree_copy(context, project, tree)
    snapshot = copy.snapshot()
    base_version = base_version_of(tree, project)
    if base_version is None:
        base_version = request.lock.project(project).base_version

    if context.gpu:
        suffix = versions.version_suffix(find_rocm_version(context, request.rocm))
    else:
        suffix = versions.cpu_suffix(context.ref.local_label)
    if snapshot.digest is not None:
        digest = files.sha256_text(f"{snapshot.commit} {snapshot.digest}")
        suffix = versions.edited_suffix(suffix, digest)

    version = versions.wheel_version(
        base_version,
        suffix,
        release_type=context.common.release_type,
        commit=snapshot.commit,
        adds_commit=_adds_commit(tree, project),
    )
    does_hipify = context.gpu and context.ref.projects[project].hipify
    return DevelopersTree(
        copy=copy,
        snapshot=snapshot,
        version=version,
        hipify=does_hipify,
    )


def _adds_commit(tree: Path, project: str) -> bool:
    """Return whether a project's setup.py adds the commit to the version by itself, as triton's does."""
    for name in COMPONENTS[project].version_rule.setup_files:
        setup_file = tree / name
        if setup_file.is_file() and versions.adds_commit(read_text(setup_file)):
            return True
    return False


def base_version_of(tree: Path, project: str) -> str | None:
    """Return the version that a tree states in ``version.txt`` or a module; None where it states none."""
    version_file = tree / versions.VERSION_FILE
    rule = COMPONENTS[project].version_rule
    if rule.requires_version_file or version_file.is_file():
        return versions.parse_version(read_text(version_file), str(version_file))

    for name in rule.modules:
        module = tree / name
        if not module.is_file():
            continue
        version = versions.module_version(read_text(module), str(module))
        if version is not None:
            return version
    return None


# --- What a developer's tree lacks ------------------------------------------------------------


def find_tree_problems(tree: Path, project: str, env: Mapping[str, str]) -> Iterator[EnvironmentSetupError]:
    """Yield an error for everything that a developer's tree lacks to be built."""
    if not (tree / ".git").exists():
        return  # what that is, is said by whoever opens it
    setup_files = ("setup.py", "pyproject.toml", "python/setup.py")
    if not any((tree / name).is_file() for name in setup_files):
        yield EnvironmentSetupError(
            f"{tree} has neither setup.py nor pyproject.toml: there is nothing to build.",
            hint="Give the folder of a git checkout of the project.",
        )
    component = COMPONENTS[project]
    name = component.distribution
    package_folders = (tree / name, tree / "src" / name, tree / "python" / name)
    if not any(folder.is_dir() for folder in package_folders):
        yield EnvironmentSetupError(
            f"{tree} holds no package {name}, so it is no tree of {project}.",
            hint=f"It is given to {component.tree_option}; each project has an option of its own.",
        )
    # Reading the version shows whether the build could.
    try:
        base_version_of(tree, project)
    except FatalError as problem:
        yield EnvironmentSetupError(problem.message, hint=problem.hint)

    # As torch's setup.py looks, which has them fetched where they are missing: into the copy.
    if component.requires_submodules and not env.get("USE_SYSTEM_LIBS"):
        missing_paths = list(_missing_submodules(tree, tree))
        if missing_paths:
            yield EnvironmentSetupError(
                f"Submodules of {tree} are not initialised: {', '.join(missing_paths)}.",
                hint=f"Run: git -C {tree} submodule update --init --recursive",
            )


def _missing_submodules(tree: Path, folder: Path) -> Iterator[str]:
    """Yield the paths of submodules, at every depth, whose folders are missing or empty."""
    gitmodules = folder / ".gitmodules"
    setup_file = tree / "setup.py"
    if gitmodules.is_file():
        paths = _SUBMODULE_PATH.findall(read_text(gitmodules))
    elif folder == tree and setup_file.is_file() and "def get_submodule_folders" in read_text(setup_file):
        # torch's setup.py will not go on without them; the sample's has no such function.
        paths = [f"third_party/{name}" for name in _TORCH_SUBMODULES]
    else:
        return

    for path in paths:
        submodule = folder / path
        if not submodule.is_dir() or not any(submodule.iterdir()):
            yield submodule.relative_to(tree).as_posix()
        else:
            yield from _missing_submodules(tree, submodule)
