"""Files in a store in memory whose bytes nobody needs, and their pages."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from ci.publish import index as indexing
from ci.publish.index import Indexed, Records, write_index
from ci.publish.index import pages as rendering
from ci.publish.index.pages import FLAT, Entry, flat_block, newest, project_html, project_json, ranks, row
from tests.kit.memory_store import MemoryStore

PREFIX, MANIFESTS = "run/python/g", "run/manifests/g"


def pages(store: MemoryStore) -> dict[str, bytes]:
    """Return every page, by path."""
    found = {key: data for key, data in store.objects.items() if indexing.is_page(key)}
    return {key.removeprefix(f"{PREFIX}/"): data for key, data in found.items()}


def in_order(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Sort entries by name, version (PEP 440) and file name, as pages do."""
    rank = ranks(entries)
    return sorted(entries, key=lambda entry: (entry.name, rank[entry.version], entry.filename))


def render(title: str, entries: Sequence[Entry]) -> Mapping[str, str]:
    """Write every page of an index."""
    pages: dict[str, bytes] = {}
    blocks = []
    extras = rendering.extras(one.name for one in entries)
    for name, group in groupby(in_order(entries), key=lambda entry: entry.name):
        mine = tuple(group)
        rows = "".join(f"{row(entry)}\n" for entry in mine).encode()
        wanted = f"{name}{extras.get(name, '')}=={newest(mine)}"
        blocks.append(flat_block(name, wanted, rows))
        pages[f"simple/{name}/index.html"] = project_html(name, wanted, rows)
        pages[f"simple/{name}/index.json"] = project_json(name, mine)
    names = [path.split("/")[1] for path in pages if path.endswith(".html")]
    pages |= {
        "simple/index.html": rendering.root_html(names),
        "simple/index.json": rendering.root_json(names),
    }
    pages[FLAT] = b"".join(rendering.flat_page(title, len(entries), blocks))
    return {path: page.decode() for path, page in pages.items()}


def wheel_name(project: str, version: str) -> str:
    return f"{project}-{version}-py3-none-any.whl"


def publish(
    store: Any, *wheels: str, record: str = "", content: str = "", requires_python: str = ">=3.11"
) -> None:
    """Put wheels, then their sidecars, then the record that names them."""
    files = []
    for wheel in wheels:
        key, data, metadata = f"{PREFIX}/{wheel}", f"{wheel}{content}".encode(), f"Name: {wheel}\n".encode()
        store.put_bytes(key, data)
        store.put_bytes(f"{key}.metadata", metadata)
        facts = {"key": key, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        facts["metadata_sha256"] = hashlib.sha256(metadata).hexdigest()
        files.append({**facts, "requires_python": requires_python})
    document = {"schema_version": 1, "status": "ok", "files": files}
    store.put_bytes(f"{MANIFESTS}/{record or wheels[0]}.json", json.dumps(document).encode())


def index(store: Any, **how: Any) -> Indexed:
    return write_index(store, PREFIX, Records(store=store, prefix=MANIFESTS), title="g", **how)


def anew(store: MemoryStore) -> dict[str, bytes]:
    """Return the pages that an index of the same files writes which remembers nothing."""
    files = {key: data for key, data in store.objects.items() if not indexing.is_page(key)}
    other = MemoryStore(objects=files, moments=store.moments, folder_pages=False)
    index(other)
    return pages(other)
