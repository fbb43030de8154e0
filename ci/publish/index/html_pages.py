"""HTML pages: a project's, the list of projects (both PEP 503), and the flat page for ``--find-links``.

The flat page begins with the commands that most people look for. Below them it has one folded section for
each project, so that a change of one replaces its section and copies the others as bytes. The only script
writes a page's own address into its commands; installers see plain links.
"""

import hashlib
import pkgutil
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from typing import NamedTuple

from ci.publish.index.files import PageFile, RecordedFile, StoredFile, newest_version
from ci.publish.index.json_pages import format_time, render_project_json
from ci.publish.index.names import read_name, relative_address
from core import console
from core.errors import DataError


class Notice(NamedTuple):
    """What the flat page says above its files; readers' programs look for links alone."""

    heading: str
    text: str
    lines: Sequence[str] = ()


# A project's part of the flat page: made anew, or a part of the former page that is not copied.
Section = bytes | memoryview

_DEVICE_PROJECT = re.compile(r"(?:amd-(?P<host>[a-z0-9-]+)|rocm-sdk)-device-gfx.+")
_SECTION_START = re.compile(rb"<details>\n<summary><h2>([a-z0-9-]+)</h2>")
_SECTION_END = b"</details>\n"
_COMMAND = re.compile(rb'<pre>pip install "([^"]+)"')
# What people install by name: of a page with PyTorch these of the projects that it has, else ROCm.
_PYTORCH_PROJECTS = ("torch", "torchvision", "torchaudio")
_ROW_START = '<li><a href="'

_FLAT_PAGE_OPTION = "--find-links <var>ADDRESS-OF-THIS-PAGE</var>"

# Read through pkgutil, because the function behind a bucket's events is imported from a zip.
_TEMPLATE = (pkgutil.get_data(__name__, "page.html") or b"").decode()
_HEAD, _, _FOOT = _TEMPLATE.partition("@BODY@\n")


def device_extras(projects: Iterable[str]) -> Mapping[str, str]:
    """Return the extra that brings device code, of each project that has some: without it a kernel fails."""
    extras: dict[str, str] = {}
    for project in projects:
        match = _DEVICE_PROJECT.fullmatch(project)
        if match is None:
            continue
        host = match["host"] or "rocm"
        extras[host] = "[libraries,device-all]" if host == "rocm" else "[device-all]"

    return extras


def render_rows(page_files: Sequence[PageFile]) -> str:
    """Return a line for each file, as the flat page links it."""
    return "".join(_render_row(page_file) for page_file in page_files)


def render_section(
    requirement: str,
    project: str,
    rows: str,
) -> bytes:
    """Return a project's part of the flat page."""
    file_count = console.counted(rows.count("<li>"), "file")
    summary = f"<summary><h2>{project}</h2> <span>{file_count}</span></summary>"
    commands = _render_commands([requirement], _FLAT_PAGE_OPTION)
    return f"<details>\n{summary}\n{commands}<ul>\n{rows}</ul>\n</details>\n".encode()


def render_project_html(
    requirement: str,
    project: str,
    rows: str,
    dependencies_address: str | None,
) -> bytes:
    """Return a project's page, ``simple/{project}/index.html``.

    `dependencies_address` is the address of the index of dependencies, relative to the page.
    """
    index = '<var data-to="..">ADDRESS-OF-SIMPLE</var>'
    # Beside another index, a stranger's file of one of our names may win. That of dependencies has none of
    # our names, and is the only second one that a command names.
    options = f"--index-url {index}"
    if dependencies_address is not None:
        others = f'<var data-to="{dependencies_address}">ADDRESS-OF-DEPENDENCIES</var>'
        options = f"--index-url {others} --extra-index-url {index}"
    commands = _render_commands([requirement], options)
    head = _render_head(f"Links for {project}")
    links = rows.replace(_ROW_START, f"{_ROW_START}../../")
    return f"{head}{commands}<ul>\n{links}</ul>\n{_FOOT}".encode()


def render_root_html(projects: Collection[str]) -> bytes:
    """Return the list of projects, ``simple/index.html``, which changes with their names alone."""
    links = "".join(f'<li><a href="{project}/">{project}</a></li>\n' for project in sorted(projects))
    count = console.counted(len(projects), "project")
    head = _render_head("Simple index")
    return f"{head}<p>{count}</p>\n<ul>\n{links}</ul>\n{_FOOT}".encode()


def render_notices(notices: Iterable[Notice]) -> str:
    """Return what the flat page says above its files."""
    sections: list[str] = []
    for notice in notices:
        lines = "".join(f"<li>{escape(line)}</li>\n" for line in notice.lines)
        # Headings are sentences, so that no notice is taken for the section of a project.
        sections.append(
            f"<section>\n<h2>{escape(notice.heading)}</h2>\n<p>{escape(notice.text)}</p>\n"
            f"<ul>\n{lines}</ul>\n</section>\n"
        )
    return "".join(sections)


def render_flat_page(
    title: str,
    notices: str,
    sections: Mapping[str, Section],
) -> Sequence[Section]:
    """Return the flat page, in parts that together may be large."""
    file_count = sum(bytes(section).count(b"\n<li>") for section in sections.values())
    count = console.counted(file_count, "file")
    install_commands = _render_install_commands(sections)
    head = f"{_render_head(escape(title))}<p>{count}</p>\n{install_commands}{notices}"
    ordered_sections = [sections[project] for project in sorted(sections)]
    return [head.encode(), *ordered_sections, _FOOT.encode()]


def split_flat_page(page: bytes) -> Mapping[str, Section]:
    """Return the sections of a flat page by project."""
    view = memoryview(page)
    sections: dict[str, Section] = {}
    for match in _SECTION_START.finditer(page):
        end = page.find(_SECTION_END, match.end()) + len(_SECTION_END)
        sections[match[1].decode()] = view[match.start() : end]

    return sections


@cache
def page_format() -> str:
    """Return a name of the form in which this version writes pages, so that it replaces those of another."""
    recorded_file = RecordedFile("a-1-py3-none-any.whl", 1, "0" * 64, "1" * 64, ">=3")
    stored_file = StoredFile("a-1-py3-none-any.whl", 1, 0, "e", "m")
    page_file = PageFile(recorded_file, stored_file, read_name(stored_file.filename), "why")
    rows = render_rows([page_file])
    extra = "".join(device_extras(["amd-a-device-gfx1", "rocm-sdk-device-gfx1"]).values())
    pages = [
        render_project_html("a==1", "a", rows, None),
        render_project_html("a==1", "a", rows, "../deps"),
        render_project_json("a", [page_file]),
        render_root_html(["a"]),
        *render_flat_page("t", "", {"a": render_section(f"a{extra}==1", "a", rows)}),
    ]

    return hashlib.sha256(b"".join(pages)).hexdigest()[:12]


def requirement_of(
    project: str,
    extra: str,
    page_files: Sequence[PageFile],
) -> str:
    """Return what the commands on a page install, such as ``torch[device-all]==2.10.0``."""
    return f"{project}{extra}=={newest_version(page_files)}"


def _render_row(page_file: PageFile) -> str:
    recorded_file, stored_file, _name, yank_reason = page_file
    attributes = ""
    if recorded_file.requires_python is not None:
        attributes += f' data-requires-python="{escape(recorded_file.requires_python)}"'
    if recorded_file.metadata_sha256 is not None:
        # The older name beside PEP 714's, for installers that know only that.
        digest = f"sha256={recorded_file.metadata_sha256}"
        attributes += f' data-core-metadata="{digest}" data-dist-info-metadata="{digest}"'

    remark = ""
    if yank_reason is not None:
        attributes += f' data-yanked="{escape(yank_reason)}"'
        remark = f" <em>yanked: {escape(yank_reason) or 'no reason given'}</em>"

    minute = format_time(stored_file.modified)[:16].replace("T", " ")
    address = f"{relative_address(stored_file.filename)}#sha256={recorded_file.sha256}"
    return (
        f'{_ROW_START}{address}"{attributes}>{stored_file.filename}</a>'
        f" <span>{console.size(stored_file.size)}</span> <time>{minute}</time>"
        f" <code>{recorded_file.sha256[:12]}</code>{remark}</li>\n"
    )


def _render_head(title: str) -> str:
    return _HEAD.replace("@TITLE@", title)


def _render_install_commands(sections: Mapping[str, Section]) -> str:
    """Return the commands that install PyTorch from a flat page, else ROCm; none where it has neither."""
    requirements = _usual_requirements(sections)
    if not requirements:
        return ""
    return f"<section>\n{_render_commands(requirements, _FLAT_PAGE_OPTION)}</section>\n"


def _usual_requirements(sections: Mapping[str, Section]) -> Sequence[str]:
    """Return what most people install of these projects, in one command."""
    if "torch" not in sections:
        return [_requirement_of_section(sections["rocm"])] if "rocm" in sections else []

    requirements: list[str] = []
    torch_label = _local_label(_requirement_of_section(sections["torch"]))
    for project in _PYTORCH_PROJECTS:
        if project in sections:
            requirement = _requirement_of_section(sections[project])
            # Of another build the newest one would not go with this torch.
            if _local_label(requirement).endswith(torch_label):
                requirements.append(requirement)
    return requirements


def _requirement_of_section(section: Section) -> str:
    match = _COMMAND.search(section)
    if match is None:
        raise DataError(f"A section of the flat page has no command: {bytes(section[:80])!r}")
    return match[1].decode()


def _local_label(requirement: str) -> str:
    """Return what the version of a requirement says behind the plus: the ROCm that it was built for."""
    return requirement.partition("+")[2]


def _render_commands(requirements: Iterable[str], index_option: str) -> str:
    quoted_requirements = " ".join(f'"{requirement}"' for requirement in requirements)
    lines = [
        f"<pre>{tool} install {quoted_requirements} {index_option}</pre>\n" for tool in ("pip", "uv pip")
    ]
    return "".join(lines)
