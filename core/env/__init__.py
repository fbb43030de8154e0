"""Target interpreters: facts about them, and what is installed there."""

import csv
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from core import files, process
from core.data import Model, read_toml
from core.errors import EnvironmentSetupError, ProcessError, UsageError
from core.wheel.writer import record_row

_QUERIES = Path(__file__).with_name("queries.toml")
_VERSION = re.compile(r"3\.\d+t?")
_RECORD_FIELDS = 3
_HASHED = 1 << 20  # bytes of the largest file that is read whole; of others the size has to do


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
            "This stage needs a target environment, and was given none.",
            hint="Run it through nox (nox -s STAGE), or give --python PATH.",
        )
    if _VERSION.fullmatch(str(python)):
        raise UsageError(
            f"--python {python}: a stage takes the path of an interpreter.",
            hint=f"Let nox choose the version: nox -s STAGE -P {python}.",
        )
    return interpreter(python)


@cache
def interpreter(python: Path) -> Interpreter:
    """Query an interpreter."""
    # not resolved: a virtual environment's interpreter is a link to its base
    executable = python.absolute()
    query = read_toml(_QUERIES)["interpreter"]
    try:
        answer = json.loads(process.capture([executable, "-I", "-c", query]).stdout)
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


class Installed(Model):
    """A distribution that is installed, by its normalised name; `folder` is its ``.dist-info``."""

    name: str
    version: str
    extras: tuple[str, ...]
    folder: Path

    @property
    def altered(self) -> str:
        """A file that is not the one that its RECORD names; "" for none."""
        record = self.folder / "RECORD"
        rows = csv.reader(record.read_text(encoding="utf-8").splitlines() if record.is_file() else ())
        for name, digest, size in (row for row in rows if len(row) == _RECORD_FIELDS and row[2].isdigit()):
            path = self.folder.parent / name
            if not path.is_file():
                continue
            known = digest.startswith("sha256=") and int(size) <= _HASHED
            if path.stat().st_size != int(size):
                return name
            if known and record_row(name, bytes.fromhex(files.sha256(path)), int(size))[1] != digest:
                return name
        return ""


def installed(target: Interpreter) -> tuple[Installed, ...]:
    """List what an environment has installed, in the order in which it is found."""
    said = process.capture([target.executable, "-I", "-c", read_toml(_QUERIES)["installed"]]).stdout
    return tuple(Installed.model_validate(one) for one in json.loads(said))
