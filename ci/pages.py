"""The pages of an index as a pure function of what it lists.

Flat page for ``--find-links``; PEP 503 pages for ``--index-url``, with PEP 658/714 metadata
attributes. Deterministic: the same files give the same bytes, sorted by PEP 440.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packaging.version import Version

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="pypi:repository-version" content="1.1">
<title>{title}</title>
</head>
<body>
<h1>{title}</h1>
{links}
</body>
</html>
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file that a page lists.

    Attributes:
        filename: The file's name.
        name: Its distribution's normalised name.
        version: Its version.
        sha256: Hex SHA-256 of the file.
        requires_python: Its ``Requires-Python``; "" for none.
        metadata_sha256: Hex SHA-256 of its ``.metadata`` sidecar; "" where there is none.
    """

    filename: str
    name: str
    version: Version
    sha256: str
    requires_python: str = ""
    metadata_sha256: str = ""


def flat_page(title: str, entries: Sequence[Entry]) -> str:
    """Write the page for ``--find-links``, which lies beside the files."""
    return _PAGE.format(
        title=html.escape(title), links="\n".join(_link(entry, "") for entry in _sorted(entries))
    )


def simple_pages(entries: Sequence[Entry]) -> Mapping[str, str]:
    """Write the PEP 503 pages, which lie in ``simple/`` beside the files.

    Returns:
        Path below ``simple/`` to page: ``index.html`` and ``{name}/index.html``.
    """
    names = sorted({entry.name for entry in entries})
    pages = {
        f"{name}/index.html": _PAGE.format(
            title=f"Links for {name}",
            links="\n".join(_link(entry, "../../") for entry in _sorted(entries) if entry.name == name),
        )
        for name in names
    }
    root = "\n".join(f'<a href="{name}/">{name}</a><br>' for name in names)
    return {**pages, "index.html": _PAGE.format(title="Simple index", links=root)}


def _sorted(entries: Sequence[Entry]) -> Sequence[Entry]:
    return sorted(entries, key=lambda entry: (entry.name, entry.version, entry.filename))


def _link(entry: Entry, base: str) -> str:
    attributes = [f'href="{base}{quote(entry.filename)}#sha256={entry.sha256}"']
    if entry.requires_python:
        attributes.append(f'data-requires-python="{html.escape(entry.requires_python)}"')
    if entry.metadata_sha256:
        # the older name beside PEP 714's, for installers that know only that
        attributes.append(f'data-core-metadata="sha256={entry.metadata_sha256}"')
        attributes.append(f'data-dist-info-metadata="sha256={entry.metadata_sha256}"')
    return f"<a {' '.join(attributes)}>{html.escape(entry.filename)}</a><br>"
