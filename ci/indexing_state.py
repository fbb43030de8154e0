"""What an index remembers of itself, in ``simple/index-state.txt``: so that one file more costs little.

A header line of JSON, then lines: the documents that name files, then one line a file, grouped by
project, then files that are named and not listed. A file's line has columns between tabs: how it was
listed (name, size, time, etag, its sidecar's etag, between spaces), SHA-256, its metadata's SHA-256,
its Requires-Python, and its row of the flat page. Lines, and not one JSON document, because ten
thousand of them are then split and compared in milliseconds.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA = 1


class Page(NamedTuple):
    """A page as it was written: bytes, and hex MD5, which is the etag that most stores list it with."""

    size: int
    md5: str


class Line(NamedTuple):
    """A file's line, in its columns."""

    seen: str
    sha256: str
    metadata_sha256: str
    requires_python: str
    html: str

    @property
    def filename(self) -> str:
        """The file's name."""
        return self.seen.partition(" ")[0]

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.seen.split(" ", 2)[1])

    @property
    def modified(self) -> int:
        """When it was put there, in seconds since 1970 UTC."""
        return int(self.seen.split(" ", 3)[2])

    @property
    def etag(self) -> str:
        """The etag it was listed with."""
        return self.seen.split(" ", 4)[3]

    def text(self) -> str:
        """Write it as the document holds it."""
        return "\t".join(self)


@dataclass(frozen=True, kw_only=True)
class State:
    """What the pages list, and from what.

    Attributes:
        form: The form of the pages (`ci.pages.page_format`).
        title: The flat page's title.
        yanked: Why files are yanked, by file name or ``name==version``.
        pages: The pages by path, as they were written.
        documents: Etag, and how many files it names, of each document that names files.
        projects: Lines of listed files, in the pages' order, by normalised name, sorted.
        pending: Lines of files that a document names and no page lists.
    """

    form: str = ""
    title: str = ""
    yanked: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, Page] = field(default_factory=dict)
    documents: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    projects: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pending: Sequence[str] = ()


def split(line: str) -> Line:
    """Read a file's line."""
    seen, sha256, metadata, requires, html = line.split("\t", 4)
    return Line(seen, sha256, metadata, requires, html)


def dump(state: State) -> bytes:
    """Write a state as its document."""
    lines = [f"{name}\t{etag}\t{count}" for name, (etag, count) in state.documents.items()]
    for listed in state.projects.values():
        lines += listed
    lines += state.pending
    body = "\n".join(lines).encode()
    header = {
        "schema": SCHEMA,
        "crc": zlib.crc32(body),
        "form": state.form,
        "title": state.title,
        "yanked": state.yanked,
        "pages": state.pages,
        "documents": len(state.documents),
        "projects": {name: len(listed) for name, listed in state.projects.items()},
        "pending": len(state.pending),
    }
    return b"%s\n%s\n" % (json.dumps(header, separators=(",", ":")).encode(), body)


def load(data: bytes) -> State | None:
    """Read a state; None for one that is damaged or of another schema, which is then made anew."""
    head, _, body = data.partition(b"\n")
    body = body.removesuffix(b"\n")
    try:
        header = json.loads(head)
        if header["schema"] != SCHEMA or header["crc"] != zlib.crc32(body):
            return None
        lines = body.decode().split("\n") if body else []
        documents = {}
        at = header["documents"]
        for line in lines[:at]:
            name, etag, count = line.split("\t")
            documents[name] = (etag, int(count))
        projects = {}
        for name, count in header["projects"].items():
            projects[name] = lines[at : at + count]
            at += count
        return State(
            form=header["form"],
            title=header["title"],
            yanked=header["yanked"],
            pages={path: Page(*page) for path, page in header["pages"].items()},
            documents=documents,
            projects=projects,
            pending=lines[at:],
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
