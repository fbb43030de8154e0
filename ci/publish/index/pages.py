"""The pages of an index as a pure function of what it lists.

Flat page for ``--find-links``, beside the files; below ``simple/`` PEP 503 pages for ``--index-url``
and the same as PEP 691 JSON (API version 1.1, PEP 700), with yanked files (PEP 592) and metadata
sidecars (PEP 658, PEP 714). Deterministic: the same files give the same bytes, sorted by PEP 440.
The only script writes a page's own address into its install commands; installers see plain links.

Names of files are read by one strict expression, a thousand in a millisecond: what `packaging.utils`
takes, less letters beyond ASCII and what would have to be escaped in a page or an address.

Standard library and packaging only, beside our printer.
"""

import functools
import hashlib
import json
import pkgutil
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from itertools import chain, groupby
from json.encoder import encode_basestring_ascii as _json
from typing import NamedTuple
from urllib.parse import quote

from packaging.version import InvalidVersion, Version

from core import console
from core.errors import WheelError

SIDECAR = ".metadata"
FILES = (".whl", ".tar.gz")

_NAME = r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._]*[A-Za-z0-9])?)"
_VERSION = r"(?P<version>[A-Za-z0-9][A-Za-z0-9._!+]*)"
_INTERPRETERS = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_TAG = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*"
_WHEEL = re.compile(rf"{_NAME}-{_VERSION}(?:-[0-9][A-Za-z0-9_.]*)?-{_INTERPRETERS}-{_TAG}-{_TAG}\.whl")
_SDIST = re.compile(rf"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)-{_VERSION}\.tar\.gz")
API_VERSION = "1.1"
FLAT = "index.html"
SIMPLE = "simple"

Block = tuple[bytes, bytes | memoryview, bytes]

_DEVICE = re.compile(r"(?:amd-(?P<host>[a-z0-9-]+)|rocm-sdk)-device-gfx.+")
_PLAIN = re.compile(r"[A-Za-z0-9._+-]+")

# read where the function's zip is imported, too
HEAD, _, FOOT = (pkgutil.get_data(__name__, "page.html") or b"").decode().partition("@BODY@\n")


class Notice(NamedTuple):
    """What the flat page says above its files; readers' programs look for links alone."""

    heading: str
    text: str
    lines: Sequence[str] = ()


class FileName(NamedTuple):
    """What a file's name says."""

    name: str
    version: Version
    release: str


def read_name(filename: str) -> FileName:
    """Read the name of a wheel or an sdist."""
    match = (_WHEEL if filename.endswith(".whl") else _SDIST).fullmatch(filename)
    name, version = match.group("name", "version") if match else ("__", "")
    if "__" in name:
        raise WheelError(
            f"{filename!r} is not the name of a wheel or an sdist.",
            hint="Wheels are named NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl, sdists NAME-VERSION.tar.gz.",
        )
    try:
        return FileName(normalised(name), *read_version(version))
    except InvalidVersion:
        raise WheelError(
            f"{filename!r}: {version!r} is not a version.", hint="Versions are written as PEP 440 says."
        ) from None


@lru_cache(maxsize=1 << 16)
def normalised(name: str) -> str:
    """Write a project's name as PEP 503 does; `packaging.utils`, which does too, takes long to import."""
    return re.sub(r"[-_.]+", "-", name).lower()


@lru_cache(maxsize=1 << 16)
def read_version(text: str) -> tuple[Version, str]:
    """Read a version; return how it is written, too."""
    version = Version(text)
    return version, str(version)


class Entry(NamedTuple):
    """One file that a page lists; its version as PEP 440 writes it."""

    filename: str
    name: str
    version: str
    sha256: str
    size: int
    modified: int
    requires_python: str = ""
    metadata_sha256: str = ""
    yanked: str | None = None


def ranks(entries: Iterable[Entry]) -> Mapping[str, int]:
    """Number the versions of entries by PEP 440, equal ones alike: comparing two takes long."""
    versions = {text: read_version(text)[0] for text in {one.version for one in entries}}
    same = groupby(sorted(versions, key=versions.__getitem__), key=versions.__getitem__)
    return {text: rank for rank, (_, texts) in enumerate(same) for text in texts}


def newest(entries: Sequence[Entry]) -> str:
    """Return the version that a command to copy installs: the last one that is not yanked, else the last."""
    return next((one for one in reversed(entries) if one.yanked is None), entries[-1]).version


def extras(names: Iterable[str]) -> Mapping[str, str]:
    """Choose, of an index's projects, those that need an extra: without device code a kernel fails."""
    hosts = {match["host"] or "rocm" for match in map(_DEVICE.fullmatch, names) if match}
    return {name: "[libraries,device-all]" if name == "rocm" else "[device-all]" for name in sorted(hosts)}


def flat_page(
    title: str, files: int, blocks: Iterable[Block], *, notices: str = ""
) -> Sequence[bytes | memoryview]:
    """Return the page for ``--find-links``, which lies beside the files, from its projects' blocks."""
    head = f"{HEAD.replace('@TITLE@', escape(title))}<p>{console.counted(files, 'file')}</p>\n{notices}"
    return [head.encode(), *chain.from_iterable(blocks), FOOT.encode()]


def notices_html(notices: Iterable[Notice]) -> str:
    """Write notices as a part of the flat page."""
    sections: list[str] = []
    for notice in notices:
        lines = "".join(f"<li>{escape(line)}</li>\n" for line in notice.lines)
        sections.append(
            f"<section>\n<h2>{escape(notice.heading)}</h2>\n<p>{escape(notice.text)}</p>\n"
            f"<ul>\n{lines}</ul>\n</section>\n"
        )
    return "".join(sections)


def flat_block(name: str, wanted: str, rows: bytes | memoryview) -> Block:
    """Write a project's part of the flat page, around its rows, each of which ends a line."""
    commands = _commands(wanted, "--find-links <var>ADDRESS-OF-THIS-PAGE</var>")
    head = f"<section>\n<h2>{name}</h2>\n{commands}<ul>\n"
    return head.encode(), rows, b"</ul>\n</section>\n"


def root_html(names: Collection[str]) -> bytes:
    """Write the page that names every project, which changes with the projects alone."""
    links = "".join(f'<li><a href="{name}/">{name}</a></li>\n' for name in names)
    head, count = HEAD.replace("@TITLE@", "Simple index"), console.counted(len(names), "project")
    return f"{head}<p>{count}</p>\n<ul>\n{links}</ul>\n{FOOT}".encode()


def root_json(names: Collection[str]) -> bytes:
    """Write the same as JSON."""
    listed = {"meta": {"api-version": API_VERSION}, "projects": [{"name": name} for name in names]}
    return f"{json.dumps(listed, separators=(',', ':'))}\n".encode()


def project_html(name: str, wanted: str, rows: bytes | memoryview) -> bytes:
    """Write a project's page for people and PEP 503, ``simple/{name}/``, from the rows of the flat page."""
    where = '--extra-index-url <var data-to="..">ADDRESS-OF-SIMPLE</var>'
    head = f"{HEAD.replace('@TITLE@', f'Links for {name}')}{_commands(wanted, where)}<ul>\n"
    links = bytes(rows).replace(b'<li><a href="', b'<li><a href="../../')
    return b"".join([head.encode(), links, b"</ul>\n", FOOT.encode()])


def project_json(name: str, entries: Sequence[Entry]) -> bytes:
    """Write a project's page as PEP 691's JSON, from its entries in order."""
    meta = f'{{"meta":{{"api-version":"{API_VERSION}"}},"name":"{name}"'
    versions = '","'.join(dict.fromkeys(entry.version for entry in entries))
    files = ",\n".join(map(_json_file, entries))
    return f'{meta},"versions":["{versions}"],"files":[\n{files}]}}\n'.encode()


def row(entry: Entry) -> str:
    """Write the line of an entry as the flat page holds it, without a line feed or a tab."""
    attributes = f' data-requires-python="{escape(entry.requires_python)}"' if entry.requires_python else ""
    if entry.metadata_sha256:
        # the older name beside PEP 714's, for installers that know only that
        digest = f'sha256={entry.metadata_sha256}"'
        attributes += f' data-core-metadata="{digest} data-dist-info-metadata="{digest}'
    why = ""
    if entry.yanked is not None:
        attributes += f' data-yanked="{escape(entry.yanked)}"'
        why = f" <em>yanked: {escape(entry.yanked) or 'no reason given'}</em>"
    address = f"{quoted(entry.filename)}#sha256={entry.sha256}"
    return (
        f'<li><a href="{address}"{attributes}>{escape(entry.filename)}</a>'
        f" <span>{console.size(entry.size)}</span> <time>{_minute(entry.modified // 60, ' ')}</time>"
        f" <code>{entry.sha256[:12]}</code>{why}</li>"
    )


def quoted(filename: str) -> str:
    """Write a file name as a relative address; ``+`` means a space to some servers."""
    if _PLAIN.fullmatch(filename):
        return filename.replace("+", "%2B")
    return quote(filename, safe="")


@functools.cache
def page_format() -> str:
    """Name the form that this version writes pages in; pages of another form are written anew."""
    sample = Entry("a-1-py3-none-any.whl", "a", "1", "0" * 64, 1, 0, ">=3", "1" * 64, "why")
    rows = f"{row(sample)}\n".encode()
    wanted = "".join(extras(["amd-a-device-gfx1", "rocm-sdk-device-gfx1"]).values())
    flat = flat_page("t", 1, [flat_block("a", wanted, rows)])
    pages = [
        project_html("a", "a==1", rows),
        project_json("a", [sample]),
        root_html("a"),
        root_json("a"),
        *flat,
    ]
    return hashlib.sha256(b"".join(pages)).hexdigest()[:12]


def _json_file(entry: Entry) -> str:
    # put together by hand: the encoder takes three times as long
    more = f',"requires-python":{_json(entry.requires_python)}' if entry.requires_python else ""
    if entry.metadata_sha256:
        # PEP 714's name alone: pip 22.3 to 23.1 fails at the older one in JSON
        more += f',"core-metadata":{{"sha256":"{entry.metadata_sha256}"}}'
    if entry.yanked is not None:
        more += f',"yanked":{_json(entry.yanked) if entry.yanked else "true"}'
    return (
        f'{{"filename":{_json(entry.filename)},"url":"../../{quoted(entry.filename)}"'
        f',"hashes":{{"sha256":"{entry.sha256}"}},"size":{entry.size}'
        f',"upload-time":"{_minute(entry.modified // 60, "T")}:{entry.modified % 60:02}Z"{more}}}'
    )


def _commands(requirement: str, where: str) -> str:
    return "".join(
        f'<pre>{tool} install "{escape(requirement)}" {where}</pre>\n' for tool in ("pip", "uv pip")
    )


@lru_cache(maxsize=1 << 16)
def _minute(number: int, between: str) -> str:
    return time.strftime(f"%Y-%m-%d{between}%H:%M", time.gmtime(number * 60))
