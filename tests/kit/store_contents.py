"""What a folder store holds, compared with what its pages and records say."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from core import files

PROJECT_PAGES = "simple/*/index.json"


def require_agreement(store: Path, context: str) -> None:
    """Require that what pages and records name is there, with the bytes that they name."""
    for page in sorted(store.rglob(PROJECT_PAGES)):
        for path, digest in listed_files(page):
            assert path.is_file(), f"{page} lists {path.name}, which is not there: {context}"
            assert files.sha256(path) == digest, f"{page} lists {path.name} with other bytes: {context}"

    for record in sorted(store.glob("*/manifests/*/build_*.json")):
        for path, digest in recorded_files(store, record):
            assert path.is_file(), f"{record} names {path.name}, which is not there: {context}"
            assert files.sha256(path) == digest, f"{record} names {path.name} with other bytes: {context}"


def listed_files(page: Path) -> Iterator[tuple[Path, str]]:
    """Return the files of a project's page (PEP 691), with their SHA-256."""
    content: dict[str, Any] = json.loads(page.read_text(encoding="utf-8"))
    for file in content["files"]:
        yield (page.parent / unquote(file["url"])).resolve(), file["hashes"]["sha256"]


def recorded_files(store: Path, record: Path) -> Iterator[tuple[Path, str]]:
    """Return the files that a build's record names, with their SHA-256."""
    content: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    for file in content["files"]:
        yield store / file["key"], file["sha256"]
