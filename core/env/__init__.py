"""Env."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from core import process
from core.errors import EnvironmentSetupError, ProcessError, UsageError

_PROBE = """
import json, os, platform, sys, sysconfig
base = getattr(sys, "_base_executable", sys.executable)
if sys.prefix != sys.base_prefix and sys.version_info < (3, 11) and os.name == "posix":
    # there it is the environment's own (bpo-46028)
    base = os.path.join(sys.base_prefix, "bin", "python%d.%d" % sys.version_info[:2])
print(json.dumps({
    "version": platform.python_version(),
    "implementation": sys.implementation.name,
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "prefix": sys.prefix,
    "base_prefix": sys.base_prefix,
    "base_executable": base,
    "purelib": sysconfig.get_path("purelib"),
    "scripts": sysconfig.get_path("scripts"),
    "include": sysconfig.get_path("include"),
}))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """What a Python interpreter says of itself.

    Attributes:
        executable: The path it was asked by.
        version: ``3.12.1``.
        free_threaded: Whether it was built without the GIL (PEP 703).
        prefix: Its environment's folder.
        base_executable: The interpreter that the environment was made from.
        purelib: Its site-packages.
        scripts: The folder of its console scripts.
        include: The folder where ``Python.h`` would lie.
        virtual: Whether it belongs to a virtual environment.
    """

    executable: Path
    version: str
    free_threaded: bool
    prefix: Path
    base_executable: Path
    purelib: Path
    scripts: Path
    include: Path
    virtual: bool

    @property
    def series(self) -> str:
        """``3.12``, or ``3.13t`` for a free-threaded one."""
        return ".".join(self.version.split(".")[:2]) + ("t" if self.free_threaded else "")

    @property
    def tag(self) -> str:
        """The short name in records and folders: ``cp312``, ``cp313t`` (the wheel's ABI tag)."""
        return "cp" + self.series.replace(".", "")


def require(python: Path | None) -> Interpreter:
    """Ask the interpreter of ``--python``."""
    if python is None:
        raise UsageError(
            "This stage works in a target environment and was given none.",
            hint="Run it through nox (nox -s STAGE), or give --python PATH.",
        )
    return interpreter(python)


@cache
def interpreter(python: Path) -> Interpreter:
    """Ask an interpreter for its facts."""
    # not resolved: a virtual environment's interpreter is a link to its base
    executable = python.absolute()
    try:
        answer = json.loads(process.capture([executable, "-I", "-c", _PROBE]).stdout)
    except (ProcessError, json.JSONDecodeError) as problem:
        raise EnvironmentSetupError(f"{python} is no Python interpreter that runs: {problem}") from problem
    if answer["implementation"] != "cpython":
        raise EnvironmentSetupError(f"{python} is {answer['implementation']}; wheels are built for CPython.")
    return Interpreter(
        executable=executable,
        version=answer["version"],
        free_threaded=answer["free_threaded"],
        prefix=Path(answer["prefix"]),
        base_executable=Path(answer["base_executable"]),
        purelib=Path(answer["purelib"]),
        scripts=Path(answer["scripts"]),
        include=Path(answer["include"]),
        virtual=answer["prefix"] != answer["base_prefix"],
    )


def installed_version(target: Interpreter, distribution: str) -> str:
    """Ask an environment for the full version of an installed distribution."""
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    return process.capture([target.executable, "-I", "-c", code]).stdout.strip()
