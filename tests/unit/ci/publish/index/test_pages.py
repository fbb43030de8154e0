import json
import random
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
from tests.unit.ci.publish.index.indexed import in_order, render

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
        version=version,
        sha256=draw(DIGESTS),
        size=draw(st.integers(0, 1 << 36)),
        modified=draw(st.integers(0, 1 << 33)),
        yanked=draw(st.sampled_from([None, "", 'it is "broken" <&>'])),
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


def seen(entry: Entry) -> Entry:
    """Return what HTML pages say of an entry: neither its bytes nor its time to the second."""
    return entry._replace(size=0, modified=0)


def entry_of(attributes: dict[str, str | None], text: str, page_url: str, folder: str) -> Entry:
    """Read an entry back as an installer does."""
    url = urlsplit(urljoin(page_url, attributes["href"]))
    assert "+" not in url.path
    assert unquote(url.path) == f"{folder}{text}"
    assert attributes.get("data-core-metadata") == attributes.get("data-dist-info-metadata")
    name, version, _build, _tags = parse_wheel_filename(text)
    return Entry(
        filename=text,
        name=name,
        version=str(version),
        sha256=url.fragment.removeprefix("sha256="),
        size=0,
        modified=0,
        requires_python=attributes.get("data-requires-python") or "",
        metadata_sha256=(attributes.get("data-core-metadata") or "").removeprefix("sha256="),
        yanked=attributes.get("data-yanked"),
    )


def entry_of_json(one: dict[str, Any], page_url: str, folder: str) -> Entry:
    url = urlsplit(urljoin(page_url, one["url"]))
    assert unquote(url.path) == f"{folder}{one['filename']}"
    assert "dist-info-metadata" not in one  # PEP 714
    name, version, _build, _tags = parse_wheel_filename(one["filename"])
    yanked = one.get("yanked")
    return Entry(
        filename=one["filename"],
        name=name,
        version=str(version),
        sha256=one["hashes"]["sha256"],
        size=one["size"],
        modified=int(datetime.fromisoformat(one["upload-time"]).timestamp()),
        requires_python=one.get("requires-python", ""),
        metadata_sha256=one.get("core-metadata", {}).get("sha256", ""),
        yanked="" if yanked is True else yanked,
    )


def read(page: str, page_url: str) -> list[Entry]:
    return [entry_of(attributes, text, page_url, "/g/") for attributes, text in Links(page).found]


@given(LISTS)
def test_the_flat_page_gives_back_what_it_lists_in_pep_440_order(listed: list[Entry]) -> None:
    page = render("gfx110X-all <&>", listed)["index.html"]
    assert read(page, "https://host/g/index.html") == [seen(one) for one in in_order(listed)]


@given(LISTS)
def test_the_simple_pages_give_back_what_they_list(listed: list[Entry]) -> None:
    pages = render("g", listed)
    names = sorted({entry.name for entry in listed})
    expected = {
        f"simple/{part}index.{kind}" for part in ("", *(f"{n}/" for n in names)) for kind in ("html", "json")
    }
    assert set(pages) == {"index.html", *expected}
    root = json.loads(pages["simple/index.json"])
    assert root["meta"] == {"api-version": "1.1"}
    assert [one["name"] for one in root["projects"]] == names
    links = Links(pages["simple/index.html"]).found
    assert [text for _, text in links] == names
    for attributes, name in links:
        page_url = urljoin("https://host/g/simple/", attributes["href"])
        mine = [entry for entry in in_order(listed) if entry.name == name]
        assert read(pages[f"simple/{name}/index.html"], page_url) == [seen(one) for one in mine]
        project = json.loads(pages[f"simple/{name}/index.json"])
        assert (project["name"], project["meta"]) == (name, {"api-version": "1.1"})
        assert project["versions"] == sorted({entry.version for entry in mine}, key=Version)
        assert [entry_of_json(one, page_url, "/g/") for one in project["files"]] == mine


@given(LISTS, st.randoms())
def test_pages_are_the_same_in_whatever_order_files_come(listed: list[Entry], chance: random.Random) -> None:
    shuffled = listed.copy()
    chance.shuffle(shuffled)
    assert render("g", shuffled) == render("g", listed)


def test_version_ten_comes_after_nine_and_a_title_is_text() -> None:
    listed = [one_entry(filename=f"torch-{version}-py3-none-any.whl", version=version)
              for version in ("2.10.0", "2.9.0", "2.10.0rc1")]  # fmt: skip
    page = render("<b>", listed)["index.html"]
    assert page.index("2.9.0-") < page.index("2.10.0rc1-") < page.index("2.10.0-")
    assert "<title>&lt;b&gt;</title>" in page
    assert '<meta name="pypi:repository-version" content="1.1">' in page


def one_entry(**facts: Any) -> Entry:
    values = {"filename": "torch-2.9.0-py3-none-any.whl", "version": "2.9.0"}
    return Entry(**{"name": "torch", "sha256": "0" * 64, "size": 1, "modified": 0, **values, **facts})


def test_people_read_sizes_dates_digests_and_commands_to_copy() -> None:
    pages = render(
        "g", [one_entry(size=3 << 29, modified=1_800_000_000, sha256="ab" * 32, yanked="<broken>")]
    )
    for page in (pages["index.html"], pages["simple/torch/index.html"]):
        for text in ("1.5 GiB", "2027-01-15 08:00", ">abababababab<", "yanked: &lt;broken&gt;"):
            assert text in page
        for tool in ("pip", "uv pip"):
            assert f'<pre>{tool} install "torch==2.9.0" --' in page
        assert "prefers-color-scheme:dark" in page
        assert 'name="viewport"' in page


def test_the_command_to_copy_installs_the_newest_that_is_not_yanked() -> None:
    older = one_entry()
    newer = one_entry(filename="torch-3.0-py3-none-any.whl", version="3.0", yanked="")
    for listed, version in (([older, newer], "2.9.0"), ([newer], "3.0")):
        for page in ("index.html", "simple/torch/index.html"):
            assert f'install "torch=={version}"' in render("g", listed)[page]


@given(st.text(min_size=1))
def test_any_name_is_text_in_a_page_and_one_segment_of_an_address(filename: str) -> None:
    page = render("g", [one_entry(filename=filename)])["index.html"]
    ((attributes, text),) = Links(page.replace("\0", " ") if "\0" in filename else page).found
    href = str(attributes["href"])
    assert text.replace("\r", "\n") == filename.replace("\0", " ").replace("\r", "\n")
    assert unquote(href.partition("#")[0]) == filename
    assert not set("/+:?\\ <>\"'") & set(quoted(filename))


PARTS = st.text("abzAZ019._+!-<é ", max_size=8)


@given(
    PARTS,
    PARTS,
    st.sampled_from(["", "-1", "-1b", "-x"]),
    st.sampled_from(["py3-none-any", "cp312-abi3", "p.q-r-s_t"]),
)
def test_a_wheels_name_is_read_as_packaging_reads_it(name: str, version: str, build: str, tags: str) -> None:
    filename = f"{name}-{version}{build}-{tags}.whl"
    try:
        found = read_name(filename)
    except WheelError:
        return
    assert tuple(found[:2]) == parse_wheel_filename(filename)[:2]


@given(PARTS, PARTS)
def test_an_sdists_name_is_read_as_packaging_reads_it(name: str, version: str) -> None:
    try:
        found = read_name(f"{name}-{version}.tar.gz")
    except WheelError:
        return
    assert tuple(found[:2]) == parse_sdist_filename(f"{name}-{version}.tar.gz")


@pytest.mark.parametrize(
    "filename",
    [
        "torch-2.10.0+rocm7.1-cp312-cp312-manylinux_2_28_x86_64.whl",
        "rocm_sdk_libraries_gfx110X_all-7.10.0a20260822-1-py3-none-win_amd64.whl",
        "zope.interface-1!2.0.post1-cp313-cp313t-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    ],
)
def test_names_that_build_tools_write_are_taken(filename: str) -> None:
    assert tuple(read_name(filename)[:2]) == parse_wheel_filename(filename)[:2]
    assert tuple(read_name("rocm-7.10.0a1.tar.gz")[:2]) == ("rocm", Version("7.10.0a1"))
