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


class RelatedCommit(NamedTuple):
    """One row of ``related_commits``."""

    os: str
    source: str
    project: str
    branch: str
    commit: str
    origin: str


def adds_commit(setup: str) -> bool:
    """Return whether triton's setup.py adds the commit to the version: not on release branches."""
    return "def get_git_commit_hash" in setup


def parse_related_commits(text: str, where: str) -> Mapping[str, RelatedCommit]:
    """Read ``related_commits``: every row is checked, the ``ubuntu`` rows count, on Windows too."""
    ubuntu_rows: dict[str, RelatedCommit] = {}
    first_rows: dict[str, tuple[int, RelatedCommit]] = {}
    for number, line in enumerate(_without_mark(text).splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        row = _parse_row(line, f"{where}, line {number}")
        first_number, first_row = first_rows.setdefault(row.project, (number, row))
        # The same commit is the same in every repository, however its address is spelt.
        if first_row.commit != row.commit:
            raise SourceError(
                f"{where}: lines {first_number} and {number} name different commits of {row.project}: "
                f"{first_row.origin} {first_row.commit} and {row.origin} {row.commit}.",
                hint="Make its rows agree, or give the project's ref yourself.",
            )
        if row.os == "ubuntu":
            ubuntu_rows.setdefault(row.project, row)
    return ubuntu_rows


def _without_mark(text: str) -> str:
    """Return a text without the byte order mark that editors on Windows put before it."""
    return text.removeprefix("\ufeff")


def _parse_row(line: str, where: str) -> RelatedCommit:
    values = [value.strip() for value in line.split("|")]
    fields = RelatedCommit._fields
    if len(values) != len(fields):
        raise SourceError(
            f"{where}: {len(values)} fields instead of {len(fields)}: {line.strip()!r}.",
            hint=f"A row reads {'|'.join(fields)}.",
        )
    row = RelatedCommit(*values)
    for name in ("os", "project", "origin"):
        if not getattr(row, name):
            raise SourceError(f"{where}: the {name} is empty: {line.strip()!r}.")
    # As git does, take upper-case digits, too.
    row = row._replace(commit=row.commit.lower())
    if not is_commit(row.commit):
        raise SourceError(f"{where}: {row.commit!r} is not a commit (40 hex digits).")
    return row


def parse_commit_pin(text: str, where: str) -> str:
    """Read a pin file that holds one commit, as ``triton.txt`` does."""
    commit = _without_mark(text).strip().lower()
    if not is_commit(commit):
        raise SourceError(f"{where}: expected one commit (40 hex digits), found {_shown(text)}.")
    return commit


def parse_version(text: str, where: str) -> str:
    """Read a version file: one PEP 440 version without a local part, as written there."""
    written = _without_mark(text).strip()
    try:
        version = Version(written)
    except InvalidVersion as problem:
        raise SourceError(f"{where}: expected a version, found {_shown(text)}.") from problem
    if version.local:
        raise SourceError(f"{where}: {written} has a local version, which the build adds itself.")
    return str(version)


def module_version(text: str, where: str) -> str:
    """Read a Python module's ``__version__``; "" where it has none."""
    said = re.search(r"""^__version__\s*=\s*["']([^"']+)["']""", text, re.MULTILINE)
    return parse_version(said[1], where) if said else ""


def _shown(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return repr(line[:80]) if line else "nothing"


_GIT_TAGGED = frozenset({"dev", "dev-bkc"})
_GIT_TAG_LENGTH = 8
_PYTHON = re.compile(r"3\.([1-9][0-9]*)(?:\.[0-9]+(?:(?:a|b|rc)[0-9]+)?)?(t?)", re.ASCII)


def python_tag(version: str) -> str:
    """Return the ABI tag (PEP 425) of wheels for a Python version: 3.12, 3.12.4 -> cp312, 3.13t -> cp313t."""
    match = _PYTHON.fullmatch(version)
    if match is None:
        raise UsageError(
            f"{version!r} is not a Python version.", hint="Write 3.12, or 3.13t for free-threaded Python."
        )
    return f"cp3{match[1]}{match[2]}"


def version_suffix(rocm_version: str) -> str:
    """Make the local version suffix of wheels for a ROCm version.

    The scheme of the field's ``determine_version.py``: ``rocm``, or ``devrocm`` for
    development builds, then the ROCm version (without an epoch) with its own ``+`` replaced. Given
    in the normal form, so ``7.10.0.dev0+efed3c`` becomes ``+devrocm7.10.0.dev0.efed3c``.
    """
    try:
        parsed: Version | None = Version(rocm_version)
    except InvalidVersion:
        parsed = None
    if parsed is None or parsed.epoch:
        raise UsageError(
            f"{rocm_version!r} is not a ROCm version.",
            hint="Write it like 7.10.0a20251120 or 7.10.0.dev0+efed3c.",
        )
    prefix = "devrocm" if "dev" in str(parsed) else "rocm"
    # A digits-only label loses its leading zeros here, as it will in the wheel's name.
    return str(Version(f"0+{prefix}{str(parsed).replace('+', '-')}"))[1:]


def cpu_suffix(label: str = "") -> str:
    """Make the local version suffix of wheels without ROCm: ``+cpu``, or ``+cpu.{label}``."""
    if not label:
        return "+cpu"
    if not re.fullmatch(r"[a-z0-9]+(?:\.[a-z0-9]+)*", label):
        raise UsageError(f"{label!r} is not a local version label.", hint="Write it like sample or my.fork.")
    return str(Version(f"0+cpu.{label}"))[1:]


def edited(suffix: str, digest: str) -> str:
    """Say in a suffix that the tree has edits: ``+cpu.dirty.1f3a9c20``, which installers take for newer."""
    return f"{suffix}.dirty.{digest[:_GIT_TAG_LENGTH]}" if digest else suffix


def without_edits(text: str) -> str:
    """Take what `edited` adds out of a setting, in which each edit would be another configuration."""
    return re.sub(r"\.dirty\.[0-9a-f]{1,8}(?![0-9a-z])", "", text)


def wheel_version(
    base: str, suffix: str, *, release_type: str, commit: str, tagged: bool = False, torch: str = ""
) -> str:
    """Put a wheel's full version together, of what `parse_version` and the suffix functions gave."""
    if release_type not in RELEASE_TYPES:
        raise UsageError(f"Unknown release type {release_type!r}.", hint=nearest(release_type, RELEASE_TYPES))
    parsed = Version(base)
    git_tag = f"git{commit[:_GIT_TAG_LENGTH]}." if tagged or release_type in _GIT_TAGGED else ""
    of_torch = Version(torch or base)
    other = (of_torch.major, of_torch.minor) != (parsed.major, parsed.minor)
    label = f"torch{of_torch.major}.{of_torch.minor}." if other else ""
    return str(Version(f"{parsed}+{git_tag}{label}{suffix.removeprefix('+')}"))
