"""The PATH of the tool's own programs: the machine's git and compilers, and none that a build wrote."""

import os
import sys
from pathlib import Path

# A file in each environment that the tool fills: by it the tool knows what an environment holds.
ENVIRONMENT_MARKER = "build-environment.json"

_SESSION_ENVIRONMENTS = Path(__file__).parents[1] / ".nox"


def remove_foreign_programs(path: str) -> str:
    """Return a PATH without the environments that builds and tests fill, and without relative folders.

    nox puts the environment of a session first on the PATH. A build that ran there may have left a program
    of any name in it, which would run in the place of the machine's own, with the tool's credentials. A
    relative folder is another one in each source tree, and a tree is foreign as well.
    """
    folders = path.split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if _is_trusted(Path(folder)))


def _is_trusted(folder: Path) -> bool:
    """Return whether a folder of programs is none that foreign code writes to."""
    if not folder.is_absolute():
        return False
    environment = folder.resolve().parent
    is_of_tool = environment == Path(sys.prefix).resolve()
    if is_of_tool:
        return True
    if (environment / ENVIRONMENT_MARKER).is_file():
        return False
    return not environment.is_relative_to(_SESSION_ENVIRONMENTS.resolve())
