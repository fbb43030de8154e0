"""Target interpreters: facts about them, and what is installed there."""

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
    """What a Python interpreter says of itself; `executable` is the path it was called by.

    `free_threaded` is one without the GIL (PEP 703); `virtual` one of a virtual environment, which was made
    from `base_executable`.
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
    """Query the interpreter of ``--python``."""
    if python is None:
        raise UsageError(
            "This stage works in a target environment and was given none.",
            hint="Run it through nox (nox -s STAGE), or give --python PATH.",
        )
    return interpreter(python)


@cache
def interpreter(python: Path) -> Interpreter:
    """Query an interpreter."""
    # not resolved: a virtual environment's interpreter is a link to its base
    executable = python.absolute()
    try:
        answer = json.loads(process.capture([executable, "-I", "-c", _PROBE]).stdout)
    except (ProcessError, json.JSONDecodeError) as problem:
        raise EnvironmentSetupError(f"{python} is not a working Python interpreter: {problem}") from problem
    if answer["implementation"] != "cpython":
        raise EnvironmentSetupError(f"{python} is {answer['implementation']}; wheels are built for CPython.")
    paths = ("prefix", "base_executable", "purelib", "scripts", "include")
    return Interpreter(
        executable=executable,
        version=answer["version"],
        free_threaded=answer["free_threaded"],
        virtual=answer["prefix"] != answer["base_prefix"],
        **{name: Path(answer[name]) for name in paths},
    )


def installed_version(target: Interpreter, distribution: str) -> str:
    """Return the full version of an installed distribution."""
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    return process.capture([target.executable, "-I", "-c", code]).stdout.strip()
