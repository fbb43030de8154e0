"""Developers' trees as trees of git: the bytes of all files that their repositories do not ignore.

A repository of our own in a cache keeps these trees. It borrows the objects of the
developer's repositories and has indexes of its own, so that nothing is written there. No filter changes what
it reads and writes, and what a developer's index hides (``assume-unchanged``, ``skip-worktree``) it does not
know. Submodules, and repositories that are no submodules, are part of the one tree.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core import files, temporary
from core.errors import ProcessError, SourceError
from pytorch_build.sources.git import Repository, last_words
from pytorch_build.sources.quoting import quote, unquote

# Over the settings of trees that are ours: what else a user's configuration could change in an index.
_SETTINGS = (
    "core.quotePath=true",
    "core.ignoreStat=false",
    "core.sparseCheckout=false",
    "core.splitIndex=false",
    "core.untrackedCache=false",
    "index.sparse=false",
)
# Comes before every attribute that a tree or a user names.
_NO_FILTERS = "* -text -eol -filter -ident -working-tree-encoding\n"
# git must not even refresh an index that is not ours.
_READ_ONLY = {"GIT_OPTIONAL_LOCKS": "0"}
_LINK = "120000"
_NEW_INDEX = "new-index"
_CHANGED_INDEX = "changed-index"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a developer's tree held at one moment."""

    commit: str  # HEAD of its repository
    tree: str  # all its files, as a tree of git
    edited: int  # files that are neither as the commit has them nor as a checkout of it leaves them

    @property
    def digest(self) -> str | None:
        """A hex SHA-256 of the files, or None where they are those of the commit."""
        if not self.edited:
            return None
        return files.sha256_text(self.tree)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The files of one of a developer's repositories: of the tree itself, or of one below it."""

    repository: Repository
    place: str  # its path in the tree, "" for the tree itself
    commit: str | None  # its HEAD; None before a first commit
    base_commit: str | None  # what its parent names; None where it is no submodule
    commit_tree: str | None
    objects: Path
    excludes: Path


class SnapshotStore:
    """A repository that holds snapshots of a developer's tree, or writes their files, byte for byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.objects = path / "objects"

    def open(self) -> None:
        """Make the repository where it is missing, and settle what an interrupted git left in it."""
        if not (self.path / "complete").is_file():
            self.path.mkdir(parents=True, exist_ok=True)
            Repository(path=self.path).run("init", "--quiet", "--bare", "--template=")
            files.write_text(self.path / "info" / "attributes", _NO_FILTERS)
            files.write_text(self.path / "complete", "")
        for lock in self.path.glob("*.lock"):
            lock.unlink()

    def run(
        self,
        *arguments: str,
        folder: Path | None = None,
        index: str = "index",
        stdin: str | None = None,
    ) -> str:
        """Run git on the files of `folder`, with an index of ours; return what it prints."""
        env = {"GIT_DIR": str(self.path), "GIT_INDEX_FILE": str(self.path / index)}
        if folder is not None:
            env["GIT_WORK_TREE"] = str(folder)
        git = Repository(path=folder or self.path, settings=_SETTINGS)
        return git.run(*arguments, env=env, stdin=stdin).stdout

    def borrow(self, objects: Path) -> None:
        """Read objects from another repository's folder, too."""
        alternates = self.objects / "info" / "alternates"
        lines: list[str] = []
        if alternates.is_file():
            lines = alternates.read_text(encoding="utf-8").splitlines()
        line = quote(str(objects))
        if line not in lines:
            files.write_text(alternates, _lines([*lines, line]))

    def has_object(self, name: str) -> bool:
        """Return whether an object can be read, here or where objects are borrowed."""
        try:
            self.run("cat-file", "-e", name)
        except ProcessError:
            return False
        return True


def require_checkout(tree: Path) -> None:
    """Refuse a folder that is no repository of git."""
    hint = "Give the folder of a git checkout of the project."
    if not tree.is_dir():
        raise SourceError(f"{tree} does not exist.", hint=hint)
    if not (tree / ".git").exists():
        raise SourceError(f"{tree} is not a git repository, so what is built could not be named.", hint=hint)


def take_snapshot(tree: Path, store: SnapshotStore) -> Snapshot:
    """Read all files of a developer's tree into a tree of git; only those are read that have changed."""
    require_checkout(tree)
    top = _describe(Repository(path=tree, managed=False), place="", base_commit=None)
    if top.commit is None:
        raise SourceError(
            f"{tree} has no commit, so what is built could not be named.", hint="Commit its files."
        )

    store.open()
    facts = _Facts(store.path / "facts.json")
    trees: dict[str, str] = {}
    edited = 0
    for part in _parts(store, facts, top, trees):
        edited += _count_edits(store, facts, part, trees[part.place])
    facts.save()

    top_tree = trees.pop("")
    return Snapshot(commit=top.commit, tree=_graft(store, top_tree, trees), edited=edited)


def _describe(repository: Repository, *, place: str, base_commit: str | None) -> _Part:
    """Query a repository; the tree's own commit is its base, whatever `base_commit` is."""
    paths = ("rev-parse", "--git-path", "objects", "--git-path", "info/exclude")
    try:
        answer = repository.out(*paths, "HEAD^{commit}", "HEAD^{tree}")
    except ProcessError:
        # Before a first commit. A repository that cannot be read fails here, too.
        try:
            answer = repository.out(*paths)
        except ProcessError as problem:
            hint = ""
            if "dubious ownership" in problem.output:
                hint = (
                    "It belongs to another user. To let git read it: "
                    f"git config --global --add safe.directory {repository.path}"
                )
            raise SourceError(
                f"git cannot read {repository.path}: {last_words(problem)}", hint=hint
            ) from problem

    objects, excludes, *names = answer.splitlines()
    commit = names[0] if names else None
    return _Part(
        repository=repository,
        place=place,
        commit=commit,
        base_commit=base_commit if place else commit,
        commit_tree=names[1] if names else None,
        objects=(repository.path / objects).resolve(),
        excludes=repository.path / excludes,
    )


class _Facts:
    """What never changes about commits, kept from one snapshot to the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: Mapping[str, object] = {}
        if path.is_file():
            self._known = json.loads(path.read_text(encoding="utf-8"))
        self._used: dict[str, object] = {}

    def recall(self, name: str) -> object | None:
        """Return a fact that is known."""
        if name in self._known:
            self._used[name] = self._known[name]
        return self._used.get(name)

    def learn(self, name: str, fact: object) -> None:
        """Keep a fact."""
        self._used[name] = fact

    def save(self) -> None:
        """Write down the facts that this snapshot used."""
        if self._used != self._known:
            files.write_json(self._path, self._used)


def _parts(store: SnapshotStore, facts: _Facts, part: _Part, trees: dict[str, str]) -> Iterator[_Part]:
    """Yield a repository and those below it; add the tree of each one's own files to `trees` by its place."""
    store.borrow(part.objects)
    folder = part.repository.path
    submodules = _submodules(store, facts, part.commit)
    index = _index_of_commit(store, part)

    unpacked = [path for path in submodules if _is_plain_folder(folder / path)]
    if unpacked:
        index = _copy_index(store, index)
        names = _lines(map(quote, unpacked))
        store.run("update-index", "--force-remove", "--stdin", folder=folder, index=index, stdin=names)

    inner_commits: dict[str, str | None] = {
        path: commit for path, commit in submodules.items() if (folder / path / ".git").exists()
    }
    changed: list[str] = []
    # A file that is a folder now comes before what is in it.
    for name in sorted(_changed_names(store, part, index), key=unquote):
        path = unquote(name)
        if path.endswith("/"):
            inner_commits[path.rstrip("/")] = None
        elif path not in submodules or (folder / path).is_file():
            changed.append(name)
    changed += _added_names(part)

    if changed or unpacked or part.commit_tree is None:
        index = _copy_index(store, index)
        words = ("update-index", "--add", "--remove", "--replace", "--stdin")
        store.run(*words, folder=folder, index=index, stdin=_lines(changed))
        trees[part.place] = store.run("write-tree", "--missing-ok", index=index).strip()
    else:
        trees[part.place] = part.commit_tree
    yield part

    for path, commit in inner_commits.items():
        repository = Repository(path=folder / path, managed=False)
        place = f"{part.place}/{path}" if part.place else path
        yield from _parts(store, facts, _describe(repository, place=place, base_commit=commit), trees)


def _index_of_commit(store: SnapshotStore, part: _Part) -> str:
    """Return the index that has the files of a repository's commit, and the times of unchanged ones.

    It never has others: which files count is for the tree to decide, each time anew.
    """
    name = f"index-{files.sha256_text(quote(part.place))[:16]}-{part.commit}"
    if (store.path / name).is_file():
        return name

    folder = part.repository.path
    if part.commit is None:
        store.run("read-tree", "--empty", folder=folder, index=name)
        return name
    # The times in the index of the last commit hold for all files that are the same in this one.
    last_indexes = list(store.path.glob(f"{name[: -len(part.commit)]}*"))
    for last_index in last_indexes:
        last_index.replace(store.path / _NEW_INDEX)
    store.run("read-tree", "-m", part.commit, folder=folder, index=_NEW_INDEX)
    store.run("update-index", "-q", "--refresh", "--ignore-submodules", folder=folder, index=_NEW_INDEX)
    (store.path / _NEW_INDEX).replace(store.path / name)
    return name


def _copy_index(store: SnapshotStore, index: str) -> str:
    """Return an index that may be changed."""
    if index != _CHANGED_INDEX:
        shutil.copy2(store.path / index, store.path / _CHANGED_INDEX)
    return _CHANGED_INDEX


def _changed_names(store: SnapshotStore, part: _Part, index: str) -> set[str]:
    """Return the quoted names of files that are not as the index says; other repositories end in ``/``."""
    words = ["ls-files", "--modified", "--others", "--exclude-standard"]
    if part.excludes.is_file():
        words.append(f"--exclude-from={part.excludes}")
    return set(store.run(*words, folder=part.repository.path, index=index).splitlines())


def _added_names(part: _Part) -> Sequence[str]:
    """Return the quoted names of files that the developer has added and not committed, ignored ones too."""
    if part.commit is None:
        return ()
    words = ("-c", "core.quotePath=true", "diff-index", "--cached", "--name-only", "--diff-filter=A")
    return part.repository.run(*words, "--ignore-submodules", "HEAD", env=_READ_ONLY).stdout.splitlines()


def _submodules(store: SnapshotStore, facts: _Facts, commit: str | None) -> Mapping[str, str]:
    """Return the submodules that a commit names, each with its commit."""
    if commit is None:
        return {}
    known = facts.recall(f"submodules of {commit}")
    if isinstance(known, dict):
        return known

    submodules: dict[str, str] = {}
    for line in store.run("ls-tree", "-r", "--full-tree", commit).splitlines():
        kind, name, path = _parse_row(line)
        if kind == "commit":
            submodules[path] = name
    facts.learn(f"submodules of {commit}", submodules)
    return submodules


def _parse_row(line: str) -> tuple[str, str, str]:
    """Read a line of ``ls-tree``: the kind of an object, its name, and its path."""
    facts, name = line.split("\t", 1)
    _mode, kind, digest = facts.split()
    return kind, digest, unquote(name)


def _is_plain_folder(folder: Path) -> bool:
    """Return whether a submodule's folder has files and is no repository: they were unpacked."""
    return folder.is_dir() and not (folder / ".git").exists() and any(folder.iterdir())


def _lines(names: Iterator[str] | Sequence[str]) -> str:
    return "".join(f"{name}\n" for name in names)


def _graft(store: SnapshotStore, tree: str | None, grafts: Mapping[str, str]) -> str:
    """Return a tree that has other trees at the paths of `grafts`, in the place of what is there."""
    if tree is not None and not grafts:
        return tree

    rows: dict[str, str] = {}
    subtrees: dict[str, str] = {}
    for line in store.run("ls-tree", tree).splitlines() if tree is not None else ():
        kind, name, path = _parse_row(line)
        rows[path] = line
        if kind == "tree":
            subtrees[path] = name

    below: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for path, graft in grafts.items():
        first, slash, rest = path.partition("/")
        if slash:
            below[first][rest] = graft
        else:
            subtrees[first] = graft
            rows[first] = f"040000 tree {graft}\t{quote(first)}"
    for path, inner_grafts in below.items():
        graft = _graft(store, subtrees.get(path), inner_grafts)
        rows[path] = f"040000 tree {graft}\t{quote(path)}"

    return store.run("mktree", "--missing", stdin=_lines(list(rows.values()))).strip()


def _count_edits(store: SnapshotStore, facts: _Facts, part: _Part, tree: str) -> int:
    """Count the edited files of a repository: against the commit that its parent names, if it has one."""
    if part.base_commit == part.commit and tree == part.commit_tree:
        return 0
    name = f"edits of {tree} to {part.base_commit}"
    known = facts.recall(name)
    if isinstance(known, int):
        return known

    if part.base_commit is None or not store.has_object(f"{part.base_commit}^{{commit}}"):
        count = len(store.run("ls-tree", "-r", "--full-tree", tree).splitlines())
    else:
        words = ("diff-tree", "-r", "--no-renames", "--ignore-submodules", part.base_commit, tree)
        rows = store.run(*words).splitlines()
        count = len(rows) - _count_filtered(store, part.repository, part.base_commit, rows)
    facts.learn(name, count)
    return count


def _count_filtered(store: SnapshotStore, repository: Repository, commit: str, rows: Sequence[str]) -> int:
    """Count the files that differ from a commit's blobs as they do in a checkout, through filters."""
    blobs: dict[str, str] = {}
    for row in rows:
        modes_and_blobs, name = row.split("\t", 1)
        old_mode, mode, _old_blob, blob, status = modes_and_blobs[1:].split()
        if status == "M" and old_mode == mode != _LINK:
            blobs[name] = blob
    if not blobs:
        return 0

    with temporary.folder("checkout") as scratch:
        env = {**_READ_ONLY, "GIT_INDEX_FILE": f"{scratch}/index"}
        repository.run("read-tree", commit, env=env)
        words = ("checkout-index", f"--prefix={scratch}/files/", "--stdin")
        repository.run(*words, env=env, stdin=_lines(list(blobs)))
        paths = [quote(f"{scratch}/files/{unquote(name)}") for name in blobs]
        names = store.run("hash-object", "--no-filters", "--stdin-paths", stdin=_lines(paths)).split()
    return sum(blob == name for blob, name in zip(blobs.values(), names, strict=True))
