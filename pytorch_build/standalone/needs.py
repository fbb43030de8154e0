"""What of ROCm a wheel needs: followed from library to library, and from there to data. Pure but for `read`.

Search rules are the loaders': ld.so(8) looks along DT_RPATH or DT_RUNPATH, and takes what is loaded
already by its SONAME; Windows looks into the folder of the library and the folders added to the search.
"""

from __future__ import annotations

import posixpath
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core.binaries import rpath
from core.data import Model, load_toml
from core.errors import RocmError
from core.families import families
from pytorch_build.check.device_code import is_asked_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytorch_build.standalone.libraries import Binary, Rocm, RocmFile


_ORIGINS = ("$ORIGIN", "${ORIGIN}")
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Which libraries a machine has."""

    promised: tuple[str, ...]
    has: Callable[[str], bool] = field(default=lambda _name: False)
    usual: tuple[str, ...] = ()
    searches: bool = True


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What goes into the wheel."""

    libraries: Mapping[str, RocmFile]
    data: Mapping[str, RocmFile]
    search: Mapping[str, tuple[str, ...]]
    machine: Mapping[str, tuple[str, ...]]


@dataclass
class Follower:
    """Follows needs through a ROCm."""

    rocm: Rocm
    table: Table
    machine: Machine
    targets: Sequence[str]
    read: Callable[[RocmFile], Binary | None]
    _libraries: dict[str, RocmFile] = field(default_factory=dict)
    _data: dict[str, RocmFile] = field(default_factory=dict)
    _search: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _on_machine: dict[str, list[str]] = field(default_factory=dict)
    _missing: dict[str, list[str]] = field(default_factory=dict)
    _read: dict[str, Binary | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._named: dict[str, list[RocmFile]] = {}
        for one in self.rocm.files.values():
            self._named.setdefault(self._key(one.name), []).append(one)

    def _key(self, name: str) -> str:
        return name if self.machine.searches else name.lower()

    def find(self, name: str) -> RocmFile | None:
        """Find a library anywhere in ROCm by its file name: nearest to the top, then by path."""
        found = self._named.get(self._key(name), [])
        return min(found, key=lambda one: (one.below.count("/"), one.path), default=None)

    def find_glob(self, glob: str) -> RocmFile | None:
        """Find a library by a path pattern, else by its file name anywhere, under its SONAME."""
        found = self._matching(glob) or self._matching(f"**/{PurePosixPath(glob).name}")
        return self._canonical(found[0]) if found else None

    def of_machine(self, name: str, by: str) -> bool:
        """Whether the machine has a library; note who needs one that not every machine has."""
        if self.is_promised(name):
            return True
        if matches(name, self.machine.usual):
            self._on_machine.setdefault(name, []).append(by)
            return True
        return False

    def lack(self, name: str, by: str) -> None:
        """Note a library that nothing has."""
        self._missing.setdefault(name, []).append(by)

    def follow(self, roots: Iterable[RocmFile]) -> Bundle:
        """Take these libraries, and all that they need."""
        waiting = {one.path: one for one in roots}
        with ThreadPoolExecutor() as pool:
            while waiting:
                level = [one for path, one in waiting.items() if path not in self._libraries]
                self._libraries.update((one.path, one) for one in level)
                unread = [one for one in level if one.path not in self._read]
                for one, binary in zip(unread, pool.map(self.read, unread), strict=True):
                    self._read[one.path] = binary
                found = [more for one in level for more in self._needs_of(one, self._read[one.path])]
                waiting = {one.path: one for one in found}
        self._require_complete()
        return Bundle(
            libraries=dict(sorted(self._libraries.items())),
            data=dict(sorted(item for item in self._data.items() if item[0] not in self._libraries)),
            search=dict(sorted(self._search.items())),
            machine={name: tuple(sorted(by)) for name, by in sorted(self._on_machine.items())},
        )

    def _needs_of(self, file: RocmFile, binary: Binary | None) -> list[RocmFile]:
        """Find what one library needs, and note which folders it must look into besides its own."""
        if binary is None:
            return []
        found: list[RocmFile] = []
        more: list[str] = []
        for name in binary.needed:
            one = self._on_search_path(file, binary, name)
            if one is None and self.is_promised(name):
                continue
            one = one or self._elsewhere(file, name, more)
            if one is not None:
                found.append(one)
        for row in rows_of(self.table, file.name):
            opened = {self._canonical(one) for glob in row.opens for one in self._matching(glob)}
            for one in sorted(opened, key=lambda one: one.path):
                if wanted_for(one.below, self.targets) and one.path != file.path:
                    found.append(one)
                    if not self._reaches(file, binary, one):
                        more.append(_folder(one))
            for glob in row.data:
                found += self._take_data(file, glob)
        self._note_search(file, binary, more)
        return found

    def is_promised(self, name: str) -> bool:
        """Whether a library is every machine's, and so never ROCm's to bring."""
        return matches(name, self.machine.promised) or self.machine.has(name)

    def _elsewhere(self, file: RocmFile, name: str, more: list[str]) -> RocmFile | None:
        one = self.find(name)
        if one is not None:
            more.append(_folder(one))
        elif not self.of_machine(name, file.path):
            self.lack(name, file.path)
        return one

    def _take_data(self, file: RocmFile, glob: str) -> list[RocmFile]:
        """Take the data of a library from its own package; give the programs and libraries among it."""
        taken = [
            one
            for one in self._matching(glob)
            if one.root == file.root and wanted_for(one.below, self.targets)
        ]
        self._data.update((one.path, one) for one in taken)
        return [
            one
            for one in taken
            if one.below.startswith("bin/")
            and not one.name.endswith((".dat", ".db"))
            and "/" not in one.below.removeprefix("bin/")
        ]

    def _note_search(self, file: RocmFile, binary: Binary, more: Sequence[str]) -> None:
        if not self.machine.searches:
            return
        kept = rpath.relative(binary.search)
        if more or len(kept) != len(binary.search):
            self._search[file.path] = tuple(dict.fromkeys((*kept, *rpath.ways(file.path, more))))

    def _on_search_path(self, file: RocmFile, binary: Binary, name: str) -> RocmFile | None:
        if not self.machine.searches:
            return None
        for folder in _folders(file, binary):
            found = self.rocm.files.get(posixpath.join(folder, name) if folder else name)
            if found is not None:
                return found
        return None

    def _reaches(self, file: RocmFile, binary: Binary, other: RocmFile) -> bool:
        return not self.machine.searches or _folder(other) in _folders(file, binary)

    def _matching(self, glob: str) -> list[RocmFile]:
        pattern = path_pattern(glob)
        cache = self.__dict__.setdefault("_globs", {})
        if glob not in cache:
            cache[glob] = [one for one in self.rocm.files.values() if pattern.fullmatch(one.below)]
        found: list[RocmFile] = cache[glob]
        return found

    def _canonical(self, file: RocmFile) -> RocmFile:
        """Give the file under the one name that a loader knows it by, where the folder has that name."""
        if file.info is not None:  # wheels hold no links, so a library has one name there
            return file
        if file.path not in self._read:
            self._read[file.path] = self.read(file)
        binary = self._read[file.path]
        if binary is None or not binary.name:
            return file
        return self.rocm.files.get(posixpath.join(posixpath.dirname(file.path), binary.name), file)

    def _require_complete(self) -> None:
        if not self._missing:
            return
        lines = [
            f"  {name}, which {', '.join(sorted(set(by))[:_SHOWN])} needs"
            for name, by in sorted(self._missing.items())
        ]
        raise RocmError(
            "\n".join([f"{self.rocm.origin} lacks libraries:", *lines]),
            hint="Name a complete ROCm, or say that every machine will have them: --system-library NAME.",
        )


def _folder(file: RocmFile) -> str:
    return posixpath.dirname(file.path)


def _folders(file: RocmFile, binary: Binary) -> list[str]:
    """Give the folders, in the wheel's ROCm, that a library looks into."""
    folders = []
    for part in binary.search:
        origin = next((one for one in _ORIGINS if part == one or part.startswith(f"{one}/")), "")
        if origin:
            way = posixpath.normpath(posixpath.join(_folder(file) or ".", part[len(origin) :].strip("/")))
            folders.append("" if way == "." else way)
    return folders


TABLE = Path(__file__).with_name("bundle.toml")
# MIOpen's databases carry a processor's name with its number of compute units: gfx90a6e, gfx942130.
_TARGET = re.compile(r"gfx(?:[0-9]+(?:-[0-9]+)?-generic|[0-9a-f]{3,})")


class Row(Model):
    """What libraries need besides the ones that they are linked to."""

    names: tuple[str, ...]
    opens: tuple[str, ...] = ()
    data: tuple[str, ...] = ()


class System(Model):
    """Patterns of library names that a machine has, besides what the checks' policy says."""

    linux: tuple[str, ...]


class Table(Model):
    """The whole table."""

    label: str
    system: System
    library: tuple[Row, ...]


@cache
def load_table() -> Table:
    """Read the table beside this module."""
    return load_toml(TABLE, Table)


def rows_of(table: Table, name: str) -> Sequence[Row]:
    """Give the rows that hold for a library, by its file name."""
    lower = name.lower()
    return [row for row in table.library if any(fnmatchcase(lower, one.lower()) for one in row.names)]


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a library's name is among shell patterns, in any letter case."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


@cache
def path_pattern(glob: str) -> re.Pattern[str]:
    """Compile a path pattern: ``**/`` is any folders, ``**`` anything, ``*`` stays in one folder."""
    parts = re.split(r"(\*\*/|\*\*|\*)", glob)
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    return re.compile("".join(meaning.get(part, re.escape(part)) for part in parts))


def wanted_for(path: str, targets: Sequence[str]) -> bool:
    """Whether a data file serves one of the chosen GPU targets, by the targets that its path names."""
    if not targets:
        return True
    named = {_processor(found) for found in _TARGET.findall(path)}
    return not named or any(is_asked_for(one, targets) for one in named)


def _processor(word: str) -> str:
    if word.endswith("-generic"):
        return word
    known = (name for name, one in families().items() if one.targets == (name,) and word.startswith(name))
    return max(known, key=len, default=word)
