"""What the pages of an index say, read back as installers and people read them."""

import itertools
import json
import random
from dataclasses import dataclass
from datetime import datetime
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from ci.publish.index.pages import Entry, quoted, read_name
from core.errors import WheelError
from tests.kit.index_pages import entry, render_pages, sort_entries

NAMES = st.sampled_from(["torch", "torchaudio", "rocm-sdk-libraries-gfx110x-all"])
# One draw of a whole version is much faster than one of each of its parts.
VERSIONS = st.sampled_from(
    [
        f"{major}.{minor}.0{pre_release}{local}"
        for major, minor, pre_release, local in itertools.product(
            (0, 2, 10),
            (0, 9, 10, 12),
            ("", "a0", "rc1", ".dev20260822"),
            ("", "+rocm7.1", "+devrocm7.99.0.dev0.sample", "+cpu"),
        )
    ]
)
# Digests differ in two digits alone, which are drawn much faster than 64.
DIGESTS = st.text("0123456789abcdef", min_size=2, max_size=2).map(lambda digits: digits * 32)
TAGS = st.sampled_from(["cp312-cp312-linux_x86_64", "cp313-cp313t-win_amd64", "py3-none-any"])


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Draw a file that a page lists."""
    name = draw(NAMES)
    version = draw(VERSIONS)
    return entry(
        filename=f"{name.replace('-', '_')}-{version}-{draw(TAGS)}.whl",
        name=name,
        version=version,
        sha256=draw(DIGESTS),
        size=draw(st.integers(0, 1 << 36)),
        modified=draw(st.integers(0, 1 << 33)),
        yanked=draw(st.sampled_from([None, "", 'it is "broken" <&>'])),
        requires_python=draw(st.sampled_from(["", ">=3.11", "<3.14,>=3.10", '!="3"&<>'])),
        metadata_sha256=draw(st.just("") | DIGESTS),
    )


ENTRIES = st.lists(entries(), max_size=5, unique_by=lambda listed: listed.filename)


# Reading pages as an installer does


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link of a page."""

    attributes: dict[str, str | None]
    text: str


class LinkParser(HTMLParser):
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.is_in_link = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.is_in_link = True
            self.links.append(Link(attributes=dict(attrs), text=""))

    def handle_data(self, data: str) -> None:
        if self.is_in_link:
            link = self.links.pop()
            self.links.append(Link(attributes=link.attributes, text=link.text + data))

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self.is_in_link = False


def read_links(page: str) -> list[Link]:
    """Return the links of a page."""
    parser = LinkParser()
    parser.feed(page)
    parser.close()
    return parser.links


def read_html_entries(page: str, page_url: str) -> list[Entry]:
    """Return the entries of an HTML page, which says neither bytes nor times to the second."""
    return [entry_of_link(link, page_url) for link in read_links(page)]


def entry_of_link(link: Link, page_url: str) -> Entry:
    """Read a link as an installer does."""
    url = urlsplit(urljoin(page_url, str(link.attributes["href"])))
    # A plus sign means a space to some servers.
    assert "+" not in url.path
    assert unquote(url.path) == f"/g/{link.text}"
    metadata = link.attributes.get("data-core-metadata")
    assert link.attributes.get("data-dist-info-metadata") == metadata

    name, version, _build, _tags = parse_wheel_filename(link.text)
    return entry(
        filename=link.text,
        name=name,
        version=str(version),
        sha256=url.fragment.removeprefix("sha256="),
        size=0,
        requires_python=link.attributes.get("data-requires-python") or "",
        metadata_sha256=(metadata or "").removeprefix("sha256="),
        yanked=link.attributes.get("data-yanked"),
    )


def entry_of_json(file: dict[str, Any], page_url: str) -> Entry:
    """Read a file of a JSON page as an installer does."""
    url = urlsplit(urljoin(page_url, file["url"]))
    assert unquote(url.path) == f"/g/{file['filename']}"
    # PEP 714: JSON has the newer name alone.
    assert "dist-info-metadata" not in file

    name, version, _build, _tags = parse_wheel_filename(file["filename"])
    yanked = file.get("yanked")
    return entry(
        filename=file["filename"],
        name=name,
        version=str(version),
        sha256=file["hashes"]["sha256"],
        size=file["size"],
        modified=int(datetime.fromisoformat(file["upload-time"]).timestamp()),
        requires_python=file.get("requires-python", ""),
        metadata_sha256=file.get("core-metadata", {}).get("sha256", ""),
        yanked="" if yanked is True else yanked,
    )


def in_html(listed: list[Entry]) -> list[Entry]:
    """Return entries, in the order of pages, without what HTML does not say."""
    return [file._replace(size=0, modified=0) for file in sort_entries(listed)]


@given(ENTRIES)
def test_flat_page_gives_back_what_it_lists(listed: list[Entry]) -> None:
    page = render_pages("gfx110X-all <&>", listed)["index.html"]

    assert read_html_entries(page, "https://host/g/index.html") == in_html(listed)


@given(ENTRIES)
def test_root_pages_name_every_project_that_has_pages(listed: list[Entry]) -> None:
    names = sorted({file.name for file in listed})

    pages = render_pages("g", listed)

    folders = ["simple", *(f"simple/{name}" for name in names)]
    expected = {f"{folder}/index.{form}" for folder in folders for form in ("html", "json")}
    assert pages.keys() == {"index.html", *expected}

    root = json.loads(pages["simple/index.json"])
    links = read_links(pages["simple/index.html"])
    assert root["meta"] == {"api-version": "1.1"}
    assert [project["name"] for project in root["projects"]] == names
    assert [link.text for link in links] == names
    assert [link.attributes["href"] for link in links] == [f"{name}/" for name in names]


@given(ENTRIES)
def test_project_pages_give_back_what_they_list(listed: list[Entry]) -> None:
    pages = render_pages("g", listed)

    for name in {file.name for file in listed}:
        project_entries = [file for file in listed if file.name == name]
        page_url = f"https://host/g/simple/{name}/"
        html = pages[f"simple/{name}/index.html"]
        project = json.loads(pages[f"simple/{name}/index.json"])
        versions = {file.version for file in project_entries}

        assert read_html_entries(html, page_url) == in_html(project_entries)
        assert project["name"] == name
        assert project["meta"] == {"api-version": "1.1"}
        assert project["versions"] == sorted(versions, key=Version)
        read_entries = [entry_of_json(file, page_url) for file in project["files"]]
        assert read_entries == sort_entries(project_entries)


@given(ENTRIES, st.randoms())
def test_pages_are_the_same_in_any_order_of_files(listed: list[Entry], chance: random.Random) -> None:
    shuffled = listed.copy()
    chance.shuffle(shuffled)

    assert render_pages("g", shuffled) == render_pages("g", listed)


# What people read


def test_lists_versions_in_the_order_of_pep_440() -> None:
    listed = [
        entry(filename=f"torch-{version}-py3-none-any.whl", version=version)
        for version in ("2.10.0", "2.9.0", "2.10.0rc1")
    ]

    page = render_pages("g", listed)["index.html"]

    assert page.index("2.9.0-") < page.index("2.10.0rc1-") < page.index("2.10.0-")


def test_writes_the_title_as_text() -> None:
    page = render_pages("<b>", [entry()])["index.html"]

    assert "<title>&lt;b&gt;</title>" in page
    assert '<meta name="pypi:repository-version" content="1.1">' in page


@pytest.mark.parametrize("path", ["index.html", "simple/torch/index.html"])
@pytest.mark.parametrize(
    "text",
    [
        "1.5 GiB",
        "2027-01-15 08:00",
        ">abababababab<",
        "yanked: &lt;broken&gt;",
        '<pre>pip install "torch==2.9.0" --',
        '<pre>uv pip install "torch==2.9.0" --',
        "prefers-color-scheme:dark",
        'name="viewport"',
    ],
)
def test_shows_people_what_they_need_of_a_file(path: str, text: str) -> None:
    file = entry(size=3 << 29, modified=1_800_000_000, sha256="ab" * 32, yanked="<broken>")

    assert text in render_pages("g", [file])[path]


@pytest.mark.parametrize("path", ["index.html", "simple/torch/index.html"])
def test_proposes_the_newest_version_that_is_not_yanked(path: str) -> None:
    newer = entry(filename="torch-3.0-py3-none-any.whl", version="3.0", yanked="")

    assert 'install "torch==2.9.0"' in render_pages("g", [entry(), newer])[path]
    assert 'install "torch==3.0"' in render_pages("g", [newer])[path]


# Names


@given(st.text(min_size=1))
def test_any_name_is_text_in_a_page_and_one_segment_of_an_address(filename: str) -> None:
    page = render_pages("g", [entry(filename=filename)])["index.html"]

    # Parsers drop a NUL, which no file's name holds.
    (link,) = read_links(page.replace("\0", " "))
    href = str(link.attributes["href"])
    assert link.text.replace("\r", "\n") == filename.replace("\0", " ").replace("\r", "\n")
    assert unquote(href.partition("#")[0]) == filename
    assert not set("/+:?\\ <>\"'") & set(quoted(filename))


NAME_PARTS = st.text("abzAZ019._+!-<é ", max_size=8)
BUILD_NUMBERS = st.sampled_from(["", "-1", "-1b", "-x"])
NAME_TAGS = st.sampled_from(["py3-none-any", "cp312-abi3", "p.q-r-s_t"])


@given(NAME_PARTS, NAME_PARTS, BUILD_NUMBERS, NAME_TAGS)
def test_reads_a_wheels_name_as_packaging_does(name: str, version: str, build: str, tags: str) -> None:
    filename = f"{name}-{version}{build}-{tags}.whl"
    try:
        file_name = read_name(filename)
    except WheelError:
        return

    assert (file_name.name, file_name.version) == parse_wheel_filename(filename)[:2]


@given(NAME_PARTS, NAME_PARTS)
def test_reads_an_sdists_name_as_packaging_does(name: str, version: str) -> None:
    filename = f"{name}-{version}.tar.gz"
    try:
        file_name = read_name(filename)
    except WheelError:
        return

    assert (file_name.name, file_name.version) == parse_sdist_filename(filename)


@pytest.mark.parametrize(
    ("filename", "name", "version"),
    [
        ("torch-2.10.0+rocm7.1-cp312-cp312-manylinux_2_28_x86_64.whl", "torch", "2.10.0+rocm7.1"),
        (
            "rocm_sdk_libraries_gfx110X_all-7.10.0a20260822-1-py3-none-win_amd64.whl",
            "rocm-sdk-libraries-gfx110x-all",
            "7.10.0a20260822",
        ),
        (
            "zope.interface-1!2.0.post1-cp313-cp313t-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "zope-interface",
            "1!2.0.post1",
        ),
        ("rocm-7.10.0a1.tar.gz", "rocm", "7.10.0a1"),
    ],
)
def test_reads_names_that_build_tools_write(filename: str, name: str, version: str) -> None:
    file_name = read_name(filename)

    assert file_name.name == name
    assert file_name.version == Version(version)
