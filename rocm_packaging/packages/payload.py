"""Decide what of ROCm's tree goes into a wheel, under which name and licence. Pure.

Wheels hold no symbolic links, so a library is written once, under its SONAME; its other
names live in the development tree. A link to a program becomes a small program that starts
it; other links to files become copies; links to folders, and dangling ones, are left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from core.binaries import rpath
from core.files import path_pattern
from rocm_packaging.artifacts import GENERIC, Artifact, Entry, merged, resolve_link
from rocm_packaging.packages.layouts import packages

if TYPE_CHECKING:
    from core.binaries.elf import ElfFacts

_MAX_LINKS = 40  # what Linux follows before it gives up
_LICENSE = re.compile(
    r"(?!.*\.(?:hpp|h|pyc|py|so)$)(?:licen[cs]es?|copying|copyright|notices?)\d*(?:[-_.].*)?", re.IGNORECASE
)
# a file that a CMake package wants to be there before it defines a target, in a line that collects them
_IMPORTED = re.compile(r'"\$\{_IMPORT_PREFIX\}/([^"]+)"')


@dataclass(frozen=True, kw_only=True)
class PayloadFile:
    """One file of a runtime wheel; an `rpath` other than None replaces the file's own."""

    path: str
    entry: Entry
    facts: ElfFacts | None = None
    stub_for: str = ""
    rpath: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Payload:
    """The files of one runtime wheel, and the names that it cannot hold."""

    files: Mapping[str, PayloadFile]
    aliases: Mapping[str, str]
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Licenses:
    """The licences of a package: an SPDX expression, and files (PEP 639)."""

    expression: str
    files: Mapping[str, Entry]


def plan(
    tree: Mapping[str, Entry],
    facts: Mapping[str, ElfFacts],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Payload:
    """Choose the files of a runtime wheel."""
    kept = {
        path: entry
        for path, entry in tree.items()
        if (not include or _matches(path, include)) and not _matches(path, exclude)
    }
    files: dict[str, PayloadFile] = {}
    aliases: dict[str, str] = {}
    dropped = [path for path in tree if path not in kept]
    for path, entry in kept.items():
        real = follow(kept, path)
        if real is None:
            dropped.append(path)
            continue
        known = facts.get(real)
        canonical = _canonical(kept, path, real, known)
        if canonical != path:
            aliases[path] = posixpath.basename(canonical)
        elif entry.link and known is not None and known.program:
            target = posixpath.relpath(real, posixpath.dirname(path) or ".")
            files[path] = PayloadFile(path=path, entry=kept[real], stub_for=target)
        else:
            files[path] = PayloadFile(path=path, entry=kept[real], facts=known)
    return Payload(files=files, aliases=aliases, dropped=tuple(sorted(dropped)))


def _matches(path: str, globs: Sequence[str]) -> bool:
    return any(path_pattern(glob).fullmatch(path) for glob in globs)


def with_rpath(file: PayloadFile, folder: str, others: Iterable[str]) -> PayloadFile:
    """Decide a file's RPATH: its relative entries in order, then the other folders of site-packages.

    Absolute entries are folders of the build machine, and go.
    """
    facts = file.facts
    if facts is None or not facts.dynamic:
        return file
    ways = rpath.ways(f"{folder}/{file.path}", others)
    wanted = tuple(dict.fromkeys((*rpath.relative(facts.search), *ways)))
    return file if facts.is_rpath and facts.search == wanted else replace(file, rpath=wanted)


def follow(tree: Mapping[str, Entry], path: str) -> str | None:
    """Follow links within a tree to a plain file; None where they dangle, circle or end in a folder."""
    for _ in range(_MAX_LINKS):
        entry = tree.get(path)
        if entry is None or not entry.link:
            return path if entry else None
        path = resolve_link(path, entry.link)
    return None


def _canonical(tree: Mapping[str, Entry], path: str, real: str, facts: ElfFacts | None) -> str:
    """Return the one name under which a library is written: its SONAME, where the folder has that name."""
    if facts is None or not facts.soname:
        return path
    candidate = posixpath.join(posixpath.dirname(path), facts.soname)
    return candidate if follow(tree, candidate) == real else path


def devel_only(
    tree: Mapping[str, Entry], payloads: Iterable[Payload]
) -> tuple[dict[str, Entry], dict[str, str]]:
    """Choose the files and links that the development tree holds beyond the runtime wheels."""
    carried: set[str] = set()
    links: dict[str, str] = {}
    for payload in payloads:
        # A stub stands for a link, and in this tree links can be links.
        carried.update(path for path, file in payload.files.items() if not file.stub_for)
        links.update(payload.aliases)
    own = {path: entry for path, entry in tree.items() if path not in carried and path not in links}
    folders = _folders(tree)
    for path, entry in own.items():
        if entry.link and (follow(tree, path) is not None or resolve_link(path, entry.link) in folders):
            links[path] = entry.link
    return {path: entry for path, entry in own.items() if not entry.link}, links


def usual_links(tree: Mapping[str, Entry], links: Mapping[str, str]) -> dict[str, str]:
    """Choose the links between folders that every ROCm tree has, and that this one lacks."""
    folders = _folders(tree)
    absent = {path: folder for path, folder in links.items() if path not in tree and path not in folders}
    return {path: folder for path, folder in absent.items() if folder in folders}


def unmet_imports(tree: Mapping[str, Entry], held: Collection[str]) -> Iterator[str]:
    """Tell which files CMake packages want and nothing holds, after their own: find_package fails there."""
    for path, entry in sorted(tree.items()):
        prefix, package, _ = f"/{path}".rpartition("/lib/cmake/")
        if package and path.endswith(".cmake"):
            text = entry.source.read_text(encoding="utf-8", errors="replace")
            lines = [line for line in text.splitlines() if "_import_check_files_for_" in line.lower()]
            wanted = [f"{prefix}/{one}".lstrip("/") for line in lines for one in _IMPORTED.findall(line)]
            yield from (f"{path} wants {one}" for one in dict.fromkeys(wanted) if one not in held)


def _folders(tree: Iterable[str]) -> set[str]:
    return {path[: slash.start()] for path in tree for slash in re.finditer("/", path)}


def licenses_of(taken: Sequence[Artifact], found: Sequence[Artifact]) -> Licenses:
    """Gather the licences of artifacts: what `packages.toml` names, and the files that they bring."""
    names = {one.name for one in taken}
    targets = {GENERIC, *(one.target for one in taken)}
    components = {"doc", *(one.component for one in taken)}
    tree = merged(
        one for one in found if one.name in names and one.component in components and one.target in targets
    )
    real = {path: follow(tree, path) for path in tree if _LICENSE.fullmatch(posixpath.basename(path))}
    return Licenses(
        expression=joined(packages().licenses.of(name) for name in names),
        files={path: tree[target] for path, target in real.items() if target},
    )


def joined(expressions: Iterable[str]) -> str:
    """Join SPDX expressions of which all hold, each licence once, sorted."""
    return " AND ".join(sorted({part for expression in expressions for part in expression.split(" AND ")}))
