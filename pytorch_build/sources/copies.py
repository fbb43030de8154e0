"""Copies of developers' trees, which are built in their place and follow them.

A copy is a git repository of its own, as upstream's builds ask git for the commit. Its files come from
snapshots. What builds leave beside them stays, and files that have not changed keep their times, so that
only what was edited is compiled again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from core import console, files
from core.errors import ProcessError
from pytorch_build.sources.git import Repository
from pytorch_build.sources.quoting import quote
from pytorch_build.sources.snapshots import Snapshot, SnapshotStore, take_snapshot

# Which tree a copy follows, and the snapshot that it was made from.
STATE = Path(".git") / "pytorch-build-mirror.json"
# The index of the snapshots' repository that knows the copy's files.
_INDEX = "index-of-copy"


@dataclass(frozen=True, kw_only=True)
class TreeCopy:
    """The copy of a developer's tree that is built in its place.

    Attributes:
        source: The developer's tree.
        path: The folder of the copy.
        cache: The folder of the repository that keeps snapshots.
    """

    source: Path
    path: Path
    cache: Path

    @property
    def _snapshots(self) -> SnapshotStore:
        """The repository that keeps snapshots of the developer's tree."""
        return SnapshotStore(self.cache)

    @property
    def _index_repository(self) -> SnapshotStore:
        """The repository that writes the copy's files, whose index says what they are."""
        return SnapshotStore(self.path / ".git" / "writer")

    def snapshot(self) -> Snapshot:
        """Take a snapshot of the developer's tree, and return it; nothing is copied."""
        lock = self.cache.parent / f".{self.cache.name}.lock"
        with files.locked(lock, what=f"a snapshot of {self.source}"):
            try:
                return take_snapshot(self.source, self._snapshots)
            except ProcessError:
                if not self.cache.exists():
                    raise
                # Somebody may have removed files of the cache. What is wrong with the tree, git says again.
                files.remove_folder(self.cache)
                snapshot = take_snapshot(self.source, self._snapshots)
                console.say(f"{self.cache} was damaged; it is made anew.")
                return snapshot

    def update(self, snapshot: Snapshot) -> None:
        """Make the copy's files those of a snapshot of its tree; only what differs is written.

        Only files that have changed are written; what was deleted in the tree is removed here.
        """
        self._prepare_repository(snapshot.commit)
        self._index_repository.open()
        self._index_repository.add_alternate(self._snapshots.objects)
        last_tree_hash = self._read_last_tree_hash()
        if last_tree_hash is None:
            self._remove_files()
        elif last_tree_hash != snapshot.tree_hash:
            # An interrupted update has written some files, nobody knows which: it ends first.
            self._write_changes(last_tree_hash)
        self._write_changes(snapshot.tree_hash)
        deleted_names = self._run("ls-files", "--deleted")
        if deleted_names:
            self._run("checkout-index", "--force", "--stdin", stdin=deleted_names)

    def _prepare_repository(self, commit: str) -> None:
        """Make the copy's own repository with the developer's commit as HEAD, as builds ask git for it."""
        self.path.mkdir(
            parents=True,
            exist_ok=True,
        )
        git = Repository(path=self.path)
        git.run("init", "--quiet", "--template=")
        git_folder = self.path / ".git"
        (git_folder / "index.lock").unlink(missing_ok=True)
        alternates = git_folder / "objects" / "info" / "alternates"
        objects = str(self._snapshots.objects)
        files.write_text(alternates, f"{quote(objects)}\n")

        has_index = (git_folder / "index").is_file()
        if not has_index or git.commit_of("HEAD") != commit:
            git.run("update-ref", "--no-deref", "HEAD", commit)
            git.run("read-tree", commit)

    def _read_last_tree_hash(self) -> str | None:
        """Return the hash of the git tree that the last update wrote; None where that is unknown."""
        state_file = self.path / STATE
        try:
            state = json.loads(state_file.read_text(encoding="utf-8"))
            source = state["source"]
            tree_hash = str(state["tree"])
        except (OSError, ValueError, LookupError, TypeError):
            return None
        if source != str(self.source):
            return None
        return tree_hash

    def _remove_files(self) -> None:
        """Remove everything in the copy but its .git folder."""
        paths = [path for path in self.path.iterdir() if path.name != ".git"]
        if paths:
            console.say(f"{self.path} is not a copy of {self.source}; it is made anew.")
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                files.remove_folder(path)
            else:
                path.unlink()
        (self._index_repository.path / _INDEX).unlink(missing_ok=True)

    def _write_changes(self, tree_hash: str) -> None:
        """Write those files of a git tree into the copy that differ from what the copy's index has."""
        # The tree in the copy's index; None where nothing has been copied.
        copied_tree_hash: str | None = None
        if (self._index_repository.path / _INDEX).is_file():
            copied_tree_hash = self._run("write-tree", "--missing-ok").strip()
        if copied_tree_hash == tree_hash:
            return
        files.write_json(self.path / STATE, {"source": str(self.source), "tree": tree_hash})
        if copied_tree_hash is not None:
            try:
                # Files that are the same in both trees are left alone, whatever builds made of them.
                self._run("read-tree", "--reset", "-u", copied_tree_hash, tree_hash)
            except ProcessError:
                # The developer's repository may have dropped objects that were copied: files are compared.
                copied_tree_hash = None
        if copied_tree_hash is None:
            self._run("read-tree", "--reset", "-u", tree_hash)

    def _run(self, *arguments: str, stdin: str | None = None) -> str:
        """Run git on the copy's files, and return what it prints."""
        return self._index_repository.run(
            *arguments,
            folder=self.path,
            index=_INDEX,
            stdin=stdin,
        )
