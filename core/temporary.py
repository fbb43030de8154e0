"""Temporary folders, which a later run removes where the one that made them was killed.

A program that keeps a journal writes the path of each folder into it before the folder is made. The journal
is locked for as long as the program lives, so a journal whose lock is free names what a killed program left.
"""

import atexit
import os
import re
import shutil
import stat
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import FileLock

# Below a checkout's cache.
JOURNALS = "unfinished"
_NAME = re.compile(r"\.[a-z-]+\.[0-9a-f]{12}\.part")
_TEMPORARY_VARIABLES = ("TMPDIR", "TMP", "TEMP")


class _Journal:
    """The paths of this program's temporary folders, in a file."""

    def __init__(self, path: Path, lock: "FileLock") -> None:
        self._path = path
        self._lock = lock

    def add(self, folder: Path) -> None:
        """Write a path down."""
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(f"{folder}\n")

    def close(self) -> None:
        """End it with the program; what could not be removed stays in it for the next one."""
        if not _remaining_folders(self._path):
            self._path.unlink(missing_ok=True)
            unlink_held_lock(Path(self._lock.lock_file))
        self._lock.release()


class _State:
    """What this program knows of its temporary folders."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.journals_folder: Path | None = None
        self.journal: _Journal | None = None
        self.commands_folder: Path | None = None


_STATE = _State()


def keep_journal(cache: Path) -> None:
    """Write the temporary folders of this program down, below a checkout's cache, from the first one on.

    Before the first one, what killed programs have left is removed.
    """
    _STATE.journals_folder = cache / JOURNALS


@contextmanager
def folder(purpose: str, *, within: Path | None = None) -> Iterator[Path]:
    """Lend a new folder, within another one or among the system's temporary ones, that goes in the end."""
    path = _new_folder(purpose, within)
    try:
        yield path
    finally:
        remove_tree(path)


def _new_folder(purpose: str, within: Path | None) -> Path:
    parent = Path(tempfile.gettempdir()) if within is None else within
    path = parent.absolute() / f".{purpose}.{uuid.uuid4().hex[:12]}.part"
    journal = _open_journal()
    if journal is not None:
        journal.add(path)
    path.mkdir(mode=0o700)
    return path


def _open_journal() -> _Journal | None:
    """Return this program's journal; None where it keeps none, or cannot."""
    journals_folder = _STATE.journals_folder
    with _STATE.guard:
        if _STATE.journal is not None or journals_folder is None:
            return _STATE.journal

        from filelock import FileLock  # which not every program needs

        # A checkout that cannot be written to is no reason to stop.
        with suppress(OSError):
            journals_folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(journals_folder.parent)
            path = journals_folder / f"{uuid.uuid4().hex}.txt"
            lock = FileLock(path.with_suffix(".lock"))
            lock.acquire()
            path.touch()
            _STATE.journal = _Journal(path, lock)
            atexit.register(_STATE.journal.close)
        return _STATE.journal


def variables_of_commands(variables: Mapping[str, str], own_variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables that lead a command's temporary files into a folder that goes with this program.

    There are none where this program keeps no journal, or where the command has a folder of its own.
    """
    if _STATE.journals_folder is None:
        return {}
    for name in _TEMPORARY_VARIABLES:
        if variables.get(name) != own_variables.get(name):
            return {}

    if _STATE.commands_folder is None:
        _STATE.commands_folder = _new_folder("commands", None)
        # Before the journal is closed, as what was registered last is called first.
        atexit.register(remove_tree, _STATE.commands_folder)
    return dict.fromkeys(_TEMPORARY_VARIABLES, str(_STATE.commands_folder))


def leftovers(cache: Path) -> list[Path]:
    """Return the temporary folders that killed programs have left."""
    folders: list[Path] = []
    for journal in _free_journals(cache):
        folders += _remaining_folders(journal)
    return folders


def remove_leftovers(cache: Path) -> None:
    """Remove the temporary folders that killed programs have left."""
    for journal in _free_journals(cache):
        for path in _remaining_folders(journal):
            remove_tree(path)
        if not _remaining_folders(journal):
            journal.unlink(missing_ok=True)
            unlink_held_lock(journal.with_suffix(".lock"))


def _free_journals(cache: Path) -> Iterator[Path]:
    """Yield the journals whose programs have ended, each while nobody else may take it."""
    # On Windows a lock's file goes with its release, so that a journal may be alone.
    journals = sorted({path.with_suffix(".txt") for path in (cache / JOURNALS).glob("*")})
    if not journals:
        return

    from filelock import FileLock, Timeout  # which not every program needs

    for journal in journals:
        with suppress(OSError, Timeout), FileLock(journal.with_suffix(".lock"), timeout=0):
            yield journal


def unlink_held_lock(path: Path) -> None:
    """Remove the file of a lock that this program holds; on Windows it goes with the lock's release."""
    # Windows removes no file that is open, and filelock does so itself there.
    with suppress(PermissionError):
        path.unlink(missing_ok=True)


def _remaining_folders(journal: Path) -> Sequence[Path]:
    """Return the folders that a journal names and that are still there."""
    if not journal.is_file():
        return []
    paths = [Path(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    # Nothing else is ever removed, whatever a damaged journal says.
    return [path for path in paths if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]


ErrorInfo = tuple[type[BaseException], BaseException, TracebackType]


def remove_tree(path: Path) -> None:
    """Remove a folder as far as the system allows, also what forbids it by its rights alone."""

    def retry(function: Callable[[str], object], name: str, error: ErrorInfo) -> None:
        # What is gone is gone, and what is in use stays.
        with suppress(OSError):
            retry_with_rights(function, name, error)

    shutil.rmtree(path, onerror=retry)


def retry_with_rights(function: Callable[[str], object], name: str, _error: ErrorInfo) -> None:
    """Remove a file or folder whose rights forbid it, for `shutil.rmtree`: on Windows what is read-only."""
    for changed in (os.path.dirname(name), name):  # noqa: PTH120 - a text, as `function` takes it
        os.chmod(changed, stat.S_IRWXU)  # noqa: PTH101
    function(name)
