"""The choice of our packages: a search among what a source offers, by reading what its files require.

No index is queried for our names here, and none of others' is ever used for them. uv's own lock was tried
in the place of this search: docs/architecture.md says why it is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from core.errors import EnvironmentSetupError, MissingInputError, WheelError
from core.packages.candidates import Candidate, with_digest
from core.run import Platform
from core.wheel.distributions import is_ours

if TYPE_CHECKING:
    from core.env import Interpreter
    from core.packages.package_source import PackageSource

_MOST_VERSIONS = 8  # nobody reads a longer list

# What an sdist requires with extras, which only its build could say.
SdistRequirements = Callable[[Candidate, frozenset[str]], Sequence[str]]


def no_requirements(_sdist: Candidate, _extras: frozenset[str]) -> Sequence[str]:
    """Return that an sdist requires nothing."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Selection:
    """One file of each distribution of ours, with its digest; and what they require of others."""

    files: tuple[Candidate, ...]
    others: tuple[str, ...] = ()

    @property
    def versions(self) -> Mapping[str, str]:
        """Normalised distribution name to version."""
        return {file.distribution: file.version for file in self.files}


@dataclass(frozen=True, kw_only=True)
class _Demand:
    """A requirement whose marker holds, and the file that has it; None for one of the caller."""

    requirement: Requirement
    required_by: str | None = None

    def __str__(self) -> str:
        """Return it as messages show it."""
        if self.required_by is None:
            return str(self.requirement)
        return f"{self.requirement}, which {self.required_by} requires,"


@dataclass(frozen=True, kw_only=True)
class _Pick:
    """A candidate that is taken, and the extras that are required of it."""

    candidate: Candidate
    extras: frozenset[str]


_Picks = Mapping[str, _Pick]  # by the normalised name


@dataclass(frozen=True, kw_only=True)
class _Search:
    """A depth-first search, newest versions first."""

    source: PackageSource
    python: Interpreter
    platform: Platform
    sdist_requirements: SdistRequirements = no_requirements
    requirements_by_wheel: dict[str, Sequence[str]] = field(default_factory=dict)
    problems: list[EnvironmentSetupError | MissingInputError] = field(default_factory=list)

    def complete(self, demands: Sequence[_Demand], picks: _Picks) -> _Picks | None:
        """Return picks that meet all demands; None where they cannot be met together with these picks."""
        if not demands:
            return picks

        demand, *further_demands = demands
        name = canonicalize_name(demand.requirement.name)
        if not is_ours(name):
            return self.complete(further_demands, picks)
        if name in picks:
            return self._complete_with_pick(demand, picks[name], further_demands, picks)

        extras = frozenset(demand.requirement.extras)
        candidates = self._candidates(demand.requirement)
        if not candidates:
            versions = self.source.versions(name)[:_MOST_VERSIONS]
            listing = ", ".join(versions) or "none of it"
            self._note_problem(demand, f"{self.source.description} has {listing}")
        for candidate in candidates:
            new_demands = self.demands_of(candidate, extras)
            new_picks = {**picks, name: _Pick(candidate=candidate, extras=extras)}
            solution = self.complete([*new_demands, *further_demands], new_picks)
            if solution is not None:
                return solution
        return None

    def _complete_with_pick(
        self,
        demand: _Demand,
        pick: _Pick,
        further_demands: Sequence[_Demand],
        picks: _Picks,
    ) -> _Picks | None:
        """Return picks that meet a demand by a candidate that is picked already; None where it does not."""
        candidate = pick.candidate
        if not demand.requirement.specifier.contains(candidate.version, prereleases=True):
            self._note_problem(demand, f"{candidate.distribution} {candidate.version} was chosen")
            return None

        new_extras = frozenset(demand.requirement.extras) - pick.extras
        new_demands = self.demands_of(candidate, new_extras) if new_extras else ()
        extended_pick = _Pick(candidate=candidate, extras=pick.extras | new_extras)
        return self.complete(
            [*new_demands, *further_demands],
            {**picks, candidate.distribution: extended_pick},
        )

    def _candidates(self, requirement: Requirement) -> Sequence[Candidate]:
        """Return one file of each version that meets a requirement, newest first."""
        best: dict[Version, Candidate] = {}
        for candidate in self.source.candidates(canonicalize_name(requirement.name)):
            if not candidate.fits(self.python.tag, self.platform):
                continue
            if not candidate.runs_on(self.python.version):
                continue
            if not candidate.satisfies(requirement.specifier):
                continue
            # Of equal ones the first source counts.
            version = Version(candidate.version)
            if version not in best or candidate.is_preferred_to(best[version]):
                best[version] = candidate
        return [best[version] for version in sorted(best, reverse=True)]

    def demands_of(self, candidate: Candidate, extras: frozenset[str]) -> Sequence[_Demand]:
        """Return what a file requires here, with extras."""
        demands: list[_Demand] = []
        for line in self._requirements_of(candidate, extras):
            requirement = parse_requirement(line, candidate.name)
            if self._applies(requirement, extras):
                requirement.marker = None
                demands.append(_Demand(requirement=requirement, required_by=candidate.name))
        return demands

    def _requirements_of(self, candidate: Candidate, extras: frozenset[str]) -> Sequence[str]:
        if not candidate.is_wheel:
            return self.sdist_requirements(candidate, extras)
        if candidate.name not in self.requirements_by_wheel:
            self.requirements_by_wheel[candidate.name] = self.source.read_requirements(candidate)
        return self.requirements_by_wheel[candidate.name]

    def _applies(self, requirement: Requirement, extras: frozenset[str]) -> bool:
        """Return whether a requirement's marker holds for the target."""
        if requirement.marker is None:
            return True
        environment: dict[str, Any] = {**default_environment()}
        environment |= _markers(self.python, self.platform)
        # "" is a distribution without an extra.
        for extra in (*extras, ""):
            environment["extra"] = extra
            if requirement.marker.evaluate(environment):
                return True
        return False

    def _note_problem(self, demand: _Demand, reason: str) -> None:
        missing_error = self.source.missing_error(str(demand.requirement))
        problem = EnvironmentSetupError(
            f"There is no {demand} for Python {self.python.series}: {reason}.",
            hint=missing_error.hint,
        )
        self.problems.append(problem)


def choose_packages(
    source: PackageSource,
    requirements: Sequence[str],
    *,
    python: Interpreter,
    platform: Platform,
    sdist_requirements: SdistRequirements = no_requirements,
) -> Selection:
    """Choose files of ours from a source alone, and gather what they require of others."""
    search = _Search(source=source, python=python, platform=platform, sdist_requirements=sdist_requirements)
    demands = [_Demand(requirement=Requirement(requirement)) for requirement in requirements]
    picks = search.complete(demands, {})
    if picks is None:
        # The first one is that of the newest versions.
        raise search.problems[0]

    for pick in picks.values():
        demands += search.demands_of(pick.candidate, pick.extras)
    files = [with_digest(pick.candidate) for pick in picks.values()]
    return Selection(
        files=tuple(sorted(files, key=lambda file: file.name)),
        others=_requirements_of_others(demand.requirement for demand in demands),
    )


def others_required_by_files(
    source: PackageSource,
    files: Sequence[Candidate],
    *,
    python: Interpreter,
    platform: Platform,
) -> tuple[str, ...]:
    """Return what files that are chosen already require of others."""
    search = _Search(source=source, python=python, platform=platform)
    requirements: list[Requirement] = []
    for file in files:
        requirements += [demand.requirement for demand in search.demands_of(file, frozenset())]
    return _requirements_of_others(requirements)


def others_required_by_lines(lines: Iterable[str], *, where: str) -> tuple[str, ...]:
    """Return the requirements of others' distributions that no extra makes optional, with their markers."""
    requirements = [parse_requirement(line, where) for line in lines]
    return _requirements_of_others(
        requirement for requirement in requirements if "extra" not in str(requirement.marker or "")
    )


def parse_requirement(line: str, where: str) -> Requirement:
    """Return a requirement of a distribution; an invalid one is a `WheelError`."""
    try:
        return Requirement(line)
    except InvalidRequirement as problem:
        raise WheelError(f"{where} requires {line!r}, which is not a requirement.") from problem


def _requirements_of_others(requirements: Iterable[Requirement]) -> tuple[str, ...]:
    lines: set[str] = set()
    for requirement in requirements:
        if not is_ours(requirement.name):
            lines.add(str(requirement))
    return tuple(sorted(lines))


def _markers(python: Interpreter, platform: Platform) -> Mapping[str, str]:
    """Return what an environment marker may ask of the target (PEP 508)."""
    markers = {
        "python_version": python.series.removesuffix("t"),
        "python_full_version": python.version,
        "implementation_version": python.version,
    }
    if platform == "windows":
        return {**markers, "sys_platform": "win32", "os_name": "nt", "platform_system": "Windows"}
    return {**markers, "sys_platform": "linux", "os_name": "posix", "platform_system": "Linux"}
