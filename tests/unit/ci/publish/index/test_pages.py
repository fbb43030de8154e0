"""What the pages of an index say, read back as installers and people read them."""

import itertools
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from ci.publish.index.files import PageFile, sort_files
from ci.publish.index.names import guess_project, read_name, relative_address
from core.errors import WheelError
from tests.kit.index_pages import page_file, render_pages

NAMES = st.sampled_from(["torch", "torchaudio", "rocm_sdk_libraries_gfx110x_all"])
PARTS_OF_VERSIONS = itertools.product(
    ("0.", "2.", "10."),
    ("0.0", "9.0", "10.0", "12.0"),
    ("", "a0", "rc1", ".dev20260822"),
    ("", "+rocm7.1", "+devrocm7.99.0.dev0.sample", "+cpu"),
)
# One draw of a whole version is much faster than one of each of its parts.
VERSIONS = st.sampled_from(list(map("".join, PARTS_OF_VERSIONS)))
# Digests differ in two digits alone, which are drawn much faster than 64.
DIGESTS = st.text("0123456789abcdef", min_size=2, max_size=2).map(lambda digits: digits * 32)
TAGS = st.sampled_from(["cp312-cp312-linux_x86_64", "cp313-cp313t-win_amd64", "py3-none-any"])


@st.composite
def listed_files(draw: st.DrawFn) -> PageFile:
    """Draw a file that a page lists."""
    return page_file(
        filename=f"{draw(NAMES)}-{draw(VERSIONS)}-{draw(TAGS)}.whl",
        sha256=draw(DIGESTS),
        size=draw(st.integers(0, 1 << 36)),
        modified=draw(st.integers(0, 1 << 33)),
        yank_reason=draw(st.sampled_from([None, "", 'it is "broken" <&>'])),
        requires_python=draw(st.sampled_from([None, ">=3.11", "<3.14,>=3.10", '!="3"&<>'])),
        metadata_sha256=draw(st.none() | DIGESTS),
    )


def filename_of(file: PageFile) -> str:
    return file.stored_file.filename


LISTS_OF_FILES = st.lists(listed_files(), max_size=5, unique_by=filename_of)


def files_named(*filenames: str) -> list[PageFile]:
    """Return files of which only the names matter."""
    return [page_file(filename=filename) for filename in filenames]


def flat_page(files: Sequence[PageFile], *, title: str = "g") -> str:
    """Return the flat page of an index of these files."""
    return render_pages(title, files)["index.html"]


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
            link = self.links[-1]
            self.links[-1] = replace(link, text=link.text + data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self.is_in_link = False


def read_links(page: str) -> list[Link]:
    """Return the links of a page."""
    parser = LinkParser()
    parser.feed(page)
    parser.close()
    return parser.links


def read_html_files(page: str, page_url: str) -> list[PageFile]:
    """Return the files of an HTML page, which gives neither sizes in bytes nor times to the second."""
    return [file_of_link(link, page_url) for link in read_links(page)]


def file_of_link(link: Link, page_url: str) -> PageFile:
    """Read a link as an installer does."""
    url = urlsplit(urljoin(page_url, str(link.attributes["href"])))
    # A plus sign means a space to some servers.
    assert "+" not in url.path
    assert unquote(url.path) == f"/g/{link.text}"
    # PEP 714: HTML has the older name beside the newer one.
    metadata = link.attributes.get("data-core-metadata")
    assert link.attributes.get("data-dist-info-metadata") == metadata

    return page_file(
        filename=link.text,
        sha256=url.fragment.removeprefix("sha256="),
        size=0,
        requires_python=link.attributes.get("data-requires-python"),
        metadata_sha256=metadata.removeprefix("sha256=") if metadata else None,
        yank_reason=link.attributes.get("data-yanked"),
    )


def file_of_json(file: dict[str, Any], page_url: str) -> PageFile:
    """Read a file of a JSON page as an installer does."""
    url = urlsplit(urljoin(page_url, file["url"]))
    assert unquote(url.path) == f"/g/{file['filename']}"
    # PEP 714: JSON has the newer name alone.
    assert "dist-info-metadata" not in file

    yanked = file.get("yanked")
    return page_file(
        filename=file["filename"],
        sha256=file["hashes"]["sha256"],
        size=file["size"],
        modified=int(datetime.fromisoformat(file["upload-time"]).timestamp()),
        requires_python=file.get("requires-python"),
        metadata_sha256=file.get("core-metadata", {}).get("sha256"),
        yank_reason="" if yanked is True else yanked,
    )


def read_json_files(page: str, page_url: str) -> list[PageFile]:
    """Return the files of a JSON page."""
    return [file_of_json(file, page_url) for file in json.loads(page)["files"]]


# What pages are expected to say


def project_of(file: PageFile) -> str:
    return guess_project(filename_of(file))


def group_by_project(files: Sequence[PageFile]) -> dict[str, list[PageFile]]:
    """Return files by the project that they are of."""
    files_by_project: dict[str, list[PageFile]] = {}
    for file in files:
        files_by_project.setdefault(project_of(file), []).append(file)
    return files_by_project


def sort_as_pages(files: Sequence[PageFile]) -> list[PageFile]:
    """Return files in the order of pages: by project, version (PEP 440) and file name."""
    return sorted(sort_files(files), key=project_of)


def sort_as_html_pages(files: Sequence[PageFile]) -> list[PageFile]:
    """Return files in the order of pages, without the facts that only JSON pages have."""
    return list(map(without_facts_of_json, sort_as_pages(files)))


def without_facts_of_json(file: PageFile) -> PageFile:
    return page_file(
        filename=filename_of(file),
        sha256=file.recorded_file.sha256,
        size=0,
        requires_python=file.recorded_file.requires_python,
        metadata_sha256=file.recorded_file.metadata_sha256,
        yank_reason=file.yank_reason,
    )


@given(LISTS_OF_FILES)
def test_installers_read_every_file_from_the_flat_page(files: list[PageFile]) -> None:
    page = flat_page(files, title="gfx110X-all <&>")

    assert read_html_files(page, "https://host/g/index.html") == sort_as_html_pages(files)


@given(LISTS_OF_FILES)
def test_every_project_has_two_pages(files: list[PageFile]) -> None:
    pages = render_pages("g", files)

    expected_paths = {"index.html", "simple/index.html", "simple/index.json"}
    for name in group_by_project(files):
        expected_paths |= {f"simple/{name}/index.html", f"simple/{name}/index.json"}
    assert pages.keys() == expected_paths


@given(LISTS_OF_FILES)
def test_root_pages_name_every_project_that_has_pages(files: list[PageFile]) -> None:
    names = sorted(group_by_project(files))

    pages = render_pages("g", files)

    root = json.loads(pages["simple/index.json"])
    assert root["meta"]["api-version"] == "1.1"
    assert [project["name"] for project in root["projects"]] == names

    links = read_links(pages["simple/index.html"])
    assert [link.text for link in links] == names
    for link in links:
        assert link.attributes["href"] == f"{link.text}/"


@given(LISTS_OF_FILES)
def test_installers_read_every_file_from_the_pages_of_its_project(files: list[PageFile]) -> None:
    pages = render_pages("g", files)

    for name, project_files in group_by_project(files).items():
        page_url = f"https://host/g/simple/{name}/"
        html_page = pages[f"simple/{name}/index.html"]
        json_page = pages[f"simple/{name}/index.json"]
        assert read_html_files(html_page, page_url) == sort_as_html_pages(project_files)
        assert read_json_files(json_page, page_url) == sort_as_pages(project_files)


@given(LISTS_OF_FILES)
def test_json_pages_of_projects_list_their_versions(files: list[PageFile]) -> None:
    pages = render_pages("g", files)

    for name, project_files in group_by_project(files).items():
        project = json.loads(pages[f"simple/{name}/index.json"])
        versions = {file.name.version_text for file in project_files}
        assert project["name"] == name
        assert project["meta"]["api-version"] == "1.1"
        assert project["versions"] == sorted(versions, key=Version)


@given(LISTS_OF_FILES, st.randoms())
def test_pages_are_the_same_in_any_order_of_files(files: list[PageFile], chance: random.Random) -> None:
    shuffled_files = files.copy()
    chance.shuffle(shuffled_files)

    assert render_pages("g", shuffled_files) == render_pages("g", files)


# What people read


def test_lists_versions_in_the_order_of_pep_440() -> None:
    files = files_named(
        "torch-2.10.0-py3-none-any.whl",
        "torch-2.9.0-py3-none-any.whl",
        "torch-2.10.0rc1-py3-none-any.whl",
    )

    page = flat_page(files)

    assert page.index("2.9.0-") < page.index("2.10.0rc1-") < page.index("2.10.0-")


def test_writes_the_title_as_text() -> None:
    page = flat_page([page_file()], title="<b>")

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
    file = page_file(size=3 << 29, modified=1_800_000_000, sha256="ab" * 32, yank_reason="<broken>")

    assert text in render_pages("g", [file])[path]


@pytest.mark.parametrize("path", ["index.html", "simple/torch/index.html"])
def test_proposes_the_newest_version_that_is_not_yanked(path: str) -> None:
    older_file = page_file(filename="torch-2.9.0-py3-none-any.whl")
    yanked_file = page_file(filename="torch-3.0-py3-none-any.whl", yank_reason="")

    page = render_pages("g", [older_file, yanked_file])[path]

    assert 'install "torch==2.9.0"' in page


@pytest.mark.parametrize("path", ["index.html", "simple/torch/index.html"])
def test_proposes_a_yanked_version_where_there_is_no_other(path: str) -> None:
    yanked_file = page_file(filename="torch-3.0-py3-none-any.whl", yank_reason="")

    page = render_pages("g", [yanked_file])[path]

    assert 'install "torch==3.0"' in page


FILES_OF_A_BUILD = files_named(
    "amd_torch_device_gfx942-2.10.0+rocm10-cp312-cp312-linux_x86_64.whl",
    "rocm-10.tar.gz",
    "torch-2.9.0+rocm9-cp312-cp312-linux_x86_64.whl",
    "torch-2.10.0+rocm10-cp312-cp312-linux_x86_64.whl",
    "torchaudio-2.10.0+torch2.10.rocm10-cp312-cp312-linux_x86_64.whl",
    "torchvision-0.25.0+rocm10-cp312-cp312-linux_x86_64.whl",
    "triton-3.6.0+rocm10-cp312-cp312-linux_x86_64.whl",
)


def proposed_commands(files: Sequence[PageFile]) -> list[str]:
    """Return the commands of a flat page that stand above its folded sections, without their options."""
    head = flat_page(files).partition("<details>")[0]
    return re.findall("<pre>(.*?) --find-links", head)


def test_begins_with_one_command_each_for_pip_and_uv() -> None:
    requirements = '"torch[device-all]==2.10.0+rocm10" "torchvision==0.25.0+rocm10"'
    requirements += ' "torchaudio==2.10.0+torch2.10.rocm10"'

    assert proposed_commands(FILES_OF_A_BUILD) == [
        f"pip install {requirements}",
        f"uv pip install {requirements}",
    ]


def test_proposes_no_package_of_another_build_than_torchs() -> None:
    files = files_named(
        "torch-2.10.0+rocm10-cp312-cp312-linux_x86_64.whl",
        "torchvision-0.24.0+rocm9-cp312-cp312-linux_x86_64.whl",
    )

    assert proposed_commands(files)[0] == 'pip install "torch==2.10.0+rocm10"'


def test_proposes_rocm_where_there_is_no_torch() -> None:
    files = files_named("rocm-10.tar.gz", "rocm_sdk_device_gfx942-10-py3-none-any.whl")

    assert proposed_commands(files)[0] == 'pip install "rocm[libraries,device-all]==10"'


def test_proposes_nothing_where_there_is_neither_torch_nor_rocm() -> None:
    assert proposed_commands(files_named("numpy-2.0-py3-none-any.whl")) == []


def test_folds_the_files_of_every_project() -> None:
    page = flat_page(FILES_OF_A_BUILD)

    summaries = re.findall("<summary><h2>(.*?)</h2> <span>(.*?)</span></summary>", page)
    assert ("torch", "2 files") in summaries
    assert len(summaries) == 6
    assert page.count("<ul>") == 6
    assert page.count("</details>") == 6


# Names


@given(st.text(min_size=1))
def test_any_file_name_becomes_a_single_segment_of_an_address(filename: str) -> None:
    address = relative_address(filename)

    assert unquote(address) == filename
    assert not set("/+:?\\ <>\"'") & set(address)


NAME_PARTS = st.text("abzAZ019._+!-<é ", max_size=8)
BUILD_NUMBERS = st.sampled_from(["", "-1", "-1b", "-x"])
NAME_TAGS = st.sampled_from(["py3-none-any", "cp312-abi3", "p.q-r-s_t"])


@given(NAME_PARTS, NAME_PARTS, BUILD_NUMBERS, NAME_TAGS)
def test_reads_the_name_of_a_wheel_as_packaging_does(
    name: str, version_text: str, build: str, tags: str
) -> None:
    filename = f"{name}-{version_text}{build}-{tags}.whl"
    try:
        distribution_name = read_name(filename)
    except WheelError:
        return

    project, version, *_build_and_tags = parse_wheel_filename(filename)
    assert distribution_name.project == project
    assert distribution_name.version == version


@given(NAME_PARTS, NAME_PARTS)
def test_reads_the_name_of_an_sdist_as_packaging_does(name: str, version_text: str) -> None:
    filename = f"{name}-{version_text}.tar.gz"
    try:
        distribution_name = read_name(filename)
    except WheelError:
        return

    project, version = parse_sdist_filename(filename)
    assert distribution_name.project == project
    assert distribution_name.version == version


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
    distribution_name = read_name(filename)

    assert distribution_name.project == name
    assert distribution_name.version == Version(version)
