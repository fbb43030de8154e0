"""A person's virtual environment: made where there is none, used where there is one, nothing else wiped."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, files, process
from core.env import installer, interpreter
from core.errors import EnvironmentSetupError, ProcessError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.env import Interpreter

_CONFIGURATION = "pyvenv.cfg"  # what makes a folder a virtual environment (PEP 405)


@contextmanager
def environment(folder: Path, *, python: str = "", clean: bool = False) -> Iterator[Interpreter]:
    """Give the environment of a folder, made first where it has to be, and hold its lock."""
    folder = folder.absolute()
    refuse_other_folder(folder)
    with files.locked(folder.parent / f".{folder.name}.lock", what=str(folder)):
        if clean or not (folder / _CONFIGURATION).is_file():
            _make(folder, base_python(python))
            yield _asked(folder)
            return
        target = _asked(folder)
        _refuse_other_python(target, folder, python)
        console.detail(f"environment {folder}: there already, Python {target.version}")
        yield target


def planned(folder: Path, *, python: str = "", clean: bool = False) -> Interpreter:
    """Give the interpreter that an environment has or, where it is still to be made, is made from."""
    folder = folder.absolute()
    refuse_other_folder(folder)
    if clean or not (folder / _CONFIGURATION).is_file():
        return interpreter(base_python(python))
    target = _asked(folder)
    _refuse_other_python(target, folder, python)
    return target


def refuse_other_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but a virtual environment: it would be lost."""
    if not folder.exists() or (folder / _CONFIGURATION).is_file():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise EnvironmentSetupError(
            f"{folder} is there and is no virtual environment; it is left alone.",
            hint="Name another folder, or take this one away yourself.",
        )


def base_python(python: str) -> Path:
    """Find an interpreter: a path, a version, or the one that runs this."""
    if not python:
        return Path(sys.executable)
    argv = [installer.uv_program(), "python", "find", "--no-config", "--no-project", "--system"]
    try:
        found = process.capture([*argv, "--no-python-downloads", python]).stdout.strip()
    except ProcessError as problem:
        raise EnvironmentSetupError(
            f"There is no Python {python} on this machine: {problem.output}",
            hint="Install it, or give --python the path of an interpreter.",
        ) from problem
    return Path(found)


def executable(folder: Path) -> Path:
    """Give the interpreter's path in an environment."""
    return folder / "Scripts" / "python.exe" if sys.platform == "win32" else folder / "bin" / "python"


def _make(folder: Path, base: Path) -> None:
    # with the pip that virtualenv brings along, for the person who will use it
    argv = [sys.executable, "-m", "virtualenv", "--quiet", "--clear", "--python", str(base), str(folder)]
    try:
        process.run(argv)
    except ProcessError as problem:
        raise EnvironmentSetupError(f"The environment {folder} could not be made.") from problem


def _asked(folder: Path) -> Interpreter:
    # asked afresh: another interpreter may have been there a moment ago
    return interpreter.__wrapped__(executable(folder))


def _refuse_other_python(target: Interpreter, folder: Path, python: str) -> None:
    if not python:
        return
    wanted = interpreter(base_python(python))
    if wanted.series != target.series:
        raise EnvironmentSetupError(
            f"{folder} is an environment of Python {target.series}, not of {wanted.series}.",
            hint="Make it anew with --clean, or name another folder.",
        )
