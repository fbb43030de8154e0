"""A folder of wheels in a store in memory, whose bytes nobody needs, and the pages of its index."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby

from ci.publish import index as indexing
from ci.publish.index import Indexed, Records, write_index
from ci.publish.index import pages as rendering
from ci.publish.index.pages import FLAT, Entry
from core.stores import Store
from tests.kit import wheels
from tests.kit.memory_store import MemoryStore

PREFIX = "run/python/g"
MANIFESTS = "run/manifests/g"
STATE_PATH = "simple/index-state.txt"
STATE_KEY = f"{PREFIX}/{STATE_PATH}"
YANKED_KEY = f"{PREFIX}/yanked.json"


def publish_wheels(
    store: Store, *names: str, record: str | None = None, content: str = "", requires_python: str = ">=3.11"
) -> None:
    """Put wheels, then their sidecars, then the record that names them: the first wheel's, or another one."""
    files: list[dict[str, object]] = []
    for name in names:
        key = f"{PREFIX}/{name}"
        data = f"{name}{content}".encode()
        metadata = f"Name: {name}\n".encode()
        store.put_bytes(key, data)
        store.put_bytes(f"{key}.metadata", metadata)
        file = {
            "key": key,
            "size": len(data),
            "sha256": wheels.sha256(data),
            "metadata_sha256": wheels.sha256(metadata),
            "requires_python": requires_python,
        }
        files.append(file)
    document = {"schema_version": 1, "status": "ok", "files": files}
    record_key = f"{MANIFESTS}/{record or names[0]}.json"
    store.put_bytes(record_key, json.dumps(document).encode())


def yank(store: Store, reasons: Mapping[str, str]) -> None:
    """Say what is yanked and why: file name, or ``name==version``, to reason."""
    store.put_bytes(YANKED_KEY, json.dumps(dict(reasons)).encode())


def index_wheels(store: Store, *, title: str = "g", strict: bool = True) -> Indexed:
    """Write the pages of the wheels that records name."""
    return write_index(store, PREFIX, Records(store=store, prefix=MANIFESTS), title=title, strict=strict)


def pages_in(store: MemoryStore) -> dict[str, bytes]:
    """Return every page, and what the index remembers, by path."""
    return {
        key.removeprefix(f"{PREFIX}/"): content
        for key, content in store.objects.items()
        if indexing.is_page(key)
    }


def pages_written_at_once(store: MemoryStore) -> dict[str, bytes]:
    """Return the pages that an index of the same files writes which remembers nothing."""
    files = {key: content for key, content in store.objects.items() if not indexing.is_page(key)}
    fresh_store = MemoryStore(objects=files, moments=store.moments, folder_pages=False)
    index_wheels(fresh_store)
    return pages_in(fresh_store)


def sort_entries(entries: Sequence[Entry]) -> list[Entry]:
    """Sort entries by name, version (PEP 440) and file name, as pages do."""
    rank = rendering.ranks(entries)
    return sorted(entries, key=lambda entry: (entry.name, rank[entry.version], entry.filename))


def render_pages(title: str, entries: Sequence[Entry]) -> dict[str, str]:
    """Return every page of an index of these entries: path to text."""
    pages: dict[str, bytes] = {}
    blocks: list[rendering.Block] = []
    names: list[str] = []
    extras = rendering.extras(entry.name for entry in entries)
    for name, project in groupby(sort_entries(entries), key=lambda entry: entry.name):
        project_entries = tuple(project)
        rows = "".join(f"{rendering.row(entry)}\n" for entry in project_entries).encode()
        requirement = f"{name}{extras.get(name, '')}=={rendering.newest(project_entries)}"
        names.append(name)
        blocks.append(rendering.flat_block(name, requirement, rows))
        pages[f"simple/{name}/index.html"] = rendering.project_html(name, requirement, rows)
        pages[f"simple/{name}/index.json"] = rendering.project_json(name, project_entries)
    pages["simple/index.html"] = rendering.root_html(names)
    pages["simple/index.json"] = rendering.root_json(names)
    pages[FLAT] = b"".join(rendering.flat_page(title, len(entries), blocks))
    return {path: page.decode() for path, page in pages.items()}


def entry(
    *,
    filename: str = "torch-2.9.0-py3-none-any.whl",
    name: str = "torch",
    version: str = "2.9.0",
    sha256: str = "0" * 64,
    size: int = 1,
    modified: int = 0,
    yanked: str | None = None,
    metadata_sha256: str = "",
    requires_python: str = "",
) -> Entry:
    """Return a file that a page lists."""
    return Entry(
        filename=filename,
        name=name,
        version=version,
        sha256=sha256,
        size=size,
        modified=modified,
        requires_python=requires_python,
        metadata_sha256=metadata_sha256,
        yanked=yanked,
    )
