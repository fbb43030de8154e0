"""Interpreters of target environments that are nowhere."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from core.env import Interpreter


def target_in(folder: Path, **facts: Any) -> Interpreter:
    """Describe the interpreter of a virtual environment in a folder, with such facts as are given."""
    made = Interpreter(
        executable=folder / "bin" / "python",
        version="3.12.1",
        free_threaded=False,
        prefix=folder,
        base_executable=Path("/usr/bin/python3.12"),
        purelib=folder / "lib",
        scripts=folder / "bin",
        include=Path("/usr/include"),
        virtual=True,
    )
    return replace(made, **facts)
