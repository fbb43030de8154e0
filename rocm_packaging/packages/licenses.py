"""What licences a package is under, and the files that say so (PEP 639)."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocm_packaging.artifacts.artifacts import GENERIC, merged
from rocm_packaging.packages.packages import packages
from rocm_packaging.packages.payload import follow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rocm_packaging.artifacts.artifacts import Artifact, Entry

_FILE = re.compile(
    r"(?!.*\.(?:hpp|h|pyc|py|so)$)(?:licen[cs]es?|copying|copyright|notices?)\d*(?:[-_.].*)?", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Licenses:
    """The licences of a package."""

    expression: str
    files: Mapping[str, Entry]


def licenses_of(taken: Sequence[Artifact], found: Sequence[Artifact]) -> Licenses:
    """Gather the licences of artifacts: what `packages.toml` names, and the files that they bring."""
    names = {one.name for one in taken}
    targets = {GENERIC, *(one.target for one in taken)}
    components = {"doc", *(one.component for one in taken)}
    tree = merged(
        one for one in found if one.name in names and one.component in components and one.target in targets
    )
    real = {path: follow(tree, path) for path in tree if _FILE.fullmatch(posixpath.basename(path))}
    return Licenses(
        expression=joined(packages().licenses.of(name) for name in names),
        files={path: tree[target] for path, target in real.items() if target},
    )


def joined(expressions: Iterable[str]) -> str:
    """Join SPDX expressions of which all hold, each licence once, sorted."""
    parts = {part for expression in expressions for part in expression.split(" AND ")}
    return " AND ".join(sorted(parts))
