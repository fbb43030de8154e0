"""JSON pages (PEP 691, API version 1.1), which are also what the index remembers.

A page's own facts are in the keys of PEP 691, 700, 592, and 714. What only the index needs stands beside them
in keys that begin with an underscore, which PEP 691 leaves to the server; PyPI writes its `_last-serial` so:

* ``simple/torch/index.json``: each file's ETag and its sidecar's, so that a file which is still the same
  is not read again;
* ``simple/index.json``: of each project a fingerprint of all that its pages follow from, so that the pages
  of projects that did not change are not read; and the ETags of the records whose files are all listed, so
  that these are not read again.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from ci.publish.index.files import (
    PageFile,
    RecordedFile,
    StoredFile,
    distinct_versions,
)
from ci.publish.index.names import read_name, relative_address
from core.errors import WheelError
from core.stores import Content, join_content

API_VERSION = "1.1"

_ENCODER = json.JSONEncoder(separators=(",", ":"))
_FILES_START = ',"files":[\n'
_FILES_END = "]}\n"
_REMEMBERED = re.compile(rb',"_[a-z-]+":"[^"]*"')


@dataclass(frozen=True, kw_only=True)
class RootPage:
    """What ``simple/index.json`` says.

    Attributes:
        fingerprints: Of each project, what its pages follow from.
        front_fingerprint: What the flat page and the page of projects follow from, besides the projects.
        flat_page_digest: Of the flat page's bytes: another process may write it between a listing and a
            reading of it, where a server ignores conditions.
        record_etags: The records whose files are all listed, by key.
    """

    fingerprints: Mapping[str, str] = field(default_factory=dict)
    front_fingerprint: str | None = None
    flat_page_digest: str | None = None
    record_etags: Mapping[str, str] = field(default_factory=dict)


def render_root_json(root: RootPage) -> bytes:
    """Return the bytes of ``simple/index.json``."""
    projects = [
        {"name": name, "_fingerprint": fingerprint} for name, fingerprint in sorted(root.fingerprints.items())
    ]
    page = {
        "meta": {
            "api-version": API_VERSION,
            "_fingerprint": root.front_fingerprint,
            "_flat-page-digest": root.flat_page_digest,
        },
        "projects": projects,
        "_records": dict(sorted(root.record_etags.items())),
    }
    return f"{_ENCODER.encode(page)}\n".encode()


def read_root_page(content: bytes) -> RootPage:
    """Return what ``simple/index.json`` says; an empty page where it is damaged."""
    try:
        page = json.loads(content)
        return RootPage(
            fingerprints={project["name"]: project["_fingerprint"] for project in page["projects"]},
            front_fingerprint=page["meta"]["_fingerprint"],
            flat_page_digest=page["meta"]["_flat-page-digest"],
            record_etags=dict(page["_records"]),
        )
    except (ValueError, KeyError, TypeError):
        # All is read again then.
        return RootPage()


def render_project_json(project: str, page_files: Sequence[PageFile]) -> bytes:
    """Return the bytes of ``simple/{project}/index.json``, one file a line."""
    files = ",\n".join([_render_file(page_file) for page_file in page_files])
    digest = digest_of([files.encode()])
    meta = _ENCODER.encode({"api-version": API_VERSION, "_files-digest": digest})
    versions = _ENCODER.encode(distinct_versions(page_files))
    head = f'{{"meta":{meta},"name":"{project}","versions":{versions}'
    return f"{head}{_FILES_START}{files}{_FILES_END}".encode()


def read_project_page(content: bytes) -> Sequence[PageFile] | None:
    """Return the files that a project's page lists; None where it is damaged, or another tool's."""
    try:
        page = json.loads(content)
        # A digest that was changed by hand, or by a broken disk, would otherwise be believed for ever.
        files = content.partition(_FILES_START.encode())[2].removesuffix(_FILES_END.encode())
        if page["meta"]["_files-digest"] != digest_of([files]):
            return None
        return [_file_from_json(file) for file in page["files"]]
    except (ValueError, KeyError, TypeError, AttributeError, WheelError):
        return None


def readers_content(content: Content) -> bytes:
    """Return a page without what only the index itself reads."""
    return _REMEMBERED.sub(b"", join_content(content))


def digest_of(content: Iterable[bytes | memoryview]) -> str:
    """Return a short digest of a page, which comes in parts."""
    sha256 = hashlib.sha256()
    for part in content:
        sha256.update(part)
    return sha256.hexdigest()[:20]


def _render_file(page_file: PageFile) -> str:
    """Return a file as JSON, text by text, which takes a third of what an encoder takes for a dictionary."""
    recorded_file, stored_file, _name, yank_reason = page_file
    url = f"../../{relative_address(stored_file.filename)}"
    required = ""
    if recorded_file.requires_python is not None:
        required = f',"requires-python":{quote(recorded_file.requires_python)}'
    metadata = ""
    if recorded_file.metadata_sha256 is not None:
        # PEP 714's name alone: pip 22.3 to 23.1 fail at the older one in JSON.
        metadata = f',"core-metadata":{{"sha256":{quote(recorded_file.metadata_sha256)}}}'
    yanked = ""
    if yank_reason is not None:
        yanked = f',"yanked":{_ENCODER.encode(yank_reason or True)}'
    sidecar_etag = ""
    if stored_file.sidecar_etag is not None:
        sidecar_etag = f',"_metadata-etag":{quote(stored_file.sidecar_etag)}'
    return (
        f'{{"filename":{quote(stored_file.filename)},"url":{quote(url)}'
        f',"hashes":{{"sha256":{quote(recorded_file.sha256)}}},"size":{stored_file.size}'
        f',"upload-time":"{format_time(stored_file.modified)}"'
        f'{required}{metadata}{yanked},"_etag":{quote(stored_file.etag)}{sidecar_etag}}}'
    )


def _file_from_json(file: Mapping[str, Any]) -> PageFile:
    metadata = file.get("core-metadata", {})
    recorded_file = RecordedFile(
        filename=file["filename"],
        size=file["size"],
        sha256=file["hashes"]["sha256"],
        metadata_sha256=metadata.get("sha256"),
        requires_python=file.get("requires-python"),
    )

    stored_file = StoredFile(
        filename=file["filename"],
        size=file["size"],
        modified=int(datetime.fromisoformat(file["upload-time"]).timestamp()),
        etag=file["_etag"],
        sidecar_etag=file.get("_metadata-etag"),
    )

    yank_reason = file.get("yanked")
    if yank_reason is True:
        yank_reason = ""
    return PageFile(recorded_file, stored_file, read_name(stored_file.filename), yank_reason)


@lru_cache(maxsize=1 << 12)
def format_time(seconds: int) -> str:
    """Return a time as PEP 700 writes it."""
    return f"{datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()}Z"
