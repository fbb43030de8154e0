"""Files that appear whole or not at all, their digests, and locks between processes."""

import getpass
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from core import console, temporary
from core.errors import MachineError, MissingInputError, remedy

CHUNK = 1 << 20
_SMALL_CHUNK = 1 << 16
# Far above what there is: torch for every GPU family has some GB, a run's records some MB.
LARGEST_ARCHIVE = 128 << 30
LARGEST_DOCUMENT = 256 << 20

# How long a small file is read that another process, or a scanner of viruses, has open.
_READER_SECONDS = 2.0
_READER_PAUSE = 0.01

# A pipe that nobody writes to holds its reader; Windows has no such files, and its text mode changes bytes.
_OPENING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path, *, largest: int) -> BinaryIO:
    """Open a file that others may have put there, for reading.

    Raises:
        MissingInputError: There is none.
        MachineError: It is no regular file, has more than `largest` bytes, or cannot be read.
    """
    try:
        stream = os.fdopen(os.open(path, _OPENING), "rb")
    except FileNotFoundError as problem:
        raise MissingInputError(f"{path} does not exist.", hint=remedy(problem)) from None
    except IsADirectoryError:
        raise _refusal(path, "is a folder, not a file") from None
    except OSError as problem:
        raise _unreadable(path, problem) from problem

    status = os.fstat(stream.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size <= largest:
        return stream

    stream.close()
    if stat.S_ISREG(status.st_mode):
        raise _refusal(path, f"has {status.st_size} bytes, more than {largest}")
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
    raise _refusal(path, f"is {kind}, not a file")


def _refusal(path: Path, reason: str) -> MachineError:
    return MachineError(f"{path} {reason}.", hint="Take it away, or name another one.")


def _unreadable(path: Path, problem: OSError) -> MachineError:
    reason = problem.strerror or problem
    return MachineError(f"{path} cannot be read: {reason}.", hint=remedy(problem))


def require_regular(path: Path) -> None:
    """Refuse a wheel, sdist or archive that `open_regular` refuses."""
    open_regular(path, largest=LARGEST_ARCHIVE).close()


def read_regular(path: Path, *, largest: int = LARGEST_DOCUMENT) -> bytes:
    """Read a whole file that others may have put there; raise as `open_regular` does."""
    with open_regular(path, largest=largest) as stream, reading(path):
        # Some files of the system are longer than their status says.
        content = _read_at_most(stream, largest + 1)
    if len(content) > largest:
        raise _refusal(path, f"has more than {largest} bytes")
    return content


def _read_at_most(stream: BinaryIO, size: int) -> bytes:
    """Read a stream to its end, or up to a size far above what is expected."""
    content = bytearray()
    while len(content) < size:
        # A read asks for a buffer of its whole size, which takes Wine a third of a second for 256 MiB.
        chunk = stream.read(min(_SMALL_CHUNK, size - len(content)))
        if not chunk:
            break
        content += chunk
    return bytes(content)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file in the error, where it cannot be read to its end."""
    try:
        yield
    except OSError as problem:
        raise _unreadable(path, problem) from problem


@contextmanager
def partial_file(target: Path) -> Iterator[Path]:
    """Lend a path, in a folder beside a file, for what replaces the file when it is whole."""
    with writing(target):
        ensure_folder(target.parent)
        with temporary.folder("half", within=target.parent) as folder:
            part = folder / "half"
            yield part
            put_in_place(part, target)


def put_in_place(part: Path, target: Path) -> None:
    """Give a whole file the name of another, which it replaces: on Windows when nobody reads it."""
    end = time.monotonic() + _READER_SECONDS
    while True:
        try:
            part.replace(target)
        except PermissionError:
            if os.name != "nt" or time.monotonic() > end:
                raise
            time.sleep(_READER_PAUSE)
        else:
            return


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file in the error, where the disk or its rights refuse what is written within."""
    try:
        yield
    except OSError as problem:
        raise MachineError(
            f"{path} could not be written: {problem.strerror or problem}.",
            hint=remedy(problem),
        ) from problem


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears under its name only when it is complete."""
    with partial_file(path) as part:
        with part.open("wb") as stream:
            yield stream
        part.chmod(0o644)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically, with line feeds on every platform."""
    with atomic_file(path) as stream:
        stream.write(text.encode())


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically: two spaces, keys in the order given, one newline at the end."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sha256(path: Path) -> str:
    """Hash a file: the hex SHA-256 of its bytes, read once."""
    # file_digest() has a buffer of its own; a second one takes a third of the time of a small file.
    with path.open("rb", buffering=0) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_text(text: str) -> str:
    """Hash a text: the hex SHA-256 of its UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of(value: object) -> str:
    """Hash a JSON-able value by its canonical form (sorted keys, no spaces)."""
    return sha256_text(json.dumps(value, sort_keys=True, separators=(",", ":"), default=str))


def ensure_folder(folder: Path) -> Path:
    """Make a folder, and those above it, where it is not there; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def measure_folder(folder: Path) -> tuple[int, float]:
    """Return the bytes that go with a folder, without files that are elsewhere, too, and its last change."""
    name_counts: Counter[int] = Counter()
    statuses: dict[int, os.stat_result] = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.lstat()
            name_counts[status.st_ino] += 1
            statuses[status.st_ino] = status

    size = 0
    last_change = 0.0
    for inode, status in statuses.items():
        last_change = max(last_change, status.st_mtime)
        # A file that has further names elsewhere does not go with the folder.
        if name_counts[inode] >= status.st_nlink:
            size += status.st_size
    return size, last_change


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of each file in a folder, by its path there: others where a file was lost or cut."""
    sizes: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            sizes[name] = path.stat().st_size
    return sizes


def link_or_copy(source: Path, target: Path) -> None:
    """Put a file of ours under a second name: a hard link where the file system allows, else a copy.

    An existing target is replaced atomically. Both names are one file: neither may be written to.
    """
    with partial_file(target) as part:
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)


def copy(source: Path, target: Path) -> None:
    """Copy a file to or from a folder of the user's, who may write to it later; replaces what is there."""
    with partial_file(target) as part:
        shutil.copyfile(source, part)


@contextmanager
def replacement_folder(folder: Path) -> Iterator[Path]:
    """Lend a new folder that takes the place of another, as a whole, when it is filled."""
    ensure_folder(folder.parent)
    with temporary.folder("new", within=folder.parent) as scratch:
        fresh = ensure_folder(scratch / "new")
        yield fresh
        if folder.exists():
            folder.rename(scratch / "old")
        fresh.rename(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder that has to go, also what is read-only there, as git's objects are.

    Raises:
        MachineError: A file is in use, or the folder's owner is another one.
    """
    try:
        shutil.rmtree(folder, onerror=temporary.retry_with_rights)
    except OSError as problem:
        raise MachineError(
            f"{problem.filename or folder} could not be removed: {problem.strerror or problem}.",
            hint=remedy(problem),
        ) from problem


@cache
def path_pattern(glob: str) -> re.Pattern[str]:
    """Compile a glob: ``**/`` is any folders, ``**`` anything, ``*`` and ``?`` stay in one folder."""
    meanings = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pattern = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?)", glob):
        pattern += meanings.get(part, re.escape(part))
    return re.compile(pattern, re.DOTALL)


@contextmanager
def locked(path: Path, *, what: str) -> Iterator[None]:
    """Hold a lock file, so that two processes do not work on the same thing; wait for it aloud."""
    from filelock import FileLock, Timeout

    ensure_folder(path.parent)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        console.say(f"Waiting for another process that works on {what} (lock {path}).")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def machine_lock(subject: str) -> AbstractContextManager[None]:
    """Let the processes of this user on this machine that work on one subject take turns."""
    user = getattr(os, "getuid", getpass.getuser)()
    folder = Path(tempfile.gettempdir()) / f"machine-locks-{user}"
    return locked(folder / f"{sha256_text(subject)[:32]}.lock", what=subject)
