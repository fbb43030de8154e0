"""From what an index listed, and what there is now, to what it lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ci.publish.index.pages import FILES, SIDECAR, Entry, newest, read_name, row
from ci.publish.index.sources import Promise
from ci.publish.index.state import Line, Project, State, project_of
from core.errors import StoreError, WheelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ci.publish.index.sources import Source
    from core.stores import Stored


# a file that is listed: what pages say of it, how it was listed, its row of the flat page
_Made = tuple[Entry, str, str]


@dataclass(frozen=True, kw_only=True)
class Held:
    """A file that is there and not listed."""

    stored: Stored
    why: str


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What an index is to list."""

    documents: Mapping[str, tuple[str, int]]
    projects: Mapping[str, Project]
    pending: Sequence[Line]
    held: Sequence[Held]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a merge is made from."""

    prefix: str
    url: str
    old: State
    documents: Mapping[str, str]
    files: Mapping[str, Stored]
    yanked: Mapping[str, str]
    strict: bool
    digest: Callable[[Stored], str]
    always_hashed: bool


def seen_of(stored: Sequence[Stored], prefix: str) -> dict[str, Stored]:
    """Pair wheels and sdists with their sidecars: names and etags, which change when the files do."""
    cut = len(prefix) + 1 if prefix else 0
    sidecars = {one.key: one.etag for one in stored if one.key.endswith(SIDECAR)}
    return {
        f"{key[cut:]} {one.etag} {sidecars.get(key + SIDECAR, '')}": one
        for one in stored
        if (key := one.key).endswith(FILES)
    }


def merge(asked: Asked, source: Source) -> Listed:
    """Say what an index lists now, reading only documents and files that are new."""
    documents, promises, anew = _promises(asked, source)
    old: Mapping[str, Project] = {} if anew else asked.old.projects
    known = set() if anew else asked.old.seen()
    fresh = {seen: stored for seen, stored in asked.files.items() if seen not in known}
    gone = _gone(asked, known - asked.files.keys())
    if source.names_files:
        for line in gone:
            promises.setdefault(line.filename, []).append(_promise_of(line))
        new = {seen.partition(" ")[0] for seen in fresh}
        pending = _absent(asked, promises, new, refused=source.refuses_absent)
    else:
        promises = {_filename(one.key, asked.prefix): [one] for one in source.ask(list(fresh.values()))}
        pending = []
    earlier = {line.filename: line for line in (_lines(asked.old) if anew else gone)}
    judge = _Judge(asked=asked, promises=promises, earlier=earlier, trusts=not source.names_files)
    made: dict[str, list[_Made]] = {}
    for seen, stored in fresh.items():
        judge.judge(seen, stored, made)
    projects = dict(old)
    again = _with_other_reasons(asked)
    for name in {read_name(line.filename).name for line in gone} | made.keys() | again:
        stay = [line for line in old[name].lines() if line.seen in asked.files] if name in old else []
        entries = [_entry(name, line, asked.yanked) for line in stay]
        rows = map(row, entries) if name in again else (line.html for line in stay)
        both = zip(entries, (line.seen for line in stay), rows, strict=True)
        projects[name] = _ordered([*both, *made.get(name, ())])
    return Listed(
        documents=documents,
        projects={name: projects[name] for name in sorted(projects) if projects[name].count},
        pending=sorted({*pending, *judge.pending}),
        held=judge.held,
    )


def entries_of(name: str, project: Project, yanked: Mapping[str, str]) -> Sequence[Entry]:
    """Give a project's files as the entries that their rows were made from."""
    if project.entries is not None:
        return project.entries
    return [_entry(name, line, yanked) for line in project.lines()]


def _promises(
    asked: Asked, source: Source
) -> tuple[Mapping[str, tuple[str, int]], dict[str, list[Promise]], bool]:
    """Read what is new: documents with etags and counts, promises by file name, whether all was read anew."""
    old = asked.old.documents
    new = [name for name, etag in asked.documents.items() if old.get(name, ("", 0))[0] != etag]
    # a document that says other than it did may have stopped naming a file, which others may name
    anew = any(name in old for name in new) or any(
        count for name, (_, count) in old.items() if name not in asked.documents
    )
    new = list(asked.documents) if anew else new
    counts = dict.fromkeys(asked.documents, 0) | {name: one[1] for name, one in old.items()}
    promises: dict[str, list[Promise]] = {}
    for line in () if anew else asked.old.pending:
        promises.setdefault(line.filename, []).append(_promise_of(line))
    for name, promised in zip(new, source.read(new) if new else (), strict=True):
        mine = [(filename, one) for one in promised if (filename := _filename(one.key, asked.prefix))]
        counts[name] = len(mine)
        for filename, one in mine:
            promises.setdefault(filename, []).append(one)
    documents = {name: (etag, counts[name]) for name, etag in asked.documents.items()}
    return documents, promises, anew


def _absent(
    asked: Asked, promises: Mapping[str, Sequence[Promise]], new: AbstractSet[str], *, refused: bool
) -> list[Line]:
    missing = promises.keys() - new
    present = {seen.partition(" ")[0] for seen in asked.files} if missing else set()
    absent = sorted(filename for filename in missing - present if asked.strict or _is_name(filename))
    for filename in absent:
        read_name(filename)
    if absent and refused and asked.strict:
        more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
        raise StoreError(
            f"{key_in(asked.prefix, absent[0])} is recorded but not in {asked.url}{more}.",
            hint="Run the stage that made it again.",
        )
    return [_waiting(filename, one) for filename in absent for one in promises[filename]]


@dataclass(kw_only=True)
class _Judge:
    """Says of each new file whether it is listed, and collects what is not."""

    asked: Asked
    promises: Mapping[str, Sequence[Promise]]
    earlier: Mapping[str, Line]
    trusts: bool
    held: list[Held] = field(default_factory=list)
    pending: list[Line] = field(default_factory=list)

    def judge(self, seen: str, stored: Stored, made: dict[str, list[_Made]]) -> None:
        filename = _filename(stored.key, self.asked.prefix)
        candidates = self.promises.get(filename, ())
        try:
            name, version, release = read_name(filename)
            promise = self._kept(filename, seen, stored, candidates)
        except (StoreError, WheelError) as problem:
            if self.asked.strict:
                raise
            self.held.append(Held(stored=stored, why=problem.message))
            self.pending += [_waiting(filename, one) for one in candidates]
            return
        if promise is None:
            self.held.append(Held(stored=stored, why="no record names it"))
        elif promise.metadata_sha256 and seen.endswith(" ") and not self.trusts:
            self.held.append(Held(stored=stored, why="its metadata sidecar is not there yet"))
            self.pending += [_waiting(filename, one) for one in candidates]
        else:
            entry = Entry(
                filename=filename,
                name=name,
                version=version,
                sha256=promise.sha256,
                size=stored.size,
                modified=int(stored.modified),
                requires_python=promise.requires_python,
                metadata_sha256=promise.metadata_sha256,
                yanked=_reason(self.asked.yanked, filename, name, release),
            )
            made.setdefault(name, []).append((entry, seen, row(entry)))

    def _kept(
        self, filename: str, seen: str, stored: Stored, candidates: Sequence[Promise]
    ) -> Promise | None:
        """Choose the promise that the file keeps; None where there is no promise."""
        if not candidates:
            return None
        fitting = [one for one in candidates if one.size == stored.size]
        if fitting and not self.trusts and self._doubted(filename, seen, fitting):
            digest = self.asked.digest(stored)
            fitting = [one for one in fitting if one.sha256 == digest]
        if not fitting:
            raise StoreError(
                f"{stored.key} in {self.asked.url} differs from its record.",
                hint="Build it again with --force.",
            )
        return fitting[-1]

    def _doubted(self, filename: str, seen: str, fitting: Sequence[Promise]) -> bool:
        """Say whether its size alone does not tell which file it is."""
        if self.asked.always_hashed or len({one.sha256 for one in fitting}) > 1:
            return True
        before = self.earlier.get(filename)
        return before is not None and before.etag != seen.split(" ")[1]


def _entry(name: str, line: Line, yanked: Mapping[str, str]) -> Entry:
    filename = line.filename
    _, version, release = read_name(filename)
    return Entry(
        filename=filename,
        name=name,
        version=version,
        sha256=line.sha256,
        size=line.size,
        modified=line.modified,
        requires_python=line.requires_python,
        metadata_sha256=line.metadata_sha256,
        yanked=_reason(yanked, filename, name, release),
    )


def _reason(yanked: Mapping[str, str], filename: str, name: str, release: str) -> str | None:
    return yanked.get(filename, yanked.get(f"{name}=={release}")) if yanked else None


def _ordered(made: Sequence[_Made]) -> Project:
    in_order = sorted(made, key=lambda one: (one[0].version, one[0].filename))
    entries = [one[0] for one in in_order]
    return project_of(
        entries,
        seen=[one[1] for one in in_order],
        rows=[one[2] for one in in_order],
        version=str(newest(entries)) if entries else "",
    )


def _gone(asked: Asked, seen: AbstractSet[str]) -> Sequence[Line]:
    """Find what was listed and is not there as it was."""
    names = {read_name(one.partition(" ")[0]).name for one in seen}
    return [line for name in names for line in asked.old.projects[name].lines() if line.seen in seen]


def _with_other_reasons(asked: Asked) -> set[str]:
    """Name the projects of which files are yanked that were not, or the other way, or for another reason."""
    old, new = asked.old.yanked, asked.yanked
    changed = [key for key in {*old, *new} if old.get(key) != new.get(key)]
    return {key.partition("==")[0] if "==" in key else read_name(key).name for key in changed}


def _is_name(filename: str) -> bool:
    try:
        read_name(filename)
    except WheelError:
        return False
    return True


def _lines(state: State) -> Iterable[Line]:
    return (line for project in state.projects.values() for line in project.lines())


def _promise_of(line: Line) -> Promise:
    return Promise(line.filename, line.size, line.sha256, line.requires_python, line.metadata_sha256)


def _waiting(filename: str, promise: Promise) -> Line:
    return _line(filename, promise, modified=0)


def _line(seen: str, promise: Promise, *, modified: int) -> Line:
    return Line(
        seen=seen,
        size=promise.size,
        modified=modified,
        sha256=promise.sha256,
        metadata_sha256=promise.metadata_sha256,
        requires_python=promise.requires_python,
    )


def key_in(prefix: str, path: str) -> str:
    """Give the key of a path in the folder that is indexed."""
    return f"{prefix}/{path}" if prefix else path


def _filename(key: str, prefix: str) -> str:
    """Give the name of a wheel or sdist directly in the folder; "" for another key."""
    folder, _, filename = key.rpartition("/")
    return filename if folder == prefix and filename.endswith(FILES) else ""
