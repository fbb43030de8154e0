"""Two resolutions that cannot see each other, and the installation of both by digest.

What has a name of ours is chosen among what a source offers, by reading what its files require; no index is
queried for it. What these require of others is resolved by uv from the dependencies' indexes alone, which are
never queried for a name that was chosen.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from core import files, process
from core.data import parse_toml
from core.env import Interpreter, installer
from core.env.installer import Install, Sources, Whose, configured
from core.errors import EnvironmentSetupError, MissingInputError, ProcessError, WheelError
from core.http import without_secret
from core.packages import Offer, fits, takes
from core.run import Platform
from core.wheel.distributions import is_ours

if TYPE_CHECKING:
    from core.packages.sources import PackageSource
    from core.run.records import FileRecord


_NAMED = 8  # nobody reads a longer list of versions
_OURS = "A dependency requires a name of ours: require it, too, and it is taken from where ours are."
_THEIRS = "Their index is that of --deps-index-url, else of pip's or uv's settings: correct it, or try again."
# what an sdist requires with extras, which only its build could say
SdistRequires = Callable[["Offer", frozenset[str]], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One file of each distribution of ours, with its digest; and what they require of others."""

    files: tuple[Offer, ...]
    others: tuple[str, ...] = ()

    @property
    def versions(self) -> Mapping[str, str]:
        """Normalised distribution name to version."""
        return {one.distribution: one.version for one in self.files}


@dataclass(frozen=True)
class _Search:
    """A depth-first search, newest versions first."""

    source: PackageSource
    python: Interpreter
    platform: Platform
    sdist_requires: SdistRequires = lambda _one, _extras: ()
    read: dict[str, Sequence[str]] = field(default_factory=dict)
    problems: list[EnvironmentSetupError | MissingInputError] = field(default_factory=list)

    def solve(
        self, waiting: Sequence[tuple[Requirement, str]], found: Mapping[str, tuple[Offer, frozenset[str]]]
    ) -> Mapping[str, tuple[Offer, frozenset[str]]] | None:
        """Complete a choice; None where a requirement cannot be met together with it."""
        if not waiting:
            return found
        (wanted, by), *waiting = waiting
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if not is_ours(name):
            return self.solve(waiting, found)
        if name in found:
            one, before = found[name]
            if not wanted.specifier.contains(one.version, prereleases=True):
                self._note(wanted, by, f"{one.distribution} {one.version} was chosen")
                return None
            more = self.required(one, extras - before) if extras - before else ()
            return self.solve([*more, *waiting], {**found, name: (one, before | extras)})
        candidates = self.candidates(wanted)
        if not candidates:
            held = ", ".join(self.source.versions(name)[:_NAMED]) or "none of it"
            self._note(wanted, by, f"{self.source.words} has {held}")
        for one in candidates:
            solved = self.solve([*self.required(one, extras), *waiting], {**found, name: (one, extras)})
            if solved is not None:
                return solved
        return None

    def candidates(self, wanted: Requirement) -> Sequence[Offer]:
        """List one file of each version that would do, newest first."""
        best: dict[Version, Offer] = {}
        for one in self.source.offers(canonicalize_name(wanted.name)):
            version, here = Version(one.version), fits(one, self.python.tag, self.platform)
            # a wheel before an sdist; else the first source's
            better = version not in best or (one.name.endswith(".whl") and best[version].name.endswith(".gz"))
            if better and here and takes(wanted.specifier, one) and _runs(one, self.python):
                best[version] = one
        return [best[version] for version in sorted(best, reverse=True)]

    def required(self, one: Offer, extras: frozenset[str]) -> Sequence[tuple[Requirement, str]]:
        """List what a file requires here, with extras."""
        wheel = one.name.endswith(".whl")
        if wheel and one.name not in self.read:
            self.read[one.name] = self.source.requires(one)
        lines = self.read[one.name] if wheel else self.sdist_requires(one, extras)
        environment: dict[str, Any] = {**default_environment(), **_markers(self.python, self.platform)}
        found = []
        for wanted in (parsed_requirement(line, one.name) for line in lines):
            marker, wanted.marker = wanted.marker, None
            if marker is None or any(
                marker.evaluate({**environment, "extra": extra}) for extra in (*extras, "")
            ):
                found.append((wanted, one.name))
        return found

    def _note(self, wanted: Requirement, by: str, why: str) -> None:
        what = f"{wanted}, which {by} requires," if by else str(wanted)
        self.problems.append(
            EnvironmentSetupError(
                f"There is no {what} for Python {self.python.series}: {why}.",
                hint=self.source.lacks(str(wanted)).hint,
            )
        )


def parsed_requirement(line: str, where: str) -> Requirement:
    """Read a requirement of a distribution; an invalid one is a `WheelError`."""
    try:
        return Requirement(line)
    except InvalidRequirement as problem:
        raise WheelError(f"{where} requires {line!r}, which is not a requirement.") from problem


def _runs(one: Offer, python: Interpreter) -> bool:
    try:
        return SpecifierSet(one.requires_python).contains(python.version, prereleases=True)
    except InvalidSpecifier:
        return True


def _markers(python: Interpreter, platform: Platform) -> Mapping[str, str]:
    system = {"linux": ("linux", "posix", "Linux"), "windows": ("win32", "nt", "Windows")}[platform]
    return {
        "python_version": python.series.removesuffix("t"),
        "python_full_version": python.version,
        "implementation_version": python.version,
        **dict(zip(("sys_platform", "os_name", "platform_system"), system, strict=True)),
    }


def choose(
    source: PackageSource,
    requirements: Sequence[str],
    *,
    python: Interpreter,
    platform: Platform,
    sdist_requires: SdistRequires = lambda _one, _extras: (),
) -> Chosen:
    """Choose files of ours from a source alone, and gather what they require of others."""
    search = _Search(source, python, platform, sdist_requires)
    roots = [(Requirement(one), "") for one in requirements]
    found = search.solve(roots, {})
    if found is None:
        raise search.problems[0]
    lines = [*roots, *(line for one, extras in found.values() for line in search.required(one, extras))]
    sealed = sorted((source.sealed(one) for one, _ in found.values()), key=lambda one: one.name)
    return Chosen(files=tuple(sealed), others=_others(wanted for wanted, _ in lines))


def required_by_files(
    source: PackageSource, files: Sequence[Offer], *, python: Interpreter, platform: Platform
) -> tuple[str, ...]:
    """Gather what files that are chosen already require of others."""
    search = _Search(source, python, platform)
    return _others(wanted for one in files for wanted, _ in search.required(one, frozenset()))


def _others(lines: Iterable[Requirement]) -> tuple[str, ...]:
    return tuple(sorted({str(one) for one in lines if not is_ours(one.name)}))


def others_of(lines: Iterable[str], *, where: str) -> tuple[str, ...]:
    """Keep requirements of others' distributions that no extra makes optional, with their markers."""
    kept = (parsed_requirement(line, where) for line in lines)
    return _others(one for one in kept if "extra" not in str(one.marker or ""))


def resolve_others(
    requirements: Sequence[str], ours: Sequence[str], question: Question, *, allowed: bool = False
) -> tuple[Resolved, ...]:
    """Resolve what ours require of others, from the question's sources alone.

    No index is queried for `ours`, the names that were chosen already. With `allowed`, a name of ours may
    come from there, as that of a torch that is installed instead of a build.
    """
    if not requirements:
        return ()
    return resolve(replace(question, requirements=tuple(requirements), excludes=tuple(ours), allowed=allowed))


def others_question(python: Path, sources: Sources | None, **more: Any) -> Question:  # noqa: ANN401 - Question's
    """Return a query for others' packages: of the sources given, else as this machine is configured."""
    return Question(
        requirements=(), sources=sources or configured(), exact=sources is not None, python=python, **more
    )


def pinned_call(
    folder: Path, pins: Sequence[Offer | FileRecord | Resolved], sources: Sources | None, *, family: str = ""
) -> Install:
    """Plan the installation of exact files by digest; the sdist of `rocm` is built for a GPU family."""
    lines = sorted(
        one.pinned
        if isinstance(one, Resolved)
        else f"{one.distribution}=={one.version} --hash=sha256:{one.sha256}"
        for one in pins
    )
    text = "".join(f"{line}\n" for line in lines)
    whose: Whose = "others" if all(isinstance(one, Resolved) for one in pins) else "ours"
    return Install(
        files=(installer.kept(folder, "pinned", text),),
        sources=sources,
        hashed=True,
        dependencies=False,
        # what ours are built with is installed before, and a run's page need not have it
        build_isolation=whose == "others",
        gpu_family=family,
        whose=whose,
    )


@dataclass(frozen=True, kw_only=True)
class Question:
    """A query to the resolver, by default for the interpreter, and with uv's own cache.

    Names among `excludes` are never resolved; ours are refused, also where sdists are built, unless
    `allowed`; with `exact`, no variable of the environment may add a source.
    """

    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    allowed: bool = False
    sources: Sources
    exact: bool = True
    python: Path | None = None
    python_version: str = ""
    platform: str = ""
    pre: bool = False
    only_wheels: bool = False
    cache_dir: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A resolved distribution by its normalised name, and its files; wheels before an sdist."""

    name: str
    version: str
    files: tuple[Offer, ...]

    @property
    def pinned(self) -> str:
        """The line of a requirements file that takes one of these files and no other."""
        return " ".join(
            (f"{self.name}=={self.version}", *(f"--hash=sha256:{one.sha256}" for one in self.files))
        )


def resolve(question: Question) -> tuple[Resolved, ...]:
    """Let uv choose the files that satisfy requirements; it fetches no wheel whose metadata is served."""
    env = installer.environment_for(exact=question.exact)
    if question.sources.cert:
        env.setdefault("SSL_CERT_FILE", question.sources.cert)
    with tempfile.TemporaryDirectory() as folder:
        refused = [] if question.allowed else installer.refused(but=question.excludes)
        listed = {
            "--excludes": question.excludes,
            "--build-constraints": installer.refused(),
            "--constraints": (*question.constraints, *refused),
            "": question.requirements,
        }
        argv = _argv(question)
        for option, lines in listed.items():
            path = Path(folder) / f"{option or 'requirements'}.txt"
            files.write_text(path, "".join(f"{one}\n" for one in lines))
            argv += [*filter(None, [option]), str(path)] if lines or not option else []
        try:
            answer = process.capture(argv, env=env).stdout
        except ProcessError as problem:
            said = problem.output or problem.message
            index = f" from {without_secret(question.sources.index_url)}" * bool(question.sources.index_url)
            raise EnvironmentSetupError(
                f"{', '.join(question.requirements)} cannot be resolved{index}: {said}"
                + installer.unanswered(question.sources),
                hint=_OURS if installer.NOTHING in said else _THEIRS,
            ) from problem
    found = parse_pylock(answer)
    for one in found:
        if not question.allowed and is_ours(one.name):
            what = f"{one.name} {one.version} would come from {one.files[0].url}, and it is one of our names."
            raise EnvironmentSetupError(what, hint=_OURS)
    return found


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
    listed: Sequence[Mapping[str, Any]] = [*package.get("wheels", ()), *filter(None, [package.get("sdist")])]
    places = ((str(one.get("url") or one.get("path", "")), one) for one in listed)
    name, version = canonicalize_name(package["name"]), package.get("version", "")
    found = tuple(
        Offer(
            name=one.get("name") or PurePosixPath(unquote(urlsplit(place).path)).name,
            distribution=name,
            version=version,
            sha256=one["hashes"]["sha256"],
            url=place,
        )
        for place, one in places
        if "sha256" in one.get("hashes", {})
    )
    if not found or not version:
        raise EnvironmentSetupError(
            f"{package['name']} was resolved to no file whose digest is known.",
            hint="Name a version that an index has, instead of an address or a folder.",
        )
    return Resolved(name=name, version=version, files=found)
