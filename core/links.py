"""The links of an index page (PEP 503): addresses of files, and what the page says of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import PurePosixPath
from urllib.parse import parse_qs, unquote, urljoin, urlsplit


@dataclass(frozen=True, kw_only=True)
class Link:
    """A file that a page lists (PEP 503); a field is "" where the page says nothing of it."""

    name: str
    sha256: str = ""
    requires_python: str = ""
    yanked: bool = False


def links(page: str) -> Mapping[str, Link]:
    """Return the links of a page (PEP 503), by an address that may be relative to the page's."""
    reader = _LinkReader()
    reader.feed(page)
    reader.close()
    return reader.links


class _LinkReader(HTMLParser):
    """Collects the links of a page; the first ``<base>`` says what they are relative to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, Link] = {}
        self._base: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        href = attributes.get("href")
        if not href:
            return

        if tag == "base" and self._base is None:
            self._base = href
        if tag == "a":
            address = self._address(href)
            self.links[address] = _link(href, attributes)

    def _address(self, href: str) -> str:
        address, _hash, _fragment = href.partition("#")
        if self._base is None:
            return address
        return urljoin(self._base, address)


def _link(href: str, attributes: Mapping[str, str | None]) -> Link:
    parts = urlsplit(href)
    path = PurePosixPath(unquote(parts.path))
    return Link(
        name=path.name,
        sha256=_sha256_in(parts.fragment),
        requires_python=attributes.get("data-requires-python") or "",
        # Yanked by the attribute alone (PEP 592): its value is a reason, which may be empty.
        yanked="data-yanked" in attributes,
    )


def _sha256_in(fragment: str) -> str:
    digests = parse_qs(fragment).get("sha256")
    if digests is None:
        return ""
    # Installers compare digests in any case.
    return digests[0].lower()
