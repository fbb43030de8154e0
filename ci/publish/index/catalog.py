"""Which files an index lists: from what it listed before, and what there is now."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from ci.publish.index.pages import (
    FILES,
    SIDECAR,
    Entry,
    FileName,
    notices_html,
    page_format,
    ranks,
    read_name,
)
from ci.publish.index.sources import Promise, Source, is_local
from ci.publish.index.state import Line, Project, State, project_of
from core.errors import StoreError, WheelError
from core.stores import Store, Stored
from core.stores.directory import DirectoryStore


@dataclass(frozen=True, kw_only=True)
class Held:
    """A file that is there and not listed."""

    stored: Stored
    why: str


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What there is: pages by path, what names files, files by how they are listed, what yanks them."""

    pages: Mapping[str, Stored] = field(compare=False)  # an index of the same files is the same
    documents: Mapping[str, str]
    files: dict[str, int]
    yanked: Stored | None


def seen_of(stored: Sequence[Stored], prefix: str) -> dict[str, int]:
    """Pair wheels and sdists with their sidecars: names, times, etags, which change with them; and sizes."""
    cut = len(key_in(prefix, ""))
    sidecars = {one.key: one.etag for one in stored if one.key.endswith(SIDECAR)}
    return {
        f"{key[cut:]} {int(modified)}-{etag} {sidecars.get(key + SIDECAR, '')}": size
        for key, size, etag, modified, _ in stored
        if key.endswith(FILES)
    }


@dataclass(kw_only=True)
class Catalog:
    """Decides what an index lists now, reading only documents and files that are new."""

    store: Store
    prefix: str
    source: Source
    old: State
    found: Snapshot
    yanked: Mapping[str, str]
    strict: bool
    promises: dict[str, list[Promise]] = field(default_factory=lambda: defaultdict(list))
    earlier: Mapping[str, Line] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    pending: set[Promise] = field(default_factory=set)
    entries: dict[str, Sequence[Entry]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._local, self._cut = is_local(self.store), len(key_in(self.prefix, ""))
        self.sure = self._local and self.source.names_files

    def listed(self, title: str) -> State:
        """Return what the index lists now; its pages are not made yet."""
        documents, anew = self._read_documents()
        old: Mapping[str, Project] = {} if anew else self.old.projects
        before = set() if anew else self.old.seen()
        # what is promised once more is judged once more: by all promises, whichever came first
        known = before & self.found.files.keys()
        known -= {seen for seen in known if seen.partition(" ")[0] in self.promises}
        lost = before - known  # what was listed and does not exist as it was
        names = {read_name(one.partition(" ")[0]).name for one in lost}
        gone = [line for name in names for line in self.old.projects[name].lines() if line.seen in lost]
        if self.source.names_files:
            for line in gone:
                self.promises[line.promise.key].append(line.promise)
        else:
            fresh = [self._stored(seen) for seen in self.found.files if seen not in known]
            described = self.source.query(fresh)
            self.promises = {one.key: [one] for one in described}
        lines = (line for one in self.old.projects.values() for line in one.lines()) if anew else gone
        self.earlier = {line.promise.key: line for line in lines}
        made: dict[str, list[tuple[Entry, str]]] = defaultdict(list)
        for seen in self.found.files:
            if seen not in known and (entry := self._judged(seen)):
                made[entry.name].append((entry, seen))
        if self.source.names_files:
            self._collect_absent()
        if self.sure:  # these are not needed again, and take much memory where they are many
            self.found.files.clear()
            self.promises.clear()
        if isinstance(self.store, DirectoryStore):
            self.store.forget()
        projects = dict(old)
        yanks = {key for key, _ in self.old.yanked.items() ^ self.yanked.items()}  # or for another reason
        changed = {key.partition("==")[0] if "==" in key else read_name(key).name for key in yanks}
        changed |= {read_name(line.promise.key).name for line in gone}
        for name in changed | made.keys():
            stay = [line for line in old[name].lines() if line.seen in known] if name in old else []
            made[name] += zip(self.remembered(stay), (line.seen for line in stay), strict=True)
        rank = ranks(entry for listed in made.values() for entry, _ in listed)
        for name, listed in made.items():
            listed.sort(key=lambda one: (rank[one[0].version], one[0].filename))
            self.entries[name] = [one for one, _ in listed]
            projects[name] = project_of(self.entries[name], [seen for _, seen in listed])
            listed.clear()
        return State(
            form=page_format(),
            title=title,
            notices=notices_html(self.source.notices()),
            yanked=self.yanked,
            documents=documents,
            projects={name: projects[name] for name in sorted(projects) if projects[name].count},
            pending=sorted(self.pending),
        )

    def _read_documents(self) -> tuple[Mapping[str, tuple[str, int]], bool]:
        """Gather promises; return documents with etags and counts, and whether all were read anew."""
        old = self.old.documents
        new = [name for name, etag in self.found.documents.items() if old.get(name, ("", 0))[0] != etag]
        # a document that says other than it did may have stopped naming a file, which others may name
        anew = any(name in old for name in new) or any(
            count for name, (_, count) in old.items() if name not in self.found.documents
        )
        new = list(self.found.documents) if anew else new
        counts = dict.fromkeys(self.found.documents, 0) | {name: one[1] for name, one in old.items()}
        for promise in () if anew else self.old.pending:
            self.promises[promise.key].append(promise)
        for name, promised in zip(new, self.source.read(new, self.prefix) if new else (), strict=True):
            counts[name] = 0
            for one in promised:
                if one.key.endswith(FILES):
                    counts[name] += 1
                    self.promises[one.key].append(one)
        return {name: (etag, counts[name]) for name, etag in self.found.documents.items()}, anew

    def _collect_absent(self) -> None:
        """Keep promises of files that do not exist yet, or refuse them."""
        present = {seen.partition(" ")[0] for seen in self.found.files} if self.promises else set()
        absent = []
        for filename in sorted(self.promises.keys() - present):
            with nullcontext() if self.strict else suppress(WheelError):
                read_name(filename)
                absent.append(filename)
        if absent and self.strict:
            more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
            raise StoreError(
                f"{key_in(self.prefix, absent[0])} is recorded but not in {self.store.url}{more}.",
                hint="Run the stage that made it again.",
            )
        self.pending |= {one for filename in absent for one in self.promises[filename]}

    def _stored(self, seen: str) -> Stored:
        """Return a file as it was listed."""
        name, listed, _ = seen.rsplit(" ", 2)
        modified, _, etag = listed.partition("-")
        return Stored(key_in(self.prefix, name), self.found.files[seen], etag, int(modified))

    def _judged(self, seen: str) -> Entry | None:
        """Return what pages say of a new file; None for one that is held back."""
        stored = self._stored(seen)
        filename = stored.key[self._cut :]
        candidates = self.promises.pop(filename, ())
        said, promise, why = None, None, "no record names it"
        try:
            said = read_name(filename)
            promise = self._kept(filename, seen, stored, candidates) if candidates else None
        except (StoreError, WheelError) as problem:
            if self.strict:
                raise
            why = problem.message
        if promise and promise.metadata_sha256 and seen[-1] == " " and self.source.names_files:
            promise, why = None, "its metadata sidecar does not exist yet"
        if promise is None or said is None:
            self.held.append(Held(stored=stored, why=why))
            self.pending |= set(candidates)
            return None
        # of other bytes, which may be there again
        self.pending |= {one for one in candidates if one.sha256 != promise.sha256}
        return self._entry(said, promise, int(stored.modified))

    def _kept(self, filename: str, seen: str, stored: Stored, candidates: Sequence[Promise]) -> Promise:
        """Choose the promise that the file keeps."""
        fitting = [one for one in candidates if one.size == stored.size]
        if fitting and self.source.names_files and (self._local or self._doubted(filename, seen, fitting)):
            store = self.store
            digest = (
                store.digest_of(stored) if isinstance(store, DirectoryStore) else store.digest(stored.key)
            )
            fitting = [one for one in fitting if one.sha256 == digest]
        if not fitting:
            raise StoreError(
                f"{stored.key} in {self.store.url} differs from its record.",
                hint="Build it again with --force.",
            )
        return max(fitting)

    def _doubted(self, filename: str, seen: str, fitting: Sequence[Promise]) -> bool:
        """Whether its size alone does not tell which file of a bucket it is."""
        before = self.earlier.get(filename)
        changed = before is not None and before.seen.split(" ")[1] != seen.split(" ")[1]
        return changed or len({one.sha256 for one in fitting}) > 1

    def remembered(self, lines: Iterable[Line]) -> Sequence[Entry]:
        """Return what pages say of files that were listed before."""
        return [self._entry(read_name(one.promise.key), one.promise, one.modified) for one in lines]

    def _entry(self, said: FileName, promise: Promise, modified: int) -> Entry:
        filename, size, sha256, metadata, requires = promise
        name, _, version = said
        why = self.yanked.get(filename, self.yanked.get(f"{name}=={version}")) if self.yanked else None
        return Entry(filename, name, version, sha256, size, modified, requires, metadata, why)


def key_in(prefix: str, path: str) -> str:
    """Return the key of a path in the folder that is indexed."""
    return f"{prefix}/{path}" if prefix else path
