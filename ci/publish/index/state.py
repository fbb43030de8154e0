"""What an index remembers of itself, in ``simple/index-state.txt``: so that one file more costs little.

A header line of JSON, then sections of lines. Four of them have one line a file, in the pages' order:
how it was listed (its name, its time and etag, its sidecar's etag), its facts (size, time, SHA-256, its
metadata's SHA-256, its Requires-Python), and its row of the flat page. The others are the documents
that name files, and the files that are named and not listed. Sections, and not one JSON document,
because what has not changed is then compared and copied whole, whatever it holds.
"""

import functools
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ci.publish.index.pages import Entry, newest, row
from ci.publish.index.sources import Promise

SCHEMA = 2


class Page(NamedTuple):
    """A page as it was written: bytes, and hex MD5, which is the etag that most stores list it with."""

    size: int
    md5: str


class Line(NamedTuple):
    """What is remembered of a listed file: how it was listed, and its facts."""

    seen: str
    modified: int
    promise: Promise


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """The files of a project, in the pages' order, as sections."""

    newest: str
    count: int
    seen: bytes | memoryview
    facts: bytes | memoryview
    rows: bytes | memoryview

    def lines(self) -> Sequence[Line]:
        """Return its files one by one."""
        return list(map(_line, _split(self.seen), _split(self.facts)))


def project_of(entries: Sequence[Entry], seen: Iterable[str]) -> Project:
    """Put a project's files together, in the pages' order, with how each was listed."""
    return Project(
        newest=newest(entries) if entries else "",
        count=len(entries),
        seen=_joined(seen),
        facts=_joined(_facts(one, one.modified) for one in entries),
        rows=_joined(map(row, entries)),
    )


def _facts(one: Entry | Promise, modified: int) -> str:
    return f"{one.size}\t{modified}\t{one.sha256}\t{one.metadata_sha256}\t{one.requires_python}"


@dataclass(frozen=True, kw_only=True)
class State:
    """What the pages list, and from what."""

    form: str = ""
    title: str = ""
    notices: str = ""
    yanked: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, Page] = field(default_factory=dict)
    documents: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    projects: Mapping[str, Project] = field(default_factory=dict)
    pending: Sequence[Promise] = ()

    def seen(self) -> set[str]:
        """Return how each listed file was listed."""
        return set(_split(b"".join(project.seen for project in self.projects.values())))


def dump(state: State) -> Sequence[bytes | memoryview]:
    """Write a state as its document."""
    projects = state.projects.values()
    sections = [
        _joined(f"{name}\t{etag}\t{count}" for name, (etag, count) in state.documents.items()),
        _joined(one.key for one in state.pending),
        _joined(_facts(one, 0) for one in state.pending),
        *(project.seen for project in projects),
        *(project.facts for project in projects),
        *(project.rows for project in projects),
    ]
    header = {
        "schema": SCHEMA,
        "crc": functools.reduce(lambda crc, section: zlib.crc32(section, crc), sections, 0),
        "form": state.form,
        "title": state.title,
        "yanked": state.yanked,
        "pages": state.pages,
        "sections": [len(section) for section in sections],
        "projects": [[name, project.newest, project.count] for name, project in state.projects.items()],
    }
    if state.notices:
        header["notices"] = state.notices
    return [json.dumps(header, separators=(",", ":")).encode(), b"\n", *sections]


def load(data: bytes) -> State | None:
    """Read a state; None for one that is damaged or of another schema, which is then made anew."""
    try:
        end = data.index(b"\n") + 1
        header = json.loads(data[:end])
        view = memoryview(data)
        if header["schema"] != SCHEMA or header["crc"] != zlib.crc32(view[end:]):
            return None
        sections = []
        for length in header["sections"]:
            sections.append(view[end : end + length])
            end += length
        return _state(header, sections) if end == len(data) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _state(header: Mapping[str, Any], sections: Sequence[memoryview]) -> State:
    documents = (line.split("\t") for line in _split(sections[0]))
    many = len(header["projects"])
    parts = zip(*(sections[3 + many * step : 3 + many * (step + 1)] for step in range(3)), strict=True)
    projects = {
        name: Project(newest=newest, count=count, seen=seen, facts=facts, rows=rows)
        for (name, newest, count), (seen, facts, rows) in zip(header["projects"], parts, strict=True)
    }
    return State(
        form=header["form"],
        title=header["title"],
        notices=header.get("notices", ""),
        yanked=header["yanked"],
        pages={path: Page(*page) for path, page in header["pages"].items()},
        documents={name: (etag, int(count)) for name, etag, count in documents},
        projects=projects,
        pending=[line.promise for line in map(_line, _split(sections[1]), _split(sections[2]))],
    )


def _joined(lines: Iterable[str]) -> bytes:
    return "\n".join([*lines, ""]).encode()


def _split(section: bytes | memoryview) -> Sequence[str]:
    # not splitlines(), which takes more for an end of line than a line feed
    return str(section, "utf-8").split("\n")[:-1]


def _line(seen: str, facts: str) -> Line:
    size, modified, sha256, metadata, requires = facts.split("\t", 4)
    promise = Promise(seen.partition(" ")[0], int(size), sha256, metadata, requires)
    return Line(seen, int(modified), promise)
