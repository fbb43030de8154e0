"""Others' packages, which uv resolves from the dependencies' indexes; and calls that install exact files.

These indexes are never queried for a name of ours that was chosen, and refused for every other one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from core import files, process, temporary
from core.data import parse_toml
from core.env import installer
from core.env.installer import InstallerCall, Sources, configured_sources
from core.env.locks import write_requirements
from core.errors import EnvironmentSetupError, ProcessError
from core.http import without_secret
from core.packages.candidates import Candidate, pin_of
from core.wheel.distributions import is_ours

_HINT_ON_OURS = "A dependency requires a name of ours: require it, too, and it is taken from where ours are."
_HINT_ON_INDEX = (
    "Their index is that of --deps-index-url, else of pip's or uv's settings: correct it, or try again."
)


@dataclass(frozen=True, kw_only=True)
class ResolverQuery:
    """A query to uv's resolver, by default for its own interpreter, and with its own cache.

    Attributes:
        sources: Where others' packages come from.
        requirements: What is to be resolved.
        constraints: Requirements on what comes along.
        excludes: Names that are never resolved.
        allows_ours: Whether names of ours may come of it; otherwise they are refused.
        python: The interpreter that the packages are for.
        python_version: The version of another one, such as ``3.13``.
        platform: The platform of another one, as uv calls it.
        pre: Whether pre-releases are taken that nothing names.
        only_wheels: Whether sdists are left out.
        cache_dir: The cache.
    """

    sources: Sources
    requirements: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    allows_ours: bool = False
    python: Path | None = None
    python_version: str | None = None
    platform: str | None = None
    pre: bool = False
    only_wheels: bool = False
    cache_dir: Path | None = None

    @property
    def arguments(self) -> list[str]:
        """The query as arguments of ``uv pip compile``, but for what it reads from files."""
        # pip's rule: of all indexes the highest version wins.
        arguments = ["--index-strategy", "unsafe-best-match", *self.sources.arguments]
        if self.python is not None:
            arguments += ["--python", str(self.python)]
        if self.python_version is not None:
            arguments += ["--python-version", self.python_version]
        if self.platform is not None:
            arguments += ["--python-platform", self.platform]
        if self.cache_dir is not None:
            arguments += ["--cache-dir", str(self.cache_dir)]
        if self.pre:
            arguments += ["--prerelease", "allow"]
        if self.only_wheels:
            arguments += ["--only-binary", ":all:"]
        return arguments

    def write_files(self, folder: Path) -> list[str]:
        """Write what uv reads from files, and return the arguments that name them."""
        constraints = list(self.constraints)
        if not self.allows_ours:
            constraints += installer.constraints_against_our_names(but=self.excludes)
        lines_by_option = {
            "--excludes": list(self.excludes),
            # Also what sdists are built with is no stranger's.
            "--build-constraints": installer.constraints_against_our_names(),
            "--constraints": constraints,
        }
        arguments: list[str] = []
        for option, lines in lines_by_option.items():
            if lines:
                arguments += [option, _write_lines(folder / f"{option}.txt", lines)]
        return [*arguments, _write_lines(folder / "requirements.txt", self.requirements)]


def _write_lines(path: Path, lines: Sequence[str]) -> str:
    files.write_text(path, "".join(f"{line}\n" for line in lines))
    return str(path)


@dataclass(frozen=True, kw_only=True)
class ResolvedPackage:
    """A resolved distribution by its normalised name, and its files; wheels before an sdist."""

    name: str
    version: str
    files: tuple[Candidate, ...]

    @property
    def pin(self) -> str:
        """The line of a requirements file that takes one of these files and no other."""
        return pin_of(self.name, self.version, self.files)


def resolve_others(
    requirements: Sequence[str],
    ours: Sequence[str],
    query: ResolverQuery,
    *,
    allows_ours: bool = False,
) -> tuple[ResolvedPackage, ...]:
    """Resolve what ours require of others, from the query's sources alone.

    No index is queried for `ours`, the names that were chosen already. With `allows_ours` a name of ours may
    come from there, as that of a torch that is installed instead of a build.
    """
    if not requirements:
        return ()
    return resolve(
        replace(query, requirements=tuple(requirements), excludes=tuple(ours), allows_ours=allows_ours),
    )


def query_for_others(
    python: Path,
    sources: Sources | None = None,
    *,
    constraints: Sequence[str] = (),
    pre: bool = False,
    cache_dir: Path | None = None,
) -> ResolverQuery:
    """Return a query for others' packages: of the sources given, else as this machine is configured."""
    return ResolverQuery(
        sources=sources or configured_sources(),
        python=python,
        constraints=tuple(constraints),
        pre=pre,
        cache_dir=cache_dir,
    )


def resolve(query: ResolverQuery) -> tuple[ResolvedPackage, ...]:
    """Let uv choose the files that satisfy requirements; it fetches no wheel whose metadata is served."""
    command = [installer.uv_program(), "pip", "compile", "--no-config", "--quiet", "--no-progress"]
    command += ["--format", "pylock.toml", "--generate-hashes", "--no-header", "--no-python-downloads"]
    command += query.arguments
    with temporary.folder("resolve") as folder:
        command += query.write_files(folder)
        try:
            variables = installer.installer_variables(query.sources)
            pylock = process.capture(command, env=variables).stdout
        except ProcessError as problem:
            raise _unresolved_error(query, problem) from problem

    packages = parse_pylock(pylock)
    for package in packages:
        if not query.allows_ours and is_ours(package.name):
            raise EnvironmentSetupError(
                f"{package.name} {package.version} would come from {package.files[0].url}, "
                "and it is one of our names.",
                hint=_HINT_ON_OURS,
            )
    return packages


def _unresolved_error(query: ResolverQuery, problem: ProcessError) -> EnvironmentSetupError:
    """Return the error for what uv could not resolve, with its own words."""
    output = problem.output or problem.message
    index = ""
    if query.sources.index_url:
        index = f" from {without_secret(query.sources.index_url)}"
    return EnvironmentSetupError(
        f"{', '.join(query.requirements)} cannot be resolved{index}: {output}"
        + installer.describe_unusable_pages(query.sources),
        hint=_HINT_ON_OURS if installer.NO_VERSION in output else _HINT_ON_INDEX,
    )


def parse_pylock(text: str) -> tuple[ResolvedPackage, ...]:
    """Return the packages of a ``pylock.toml`` (PEP 751), by name."""
    tables = parse_toml(text, where="uv's answer").get("packages", [])
    try:
        packages = [_parse_package(table) for table in tables]
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        raise EnvironmentSetupError(
            f"uv's answer is no pylock.toml: {type(problem).__name__}: {problem}.",
            hint="Use the version of uv in requirements/, or report it.",
        ) from problem
    return tuple(sorted(packages, key=lambda package: package.name))


def _parse_package(table: Mapping[str, Any]) -> ResolvedPackage:
    name = canonicalize_name(table["name"])
    version = table.get("version", "")
    candidates = tuple(_parse_files(table, name, version))
    if not candidates or not version:
        raise EnvironmentSetupError(
            f"{table['name']} was resolved to no file whose digest is known.",
            hint="Name a version that an index has, instead of an address or a folder.",
        )
    return ResolvedPackage(name=name, version=version, files=candidates)


def _parse_files(table: Mapping[str, Any], distribution: str, version: str) -> Iterator[Candidate]:
    """Yield the files of a package whose digests are known; wheels before an sdist."""
    file_tables: list[Mapping[str, Any]] = list(table.get("wheels", ()))
    if "sdist" in table:
        file_tables.append(table["sdist"])
    for file_table in file_tables:
        digest = file_table.get("hashes", {}).get("sha256")
        if digest is None:
            continue
        url = str(file_table.get("url") or file_table.get("path", ""))
        yield Candidate(
            name=file_table.get("name") or PurePosixPath(unquote(urlsplit(url).path)).name,
            distribution=distribution,
            version=version,
            sha256=digest,
            url=url,
        )


# --- Calls that install exact files ----------------------------------------------------------


def call_for_others(
    folder: Path, packages: Sequence[ResolvedPackage], sources: Sources | None
) -> InstallerCall:
    """Plan the installation of others' packages by digest; the requirements are written into the folder."""
    return InstallerCall(
        files=(_write_pins(folder, [package.pin for package in packages]),),
        sources=sources,
        hashed=True,
        dependencies=False,
    )


def call_for_ours(
    folder: Path,
    candidates: Sequence[Candidate],
    sources: Sources | None,
    *,
    gpu_family: str = "",
) -> InstallerCall:
    """Plan the installation of files of ours by digest; the sdist of `rocm` is built for a GPU family."""
    pins = [pin_of(candidate.distribution, candidate.version, [candidate]) for candidate in candidates]
    return InstallerCall(
        files=(_write_pins(folder, pins),),
        sources=sources,
        hashed=True,
        dependencies=False,
        # What ours are built with is installed before, and a run's page need not have it.
        build_isolation=False,
        gpu_family=gpu_family,
        whose="ours",
    )


def _write_pins(folder: Path, pins: Sequence[str]) -> Path:
    return write_requirements(folder, "pinned", "".join(f"{pin}\n" for pin in sorted(pins)))
