"""Target interpreters: facts about them, and what is installed there."""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution
from pathlib import Path

from packaging.utils import canonicalize_name

from core import files, process
from core.data import read_toml
from core.errors import EnvironmentSetupError, ProcessError, UsageError

_QUERIES = Path(__file__).with_name("queries.toml")
_VERSION = re.compile(r"3\.\d+t?")
# Of wheels, and of what was installed before there were wheels.
_METADATA_SUFFIXES = frozenset({".dist-info", ".egg-info"})
_RECORD_FIELDS = 3
# Larger files are compared by size alone: ROCm has gigabytes, and every installation is checked.
_LARGEST_HASHED_FILE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """What a Python interpreter says of itself.

    Attributes:
        executable: The path it was called by.
        version: The full version, such as ``3.12.4``.
        free_threaded: Whether it has no global lock (PEP 703).
        prefix: The folder of its environment.
        base_executable: The interpreter that a virtual environment was made from; else itself.
        purelib: The folder where packages are installed.
        scripts: The folder of programs.
        include: The folder of Python's headers.
        search_path: The folders in which it looks for packages, the first before the others.
        virtual: Whether it is one of a virtual environment.
    """

    executable: Path
    version: str
    free_threaded: bool
    prefix: Path
    base_executable: Path
    purelib: Path
    scripts: Path
    include: Path
    search_path: tuple[Path, ...]
    virtual: bool

    @property
    def series(self) -> str:
        """``3.12``, or ``3.13t`` for a free-threaded one."""
        numbers = self.version.split(".")
        series = ".".join(numbers[:2])
        if self.free_threaded:
            series += "t"
        return series

    @property
    def tag(self) -> str:
        """The short name in records and folders: ``cp312``, ``cp313t`` (the wheel's ABI tag)."""
        digits = self.series.replace(".", "")
        return f"cp{digits}"


def require(python: Path | None) -> Interpreter:
    """Return the facts about the interpreter of ``--python``."""
    if python is None:
        raise UsageError(
            "This stage needs a target environment, and was given none.",
            hint="Run it through nox (nox -s STAGE, without --no-venv), or give --python PATH.",
        )
    if _VERSION.fullmatch(str(python)):
        raise UsageError(
            f"--python {python}: a stage takes the path of an interpreter.",
            hint=f"Let nox choose the version: nox -s STAGE -P {python}.",
        )
    return interpreter(python)


@cache
def interpreter(python: Path) -> Interpreter:
    """Return the facts about an interpreter, by its own answer."""
    # Not resolved: a virtual environment's interpreter is a link to its base.
    executable = python.absolute()
    query = read_toml(_QUERIES)["interpreter"]
    try:
        answer = process.capture([executable, "-I", "-c", query])
        facts = json.loads(answer.stdout)
    except (ProcessError, json.JSONDecodeError) as problem:
        reason = problem.message if isinstance(problem, ProcessError) else str(problem)
        raise EnvironmentSetupError(
            f"{python} is not a working Python interpreter: {reason}",
            hint="Name another, or delete its environment, which nox makes again.",
        ) from problem

    implementation = facts["implementation"]
    if implementation != "cpython":
        raise EnvironmentSetupError(f"{python} is {implementation}; wheels are built for CPython.")

    return Interpreter(
        executable=executable,
        version=facts["version"],
        free_threaded=facts["free_threaded"],
        virtual=facts["prefix"] != facts["base_prefix"],
        prefix=Path(facts["prefix"]),
        base_executable=Path(facts["base_executable"]),
        purelib=Path(facts["purelib"]),
        scripts=Path(facts["scripts"]),
        include=Path(facts["include"]),
        search_path=tuple(map(Path, facts["search_path"])),
    )


def installed_version(target: Interpreter, name: str) -> str:
    """Return the full version of an installed distribution."""
    for distribution in installed(target):
        if distribution.name == canonicalize_name(name):
            return distribution.version
    raise EnvironmentSetupError(
        f"{name} is not installed in {target.prefix}.",
        hint="Delete that environment, which nox makes again.",
    )


@dataclass(frozen=True, kw_only=True)
class InstalledDistribution:
    """A distribution that is installed, by its normalised name.

    Attributes:
        name: The normalised name.
        version: The version, as its metadata writes it.
        extras: The extras that it offers.
        folder: Its ``.dist-info``.
    """

    name: str
    version: str
    extras: tuple[str, ...]
    folder: Path

    def altered_file(self) -> str | None:
        """Return a file that is not the one its RECORD names; None if there is none."""
        record = self.folder / "RECORD"
        if not record.is_file():
            return None

        site_packages = self.folder.parent
        text = record.read_text(encoding="utf-8")
        lines = text.splitlines()
        for row in csv.reader(lines):
            if len(row) != _RECORD_FIELDS:
                continue
            name, digest, size = row
            # RECORD's own row, and those of byte code, have no size.
            if not size.isdigit():
                continue

            path = site_packages / name
            if path.is_file() and not _is_recorded_file(path, name, digest, int(size)):
                return name
        return None


def _is_recorded_file(
    path: Path,
    name: str,
    digest: str,
    size: int,
) -> bool:
    """Return whether a file is the one that a row of a RECORD describes."""
    if path.stat().st_size != size:
        return False
    if not digest.startswith("sha256=") or size > _LARGEST_HASHED_FILE:
        return True

    from core.wheel.writer import record_row

    digest_of_file = bytes.fromhex(files.sha256(path))
    _name, expected_digest, _size = record_row(name, digest_of_file, size)
    return digest == expected_digest


def installed(target: Interpreter) -> tuple[InstalledDistribution, ...]:
    """Return what an environment has installed, in the order in which Python finds it."""
    distributions: list[InstalledDistribution] = []
    for folder in target.search_path:
        if folder.is_dir():
            distributions += _distributions_in(folder)
    return tuple(distributions)


def _distributions_in(site_packages: Path) -> Iterator[InstalledDistribution]:
    """Read the metadata of the distributions in a folder; that of a half uninstalled one has no name."""
    for path in sorted(site_packages.iterdir()):
        if path.suffix not in _METADATA_SUFFIXES:
            continue
        metadata = Distribution.at(path).metadata
        if metadata["Name"]:
            yield InstalledDistribution(
                name=canonicalize_name(metadata["Name"]),
                version=metadata["Version"],
                extras=tuple(metadata.get_all("Provides-Extra") or ()),
                folder=path,
            )
