"""Files of the development tree: links and texts that appear whole, and a lock among processes."""

import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path


def files_below(folder):
    """Yield the path below a folder, with forward slashes, and the whole path of each file, in order."""
    for current, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(current, name)
            yield path[len(folder) + 1 :].replace(os.sep, "/"), path


def is_same_file(source, path):
    """Return whether a path is a hard link to a file, and not a symbolic link to it."""
    try:
        return os.path.samestat(os.stat(source), os.lstat(path))
    except OSError:
        return False


def hard_link(source, path):
    """Put a hard link in a place, whatever is there; a copy where the file system has no hard links."""
    try:
        os.link(source, path)  # whole at once where the name is free
        return
    except OSError:
        if is_same_file(source, path):
            return

    with _replacing(path) as temporary:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copy2(source, temporary)


def symlink(text, path, target):
    """Put a symbolic link in a place, whatever is there; `target` is the path that its text leads to."""
    try:
        os.symlink(text, path, target_is_directory=target.is_dir())
        return
    except OSError:
        if path.is_symlink() and os.readlink(path) == text:
            return

    with _replacing(path) as temporary:
        try:
            os.symlink(text, temporary, target_is_directory=target.is_dir())
        except OSError:
            # Windows without the right to make links; a folder cannot be stood in for.
            if not target.is_file():
                raise
            shutil.copy2(target, temporary)


def write_text(path, text):
    """Write a file that is there whole or not at all."""
    with _replacing(path) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")


@contextmanager
def _replacing(path):
    """Give a free name beside a path, which takes its place in the end."""
    folder = tempfile.mkdtemp(dir=os.path.dirname(path), prefix=".rocm-")
    try:
        temporary = os.path.join(folder, os.path.basename(path))
        yield temporary
        os.replace(temporary, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(path):
    """Hold the lock of a file that an installer may replace meanwhile."""
    while True:
        with open(path, "r+b") as stream:
            _lock(stream)
            try:
                if os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
                    yield
                    return
            finally:
                _unlock(stream)


if sys.platform == "win32":
    import msvcrt
    import time

    # Far behind the file's end: Windows would refuse reads of locked bytes.
    _LOCKED_BYTE = 1 << 30

    def _lock(stream):
        while True:
            stream.seek(_LOCKED_BYTE)
            try:
                msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
                return
            except OSError:
                time.sleep(0.1)

    def _unlock(stream):
        stream.seek(_LOCKED_BYTE)
        msvcrt.locking(stream.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(stream):
        fcntl.flock(stream, fcntl.LOCK_EX)

    def _unlock(stream):
        fcntl.flock(stream, fcntl.LOCK_UN)
