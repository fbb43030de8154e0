"""Where the ROCm of a plan comes from: the artifacts of a run, or the packages of a release index.

One answer serves every family of a build variant, on every platform of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from ci.plan import fetching
from ci.plan.runs import RunQuery, find_run
from core.errors import ArtifactError, FatalError, MissingInputError, RocmError
from core.families import family
from core.packages.sources import PackageSource
from core.run.outputs import PLAIN
from core.run.plan import RocmOrigin
from rocm_packaging.packages.layouts import device_package
from rocm_packaging.rocm_sources import for_build, release_index_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ci.plan.artifact_places import Place
    from ci.plan.data import ArtifactRuns, RocmData, Way
    from ci.plan.rocm import Need
    from ci.plan.runs import Run, RunSource
    from core.run.outputs import Platform
    from core.run.plan import RocmPackages
    from rocm_packaging.rocm_sources import RocmSource

_VERSIONS = 10  # of an index, the newest: one may be there for some platforms or families alone
_HINT = (
    "Name an artifact run (the input artifact_run_id), or correct [rocm] of the data: "
    "ci/rocm.toml, or the file that CI_CONFIG names."
)


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for the ROCm of one plan."""

    asked: RocmPackages
    repository: str
    release_type: str
    data: RocmData
    source: RunSource
    place: Callable[[str, str, bool, Platform, str], Place]
    notes: list[str]

    @property
    def runs(self) -> ArtifactRuns:
        """Whose runs count."""
        return self.data.of(self.release_type)

    def origins(self, wanted: Mapping[str, Sequence[Need]]) -> tuple[RocmOrigin, ...]:
        """Find where the ROCm of each build variant comes from."""
        found: list[RocmOrigin] = []
        run, variant = self._asked(wanted) if self.asked.artifact_run_id else (None, "")
        for name, needs in wanted.items():
            found += self._given(name, needs, run) if name == variant else self._tried(name, needs)
        return tuple(found)

    def _asked(self, wanted: Mapping[str, Sequence[Need]]) -> tuple[Run | None, str]:
        """Say which run is asked for, and whose variant's artifacts it has.

        A run in a store that somebody names is taken as it is: GitHub need not know it.
        """
        asked = self.asked
        alone = PLAIN if PLAIN in wanted else next(iter(wanted))
        if asked.artifact_store:
            return None, alone
        try:
            run = self.source.run(self._repository, asked.artifact_run_id)
        except MissingInputError as problem:
            raise self._refusal(problem, alone, wanted[alone]) from problem
        built = next((name for name, file in self.runs.workflows.items() if file == run.workflow), alone)
        if built not in wanted:
            planned = " and ".join(wanted)
            why = f"It has builds of the variant {built} ({run.workflow}), and the plan has {planned}."
            raise self._refusal(MissingInputError(why), alone, wanted[alone])
        return run, built

    @property
    def _repository(self) -> str:
        return self.asked.artifact_repository or self.runs.repository

    def _given(self, variant: str, needs: Sequence[Need], run: Run | None) -> tuple[RocmOrigin, ...]:
        """Pin the run that is asked for."""
        run_id = self.asked.artifact_run_id
        try:
            if run and self.data.require_successful and not run.successful:
                raise MissingInputError(f"It is not green: {run.conclusion or run.status}.")  # noqa: TRY301
            reason = f"run {run_id} is asked for"
            return self._pinned(run_id, needs, fork=bool(run and run.fork), reason=reason)
        except (MissingInputError, ArtifactError) as problem:
            raise self._refusal(problem, variant, needs) from problem

    def _refusal(self, why: FatalError, variant: str, needs: Sequence[Need]) -> MissingInputError:
        """Say why the run that is asked for does not do, and which is the newest that would."""
        try:
            instead = f"The newest that would do: {self._newest(variant, needs)[0].run_id}."
        except FatalError as problem:
            instead = f"No other one would do: {problem.message}"
        run = f"Artifact run {self.asked.artifact_run_id} of {self._repository}"
        return MissingInputError(f"{run} does not do. {why.message}", hint=instead)

    def _tried(self, variant: str, needs: Sequence[Need]) -> tuple[RocmOrigin, ...]:
        """Try what the data says, in its order."""
        ways = {"newest": self._newest, "index": self._index}
        order = [one for one in self._order if not self._excluded(one)]
        tried = []
        for way in order:
            try:
                return ways[way](variant, needs)
            except FatalError as problem:
                tried.append(f"{way}: {problem.message}")
                self.notes.append(
                    f"ROCm of the variant {variant} does not come from {way}: {problem.message}"
                )
        families = ", ".join(dict.fromkeys(f"{one.gpu_family} on {one.platform}" for one in needs))
        raise MissingInputError(
            f"There is no ROCm for {families} (variant {variant}). Looked for:\n"
            + "\n".join(f"  {one}" for one in tried or ["nothing: use_prebuilt_artifacts leaves no way"]),
            hint=_HINT,
        )

    @property
    def _order(self) -> Sequence[Way]:
        return ("index",) if self.asked.index_url else self.data.order_of(self.repository)

    def _excluded(self, way: str) -> bool:
        return way == "index" and self.asked.use_prebuilt_artifacts

    def _newest(self, variant: str, needs: Sequence[Need]) -> tuple[RocmOrigin, ...]:
        """Pin the newest run that has everything."""
        workflow = self.runs.workflows.get(variant, "")
        if not workflow:
            raise MissingInputError(f"No workflow of {self.runs.repository} is known to build {variant}.")
        found: dict[str, tuple[RocmOrigin, ...]] = {}

        def holds(run: Run) -> bool:
            if run.fork:  # somebody's branch may be called main, too
                return False
            try:
                reason = f"the newest run of {workflow} that has every family, {run.created}"
                found[run.run_id] = self._pinned(run.run_id, needs, fork=False, reason=reason)
            except (MissingInputError, ArtifactError):
                return False
            return True

        query = RunQuery(
            repository=self.runs.repository,
            workflow=workflow,
            branch=self.runs.branch,
            require_successful=self.data.require_successful,
        )
        return found[find_run(self.source, query, holds).run_id]

    def _pinned(
        self, run_id: str, needs: Sequence[Need], *, fork: bool, reason: str
    ) -> tuple[RocmOrigin, ...]:
        """Pin a run with the digests of what each group needs of it."""
        store = self.asked.artifact_store if run_id == self.asked.artifact_run_id else ""
        repository = self._repository if run_id == self.asked.artifact_run_id else self.runs.repository
        found = []
        for platform in dict.fromkeys(one.platform for one in needs):
            place = self.place(repository, run_id, fork, platform, store or self.runs.store)
            here = [one for one in needs if one.platform == platform]
            chosen = {
                one: fetching.choose(place.listed, family(one.gpu_family), where=place.where) for one in here
            }
            digests = fetching.digests(place.store, {one for some in chosen.values() for one in some})
            for need, listed in chosen.items():
                found.append(
                    RocmOrigin(
                        platform=platform,
                        artifact_group=need.artifact_group,
                        run_id=run_id,
                        repository=repository,
                        store=place.named,
                        external_repo=place.external_repo,
                        artifacts={one.name.filename: digests[one.name.filename] for one in listed},
                        version=self.asked.version,
                        reason=reason,
                    )
                )
        return tuple(found)

    def _index(self, variant: str, needs: Sequence[Need]) -> tuple[RocmOrigin, ...]:
        """Pin the packages of the index: the newest version that has every group."""
        if variant != PLAIN:
            raise MissingInputError(f"A release index has no builds of the variant {variant}.")
        given = self.asked.index_url
        indexes = {
            one: PackageSource(index_urls=(given or release_index_url(self.runs.index, one.gpu_family),))
            for one in needs
        }
        first = indexes[needs[0]]
        versions = (self.asked.version,) if self.asked.version_named else first.versions("rocm")[:_VERSIONS]
        lacking: FatalError = first.lacks("version of rocm")
        for version in versions:
            try:
                found = {one: packages_of(source, version, one) for one, source in indexes.items()}
            except (MissingInputError, RocmError) as problem:
                lacking = problem
                continue
            return tuple(
                RocmOrigin(
                    platform=one.platform,
                    artifact_group=one.artifact_group,
                    artifacts=dict(source.digests),
                    index_url=source.packages.index_urls[0],
                    version=version,
                    reason="it is asked for"
                    if given
                    else f"the release index {self.runs.index or 'by default'}",
                )
                for one, source in found.items()
            )
        raise lacking


def packages_of(source: PackageSource, version: str, need: Need) -> RocmSource:
    """Find the packages that builds for a group take from an index."""
    found = for_build(source, version, need.gpu_family, (), need.platform)
    targets = family(need.gpu_family).targets
    held = (one for target in targets for one in source.offers(device_package(target)))
    if found.layout == "split" and not any(Version(one.version) == Version(version) for one in held):
        raise source.lacks(f"device code of ROCm {version} for {', '.join(targets)}")
    return found
