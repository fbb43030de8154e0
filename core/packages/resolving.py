"""Resolving requirements into exact files before anything is installed: uv resolves, for either installer.

The answer is a ``pylock.toml`` (PEP 751), which names each file with its address and digest.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from core import files, process
from core.data import parse_toml
from core.env import installer
from core.errors import EnvironmentSetupError, ProcessError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.env.installer import Sources


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be resolved.

    Attributes:
        requirements: PEP 508 requirements.
        constraints: Versions that hold where a name is required at all.
        excludes: Names that are never resolved, whoever requires them.
        sources: Where packages come from.
        exact: No variable of the environment may add a source.
        python: The interpreter to resolve for, and to build sdists with.
        python_version: The Python to resolve for, such as ``3.12``; "" for the interpreter's own.
        platform: uv's name of the platform to resolve for; "" for this one.
        pre: Allow pre-releases everywhere.
        only_wheels: Take no sdist.
        cache_dir: uv's cache; None for its default.
    """

    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    sources: Sources
    exact: bool = True
    python: Path | None = None
    python_version: str = ""
    platform: str = ""
    pre: bool = False
    only_wheels: bool = False
    cache_dir: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ResolvedFile:
    """A file that a resolution chose."""

    filename: str
    url: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A distribution that a resolution chose.

    Attributes:
        name: Normalised distribution name.
        version: Its version.
        files: Its files for the Python and platform; wheels before an sdist.
    """

    name: str
    version: str
    files: tuple[ResolvedFile, ...]

    @property
    def pinned(self) -> str:
        """The line of a requirements file that takes one of these files and no other."""
        return " ".join(
            [f"{self.name}=={self.version}", *(f"--hash=sha256:{one.sha256}" for one in self.files)]
        )


def resolve(question: Question) -> tuple[Resolved, ...]:
    """Ask uv which files satisfy requirements; wheels are not fetched where their metadata is served.

    Returns:
        The distributions, by name.

    Raises:
        EnvironmentSetupError: They cannot be satisfied; the message ends with uv's own words.
        DataError: uv's answer is no lock.
    """
    env = installer.environment_for(exact=question.exact)
    if question.sources.cert:
        env.setdefault("SSL_CERT_FILE", question.sources.cert)
    with tempfile.TemporaryDirectory() as folder:
        required, constraints, excludes = (
            Path(folder) / f"{name}.txt" for name in ("in", "held", "left-out")
        )
        files.write_text(required, "".join(f"{one}\n" for one in question.requirements))
        files.write_text(constraints, "".join(f"{one}\n" for one in question.constraints))
        files.write_text(excludes, "".join(f"{one}\n" for one in question.excludes))
        argv = [*_argv(question), *(["--excludes", str(excludes)] if question.excludes else [])]
        argv += ["--constraints", str(constraints), str(required)]
        try:
            answer = process.capture(argv, env=env).stdout
        except ProcessError as problem:
            raise EnvironmentSetupError(
                f"{', '.join(question.requirements)} cannot be resolved: {problem.output or problem.message}"
            ) from problem
    return parse_pylock(answer)


def _argv(question: Question) -> list[str]:
    argv = [installer.uv_program(), "pip", "compile", "--no-config", "--quiet", "--no-progress"]
    argv += ["--format", "pylock.toml", "--generate-hashes", "--no-header", "--no-python-downloads"]
    # pip's rule: of all sources the highest version wins
    argv += ["--index-strategy", "unsafe-best-match", *installer.source_arguments(question.sources)]
    argv += ["--python", str(question.python)] if question.python else []
    argv += ["--python-version", question.python_version] if question.python_version else []
    argv += ["--python-platform", question.platform] if question.platform else []
    argv += ["--cache-dir", str(question.cache_dir)] if question.cache_dir else []
    argv += ["--prerelease", "allow"] if question.pre else []
    argv += ["--only-binary", ":all:"] if question.only_wheels else []
    return argv


def parse_pylock(text: str) -> tuple[Resolved, ...]:
    """Read a ``pylock.toml``."""
    packages = parse_toml(text, where="uv's answer").get("packages", [])
    return tuple(sorted((_resolved(one) for one in packages), key=lambda one: one.name))


def _resolved(package: Mapping[str, Any]) -> Resolved:
    listed: Sequence[Mapping[str, Any]] = [
        *package.get("wheels", ()),
        *([package["sdist"]] if "sdist" in package else ()),
    ]
    found = tuple(
        ResolvedFile(
            filename=one.get("name") or _basename(one), url=_place(one), sha256=one["hashes"]["sha256"]
        )
        for one in listed
        if "sha256" in one.get("hashes", {})
    )
    if not found or "version" not in package:
        raise EnvironmentSetupError(
            f"{package['name']} was resolved to no file whose digest is known.",
            hint="Name a version that an index has, instead of an address or a folder.",
        )
    return Resolved(name=canonicalize_name(package["name"]), version=package["version"], files=found)


def _place(file: Mapping[str, Any]) -> str:
    return str(file.get("url") or file.get("path", ""))


def _basename(file: Mapping[str, Any]) -> str:
    return PurePosixPath(unquote(urlsplit(_place(file)).path)).name
