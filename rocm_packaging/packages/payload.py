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
from rocm_packaging.artifacts import (
    GENERIC,
    Artifact,
    TreeEntry,
    merge_artifacts,
    resolve_link,
    select_artifacts,
)
from rocm_packaging.packages.layouts import packages

if TYPE_CHECKING:
    from core.binaries.elf import ElfFacts

_MAX_LINKS = 40  # what Linux follows before it gives up
_LICENSE = re.compile(
    r"(?!.*\.(?:hpp|h|pyc|py|so)$)(?:licen[cs]es?|copying|copyright|notices?)\d*(?:[-_.].*)?",
    re.IGNORECASE,
)
# a file that a CMake package wants to be there before it defines a target, in a line that collects them
_IMPORTED = re.compile(r'"\$\{_IMPORT_PREFIX\}/([^"]+)"')
_VERSIONED_LIBRARY = re.compile(r"(?P<unversioned>.+\.so)(?:\.\d+)+")


@dataclass(frozen=True, kw_only=True)
class PayloadFile:
    """One file of a runtime wheel; an `rpath` other than None replaces the file's own.

    `stub_for` is the program that a stub starts, relative to its own folder. `is_second_name` marks the copy
    of a library under another name than its SONAME.
    """

    path: str
    entry: TreeEntry
    facts: ElfFacts | None = None
    stub_for: str = ""
    rpath: tuple[str, ...] | None = None
    is_second_name: bool = False

    @property
    def stands_for_link(self) -> bool:
        """Whether ROCm's tree has a link here, as the development tree may."""
        return bool(self.stub_for) or self.is_second_name


@dataclass(frozen=True, kw_only=True)
class Payload:
    """The files of one runtime wheel, and the names that it cannot hold."""

    files: Mapping[str, PayloadFile]
    aliases: Mapping[str, str]
    dropped: tuple[str, ...] = ()

    @property
    def has_stubs(self) -> bool:
        """Whether there are programs that start others."""
        return any(file.stub_for for file in self.files.values())


@dataclass(frozen=True, kw_only=True)
class Licenses:
    """The licences of a package: an SPDX expression, and files (PEP 639)."""

    expression: str
    files: Mapping[str, TreeEntry]


def plan(
    tree: Mapping[str, TreeEntry],
    facts: Mapping[str, ElfFacts],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    unversioned: Sequence[str] = (),
) -> Payload:
    """Choose the files of a runtime wheel; the arguments are globs, as `packages.toml` has them."""
    package_tree: dict[str, TreeEntry] = {}
    dropped: list[str] = []
    for path, entry in tree.items():
        is_included = not include or _matches_any(path, include)
        if is_included and not _matches_any(path, exclude):
            package_tree[path] = entry
        else:
            dropped.append(path)

    files: dict[str, PayloadFile] = {}
    aliases: dict[str, str] = {}
    for path, entry in package_tree.items():
        real_path = follow(package_tree, path)
        if real_path is None:
            dropped.append(path)
            continue

        elf_facts = facts.get(real_path)
        name_in_wheel = _name_in_wheel(package_tree, path, real_path, elf_facts)
        if name_in_wheel != path:
            aliases[path] = posixpath.basename(name_in_wheel)
        elif entry.link and elf_facts is not None and elf_facts.program:
            target = posixpath.relpath(real_path, posixpath.dirname(path) or ".")
            files[path] = PayloadFile(path=path, entry=package_tree[real_path], stub_for=target)
        else:
            files[path] = PayloadFile(path=path, entry=package_tree[real_path], facts=elf_facts)

    files |= _unversioned_copies(files, unversioned)
    return Payload(
        files=dict(sorted(files.items())),
        aliases=aliases,
        dropped=tuple(sorted(dropped)),
    )


def _unversioned_copies(files: Mapping[str, PayloadFile], globs: Sequence[str]) -> dict[str, PayloadFile]:
    """Return copies of libraries under their unversioned names, where those match and are not taken."""
    copies: dict[str, PayloadFile] = {}
    for path, file in files.items():
        match = _VERSIONED_LIBRARY.fullmatch(path)
        if match is None or match["unversioned"] in files:
            continue
        if _matches_any(match["unversioned"], globs):
            copy = replace(file, path=match["unversioned"], is_second_name=True)
            copies[copy.path] = copy
    return copies


def _matches_any(path: str, globs: Sequence[str]) -> bool:
    return any(path_pattern(glob).fullmatch(path) for glob in globs)


def with_rpath(file: PayloadFile, folder: str, other_folders: Iterable[str]) -> PayloadFile:
    """Decide a file's RPATH: its relative entries in order, then the other folders of site-packages.

    Absolute entries are folders of the build machine, and go.
    """
    facts = file.facts
    if facts is None or not facts.dynamic:
        return file
    relative_folders = rpath.relative_entries(facts.search)
    packages_folders = rpath.entries_to_folders(f"{folder}/{file.path}", other_folders)
    search = tuple(dict.fromkeys((*relative_folders, *packages_folders)))
    if facts.is_rpath and facts.search == search:
        return file
    return replace(file, rpath=search)


def follow(tree: Mapping[str, TreeEntry], path: str) -> str | None:
    """Follow links within a tree to a plain file; None where they dangle, circle or end in a folder."""
    for _hop in range(_MAX_LINKS):
        entry = tree.get(path)
        if entry is None:
            return None
        if not entry.link:
            return path
        path = resolve_link(path, entry.link)
    return None


def _name_in_wheel(tree: Mapping[str, TreeEntry], path: str, real_path: str, facts: ElfFacts | None) -> str:
    """Return the one name under which a library is written: its SONAME, where the folder has that name."""
    if facts is None or not facts.soname:
        return path
    soname_path = posixpath.join(posixpath.dirname(path), facts.soname)
    if follow(tree, soname_path) == real_path:
        return soname_path
    return path


def devel_only(
    tree: Mapping[str, TreeEntry], payloads: Iterable[Payload]
) -> tuple[dict[str, TreeEntry], dict[str, str]]:
    """Choose the files and links that the development tree holds beyond the runtime wheels."""
    paths_in_wheels: set[str] = set()
    links: dict[str, str] = {}
    for payload in payloads:
        # In this tree links can be links, which wheels have stubs and copies for.
        paths_in_wheels.update(path for path, file in payload.files.items() if not file.stands_for_link)
        links.update(payload.aliases)

    files: dict[str, TreeEntry] = {}
    folders = _folders(tree)
    for path, entry in tree.items():
        if path in paths_in_wheels or path in links:
            continue
        if not entry.link:
            files[path] = entry
        elif follow(tree, path) is not None or resolve_link(path, entry.link) in folders:
            links[path] = entry.link
    return files, links


def usual_links(tree: Mapping[str, TreeEntry], links: Mapping[str, str]) -> dict[str, str]:
    """Choose the links between folders that every ROCm tree has, and that this one lacks."""
    folders = _folders(tree)
    return {
        path: folder
        for path, folder in links.items()
        if path not in tree and path not in folders and folder in folders
    }


def unmet_imports(tree: Mapping[str, TreeEntry], packaged_paths: Collection[str]) -> Iterator[str]:
    """Yield which files CMake packages want and no package holds: find_package fails there."""
    for path, entry in sorted(tree.items()):
        # CMake takes the folder that holds lib/ for the prefix of what a package imports.
        prefix, lib_cmake, _path_in_package = f"/{path}".rpartition("/lib/cmake/")
        is_in_cmake_package = bool(lib_cmake)
        if not is_in_cmake_package or not path.endswith(".cmake"):
            continue
        for path_from_prefix in _imported_files(entry):
            imported_path = f"{prefix}/{path_from_prefix}".lstrip("/")
            if imported_path not in packaged_paths:
                yield f"{path} wants {imported_path}"


def _imported_files(entry: TreeEntry) -> list[str]:
    """Return the files that a CMake package wants below its prefix, each once."""
    text = entry.source.read_text(encoding="utf-8", errors="replace")
    files: list[str] = []
    for line in text.splitlines():
        if "_import_check_files_for_" in line.lower():
            files += _IMPORTED.findall(line)
    return list(dict.fromkeys(files))


def _folders(tree: Iterable[str]) -> set[str]:
    folders: set[str] = set()
    for path in tree:
        folder = path.rpartition("/")[0]
        # Where a folder is known, those above it are.
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def licenses_of(packaged: Sequence[Artifact], available: Sequence[Artifact]) -> Licenses:
    """Gather the licences of artifacts: what `packages.toml` names, and the files that they bring."""
    names = {artifact.name for artifact in packaged}
    targets = {GENERIC, *(artifact.target for artifact in packaged)}
    components = {"doc", *(artifact.component for artifact in packaged)}
    tree = merge_artifacts(select_artifacts(available, names=names, components=components, targets=targets))

    files: dict[str, TreeEntry] = {}
    for path in tree:
        if _LICENSE.fullmatch(posixpath.basename(path)):
            real_path = follow(tree, path)
            if real_path is not None:
                files[path] = tree[real_path]
    return Licenses(
        expression=join_expressions(packages().licenses.of(name) for name in names),
        files=files,
    )


def join_expressions(expressions: Iterable[str]) -> str:
    """Join SPDX expressions of which all hold, each licence once, sorted."""
    licenses: set[str] = set()
    for expression in expressions:
        licenses.update(expression.split(" AND "))
    return " AND ".join(sorted(licenses))
