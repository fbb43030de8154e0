"""How pages name what they show: cells, commits, and versions in their order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from core.cell import GroupCell, python_of_tag
from pytorch_build.sources.git import is_commit

if TYPE_CHECKING:
    from core.run.records import Record
    from pytorch_build.test.summary import CellData

NaturalKey: TypeAlias = tuple[tuple[int, str], ...]

# Hosts whose addresses of commits are known.
_HOSTED_REPOSITORY = re.compile(r"https://github\.com/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")


def cell_of_record(artifact_group: str, record: Record) -> GroupCell:
    """Return what the stage of a record ran on, as pages lay cells out."""
    cell = record.cell
    return GroupCell(
        artifact_group=artifact_group,
        torch_ref=cell.torch_ref,
        python=cell.python,
    )


def cell_of_tests(artifact_group: str, entry: CellData) -> GroupCell:
    """Return what the tests of an entry ran on."""
    python = python_of_tag(entry.python) if entry.python else None
    return GroupCell(
        artifact_group=artifact_group,
        torch_ref=entry.torch_ref or None,
        python=python,
    )


def cell_text(cell: GroupCell) -> str:
    """Return a cell as pages and their JSON name it: ``gfx94X-dcgpu nightly cp312``."""
    parts = (cell.artifact_group, cell.torch_ref, cell.python_tag)
    return " ".join(part for part in parts if part)


def anchor(cell: GroupCell) -> str:
    """Return where a cell stands on a run's page."""
    name = re.sub("[^0-9A-Za-z]+", "-", cell_text(cell))
    return f"cell-{name}"


def natural_key(name: str) -> NaturalKey:
    """Return the key to sort a name by, so that 2.10 comes after 2.9."""
    key: list[tuple[int, str]] = []
    for position, part in enumerate(re.split(r"([0-9]{1,18})", name)):
        # The split puts texts at even positions, and the numbers between them at odd ones.
        is_number = position % 2 == 1
        if is_number:
            key.append((int(part), ""))
        else:
            key.append((0, part))
    return tuple(key)


def commit_url(origin: str, commit: str) -> str | None:
    """Return the address that shows a commit; None where the repository's host is not known."""
    repository = origin.removesuffix("/").removesuffix(".git")
    if not _HOSTED_REPOSITORY.fullmatch(repository) or not is_commit(commit):
        return None
    return f"{repository}/commit/{commit}"


def comparison_url(origin: str, first_commit: str, last_commit: str) -> str | None:
    """Return the address that shows what lies between two commits of a repository, if there is one."""
    if first_commit == last_commit:
        return None
    if commit_url(origin, first_commit) is None or commit_url(origin, last_commit) is None:
        return None
    repository = origin.removesuffix("/").removesuffix(".git")
    return f"{repository}/compare/{first_commit}...{last_commit}"
