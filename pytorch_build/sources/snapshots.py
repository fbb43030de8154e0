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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core import files, temporary
from core.errors import ProcessError, SourceError
from pytorch_build.sources.git import Repository, git_reason, is_commit
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
_LINK = "120000"  # the mode of a symbolic link
_NEW_INDEX = "new-index"
_CHANGED_INDEX = "changed-index"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a developer's tree held at one moment: its commit, and its files as a tree of git.

    Attributes:
        commit: HEAD of its repository.
        tree_hash: The hash of all its files, as a tree of git.
        edited_count: How many files are neither as the commit has them nor as a checkout of it leaves them.
    """

    commit: str
    tree_hash: str
    edited_count: int

    @property
    def digest(self) -> str | None:
        """A SHA-256 of all files, or None where none of them is edited."""
        if not self.edited_count:
            return None
        return files.sha256_text(self.tree_hash)


# --- The repository that holds snapshots ------------------------------------------------------


class SnapshotStore:
    """A bare repository of our own that holds snapshots of a developer's tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.objects = path / "objects"

    def open(self) -> None:
        """Make the repository where it is missing, and remove lock files of an interrupted git."""
        complete_file = self.path / "complete"
        if not complete_file.is_file():
            self.path.mkdir(
                parents=True,
                exist_ok=True,
            )
            Repository(path=self.path).run("init", "--quiet", "--bare", "--template=")
            files.write_text(self.path / "info" / "attributes", _NO_FILTERS)
            files.write_text(complete_file, "")
        for lock in self.path.glob("*.lock"):
            lock.unlink()

    def run(
        self,
        *arguments: str,
        folder: Path | None = None,
        index: str = "index",
        stdin: str | None = None,
    ) -> str:
        """Run git with one of our indexes on the files of `folder`, and return what it prints."""
        env = {
            "GIT_DIR": str(self.path),
            "GIT_INDEX_FILE": str(self.path / index),
        }
        if folder is not None:
            env["GIT_WORK_TREE"] = str(folder)
        git = Repository(
            path=folder or self.path,
            settings=_SETTINGS,
        )
        return git.run(*arguments, env=env, stdin=stdin).stdout

    def add_alternate(self, objects: Path) -> None:
        """Let git read objects from another repository's object folder, too (its alternates)."""
        alternates = self.objects / "info" / "alternates"
        lines: list[str] = []
        if alternates.is_file():
            lines = alternates.read_text(encoding="utf-8").splitlines()
        line = quote(str(objects))
        if line not in lines:
            files.write_text(alternates, _join_lines([*lines, line]))

    def has_object(self, name: str) -> bool:
        """Return whether git can read an object, here or in an alternate."""
        try:
            self.run("cat-file", "-e", name)
        except ProcessError:
            return False
        return True


def _parse_ls_tree_line(line: str) -> tuple[str, str, str]:
    """Return the kind, the id and the path of an object in a line of ``ls-tree``."""
    facts, name = line.split("\t", 1)
    _mode, kind, object_id = facts.split()
    return kind, object_id, unquote(name)


def _join_lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


# --- The repositories of a developer's tree ---------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _TreeRepository:
    """One of the repositories in a developer's tree: the tree's own, or one below it.

    Attributes:
        repository: git in its folder.
        path: Its path in the tree, "" for the tree's own.
        commit: Its HEAD; None before a first commit.
        base_commit: What its parent names, of the tree's own its HEAD; None where it is no submodule.
        commit_tree: The tree of its HEAD.
        objects: The folder of its objects.
        excludes: Its file of names that git ignores, which need not exist.
    """

    repository: Repository
    path: str
    commit: str | None
    base_commit: str | None
    commit_tree: str | None
    objects: Path
    excludes: Path

    @property
    def folder(self) -> Path:
        """The repository's folder."""
        return self.repository.path


def _describe_repository(folder: Path, *, path: str, named_commit: str | None) -> _TreeRepository:
    """Return paths and commits of a repository in the tree; `named_commit` is what its parent names."""
    repository = Repository(
        path=folder,
        managed=False,
    )
    query = ("rev-parse", "--git-path", "objects", "--git-path", "info/exclude")
    try:
        output = repository.read_output(*query, "HEAD^{commit}", "HEAD^{tree}")
    except ProcessError:
        # Before a first commit. A repository that cannot be read fails here, too.
        try:
            output = repository.read_output(*query)
        except ProcessError as problem:
            raise _unreadable_error(folder, problem) from problem

    objects, excludes, *object_ids = output.splitlines()
    commit: str | None = None
    commit_tree: str | None = None
    if object_ids:
        commit, commit_tree = object_ids
    return _TreeRepository(
        repository=repository,
        path=path,
        commit=commit,
        base_commit=named_commit if path else commit,
        commit_tree=commit_tree,
        objects=(folder / objects).resolve(),
        excludes=folder / excludes,
    )


def _unreadable_error(folder: Path, problem: ProcessError) -> SourceError:
    """Return the error for a repository that git cannot read."""
    hint = ""
    if "dubious ownership" in problem.output:
        hint = (
            "It belongs to another user. To let git read it: "
            f"git config --global --add safe.directory {folder}"
        )
    return SourceError(f"git cannot read {folder}: {git_reason(problem)}", hint=hint)


# --- Taking a snapshot ------------------------------------------------------------------------


def require_checkout(tree: Path) -> None:
    """Fail for a folder that is not a git checkout."""
    hint = "Give the folder of a git checkout of the project."
    if not tree.is_dir():
        raise SourceError(f"{tree} does not exist.", hint=hint)
    if not (tree / ".git").exists():
        raise SourceError(f"{tree} is not a git repository, so what is built could not be named.", hint=hint)


def take_snapshot(tree: Path, store: SnapshotStore) -> Snapshot:
    """Store a developer's files as a tree of git, and return its snapshot; only changed files are read."""
    require_checkout(tree)
    top = _describe_repository(
        tree,
        path="",
        named_commit=None,
    )
    if top.commit is None:
        raise SourceError(
            f"{tree} has no commit, so what is built could not be named.",
            hint="Commit its files.",
        )
    if not is_commit(top.commit):
        # Upstream's repositories have no other commits, and locks, versions and records name these.
        raise SourceError(
            f"{tree} has commits of SHA-256, and only those of SHA-1 can be built.",
            hint="Clone upstream's repository, and bring your changes there.",
        )

    store.open()
    facts_file = store.path / "facts.json"
    last_facts: Mapping[str, object] = {}
    if facts_file.is_file():
        last_facts = json.loads(facts_file.read_text(encoding="utf-8"))

    reader = _TreeReader(
        store=store,
        last_facts=last_facts,
    )
    edited_count = 0
    for tree_repository in reader.read_repositories(top):
        edited_count += reader.count_edits(tree_repository)
    if reader.facts != last_facts:
        files.write_json(facts_file, reader.facts)
    inner_trees = dict(reader.trees)
    top_tree = inner_trees.pop("")
    return Snapshot(
        commit=top.commit,
        tree_hash=_graft_trees(store, top_tree, inner_trees),
        edited_count=edited_count,
    )


@dataclass(frozen=True, kw_only=True)
class _TreeReader:
    """Reads the repositories of a developer's tree into trees of git.

    Attributes:
        store: Where trees are written.
        last_facts: What never changes about commits, as the last snapshot has left it.
        facts: Those of these facts that this snapshot uses.
        trees: The trees of the repositories' own files, by the repositories' paths.
    """

    store: SnapshotStore
    last_facts: Mapping[str, object]
    facts: dict[str, object] = field(default_factory=dict)
    trees: dict[str, str] = field(default_factory=dict)

    def _recall_fact(self, name: str) -> object | None:
        """Return a fact about commits that this or the last snapshot has found out; None if neither has."""
        if name in self.last_facts:
            self.facts[name] = self.last_facts[name]
        return self.facts.get(name)

    def read_repositories(self, tree_repository: _TreeRepository) -> Iterator[_TreeRepository]:
        """Yield a repository and those below it, each once its own files are stored as a tree of git."""
        inner_commits = self._read_own_files(tree_repository)
        yield tree_repository

        for path, named_commit in inner_commits.items():
            inner_repository = _describe_repository(
                tree_repository.folder / path,
                path=f"{tree_repository.path}/{path}".lstrip("/"),
                named_commit=named_commit,
            )
            yield from self.read_repositories(inner_repository)

    def _read_own_files(self, tree_repository: _TreeRepository) -> Mapping[str, str | None]:
        """Store a repository's own files as a tree of git; return the repositories below, with commits.

        Return the paths of the repositories below it, with the commits that it names: None for one that is no
        submodule.
        """
        self.store.add_alternate(tree_repository.objects)
        submodules = self._submodules_of_commit(tree_repository.commit)
        inner_commits: dict[str, str | None] = {}
        unpacked_submodules: list[str] = []
        for path, commit in submodules.items():
            folder = tree_repository.folder / path
            if (folder / ".git").exists():
                inner_commits[path] = commit
            elif folder.is_dir() and any(folder.iterdir()):
                unpacked_submodules.append(path)

        index = self._index_of_commit(tree_repository)
        if unpacked_submodules:
            # Files that were unpacked in the place of a submodule are the tree's own.
            index = self._copy_index(index)
            self._update_index(tree_repository, index, map(quote, unpacked_submodules), "--force-remove")

        changed_names: list[str] = []
        for name in self._changed_names(tree_repository, index):
            path = unquote(name)
            if path.endswith("/"):
                inner_commits[path.rstrip("/")] = None
                continue
            is_file = (tree_repository.folder / path).is_file()
            if is_file or path not in submodules:
                changed_names.append(name)
        changed_names += _added_names(tree_repository)

        tree = tree_repository.commit_tree
        if tree is None or changed_names or unpacked_submodules:
            index = self._copy_index(index)
            options = ("--add", "--remove", "--replace")
            self._update_index(tree_repository, index, changed_names, *options)
            tree = self.store.run("write-tree", "--missing-ok", index=index).strip()
        self.trees[tree_repository.path] = tree
        return inner_commits

    def _submodules_of_commit(self, commit: str | None) -> Mapping[str, str]:
        """Return the paths of submodules that a commit names, each with its commit."""
        if commit is None:
            return {}
        fact_name = f"submodules of {commit}"
        known_submodules = self._recall_fact(fact_name)
        if isinstance(known_submodules, dict):
            return known_submodules

        submodules: dict[str, str] = {}
        listing = self.store.run("ls-tree", "-r", "--full-tree", commit)
        for line in listing.splitlines():
            kind, object_id, path = _parse_ls_tree_line(line)
            if kind == "commit":
                submodules[path] = object_id
        self.facts[fact_name] = submodules
        return submodules

    # --- Indexes ------------------------------------------------------------------------------

    def _index_of_commit(self, tree_repository: _TreeRepository) -> str:
        """Return the name of a git index with the files of a repository's commit, refreshed once.

        It never has others: which files count is for the tree to decide, each time anew.
        """
        path_id = files.sha256_text(quote(tree_repository.path))[:16]
        name = f"index-{path_id}-{tree_repository.commit}"
        folder = self.store.path
        if (folder / name).is_file():
            return name
        if tree_repository.commit is None:
            self.store.run(
                "read-tree",
                "--empty",
                folder=tree_repository.folder,
                index=name,
            )
            return name

        # The times in the index of the last commit hold for all files that are the same in this one.
        new_index = folder / _NEW_INDEX
        last_indexes = list(folder.glob(f"index-{path_id}-*"))
        for last_index in last_indexes:
            last_index.replace(new_index)
        for command in (
            ("read-tree", "-m", tree_repository.commit),
            ("update-index", "-q", "--refresh", "--ignore-submodules"),
        ):
            self.store.run(
                *command,
                folder=tree_repository.folder,
                index=_NEW_INDEX,
            )
        new_index.replace(folder / name)
        return name

    def _copy_index(self, index: str) -> str:
        """Return the name of a copy of a git index, which may be changed."""
        if index != _CHANGED_INDEX:
            shutil.copy2(self.store.path / index, self.store.path / _CHANGED_INDEX)
        return _CHANGED_INDEX

    def _update_index(
        self, tree_repository: _TreeRepository, index: str, names: Iterable[str], *options: str
    ) -> None:
        """Run ``git update-index`` on an index for files of a repository, by their quoted names."""
        self.store.run(
            "update-index",
            *options,
            "--stdin",
            folder=tree_repository.folder,
            index=index,
            stdin=_join_lines(names),
        )

    def _changed_names(self, tree_repository: _TreeRepository, index: str) -> Sequence[str]:
        """Return the quoted names of files that differ from a git index, untracked ones included.

        A name that ends in ``/`` is another repository's. A file that is a folder now comes before what is in
        it.
        """
        command = ["ls-files", "--modified", "--others", "--exclude-standard"]
        excludes = tree_repository.excludes
        if excludes.is_file():
            command.append(f"--exclude-from={excludes}")
        output = self.store.run(
            *command,
            folder=tree_repository.folder,
            index=index,
        )
        # A changed file that is ignored no more is listed twice.
        return sorted(set(output.splitlines()), key=unquote)

    # --- Edits --------------------------------------------------------------------------------

    def count_edits(self, tree_repository: _TreeRepository) -> int:
        """Return how many files of a repository differ from the commit that its parent names, or HEAD."""
        tree = self.trees[tree_repository.path]
        base_commit = tree_repository.base_commit
        if base_commit == tree_repository.commit and tree == tree_repository.commit_tree:
            return 0
        fact_name = f"edits of {tree} to {base_commit}"
        known_count = self._recall_fact(fact_name)
        if isinstance(known_count, int):
            return known_count

        if base_commit is None or not self.store.has_object(f"{base_commit}^{{commit}}"):
            count = len(self.store.run("ls-tree", "-r", "--full-tree", tree).splitlines())
        else:
            difference = self.store.run(
                "diff-tree",
                "-r",
                "--no-renames",
                "--ignore-submodules",
                base_commit,
                tree,
            )
            rows = difference.splitlines()
            count = len(rows) - self._count_filtered(tree_repository.repository, base_commit, rows)
        self.facts[fact_name] = count
        return count

    def _count_filtered(
        self,
        repository: Repository,
        commit: str,
        rows: Sequence[str],
    ) -> int:
        """Return how many changed files are as git's filters check them out, and so not edited."""
        blobs: dict[str, str] = {}
        for row in rows:
            facts, name = row.split("\t", 1)
            old_mode, mode, _old_blob, blob, status = facts.removeprefix(":").split()
            if status == "M" and mode == old_mode and mode != _LINK:
                blobs[name] = blob
        if not blobs:
            return 0

        with temporary.folder("checkout") as scratch:
            env = {**_READ_ONLY, "GIT_INDEX_FILE": f"{scratch}/index"}
            prefix = f"{scratch}/files/"
            repository.run("read-tree", commit, env=env)
            repository.run(
                "checkout-index",
                f"--prefix={prefix}",
                "--stdin",
                env=env,
                stdin=_join_lines(blobs),
            )
            paths = [quote(f"{prefix}{unquote(name)}") for name in blobs]
            output = self.store.run(
                "hash-object",
                "--no-filters",
                "--stdin-paths",
                stdin=_join_lines(paths),
            )

        count = 0
        for blob, checked_out_blob in zip(blobs.values(), output.split(), strict=True):
            if blob == checked_out_blob:
                count += 1
        return count


def _added_names(tree_repository: _TreeRepository) -> Sequence[str]:
    """Return the quoted names of files that are added to the index and not committed, ignored ones too."""
    if tree_repository.commit is None:
        return ()
    difference = tree_repository.repository.run(
        "-c",
        "core.quotePath=true",
        "diff-index",
        "--cached",
        "--name-only",
        "--diff-filter=A",
        "--ignore-submodules",
        "HEAD",
        env=_READ_ONLY,
    )
    return difference.stdout.splitlines()


def _graft_trees(store: SnapshotStore, tree: str | None, grafts: Mapping[str, str]) -> str:
    """Return the hash of a tree of git that has other trees at the paths of `grafts`."""
    if tree is not None and not grafts:
        return tree

    lines: dict[str, str] = {}
    subtrees: dict[str, str] = {}
    if tree is not None:
        listing = store.run("ls-tree", tree)
        for line in listing.splitlines():
            kind, object_id, path = _parse_ls_tree_line(line)
            lines[path] = line
            if kind == "tree":
                subtrees[path] = object_id

    inner_grafts: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for path, graft in grafts.items():
        name, _slash, inner_path = path.partition("/")
        grafts_below = inner_grafts[name]
        if inner_path:
            grafts_below[inner_path] = graft
        else:
            subtrees[name] = graft
    for name, grafts_below in inner_grafts.items():
        subtree = _graft_trees(store, subtrees.get(name), grafts_below)
        quoted_name = quote(name)
        lines[name] = f"040000 tree {subtree}\t{quoted_name}"

    document = _join_lines(lines.values())
    return store.run("mktree", "--missing", stdin=document).strip()
