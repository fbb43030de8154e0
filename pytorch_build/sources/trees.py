"""The tree that a build works in: managed by us at the lock's commit, or a developer's own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files, temporary
from core.data import read_text
from core.errors import FatalError, ProcessError, SourceError, origin
from pytorch_build.components import COMPONENTS
from pytorch_build.lock import versions
from pytorch_build.lock.stored import origins
from pytorch_build.sources import checkout as sources
from pytorch_build.sources import edits
from pytorch_build.sources.git import Repository, last_words, submodules

if TYPE_CHECKING:
    from pytorch_build.build.request import BuildOptions
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import LockedProject, SourceLock


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
        with files.locked(self.path.parent / f".{self.path.name}.build.lock", what=str(self.path)):
            sources.checkout(self.locked, self.path, self.options)
            with sources.building(self.path):
                yield self.path


@dataclass(frozen=True, kw_only=True)
class DevelopersTree:
    """A tree that a developer named: built from a copy of ours that follows it, never changed."""

    own: OwnTree
    path: Path
    version: str
    hipify: bool

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Its commit, the digest of its edits, and how many files they are in."""
        return {
            "tree": str(self.own.source),
            "commit": self.own.commit,
            "diff": self.own.diff_digest,
            "edited": self.own.edited,
            "hipify": self.hipify,
        }

    @contextmanager
    def checked_out(self) -> Iterator[Path]:
        """Bring the copy up to date, and build in it one at a time."""
        path = self.path
        with files.locked(path.parent / f".{path.name}.build.lock", what=str(path)):
            mirror(self.own.source, path)
            if observed(self.own.source, path) != self.own:
                raise SourceError(f"{self.own.source} changed while its build began.", hint="Run it again.")
            if self.hipify and edits.can_hipify(path):
                edits.hipify(path)
            try:
                yield path
            except FatalError as problem:
                if (said := origin(problem)) and said.cause:
                    around = tuple(map(self._as_named, said.cause.around))
                    said.cause = said.cause.model_copy(update={"around": around})
                raise

    def _as_named(self, line: str) -> str:
        """Name the developer's files in the place of their copies: these are not the ones to edit."""
        copied, own = re.compile(re.escape(f"{self.path}{os.sep}") + r"([^\s:'\"(),;]+)"), self.own.source
        return copied.sub(lambda one: str(own / one[1]) if (own / one[1]).exists() else one[0], line)


Tree = ManagedTree | DevelopersTree  # what is built from


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


def managed_tree(context: Context, choices: BuildOptions, lock: SourceLock, project: str) -> ManagedTree:
    """Find the managed tree of a project."""
    return ManagedTree(
        locked=lock.project(project),
        version=lock.version(project, gpu=context.gpu),
        path=place(context, project),
        options=checkout_options(context, choices.depth, choices.mirrors, project),
    )


def developers_tree(
    context: Context, tree: Path, project: str, *, rocm_version: str, lock: Callable[[], SourceLock]
) -> DevelopersTree:
    """Take a developer's own tree: its base version or the lock's, the run's suffix, its edits' digest."""
    own = observed(tree, place(context, project, tree))
    base_version = base_version_of(tree, project) or lock().project(project).base_version
    common = context.common
    cpu = not context.gpu
    suffix = versions.cpu_suffix(context.ref.local_label) if cpu else versions.version_suffix(rocm_version)
    setups = (tree / name for name in COMPONENTS[project].version_rule.setup_files)
    return DevelopersTree(
        own=own,
        path=own.path,
        version=versions.wheel_version(
            base_version,
            versions.edited(suffix, own.name),
            release_type=common.release_type,
            commit=own.commit,
            tagged=any(versions.adds_commit(read_text(one)) for one in setups if one.is_file()),
        ),
        hipify=context.gpu and context.ref.projects[project].hipify,
    )


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
    # as torch's setup.py looks, and where it does
    if component.requires_submodules and not env.get("USE_SYSTEM_LIBS") and (tree / ".gitmodules").is_file():
        named = re.findall(r"(?m)^\s*path\s*=\s*(.+?)\s*$", read_text(tree / ".gitmodules"))
        if absent := [one for one in named if not (tree / one).is_dir() or not any((tree / one).iterdir())]:
            hint = f"Run: git -C {tree} submodule update --init --recursive"
            yield f"Submodules of {tree} are not initialised: {', '.join(absent)}.", hint


def base_version_of(tree: Path, project: str) -> str:
    """Read the version that a tree names, in ``version.txt`` or triton's package; "" where it names none."""
    path = tree / versions.VERSION_FILE
    rule = COMPONENTS[project].version_rule
    if rule.requires_version_file or path.is_file():
        return versions.parse_version(read_text(path), str(path))
    modules = (tree / name for name in rule.modules)
    said = (versions.module_version(read_text(one), str(one)) for one in modules if one.is_file())
    return next(filter(None, said), "")


_STATE = "pytorch-build-mirror.json"
# A diff's text depends on the reader's taste; these make it depend on the tree alone.
_DIFF = (
    *("diff.noprefix=false", "diff.mnemonicPrefix=false", "core.quotePath=true"),
    *("diff.algorithm=myers", "diff.renames=false", "diff.context=3"),
)

Stamp = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class OwnTree:
    """A developer's tree and the working copy that is built."""

    source: Path
    path: Path
    commit: str
    diff_digest: str
    edited: int = 0

    @property
    def name(self) -> str:
        """A digest of the edits and of the commit that they are made to; "" without edits."""
        return files.sha256_text(f"{self.commit} {self.diff_digest}") if self.diff_digest else ""


def observed(tree: Path, work: Path) -> OwnTree:
    """Describe a developer's tree without a working copy."""
    tree = tree.absolute()
    commit = _opened(tree).commit_of("HEAD")
    digest, edited = edits_of(tree)
    return OwnTree(source=tree, path=work.absolute(), commit=commit, diff_digest=digest, edited=edited)


def mirror(tree: Path, work: Path) -> int:
    """Bring a working copy up to date with a developer's tree; return how many files were new.

    Tracked files and untracked ones that are not ignored are copied, submodules' included,
    with their times, and only where they changed; what was deleted there is removed here.
    What builds left in the copy stays.
    """
    tree, work = tree.absolute(), work.absolute()
    source = _opened(tree)
    commit = source.commit_of("HEAD")
    with files.locked(work.parent / f".{work.name}.lock", what=str(work)):
        state = _copy_of(tree, work, commit)
        stamps = dict(_stamped(source, tree))
        changed = _sync(tree, work, stamps, state)
        if changed or not state:
            files.write_json(work / ".git" / _STATE, {"source": str(tree), "stamps": stamps})
    return changed


def edits_of(tree: Path) -> tuple[str, int]:
    """Hash a tree's edits against its commit, submodules' and untracked files' included; count the files."""
    source = _opened(tree.absolute())
    with temporary.folder("diff") as scratch:
        parts = [part for one in [source, *submodules(source)] for part in _edits(one, source, scratch)]
    whole = hashlib.sha256()
    for part, _ in parts:
        whole.update(part)
    return whole.hexdigest() if parts else "", sum(count for _, count in parts)


def _opened(tree: Path) -> Repository:
    git = Repository(path=tree, settings=_DIFF, managed=False)
    hint = "Give the folder of a git checkout of the project."
    if not tree.is_dir():
        raise SourceError(f"{tree} does not exist.", hint="Give the folder of a git checkout of the project.")
    if not (tree / ".git").exists():
        raise SourceError(f"{tree} is not a git repository, so what is built could not be named.", hint=hint)
    try:
        git.run("rev-parse", "--verify", "HEAD^{commit}")
    except ProcessError as problem:
        raise SourceError(f"{tree}: its commit cannot be read: {last_words(problem)}", hint=hint) from problem
    return git


# git must not even refresh an index that is not ours
_READ_ONLY = {"GIT_OPTIONAL_LOCKS": "0"}


def _stamped(git: Repository, tree: Path) -> Iterator[tuple[str, Stamp]]:
    """List the files to copy, as paths in the tree, with size, time and mode; submodules' included."""
    for one in [git, *submodules(git)]:
        start = "" if one.path == tree else one.path.relative_to(tree).as_posix() + "/"
        names = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
        for name in one.run(*names, env=_READ_ONLY).stdout.split("\0"):
            if "\ufffd" in name:
                raise SourceError(f"{one.path} holds a file whose name is not UTF-8: {name!r}.")
            # plain os calls: there are tens of thousands of files
            try:
                found = os.lstat(f"{one.path}/{name}")
            except OSError:  # deleted, but not in the index yet
                continue
            # submodules are listed as folders
            if name and (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                yield start + name, (found.st_size, found.st_mtime_ns, stat.S_IMODE(found.st_mode))


def _copy_of(tree: Path, work: Path, commit: str) -> Mapping[str, Stamp]:
    """Make the working copy's repository, which borrows the tree's objects; give what was copied."""
    state = _state(work, tree)
    if state is None:
        if work.exists():
            console.say(f"{work} is not a working copy of {tree}; it is made anew.")
            shutil.rmtree(work)
        work.parent.mkdir(parents=True, exist_ok=True)
        Repository(path=work.parent).run(
            "clone", "--quiet", "--shared", "--no-checkout", "--no-tags", "--template=", tree, work
        )
        files.write_json(work / ".git" / _STATE, {"source": str(tree), "stamps": {}})
    git = Repository(path=work)
    if git.commit_of("HEAD") != commit or not (work / ".git" / "index").is_file():
        git.run("update-ref", "--no-deref", "HEAD", commit)
        git.run("read-tree", commit)
    return state or {}


def _state(work: Path, tree: Path) -> Mapping[str, Stamp] | None:
    try:
        state = json.loads((work / ".git" / _STATE).read_text(encoding="utf-8"))
        if state["source"] != str(tree):
            return None
        return {path: tuple(stamp) for path, stamp in state["stamps"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _sync(tree: Path, work: Path, stamps: Mapping[str, Stamp], state: Mapping[str, Stamp]) -> int:
    changed = 0
    for path in state.keys() - stamps.keys():
        (work / path).unlink(missing_ok=True)
        changed += 1
    for path, stamp in stamps.items():
        if state.get(path) == stamp and os.path.lexists(f"{work}/{path}"):
            continue
        changed += 1
        target = work / path
        if not _same(tree / path, target, stamp):
            _copy(tree / path, target, work)
    return changed


def _same(source: Path, target: Path, stamp: Stamp) -> bool:
    """Return whether a file is there already: then it keeps its time, and nothing is built again for it."""
    if source.is_symlink() or target.is_symlink() or not target.is_file():
        return False
    found = target.stat()
    if (found.st_size, stat.S_IMODE(found.st_mode)) != (stamp[0], stamp[2]):
        return False
    return source.read_bytes() == target.read_bytes()


def _copy(source: Path, target: Path, work: Path) -> None:
    for parent in [*target.parents][: len(target.relative_to(work).parts) - 1]:
        if parent.is_symlink() or parent.is_file():
            parent.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    shutil.copy2(source, target, follow_symlinks=False)


def _edits(git: Repository, top: Repository, scratch: Path) -> Iterator[tuple[bytes, int]]:
    """Return what a repository's edits consist of, and of how many files: its diff, and untracked files."""
    place = git.path.relative_to(top.path).as_posix().encode()
    index = scratch / "index"
    original = git.path / git.out("rev-parse", "--git-path", "index")
    if original.is_file():
        # git refreshes an index while it compares; it gets a copy to do that in, with its time,
        # by which git knows files that were changed in the same moment as the index
        shutil.copy2(original, index)
    env = {**_READ_ONLY, "GIT_INDEX_FILE": str(index)}
    diff = scratch / "diff"
    words = ("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--full-index")
    git.run(*words, "--ignore-submodules=dirty", f"--output={diff}", env=env)
    if text := diff.read_bytes():
        yield b"diff %s\0%d\0" % (place, len(text)) + text, len(re.findall(rb"(?m)^diff --git ", text))
    listed = git.run("ls-files", "-z", "--others", "--exclude-standard", env=env).stdout
    for name in sorted(name for name in listed.split("\0") if name):
        path = git.path / name
        link = path.is_symlink()
        content = os.fsencode(path.readlink()) if link else path.read_bytes() if path.is_file() else b""
        mode = b"link" if link else b"%o" % (path.stat().st_mode & 0o100)
        digest = hashlib.sha256(content).hexdigest().encode()
        yield b"file %s\0%s\0%s\0%s\0" % (place, name.encode(), mode, digest), 1
    index.unlink(missing_ok=True)
