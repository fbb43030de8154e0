"""The pages of a folder of the distribution bucket."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ci.promotion.documents import PromotedFile, StagedFile
    from core.stores import Store


def write(store: Store, prefix: str, files: Iterable[StagedFile | PromotedFile]) -> None:
    """Write the pages."""
    by_name: dict[str, list[str]] = {}
    flat = []
    for file in sorted(files, key=lambda file: file.name):
        link = f'<a href="{{}}{quote(file.name)}#sha256={file.sha256}">{html.escape(file.name)}</a><br>'
        by_name.setdefault(file.distribution, []).append(link.format("../../"))
        flat.append(link.format(""))
    for name, links in by_name.items():
        store.put_bytes(f"{prefix}/simple/{name}/index.html", "\n".join(links).encode())
    root = "\n".join(f'<a href="{name}/">{name}</a>' for name in sorted(by_name))
    store.put_bytes(f"{prefix}/simple/index.html", root.encode())
    store.put_bytes(f"{prefix}/index.html", "\n".join(flat).encode())
