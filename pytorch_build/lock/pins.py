"""The files in a source tree that name other projects' commits and versions, read strictly.

Formats (of the PyTorch tree): ``related_commits`` holds pipe-delimited rows
``os|source|project|branch|commit|origin``; ``ci_commit_pins/*.txt`` a bare commit;
``version.txt`` and ``triton_version.txt`` a version.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import InvalidVersion, Version

from core.errors import SourceError
from pytorch_build.sources.git import is_commit

if TYPE_CHECKING:
    from collections.abc import Mapping

RELATED_COMMITS_FILE = "related_commits"
TRITON_PIN_FILE = ".ci/docker/ci_commit_pins/triton.txt"
TRITON_VERSION_FILE = ".ci/docker/triton_version.txt"
TRITON_MODULES = ("python/triton/__init__.py", "triton/__init__.py")
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
    found: dict[str, RelatedCommit] = {}
    first: dict[str, tuple[int, RelatedCommit]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        row = _parse_row(line, f"{where}, line {number}")
        earlier_number, earlier = first.setdefault(row.project, (number, row))
        if (earlier.commit, earlier.origin) != (row.commit, row.origin):
            raise SourceError(
                f"{where}: lines {earlier_number} and {number} name different commits of {row.project}: "
                f"{earlier.origin} {earlier.commit} and {row.origin} {row.commit}.",
                hint="Make its rows agree, or give the project's ref yourself.",
            )
        if row.os == "ubuntu":
            found[row.project] = row
    return found


def _parse_row(line: str, where: str) -> RelatedCommit:
    values, fields = [value.strip() for value in line.split("|")], RelatedCommit._fields
    if len(values) != len(fields):
        raise SourceError(
            f"{where}: {len(values)} fields instead of {len(fields)}: {line.strip()!r}.",
            hint=f"A row reads {'|'.join(fields)}.",
        )
    row = RelatedCommit(*values)
    for name in ("os", "project", "origin"):
        if not getattr(row, name):
            raise SourceError(f"{where}: the {name} is empty: {line.strip()!r}.")
    if not is_commit(row.commit):
        raise SourceError(f"{where}: {row.commit!r} is not a commit (40 hex digits).")
    return row


def parse_commit_pin(text: str, where: str) -> str:
    """Read a pin file that holds one commit, as ``triton.txt`` does."""
    commit = text.strip()
    if not is_commit(commit):
        raise SourceError(f"{where}: expected one commit (40 hex digits), found {_shown(text)}.")
    return commit


def parse_version(text: str, where: str) -> str:
    """Read a version file: one PEP 440 version without a local part, as written there."""
    written = text.strip()
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
