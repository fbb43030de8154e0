"""What of ROCm a wheel needs: followed from library to library, and from there to data. Pure but for `read`.

Search rules are the loaders': ld.so(8) looks along DT_RPATH or DT_RUNPATH, and takes what is loaded
already by its SONAME; Windows looks into the folder of the library and the folders added to the search.
What ROCm's libraries open by name, and which files they read, is data: `bundle.toml`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core.binaries import rpath
from core.data import Model, data_file
from core.errors import RocmError
from core.families import families
from core.files import path_pattern
from pytorch_build.check import load_policy, matches
from pytorch_build.check.device_code import is_asked_for

if TYPE_CHECKING:
    from pytorch_build.standalone.libraries import Binary, Rocm, RocmFile

TABLE = Path(__file__).with_name("bundle.toml")
_SHOWN = 5
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


load_table = data_file(TABLE, Table)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Which libraries a machine has: promised on every machine, or usual."""

    promised: tuple[str, ...]
    has: Callable[[str], bool] = field(default=lambda _name: False)
    usual: tuple[str, ...] = ()
    searches: bool = True


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What goes into the wheel, with the search paths that change, and what the machine must have."""

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
    _globs: dict[str, list[RocmFile]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._named: dict[str, list[RocmFile]] = {}
        for one in self.rocm.files.values():
            self._named.setdefault(self._key(one.name), []).append(one)

    def _key(self, name: str) -> str:
        return name if self.machine.searches else name.lower()

    def find_glob(self, glob: str) -> RocmFile | None:
        """Find a library by a path pattern, else by its file name anywhere, under its SONAME."""
        found = self._matching(glob) or self._matching(f"**/{PurePosixPath(glob).name}")
        return self._canonical(found[0]) if found else None

    def need(self, name: str, by: str) -> RocmFile | None:
        """Find a library that is not promised anywhere in ROCm; note what the machine has, or nothing."""
        found = self._named.get(self._key(name), [])  # the nearest to the top, then by path
        one = min(found, key=lambda one: (one.below.count("/"), one.path), default=None)
        if one is None:
            noted = self._on_machine if matches(name, self.machine.usual) else self._missing
            noted.setdefault(name, []).append(by)
        return one

    def is_promised(self, name: str) -> bool:
        """Whether a library is every machine's, and so never ROCm's to bring."""
        return matches(name, self.machine.promised) or self.machine.has(name)

    def follow(self, roots: Iterable[RocmFile]) -> Bundle:
        """Take these libraries, and all that they need."""
        waiting = {one.path: one for one in roots}
        with ThreadPoolExecutor() as pool:
            while waiting:
                level = [one for path, one in waiting.items() if path not in self._libraries]
                self._libraries.update((one.path, one) for one in level)
                unread = [one for one in level if one.path not in self._read]
                self._read.update(zip((one.path for one in unread), pool.map(self.read, unread), strict=True))
                found = [more for one in level for more in self._needs_of(one, self._read[one.path])]
                waiting = {one.path: one for one in found}
        if self._missing:
            by = {name: ", ".join(sorted(set(by))[:_SHOWN]) for name, by in sorted(self._missing.items())}
            lines = [f"  {name}, which {needing} needs" for name, needing in by.items()]
            raise RocmError(
                "\n".join([f"{self.rocm.origin} lacks libraries:", *lines]),
                hint="Name a complete ROCm, or declare that every machine has them: --system-library NAME.",
            )
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
        folders = _folders(file, binary) if self.machine.searches else []
        for name in binary.needed:
            paths = (posixpath.join(folder, name) for folder in folders)
            one = next((self.rocm.files[path] for path in paths if path in self.rocm.files), None)
            if one is None and not self.is_promised(name):
                one = self.need(name, file.path)
                more += [posixpath.dirname(one.path)] if one else []
            found += [one] if one else []
        for row in self.table.library:
            if not matches(file.name, row.names):
                continue
            opened = {self._canonical(one) for glob in row.opens for one in self._matching(glob)}
            for one in sorted(opened, key=lambda one: one.path):
                if wanted_for(one.below, self.targets) and one.path != file.path:
                    found.append(one)
                    folder = posixpath.dirname(one.path)
                    more += [folder] if folder not in folders else []
            found += [one for glob in row.data for one in self._take_data(file, glob)]
        kept = rpath.relative(binary.search)
        if self.machine.searches and (more or len(kept) != len(binary.search)):
            self._search[file.path] = tuple(dict.fromkeys((*kept, *rpath.ways(file.path, more))))
        return found

    def _take_data(self, file: RocmFile, glob: str) -> list[RocmFile]:
        """Take the data of a library from its own package; return the programs and libraries among it."""
        own = (one for one in self._matching(glob) if one.root == file.root)
        taken = [one for one in own if wanted_for(one.below, self.targets)]
        self._data.update((one.path, one) for one in taken)
        programs = (one for one in taken if posixpath.dirname(one.below) == "bin")
        return [one for one in programs if not one.name.endswith((".dat", ".db"))]

    def _matching(self, glob: str) -> list[RocmFile]:
        if glob not in self._globs:
            pattern = path_pattern(glob)
            self._globs[glob] = [one for one in self.rocm.files.values() if pattern.fullmatch(one.below)]
        return self._globs[glob]

    def _canonical(self, file: RocmFile) -> RocmFile:
        """Return the file under the one name that a loader knows it by, where the folder has that name."""
        if file.member is not None:  # wheels hold no links, so a library has one name there
            return file
        if file.path not in self._read:
            self._read[file.path] = self.read(file)
        binary = self._read[file.path]
        if not (binary and binary.name):
            return file
        return self.rocm.files.get(posixpath.join(posixpath.dirname(file.path), binary.name), file)


def _folders(file: RocmFile, binary: Binary) -> list[str]:
    """Return the folders, in the wheel's ROCm, that a library looks into; "" is the top."""
    here = posixpath.dirname(file.path) or "."
    below = (part.partition("/")[2].strip("/") for part in rpath.relative(binary.search))
    ways = (posixpath.normpath(posixpath.join(here, one)) for one in below)
    return ["" if way == "." else way for way in ways]


def wanted_for(path: str, targets: Sequence[str]) -> bool:
    """Return whether a data file serves one of the chosen GPU targets, by the targets that its path names."""
    named = {_processor(found) for found in _TARGET.findall(path)} if targets else set()
    return not named or any(is_asked_for(one, targets, load_policy()) for one in named)


def _processor(word: str) -> str:
    if word.endswith("-generic"):
        return word
    known = (name for name, one in families().items() if one.targets == (name,) and word.startswith(name))
    return max(known, key=len, default=word)
