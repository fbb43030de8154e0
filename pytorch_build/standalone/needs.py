"""What of ROCm a wheel needs: followed from library to library, and from there to data.

Search rules are the loaders': ld.so(8) looks along DT_RPATH or DT_RUNPATH, and takes what is loaded
already by its SONAME; Windows looks into the folder of the library and the folders added to the search.
What ROCm's libraries open by name, and which files they read, is data: `bundle.toml`.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
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
from pytorch_build.check.device_code import is_requested
from pytorch_build.check.policy import matches

if TYPE_CHECKING:
    from pytorch_build.standalone.libraries import BinaryNeeds, Rocm, RocmFile

TABLE = Path(__file__).with_name("bundle.toml")
_SHOWN_USERS = 5
# MIOpen's databases carry a processor's name with its number of compute units: gfx90a6e, gfx942130.
_TARGET = re.compile(r"gfx(?:[0-9]+(?:-[0-9]+)?-generic|[0-9a-f]{3,})")


class LibraryRow(Model):
    """A row of bundle.toml: which libraries and data some libraries open by themselves."""

    names: tuple[str, ...]
    opens: tuple[str, ...] = ()
    data: tuple[str, ...] = ()


class BundleTable(Model):
    """Content of bundle.toml; `linux_libraries` are those that every machine with Linux has."""

    label: str
    linux_libraries: tuple[str, ...]
    library: tuple[LibraryRow, ...]


load_table = data_file(TABLE, BundleTable)


@dataclass(frozen=True, kw_only=True)
class MachineLibraries:
    """Which libraries machines have by themselves, by patterns: every machine, or most."""

    on_every_machine: tuple[str, ...]
    has_library: Callable[[str], bool] = field(default=lambda _name: False)
    on_most_machines: tuple[str, ...] = ()
    has_search_paths: bool = True
    """Whether libraries name folders to look into (ELF), or the folder of the library decides (Windows)."""


@dataclass(frozen=True, kw_only=True)
class RocmBundle:
    """The files of ROCm that go into a stand-alone wheel, by path, and their new search paths.

    `machine_libraries` has those that the machine must have, each with the paths of those that need it.
    """

    libraries: Mapping[str, RocmFile]
    data: Mapping[str, RocmFile]
    search_paths: Mapping[str, tuple[str, ...]]
    machine_libraries: Mapping[str, tuple[str, ...]]

    @property
    def files(self) -> Mapping[str, RocmFile]:
        """Libraries and data, by their path in the wheel's ROCm."""
        return {**self.libraries, **self.data}

    @property
    def wheels(self) -> frozenset[Path]:
        """ROCm's wheels that files of the bundle are in."""
        files = self.files.values()
        return frozenset(file.wheel_or_file for file in files if file.member is not None)


class RocmBundleBuilder:
    """Collects libraries of a ROCm for a stand-alone wheel, with all that they need."""

    def __init__(
        self,
        *,
        rocm: Rocm,
        table: BundleTable,
        machine: MachineLibraries,
        targets: Sequence[str],
        read: Callable[[RocmFile], BinaryNeeds | None],
    ) -> None:
        """Look for the chosen GPU targets' files, () for those of all; `read` returns what a file needs."""
        self.rocm = rocm
        self.table = table
        self.machine = machine
        self.targets = targets
        self.read = read

        self._libraries: dict[str, RocmFile] = {}
        self._data: dict[str, RocmFile] = {}
        self._search: dict[str, tuple[str, ...]] = {}
        # Of libraries that ROCm has not, by their names.
        self._users: defaultdict[str, list[str]] = defaultdict(list)

        self._binaries: dict[str, BinaryNeeds | None] = {}
        self._files_by_glob: dict[str, list[RocmFile]] = {}
        self._files_by_name: defaultdict[str, list[RocmFile]] = defaultdict(list)
        for file in rocm.files.values():
            self._files_by_name[self.comparison_key(file.name)].append(file)

    def find_library(self, glob: str) -> RocmFile | None:
        """Return ROCm's library that matches a path pattern, else one of that file name; None without."""
        files = self._files_matching(glob)
        if not files:
            name = PurePosixPath(glob).name
            files = self._files_matching(f"**/{name}")
        return self._under_its_soname(files[0]) if files else None

    def find_needed(
        self,
        name: str,
        user: str,
    ) -> RocmFile | None:
        """Return ROCm's library of a name; None, and a note of who needs it, where ROCm has none."""
        files = self._files_by_name.get(self.comparison_key(name), [])
        if files:
            # The nearest to the top.
            return min(files, key=lambda file: (file.path_in_package.count("/"), file.path_in_bundle))

        self._users[name].append(user)
        return None

    def is_on_every_machine(self, name: str) -> bool:
        """Return whether every machine has a library, so that ROCm never brings it."""
        return matches(name, self.machine.on_every_machine) or self.machine.has_library(name)

    def build(self, roots: Iterable[RocmFile]) -> RocmBundle:
        """Return the bundle of some libraries and all that they need; a missing library is an error."""
        waiting = {file.path_in_bundle: file for file in roots}
        # Level by level, so that the files of a level are read at the same time.
        while waiting:
            level = waiting
            self._libraries.update(level)
            unread_files = [file for path, file in level.items() if path not in self._binaries]
            with ThreadPoolExecutor() as pool:
                binaries = pool.map(self.read, unread_files)
                for file, binary in zip(unread_files, binaries, strict=True):
                    self._binaries[file.path_in_bundle] = binary
            waiting = {}
            for file in level.values():
                for needed_file in self._take_needs(file):
                    if needed_file.path_in_bundle not in self._libraries:
                        waiting[needed_file.path_in_bundle] = needed_file

        machine_libraries: dict[str, tuple[str, ...]] = {}
        missing_libraries: list[str] = []
        for name, users in sorted(self._users.items()):
            if matches(name, self.machine.on_most_machines):
                machine_libraries[name] = tuple(sorted(users))
            else:
                missing_libraries.append(name)
        if missing_libraries:
            raise self._missing_libraries_error(missing_libraries)

        for path in self._libraries:
            self._data.pop(path, None)
        return RocmBundle(
            libraries=dict(sorted(self._libraries.items())),
            data=dict(sorted(self._data.items())),
            search_paths=dict(sorted(self._search.items())),
            machine_libraries=machine_libraries,
        )

    def comparison_key(self, name: str) -> str:
        """Return a name as names are compared: on Windows in small letters."""
        return name if self.machine.has_search_paths else name.lower()

    def _missing_libraries_error(self, names: Iterable[str]) -> RocmError:
        """Return the error for libraries that neither ROCm nor machines have, with who needs them."""
        lines: list[str] = []
        for name in names:
            users = sorted(set(self._users[name]))
            shown_users = ", ".join(users[:_SHOWN_USERS])
            lines.append(f"  {name}, which {shown_users} needs")
        listing = "\n".join(lines)
        return RocmError(
            f"{self.rocm.origin} lacks libraries:\n{listing}",
            hint="Name a complete ROCm, or declare that every machine has them: --system-library NAME.",
        )

    def _take_needs(self, file: RocmFile) -> list[RocmFile]:
        """Return the files that a library needs; also take its data and note its new search path."""
        binary = self._binaries[file.path_in_bundle]
        if binary is None:
            return []
        search_folders = self._search_folders(file, binary)
        needed_files: list[RocmFile] = []
        new_folders: list[str] = []

        for name in binary.needed:
            needed_file = self._find_in_folders(name, search_folders)
            if needed_file is None and not self.is_on_every_machine(name):
                needed_file = self.find_needed(name, file.path_in_bundle)
                if needed_file is not None:
                    new_folders.append(posixpath.dirname(needed_file.path_in_bundle))
            if needed_file is not None:
                needed_files.append(needed_file)

        for opened_file in self._opened_by_name(file):
            needed_files.append(opened_file)
            new_folders.append(posixpath.dirname(opened_file.path_in_bundle))

        needed_files += self._take_data(file)
        unsearched_folders = [folder for folder in new_folders if folder not in search_folders]
        self._note_search_path(file, binary, unsearched_folders)
        return needed_files

    def _rows_of(self, file: RocmFile) -> list[LibraryRow]:
        """Return the rows of bundle.toml on a library, by its file name."""
        return [row for row in self.table.library if matches(file.name, row.names)]

    def _search_folders(
        self,
        file: RocmFile,
        binary: BinaryNeeds,
    ) -> list[str]:
        """Return the folders of the wheel's ROCm that a library's search path leads to; "" is the top."""
        if not self.machine.has_search_paths:
            return []
        folder_of_file = posixpath.dirname(file.path_in_bundle) or "."
        folders: list[str] = []
        for search_entry in rpath.relative_entries(binary.search):
            _origin, _slash, path_from_origin = search_entry.partition("/")
            folder = posixpath.normpath(posixpath.join(folder_of_file, path_from_origin.strip("/")))
            folders.append("" if folder == "." else folder)
        return folders

    def _find_in_folders(
        self,
        name: str,
        folders: Iterable[str],
    ) -> RocmFile | None:
        """Return the first file of a name in some folders of ROCm; None where none has it."""
        for folder in folders:
            path = posixpath.join(folder, name)
            if path in self.rocm.files:
                return self.rocm.files[path]
        return None

    def _opened_by_name(self, file: RocmFile) -> list[RocmFile]:
        """Return the libraries that a library opens by name at run time, for the chosen targets."""
        opened_files: dict[str, RocmFile] = {}
        for row in self._rows_of(file):
            for glob in row.opens:
                for matching_file in self._files_matching(glob):
                    opened_file = self._under_its_soname(matching_file)
                    if serves_targets(opened_file.path_in_package, self.targets):
                        opened_files[opened_file.path_in_bundle] = opened_file
        opened_files.pop(file.path_in_bundle, None)
        return [opened_file for _path, opened_file in sorted(opened_files.items())]

    def _take_data(self, file: RocmFile) -> list[RocmFile]:
        """Take the data files of a library; return programs and libraries among them, which need more."""
        programs: list[RocmFile] = []
        for row in self._rows_of(file):
            for glob in row.data:
                for read_file in self._files_matching(glob):
                    path = read_file.path_in_package
                    if read_file.root != file.root or not serves_targets(path, self.targets):
                        continue
                    self._data[read_file.path_in_bundle] = read_file
                    is_in_bin = posixpath.dirname(path) == "bin"
                    if is_in_bin and not path.endswith((".dat", ".db")):
                        programs.append(read_file)
        return programs

    def _note_search_path(
        self,
        file: RocmFile,
        binary: BinaryNeeds,
        new_folders: Sequence[str],
    ) -> None:
        """Note a library's new search path, if its own lacks folders or leads out of the wheel."""
        if not self.machine.has_search_paths:
            return
        relative_entries = rpath.relative_entries(binary.search)
        has_foreign_entry = len(relative_entries) != len(binary.search)
        if new_folders or has_foreign_entry:
            search = (*relative_entries, *rpath.entries_to_folders(file.path_in_bundle, new_folders))
            self._search[file.path_in_bundle] = tuple(dict.fromkeys(search))

    def _files_matching(self, glob: str) -> list[RocmFile]:
        """Return ROCm's files whose path in ROCm's own tree matches a pattern."""
        if glob not in self._files_by_glob:
            pattern = path_pattern(glob)
            self._files_by_glob[glob] = [
                file for file in self.rocm.files.values() if pattern.fullmatch(file.path_in_package)
            ]
        return self._files_by_glob[glob]

    def _under_its_soname(self, file: RocmFile) -> RocmFile:
        """Return the file that a library's SONAME names in its folder; the library itself without."""
        # Wheels hold no links, so a library has one name there.
        if file.member is not None:
            return file
        if file.path_in_bundle not in self._binaries:
            self._binaries[file.path_in_bundle] = self.read(file)
        binary = self._binaries[file.path_in_bundle]
        if binary is None or not binary.name:
            return file
        path = posixpath.join(posixpath.dirname(file.path_in_bundle), binary.name)
        return self.rocm.files.get(path, file)


def serves_targets(path: str, targets: Sequence[str]) -> bool:
    """Return whether a data file serves one of the chosen GPU targets, by the targets that its path names."""
    if not targets:
        return True
    names = _TARGET.findall(path)
    if not names:
        return True
    return any(is_requested(_processor(name), targets) for name in names)


def _processor(name: str) -> str:
    """Return the processor that a file's gfx name begins with: gfx90a of gfx90a6e; else the name."""
    if name.endswith("-generic"):
        return name
    processors: list[str] = []
    for processor, family in families().items():
        if family.targets == (processor,) and name.startswith(processor):
            processors.append(processor)
    return max(
        processors,
        key=len,
        default=name,
    )
