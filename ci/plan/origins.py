"""Where the ROCm of a plan comes from: the artifacts of a run, or the packages of a release index.

One answer serves every family of a build variant, on every platform of the plan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from ci.github import GitHub, Run, RunQuery, find_run
from ci.plan import artifacts
from ci.plan.data import ArtifactRuns, RocmData
from core.errors import ArtifactError, FatalError, MissingInputError, RocmError
from core.families import family
from core.packages.sources import PackageSource
from core.run import PLAIN, Platform
from core.run.plan import FETCH, Decision, LeftOut, Plan, PlannedJob, RocmOrigin, RocmPackages, Variant
from rocm_packaging.origin import RocmSource, for_build, release_index_url
from rocm_packaging.packages.layouts import device_package

_VERSIONS = 10  # of an index, the newest: one may be there for some platforms or families alone
_HINT = "Name an artifact run (input artifact_run_id), or correct [rocm]: ci/rocm.toml, pytorch-build.toml."


def needs(plan: Plan) -> Mapping[str, Sequence[Variant]]:
    """List the groups of a plan that need ROCm from elsewhere, by build variant."""
    fetched = {(job.platform, job.artifact_group) for job in plan.cells if FETCH in job.sessions}
    found: dict[str, list[Variant]] = {}
    for one in plan.variants:
        if (one.platform, one.artifact_group) in fetched:
            found.setdefault(one.build_variant, []).append(one)
    return found


def completed(plan: Plan, origins: Sequence[RocmOrigin], notes: Sequence[str] = ()) -> Plan:
    """Write into a plan where its ROCm comes from; what an index has is neither built nor tested here."""
    indexed = {(origin.platform, origin.artifact_group): origin for origin in origins if origin.index_url}
    left_out = list(plan.left_out)
    jobs: list[PlannedJob] = []
    for job in plan.cells:
        origin = indexed.get((job.platform, job.artifact_group))
        if origin is None:
            jobs.append(job)
        elif job.stage.endswith("rocm"):
            what = f"{job.stage}, {job.artifact_group} on {job.platform}"
            reason = f"ROCm {origin.version} comes from {origin.index_url}"
            left_out.append(LeftOut(what=what, reason=reason))
        else:
            packaging = {FETCH, "build_rocm", "check_rocm"}
            sessions = tuple(session for session in job.sessions if session not in packaging)
            jobs.append(job.model_copy(update={"sessions": sessions}))

    version = next((origin.version for origin in indexed.values()), plan.rocm.version)
    groups = {(job.platform, job.artifact_group) for job in jobs}
    variants = [variant for variant in plan.variants if (variant.platform, variant.artifact_group) in groups]
    enabled = plan.enable_build_jobs
    if plan.cells and not jobs:
        reason = f"ROCm {version} comes from an index, and PyTorch is not built: {plan.build_pytorch.reason}"
        enabled = Decision(value=False, reason=reason)
    return plan.model_copy(
        update={
            "enable_build_jobs": enabled,
            "rocm": plan.rocm.model_copy(update={"version": version, "origins": tuple(origins)}),
            "variants": tuple(variants),
            "cells": tuple(jobs),
            "left_out": tuple(left_out),
            "notes": (*plan.notes, *notes),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for the ROCm of one plan; `requested` is what the event says."""

    requested: RocmPackages
    repository: str
    release_type: str
    data: RocmData
    github: GitHub
    place: Callable[[str, str, bool, Platform, str], artifacts.Place]
    notes: list[str]

    @property
    def _runs(self) -> ArtifactRuns:
        return self.data.of(self.release_type)

    @property
    def _repository(self) -> str:
        return self.requested.artifact_repository or self._runs.repository

    def origins(self, wanted: Mapping[str, Sequence[Variant]]) -> tuple[RocmOrigin, ...]:
        """Find where the ROCm of each build variant comes from."""
        found: list[RocmOrigin] = []
        run, variant = self._requested_run(wanted) if self.requested.artifact_run_id else (None, "")
        for name, needs in wanted.items():
            found += self._given(name, needs, run) if name == variant else self._tried(name, needs)
        return tuple(found)

    def _requested_run(self, wanted: Mapping[str, Sequence[Variant]]) -> tuple[Run | None, str]:
        """Return the requested run, and the variant of its artifacts.

        A run in a store that the event names is taken as it is: GitHub need not know it.
        """
        alone = PLAIN if PLAIN in wanted else next(iter(wanted))
        if self.requested.artifact_store:
            return None, alone
        try:
            run = self.github.run(self._repository, self.requested.artifact_run_id)
        except MissingInputError as problem:
            raise self._refusal(problem, alone, wanted[alone]) from problem
        built = next((name for name, file in self._runs.workflows.items() if file == run.workflow), alone)
        if built not in wanted:
            planned = " and ".join(wanted)
            why = f"It has builds of the variant {built} ({run.workflow}), and the plan has {planned}."
            raise self._refusal(MissingInputError(why), alone, wanted[alone])
        return run, built

    def _given(self, variant: str, needs: Sequence[Variant], run: Run | None) -> tuple[RocmOrigin, ...]:
        run_id = self.requested.artifact_run_id
        try:
            if run and self.data.require_successful and not run.successful:
                raise MissingInputError(f"It is not green: {run.conclusion or run.status}.")  # noqa: TRY301
            reason = f"run {run_id} is requested"
            return self._pinned(run_id, needs, fork=bool(run and run.fork), reason=reason)
        except (MissingInputError, ArtifactError) as problem:
            raise self._refusal(problem, variant, needs) from problem

    def _refusal(self, why: FatalError, variant: str, needs: Sequence[Variant]) -> MissingInputError:
        """Return why the requested run cannot be used, and which is the newest that can."""
        try:
            instead = f"The newest usable run: {self._newest(variant, needs)[0].run_id}."
        except FatalError as problem:
            instead = f"No other run can be used: {problem.message}"
        run = f"Artifact run {self.requested.artifact_run_id} of {self._repository}"
        return MissingInputError(f"{run} cannot be used. {why.message}", hint=instead)

    def _tried(self, variant: str, needs: Sequence[Variant]) -> tuple[RocmOrigin, ...]:
        ways = {"newest": self._newest, "index": self._index}
        order = ("index",) if self.requested.index_url else self.data.order_of(self.repository)
        tried = []
        for way in order:
            if way == "index" and self.requested.use_prebuilt_artifacts:
                continue
            try:
                return ways[way](variant, needs)
            except FatalError as problem:
                tried.append(f"{way}: {problem.message}")
                self.notes.append(f"ROCm of variant {variant} does not come from {way}: {problem.message}")
        families = ", ".join(dict.fromkeys(f"{one.gpu_family} on {one.platform}" for one in needs))
        raise MissingInputError(
            f"There is no ROCm for {families} (variant {variant}). Looked for:\n"
            + "\n".join(f"  {one}" for one in tried or ["nothing: use_prebuilt_artifacts leaves no way"]),
            hint=_HINT,
        )

    def _newest(self, variant: str, needs: Sequence[Variant]) -> tuple[RocmOrigin, ...]:
        workflow = self._runs.workflows.get(variant, "")
        if not workflow:
            raise MissingInputError(f"No workflow of {self._runs.repository} is known to build {variant}.")
        found: dict[str, tuple[RocmOrigin, ...]] = {}

        def holds(run: Run) -> bool:
            if run.fork:  # a fork's branch may be called main, too
                return False
            reason = f"the newest run of {workflow} that has every family, {run.created}"
            try:
                found[run.run_id] = self._pinned(run.run_id, needs, fork=False, reason=reason)
            except (MissingInputError, ArtifactError):
                return False
            return True

        query = RunQuery(
            repository=self._runs.repository,
            workflow=workflow,
            branch=self._runs.branch,
            require_successful=self.data.require_successful,
        )
        return found[find_run(self.github, query, holds).run_id]

    def _pinned(
        self, run_id: str, needs: Sequence[Variant], *, fork: bool, reason: str
    ) -> tuple[RocmOrigin, ...]:
        """Pin a run with the digests of what each group needs of it."""
        requested = run_id == self.requested.artifact_run_id
        store = (requested and self.requested.artifact_store) or self._runs.store
        repository = self._repository if requested else self._runs.repository
        found = []
        for platform in dict.fromkeys(one.platform for one in needs):
            place = self.place(repository, run_id, fork, platform, store)
            chosen = {
                one: artifacts.choose(place.listed, family(one.gpu_family), where=place.where)
                for one in needs
                if one.platform == platform
            }
            digests = artifacts.digests(place.store, {one for some in chosen.values() for one in some})
            found += [
                RocmOrigin(
                    platform=platform,
                    artifact_group=need.artifact_group,
                    run_id=run_id,
                    repository=repository,
                    store=place.named,
                    external_repo=place.external_repo,
                    artifacts={one.name.filename: digests[one.name.filename] for one in listed},
                    version=self.requested.version,
                    reason=reason,
                )
                for need, listed in chosen.items()
            ]
        return tuple(found)

    def _index(self, variant: str, needs: Sequence[Variant]) -> tuple[RocmOrigin, ...]:
        """Pin the packages of the index: the newest version that has every group."""
        if variant != PLAIN:
            raise MissingInputError(f"A release index has no builds of the variant {variant}.")
        given, index = self.requested.index_url, self._runs.index
        urls = {one: given or release_index_url(index, one.gpu_family) for one in needs}
        indexes = {one: PackageSource(index_urls=(url,)) for one, url in urls.items()}
        first = indexes[needs[0]]
        named = self.requested.version_named
        lacking: FatalError = first.lacks("version of rocm")
        for version in (self.requested.version,) if named else first.versions("rocm")[:_VERSIONS]:
            try:
                found = {one: packages_of(source, version, one) for one, source in indexes.items()}
            except (MissingInputError, RocmError) as problem:
                lacking = problem
                continue
            reason = "it is requested" if given else f"the release index {index or 'by default'}"
            return tuple(
                RocmOrigin(
                    platform=one.platform,
                    artifact_group=one.artifact_group,
                    artifacts=dict(source.digests),
                    index_url=source.packages.index_urls[0],
                    version=version,
                    reason=reason,
                )
                for one, source in found.items()
            )
        raise lacking


def packages_of(source: PackageSource, version: str, need: Variant) -> RocmSource:
    """Find the packages that builds for a group take from an index."""
    found = for_build(source, version, need.gpu_family, (), need.platform)
    targets = family(need.gpu_family).targets
    held = (one for target in targets for one in source.offers(device_package(target)))
    if found.layout == "split" and not any(Version(one.version) == Version(version) for one in held):
        raise source.lacks(f"device code of ROCm {version} for {', '.join(targets)}")
    return found
