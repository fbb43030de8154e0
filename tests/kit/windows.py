"""What tests need to know of Windows, and of Wine in its place."""

import functools
import os
import sys
import tempfile
from pathlib import Path

import pytest

ON_WINDOWS = sys.platform == "win32"


# Where environments have their programs.
SCRIPTS = "Scripts" if ON_WINDOWS else "bin"


def program_file(name: str) -> str:
    """Return the name of a program's file."""
    return f"{name}.exe" if ON_WINDOWS else name


def not_on_windows(reason: str) -> pytest.MarkDecorator:
    """Return the mark of a test that Windows cannot pass, with a sentence that says why."""
    return pytest.mark.skipif(ON_WINDOWS, reason=reason)


def not_on_linux(reason: str) -> pytest.MarkDecorator:
    """Return the mark of a test that Windows alone can pass, with a sentence that says why."""
    return pytest.mark.skipif(not ON_WINDOWS, reason=reason)


@functools.cache
def can_link() -> bool:
    """Return whether this process may make symbolic links: Windows asks for a right, and Wine knows none."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "target").touch()
        link = Path(folder, "link")
        try:
            link.symlink_to("target")
        except OSError:
            return False
        # Wine makes a link that leads nowhere.
        return link.is_file()


NO_PIPES = not_on_windows("Windows has no pipes with names in folders")


def absolute(path: str) -> str:
    """Write a POSIX path as an absolute one of this platform: Windows puts a drive before it."""
    return str(Path(path).absolute())


def make_pipe(path: Path) -> None:
    """Make a pipe that has a name, where the platform has such files."""
    os.mkfifo(path)


def make_link(path: Path, target: Path | str) -> None:
    """Make a symbolic link; skip the test where that cannot be."""
    if not can_link():
        pytest.skip("Wine has no symbolic links, and Windows wants a right for them")
    path.symlink_to(target)
