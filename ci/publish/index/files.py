"""A file of an index: as its record says it is, as it is stored, and as a page lists it."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ci.publish.index.names import DistributionName

if TYPE_CHECKING:
    from packaging.version import Version

_LETTERS_AND_NUMBER = re.compile(r"([a-z]+)([0-9]+)")


class RecordedFile(NamedTuple):
    """What a wheel or sdist is: as a record says, or as the file itself does."""

    filename: str
    size: int
    sha256: str
    metadata_sha256: str | None = None
    requires_python: str | None = None


class StoredFile(NamedTuple):
    """A wheel or sdist as a listing shows it. It is the same file as long as all of this is the same."""

    filename: str
    size: int
    modified: int  # seconds since 1970 UTC
    etag: str
    sidecar_etag: str | None = None  # of its metadata (PEP 658), which lies beside it


class PageFile(NamedTuple):
    """A file as a page lists it: what is recorded of the bytes that are stored."""

    recorded_file: RecordedFile
    stored_file: StoredFile
    name: DistributionName
    yank_reason: str | None = None


def sort_files(page_files: Iterable[PageFile]) -> Sequence[PageFile]:
    """Return the files in a page's order: by version (PEP 440), equal ones by file name."""
    by_filename = sorted(page_files, key=lambda page_file: page_file.stored_file.filename)
    return sorted(by_filename, key=lambda page_file: page_file.name.version)


def newest_version(page_files: Sequence[PageFile]) -> str:
    """Return the version that a command to copy installs: the last that is not yanked, else the last."""
    for page_file in reversed(page_files):
        if page_file.yank_reason is None:
            return page_file.name.version_text
    return page_files[-1].name.version_text


def distinct_versions(page_files: Sequence[PageFile]) -> Sequence[str]:
    """Return the versions of a project's files, in their order, each in its first spelling."""
    spellings: dict[Version, str] = {}
    for page_file in page_files:
        spellings.setdefault(page_file.name.version, page_file.name.version_text)
    return list(spellings.values())


def equal_spellings(page_files: Sequence[PageFile]) -> Sequence[tuple[str, str]]:
    """Return pairs of files whose versions are equal in two spellings, as ``2.10`` and ``2.10.0``.

    An installer takes either of them, so that what it installs is not what its version says.
    """
    first_files: dict[Version, PageFile] = {}
    pairs: list[tuple[str, str]] = []
    for page_file in page_files:
        first_file = first_files.setdefault(page_file.name.version, page_file)
        if first_file.name.version_text != page_file.name.version_text:
            pairs.append((first_file.stored_file.filename, page_file.stored_file.filename))

    return pairs


def misordered_versions(page_files: Sequence[PageFile]) -> Sequence[tuple[str, str]]:
    """Return pairs of versions, the first of which installers prefer although its ROCm has a lower number.

    PEP 440 compares ``rocm7`` and ``rocm10`` of a local version as texts.
    """
    # Texts, which are split much faster than versions.
    preferred_versions: dict[str, str] = {}
    for page_file in page_files:
        if page_file.yank_reason is None:
            # The files are sorted: the last one of a release is what an installer prefers.
            release = page_file.name.version_text.partition("+")[0]
            preferred_versions[release] = page_file.name.version_text

    pairs: dict[tuple[str, str], None] = {}
    for page_file in page_files:
        version = page_file.name.version_text
        preferred_version = preferred_versions.get(version.partition("+")[0], version)
        if preferred_version != version and _has_lower_number(preferred_version, version):
            pairs[preferred_version, version] = None
    return list(pairs)


def _has_lower_number(version: str, other: str) -> bool:
    """Return whether the first segments in which two local versions differ are a name with a lower number."""
    segments = version.partition("+")[2].split(".")
    other_segments = other.partition("+")[2].split(".")
    for segment, other_segment in zip(segments, other_segments, strict=False):
        if segment == other_segment:
            continue
        match = _LETTERS_AND_NUMBER.fullmatch(segment)
        other_match = _LETTERS_AND_NUMBER.fullmatch(other_segment)
        if match is None or other_match is None or match[1] != other_match[1]:
            return False
        return int(match[2]) < int(other_match[2])
    return False
