"""Versions and commits: what files of a source tree say of them, read strictly, and what wheels get.

Formats of files in the PyTorch tree: ``related_commits`` holds pipe-delimited rows
``os|source|project|branch|commit|origin``; ``ci_commit_pins/*.txt`` a bare commit;
``version.txt`` and ``triton_version.txt`` a version.

A wheel's version says what it runs on: ``2.10.0a0+rocm7.10.0a20251120``. Everything here
answers before anything is built, and answers in the normal form of PEP 440, so that it
equals the version in the wheel's file name.

Two facts about the scheme, which is the field's and stays: ``+rocm7…`` sorts above
``+rocm10…``, because PEP 440 compares ``rocm7`` and ``rocm10`` as words, and the git tags
of dev wheels sort by hash, not by date. Pick dev wheels by their full version.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from core.cli.options import RELEASE_TYPES
from core.errors import SourceError, UsageError, nearest
from pytorch_build.sources.git import is_commit

RELATED_COMMITS_FILE = "related_commits"
TRITON_PIN_FILE = ".ci/docker/ci_commit_pins/triton.txt"
VERSION_FILE = "version.txt"
# up to triton 3.3 it lay in python/
SETUP_FILES = ("setup.py", "python/setup.py")

_BYTE_ORDER_MARK = "\ufeff"  # editors on Windows put it before a text
_SHOWN_CHARACTERS = 80


# --- Files of source trees --------------------------------------------------------------------


class RelatedCommit(NamedTuple):
    """One row of torch's file ``related_commits``: the commit of another project to build with it."""

    os: str
    source: str
    project: str
    branch: str
    commit: str
    origin: str


def parse_related_commits(text: str, where: str) -> Mapping[str, RelatedCommit]:
    """Return the rows of ``related_commits`` for Ubuntu, by distribution.

    Every row is validated, the ``ubuntu`` rows count, on Windows too. `where` names the file, for errors.
    """
    ubuntu_rows: dict[str, RelatedCommit] = {}
    first_rows: dict[str, RelatedCommit] = {}
    first_numbers: dict[str, int] = {}
    lines = text.removeprefix(_BYTE_ORDER_MARK).splitlines()
    for number, line in enumerate(lines, start=1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue

        row = _parse_row(content, f"{where}, line {number}")
        project = row.project
        first_row = first_rows.setdefault(project, row)
        first_number = first_numbers.setdefault(project, number)
        # The same commit is the same in every repository, however its address is spelt.
        if first_row.commit != row.commit:
            first_source = f"{first_row.origin} {first_row.commit}"
            source = f"{row.origin} {row.commit}"
            raise SourceError(
                f"{where}: lines {first_number} and {number} name different commits of {project}: "
                f"{first_source} and {source}.",
                hint="Make its rows agree, or give the project's ref yourself.",
            )
        if row.os == "ubuntu":
            ubuntu_rows.setdefault(project, row)
    return ubuntu_rows


def _parse_row(line: str, where: str) -> RelatedCommit:
    """Return one line of ``related_commits`` as a row, its commit in small letters."""
    fields = RelatedCommit._fields
    values = [value.strip() for value in line.split("|")]
    count = len(values)
    if count != len(fields):
        row_format = "|".join(fields)
        raise SourceError(
            f"{where}: {count} fields instead of {len(fields)}: {line!r}.",
            hint=f"A row reads {row_format}.",
        )

    row = RelatedCommit(*values)
    required_values = {
        "os": row.os,
        "project": row.project,
        "origin": row.origin,
    }
    for name, value in required_values.items():
        if not value:
            raise SourceError(f"{where}: the {name} is empty: {line!r}.")

    # As git does, take upper-case digits, too.
    commit = row.commit.lower()
    if not is_commit(commit):
        raise SourceError(f"{where}: {commit!r} is not a commit (40 hex digits).")
    return row._replace(commit=commit)


def parse_commit_pin(text: str, where: str) -> str:
    """Return the commit in the text of a pin file such as torch's ``triton.txt``."""
    commit = text.removeprefix(_BYTE_ORDER_MARK).strip().lower()
    if not is_commit(commit):
        first_line = _quote_first_line(text)
        raise SourceError(f"{where}: expected one commit (40 hex digits), found {first_line}.")
    return commit


def parse_version(text: str, where: str) -> str:
    """Return the version in a file's text in normal form (PEP 440), which must have no local part."""
    version_text = text.removeprefix(_BYTE_ORDER_MARK).strip()
    try:
        version = Version(version_text)
    except InvalidVersion as problem:
        first_line = _quote_first_line(text)
        raise SourceError(f"{where}: expected a version, found {first_line}.") from problem
    if version.local:
        raise SourceError(f"{where}: {version_text} has a local version, which the build adds itself.")
    return str(version)


def module_version(text: str, where: str) -> str | None:
    """Return a Python module's ``__version__``; None where it has none."""
    assignment = re.search(r"""^__version__\s*=\s*["']([^"']+)["']""", text, re.MULTILINE)
    if assignment is None:
        return None
    return parse_version(assignment[1], where)


def adds_commit(setup_text: str) -> bool:
    """Return whether triton's setup.py adds the commit to the version: not on release branches."""
    return "def get_git_commit_hash" in setup_text


def _quote_first_line(text: str) -> str:
    """Return the first line of a text, shortened and in quotes, for errors."""
    first_line = text.strip().partition("\n")[0]
    if not first_line:
        return "nothing"
    return repr(first_line[:_SHOWN_CHARACTERS])


# --- Versions of wheels -----------------------------------------------------------------------

_TYPES_WITH_COMMIT = frozenset({"dev", "dev-bkc"})
_SHORT_DIGEST_LENGTH = 8
_PYTHON = re.compile(r"3\.([1-9][0-9]*)(?:\.[0-9]+(?:(?:a|b|rc)[0-9]+)?)?(t?)", re.ASCII)
_LABEL = re.compile(r"[a-z0-9]+(?:\.[a-z0-9]+)*")


def python_tag(version: str) -> str:
    """Return the ABI tag (PEP 425) of wheels for a Python version: 3.12, 3.12.4 -> cp312, 3.13t -> cp313t."""
    match = _PYTHON.fullmatch(version)
    if match is None:
        raise UsageError(
            f"{version!r} is not a Python version.",
            hint="Write 3.12, or 3.13t for free-threaded Python.",
        )
    minor = match[1]
    suffix = match[2]
    return f"cp3{minor}{suffix}"


def version_suffix(rocm_version: str) -> str:
    """Return the local version suffix of wheels built against a ROCm version: ``+rocm7.1``.

    The scheme of the field's ``determine_version.py``: ``rocm``, or ``devrocm`` for
    development builds, then the ROCm version (without an epoch) with its own ``+`` replaced. Given
    in the normal form, so ``7.10.0.dev0+efed3c`` becomes ``+devrocm7.10.0.dev0.efed3c``.
    """
    try:
        rocm: Version | None = Version(rocm_version)
    except InvalidVersion:
        rocm = None
    if rocm is None or rocm.epoch:
        raise UsageError(
            f"{rocm_version!r} is not a ROCm version.",
            hint="Write it like 7.10.0a20251120 or 7.10.0.dev0+efed3c.",
        )

    normalized = str(rocm)
    prefix = "devrocm" if "dev" in normalized else "rocm"
    label = normalized.replace("+", "-")
    return _normalized_suffix(f"{prefix}{label}")


def cpu_suffix(label: str = "") -> str:
    """Return the local version suffix of wheels without ROCm: ``+cpu``, or ``+cpu.{label}``."""
    if not label:
        return "+cpu"
    if not _LABEL.fullmatch(label):
        raise UsageError(f"{label!r} is not a local version label.", hint="Write it like sample or my.fork.")
    return _normalized_suffix(f"cpu.{label}")


def _normalized_suffix(label: str) -> str:
    """Return a local version as wheels' names have it: a label of digits alone loses its leading zeros."""
    version = Version(f"0+{label}")
    return f"+{version.local}"


def edited_suffix(suffix: str, digest: str) -> str:
    """Return a local version suffix with the mark of a tree that has edits.

    ``+cpu.dirty.f3a9c201``, which installers take for newer. The digest is shortened from its first letter
    on: digits alone are a number (PEP 440), which loses its leading zeros in a wheel's name.
    """
    from_letter = digest.lstrip("0123456789")
    short_digest = from_letter[:_SHORT_DIGEST_LENGTH]
    return f"{suffix}.dirty.{short_digest}"


def without_edit_marks(text: str) -> str:
    """Return a text without the marks of `edited_suffix`, as each edit would be another setting."""
    return re.sub(r"\.dirty\.[0-9a-f]{1,8}(?![0-9a-z])", "", text)


def wheel_version(
    base_version: str,
    suffix: str,
    *,
    release_type: str,
    commit: str,
    adds_commit: bool = False,
    torch_version: str | None = None,
) -> str:
    """Return a wheel's full version: a base version, and a local part of commit, torch and suffix.

    Args:
        base_version: The version that the project's tree names.
        suffix: What it runs on.
        release_type: Those of developers add the commit.
        commit: The commit of the tree.
        adds_commit: Whether the project's own build adds the commit.
        torch_version: Torch's version, where the wheel's version names another torch than its own number.
    """
    if release_type not in RELEASE_TYPES:
        raise UsageError(f"Unknown release type {release_type!r}.", hint=nearest(release_type, RELEASE_TYPES))

    labels: list[str] = []
    if adds_commit or release_type in _TYPES_WITH_COMMIT:
        short_commit = commit[:_SHORT_DIGEST_LENGTH]
        labels.append(f"git{short_commit}")
    if torch_version is not None and _minor_series(torch_version) != _minor_series(base_version):
        labels.append(f"torch{_minor_series(torch_version)}")
    labels.append(suffix.removeprefix("+"))

    local_version = ".".join(labels)
    version = Version(f"{base_version}+{local_version}")
    return str(version)


def _minor_series(version: str) -> str:
    """Return the major and minor number of a version: 2.10.0a0 -> 2.10."""
    parsed_version = Version(version)
    return f"{parsed_version.major}.{parsed_version.minor}"
