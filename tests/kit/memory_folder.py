"""The machine's memory as the place of temporary files: unit tests keep theirs for milliseconds.

A disk makes their files and folders last, which takes a tenth of the processor's time of all unit tests.
Tests that start processes stay on the disk: uv links files from its cache, and a container lets no program
run from such a folder.
"""

import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 - pytest makes a folder there that no other user can read
# A hundred times what the tests leave there. A container has 64 MiB, unless it is told otherwise.
NEEDED_BYTES = 4 << 30


def use(variables: MutableMapping[str, str]) -> None:
    """Let variables and this process name the machine's memory for temporary files; a user's choice stays."""
    if "TMPDIR" in variables or not is_usable():
        return
    variables["TMPDIR"] = str(FOLDER)
    tempfile.tempdir = None  # It is read once, and then kept.


def is_usable() -> bool:
    """Return whether this machine has a file system in memory, with space for the tests."""
    if not os.access(FOLDER, os.W_OK):
        return False
    return shutil.disk_usage(FOLDER).free >= NEEDED_BYTES
