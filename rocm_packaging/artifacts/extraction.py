"""Members of an artifact's archive, written into a folder of their own, and nowhere else.

What may not happen is decided before anything is written: a member's name must be a plain
path below a folder that the manifest lists, no member may lie behind a link, and links are
made last, after all of them were followed on paper. So no order of members leads outside.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import stat
from typing import TYPE_CHECKING

from core.errors import ArtifactError, FatalError
from rocm_packaging.artifacts.artifacts import MANIFEST, parse_stages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from core.archive.tar import Member, TarStream

_DRIVE = re.compile(r"[A-Za-z]:")
_LONGEST_MANIFEST = 1 << 20
_MOST_HOPS = 40  # as many as Linux follows
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_FILE = stat.S_IRUSR | stat.S_IWUSR
_FOLDER = stat.S_IRWXU
_PERMISSIONS = 0o777


def unpack(tar: TarStream, folder: Path, *, where: str) -> int:
    """Write an archive's members into a fresh folder.

    Permission bits are kept, except that the owner may always read and write; set-user-id,
    set-group-id and sticky bits are not. Files get the time at which they are written.
    """
    members = tar.members()
    tree = _Tree(folder, where, _manifest(tar, members, folder, where))
    files = 0
    for member in members:
        _checked_name(member.name, where)
        try:
            files += tree.add(member, tar.chunks())
        except OSError as problem:
            raise _unwritten(folder, member.name, problem) from problem
    tree.link()
    return files


def _manifest(tar: TarStream, members: Iterator[Member], folder: Path, where: str) -> tuple[str, ...]:
    first = next(members, None)
    if first is None or first.name.removeprefix("./") != MANIFEST or first.kind != "file":
        found = f"{first.name!r} comes first" if first else "it is empty"
        raise ArtifactError(f"{where} does not begin with {MANIFEST}: {found}.", hint="Make it again.")
    if first.size > _LONGEST_MANIFEST:
        raise ArtifactError(f"{where} has a {MANIFEST} of {first.size} bytes.")
    data = tar.data()
    try:
        text = data.decode()
        (folder / MANIFEST).write_bytes(data)
    except UnicodeDecodeError as problem:
        raise ArtifactError(f"{where} has a {MANIFEST} that is not UTF-8.") from problem
    except OSError as problem:
        raise _unwritten(folder, MANIFEST, problem) from problem
    return parse_stages(text, f"{where}: {MANIFEST}")


class _Tree:
    """What lies where, as far as the archive was read."""

    def __init__(self, folder: Path, where: str, stages: tuple[str, ...]) -> None:
        self._root = str(folder)
        self._folder = folder
        self._where = where
        self._below = tuple(f"{stage}/" for stage in stages)
        self._above = {*stages, *_ancestors(stages)}
        self._kinds = {"": "folder", MANIFEST: "file"}
        self._links: dict[str, str] = {}

    def add(self, member: Member, data: Iterable[memoryview]) -> int:
        """Write a member, or note it where it is a link; say how many files that made."""
        name = member.name.removeprefix("./")
        if not name.startswith(self._below) and not (member.kind == "folder" and name in self._above):
            raise self._bad(name, f"lies outside of the folders that {MANIFEST} lists")
        present = self._kinds.get(name)
        if present is not None and (present, member.kind) != ("folder", "folder"):
            raise self._bad(name, "is there twice")
        if member.kind == "folder":
            self._make(name, member.mode & _PERMISSIONS | _FOLDER)
            return 0
        self._parent_of(name)
        if member.kind == "symlink":
            self._links[name] = member.link
        elif member.kind == "hardlink":
            self._hard_link(name, member.link)
        else:
            _write(f"{self._root}/{name}", member.mode & _PERMISSIONS | _FILE, data)
        self._kinds[name] = "symlink" if member.kind == "symlink" else "file"
        return int(member.kind == "file")

    def link(self) -> None:
        """Make the symbolic links, once all of them are known to stay inside."""
        for name, target in self._links.items():
            self._require_inside(name, target)
        for name, target in self._links.items():
            try:
                os.symlink(target, f"{self._root}/{name}")  # noqa: PTH211 - a path object a link takes longer
            except OSError as problem:
                raise _unwritten(self._folder, name, problem) from problem

    def _make(self, name: str, mode: int) -> None:
        path = f"{self._root}/{name}"
        if name not in self._kinds:
            self._parent_of(name)
            os.mkdir(path)  # noqa: PTH102 - as above
            self._kinds[name] = "folder"
        os.chmod(path, mode)  # noqa: PTH101 - as above

    def _parent_of(self, name: str) -> None:
        """See that what holds `name` is a folder; make it where the archive left it out."""
        parent = name.rpartition("/")[0]
        kind = self._kinds.get(parent)
        if kind is None:
            self._make(parent, 0o755)
        elif kind != "folder":
            raise self._bad(name, f"lies behind {parent!r}, which is a {kind}")

    def _hard_link(self, name: str, link: str) -> None:
        target = link.removeprefix("./")
        if self._kinds.get(target) != "file" or target == MANIFEST:
            raise self._bad(name, f"is a hard link to {link!r}, which is no file before it in the archive")
        try:
            os.link(f"{self._root}/{target}", f"{self._root}/{name}")
        except OSError:  # a file system without hard links
            shutil.copy2(f"{self._root}/{target}", f"{self._root}/{name}")

    def _require_inside(self, name: str, link: str) -> None:
        if not link or posixpath.isabs(link) or "\\" in link or "\0" in link or _DRIVE.match(link):
            raise self._bad(name, f"links to {link!r}, which is outside")
        place = name.split("/")[:-1]
        todo = link.split("/")[::-1]
        hops = 0
        while todo:
            step = todo.pop()
            if step == "..":
                if not place:
                    raise self._bad(name, f"links to {link!r}, which is outside")
                place.pop()
            elif step not in {"", "."}:
                place.append(step)
                further = self._links.get("/".join(place))
                if further is not None:
                    place.pop()
                    todo += further.split("/")[::-1]
                    hops += 1
            if hops > _MOST_HOPS:
                raise self._bad(name, f"links to {link!r}, which leads in circles")

    def _bad(self, name: str, what: str) -> ArtifactError:
        return ArtifactError(f"{self._where}: {name!r} {what}.")


def _ancestors(stages: Iterable[str]) -> Iterator[str]:
    for stage in stages:
        parts = stage.split("/")
        yield from ("/".join(parts[:end]) for end in range(1, len(parts)))


def _checked_name(name: str, where: str) -> None:
    """Refuse names that are not plain relative paths, on this platform or another."""
    plain = name.removeprefix("./")
    if plain.startswith("/") or _DRIVE.match(plain):
        raise ArtifactError(f"{where}: {name!r} is an absolute path.")
    if ".." in plain.split("/"):
        raise ArtifactError(f"{where}: {name!r} leads out of its folder.")
    if "\\" in plain or "\0" in plain or posixpath.normpath(plain) != plain:
        raise ArtifactError(f"{where}: {name!r} is no plain path.")


def _write(path: str, mode: int, data: Iterable[memoryview]) -> None:
    handle = os.open(path, _CREATE, mode)
    try:
        for piece in data:
            left = piece
            while left:
                left = left[os.write(handle, left) :]
        if os.name == "posix":
            os.fchmod(handle, mode)
    finally:
        os.close(handle)


def _unwritten(folder: Path, name: str, problem: OSError) -> FatalError:
    return FatalError(
        f"{name} could not be written below {folder}: {problem.strerror or problem}.",
        hint="Free space or change the folder.",
    )
