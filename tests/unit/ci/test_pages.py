from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name
from packaging.version import Version

from ci.pages import Entry, flat_page, simple_pages

if TYPE_CHECKING:
    import random

NAMES = st.sampled_from(["torch", "torchaudio", "rocm-sdk-libraries-gfx110x-all"])
VERSIONS = st.builds(
    "{}.{}.0{}{}".format,
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from(["", "a0", "rc1", ".dev20260822"]),
    st.sampled_from(["", "+rocm7.1", "+devrocm7.99.0.dev0.sample", "+cpu"]),
)
DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    name, version = draw(NAMES), draw(VERSIONS)
    tag = draw(st.sampled_from(["cp312-cp312-linux_x86_64", "cp313-cp313t-win_amd64", "py3-none-any"]))
    return Entry(
        filename=f"{name.replace('-', '_')}-{version}-{tag}.whl",
        name=name,
        version=Version(version),
        sha256=draw(DIGESTS),
        requires_python=draw(st.sampled_from(["", ">=3.11", "<3.14,>=3.10", '!="3"&<>'])),
        metadata_sha256=draw(st.just("") | DIGESTS),
    )


LISTS = st.lists(entries(), max_size=8, unique_by=lambda entry: entry.filename)


class Links(HTMLParser):
    """The links of a page: attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self._open = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._open = True
            self.found.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self._open:
            self.found[-1] = (self.found[-1][0], self.found[-1][1] + data)

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag != "a"


def entry_of(attributes: dict[str, str | None], text: str, page_url: str, folder: str) -> Entry:
    """Read an entry back as an installer does."""
    url = urlsplit(urljoin(page_url, attributes["href"]))
    assert "+" not in url.path
    assert unquote(url.path) == f"{folder}{text}"
    assert attributes.get("data-core-metadata") == attributes.get("data-dist-info-metadata")
    name, version = text.split("-")[:2]
    return Entry(
        filename=text,
        name=canonicalize_name(name),
        version=Version(version),
        sha256=url.fragment.removeprefix("sha256="),
        requires_python=attributes.get("data-requires-python") or "",
        metadata_sha256=(attributes.get("data-core-metadata") or "").removeprefix("sha256="),
    )


def read(page: str, page_url: str) -> list[Entry]:
    return [entry_of(attributes, text, page_url, "/g/") for attributes, text in Links(page).found]


def in_order(listed: list[Entry]) -> list[Entry]:
    return sorted(listed, key=lambda one: (one.name, one.version, one.filename))


@given(LISTS)
def test_the_flat_page_gives_back_what_it_lists_in_pep_440_order(listed: list[Entry]) -> None:
    assert read(flat_page("gfx110X-all <&>", listed), "https://host/g/index.html") == in_order(listed)


@given(LISTS)
def test_the_simple_pages_give_back_what_they_list(listed: list[Entry]) -> None:
    pages = simple_pages(listed)
    names = sorted({entry.name for entry in listed})
    assert set(pages) == {"index.html", *(f"{name}/index.html" for name in names)}
    root = Links(pages["index.html"]).found
    assert [text for _, text in root] == names
    for attributes, name in root:
        page_url = urljoin("https://host/g/simple/", attributes["href"])
        found = read(pages[f"{name}/index.html"], page_url)
        assert found == in_order([entry for entry in listed if entry.name == name])


@given(LISTS, st.randoms())
def test_pages_are_the_same_bytes_in_whatever_order_files_are_found(
    listed: list[Entry], chance: random.Random
) -> None:
    shuffled = listed.copy()
    chance.shuffle(shuffled)
    assert flat_page("g", shuffled) == flat_page("g", listed)
    assert simple_pages(shuffled) == simple_pages(listed)


def test_version_ten_comes_after_nine_and_a_title_is_text() -> None:
    listed = [
        Entry(
            filename=f"torch-{version}-py3-none-any.whl", name="torch", version=Version(version), sha256="0"
        )
        for version in ("2.10.0", "2.9.0", "2.10.0rc1")
    ]
    page = flat_page("<b>", listed)
    assert page.index("2.9.0-") < page.index("2.10.0rc1-") < page.index("2.10.0-")
    assert "<title>&lt;b&gt;</title>" in page
    assert '<meta name="pypi:repository-version" content="1.1">' in page
