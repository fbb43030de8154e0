"""A folder of wheels in a store in memory, whose bytes nobody needs, and the pages of its index."""

import json
from collections.abc import Mapping, Sequence

from ci.publish import index as indexing
from ci.publish.index import IndexUpdate, RecordSource, write_index
from ci.publish.index.changes import PageSettings, make_project_pages
from ci.publish.index.files import PageFile, RecordedFile, StoredFile, sort_files
from ci.publish.index.html_pages import device_extras, render_flat_page, render_root_html
from ci.publish.index.json_pages import RootPage, render_root_json
from ci.publish.index.listing import FLAT_PAGE, ROOT_PAGE
from ci.publish.index.names import read_name
from ci.publish.index.yanks import Yanks
from core.stores import Store
from tests.kit import wheels
from tests.kit.memory_store import MemoryStore

PREFIX = "run/python/g"
MANIFESTS = "run/manifests/g"
ROOT_KEY = f"{PREFIX}/{ROOT_PAGE}"
YANKED_KEY = f"{PREFIX}/yanked.json"

TORCH = wheels.wheel_filename(name="torch", version="2.9.0")
NEWER_TORCH = wheels.wheel_filename(name="torch", version="2.10.0")
APEX = wheels.wheel_filename(name="apex", version="1.0")
TRITON = wheels.wheel_filename(name="triton", version="3.0")


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


def index_wheels(store: Store, *, title: str = "g", strict: bool = True) -> IndexUpdate:
    """Write the pages of the wheels that records name."""
    return write_index(store, PREFIX, RecordSource(store=store, prefix=MANIFESTS), title=title, strict=strict)


def pages_in(store: MemoryStore) -> dict[str, bytes]:
    """Return every page by path."""
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


def render_pages(title: str, page_files: Sequence[PageFile]) -> dict[str, str]:
    """Return every page of an index of these files: path to text."""
    files_by_project: dict[str, list[PageFile]] = {}
    for page_file in page_files:
        project = read_name(page_file.stored_file.filename).project
        files_by_project.setdefault(project, []).append(page_file)
    settings = PageSettings(
        title=title,
        notices="",
        yanks=Yanks(),
        has_folder_pages=False,
        extras=device_extras(files_by_project),
        dependencies_address=None,
    )

    pages: dict[str, bytes] = {}
    sections: dict[str, bytes | memoryview] = {}
    for project, files in files_by_project.items():
        pages_of_project, section = make_project_pages(project, sort_files(files), settings)
        pages |= pages_of_project
        sections[project] = section
    pages["simple/index.html"] = render_root_html(files_by_project)
    pages[ROOT_PAGE] = render_root_json(RootPage(fingerprints=dict.fromkeys(files_by_project, "0")))
    pages[FLAT_PAGE] = b"".join(render_flat_page(title, "", sections))
    return {path: page.decode() for path, page in pages.items()}


def page_file(
    *,
    filename: str = "torch-2.9.0-py3-none-any.whl",
    sha256: str = "0" * 64,
    size: int = 1,
    modified: int = 0,
    yank_reason: str | None = None,
    metadata_sha256: str | None = None,
    requires_python: str | None = None,
) -> PageFile:
    """Return a file that a page lists."""
    return PageFile(
        RecordedFile(filename, size, sha256, metadata_sha256, requires_python),
        StoredFile(filename, size, modified, "etag"),
        read_name(filename),
        yank_reason,
    )
