"""Where the ROCm of a plan comes from: the artifacts of a run, or the packages of a release index.

One answer serves every family of a build variant, on every platform of the plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.version import Version

from ci.github import GitHub, Run, RunQuery, find_run, from_environment
from ci.plan import artifacts, data
from ci.plan.data import ArtifactRuns, RocmData, SearchMethod
from ci.plan.missing_tests import notes_on_missing_tests
from core.cli.options import Common, environment
from core.errors import ArtifactError, FatalError, MissingInputError, RocmError
from core.families import family
from core.packages.package_source import PackageSource
from core.packages.sources import PackageIndex
from core.run import PLAIN, Platform
from core.run.plan import FETCH, Decision, LeftOut, Plan, PlannedGroup, PlannedJob, RocmOrigin, RocmPackages
from rocm_packaging.origin import RocmSource, choose_for_build, release_index_url
from rocm_packaging.packages.layouts import device_package

# How many of an index's newest versions are tried: some are there for a few platforms or families alone.
_VERSIONS = 10

_PACKAGING = frozenset({FETCH, "build_rocm", "check_rocm"})
_HINT = "Name an artifact run (input artifact_run_id), or correct [rocm]: ci/rocm.toml, pytorch-build.toml."


def with_rocm(plan: Plan, common: Common) -> Plan:
    """Return a plan with where its ROCm comes from, pinned once for the whole run."""
    groups_by_build_variant = groups_that_need_rocm(plan)
    if not groups_by_build_variant:
        return plan

    search = Search(
        requested=plan.rocm,
        repository=plan.event.repository,
        data=data.rocm(),
        github=from_environment(environment()),
        common=replace(common, release_type=plan.release_type),
    )
    completed_plan = completed(plan, search.origins(groups_by_build_variant), search.notes)

    # The packages of an index are not tested here.
    new_notes = [
        note
        for note in notes_on_missing_tests(completed_plan, data.triggers().tests)
        if note not in completed_plan.notes
    ]
    return completed_plan.model_copy(update={"notes": (*completed_plan.notes, *new_notes)})


def groups_that_need_rocm(plan: Plan) -> Mapping[str, Sequence[PlannedGroup]]:
    """Return the groups of a plan that need ROCm from elsewhere, by build variant."""
    groups_that_fetch = {(job.platform, job.artifact_group) for job in plan.jobs if FETCH in job.sessions}
    groups_by_build_variant: dict[str, list[PlannedGroup]] = {}
    for group in plan.variants:
        if (group.platform, group.artifact_group) in groups_that_fetch:
            groups_by_build_variant.setdefault(group.build_variant, []).append(group)
    return groups_by_build_variant


def completed(
    plan: Plan,
    origins: Sequence[RocmOrigin],
    notes: Sequence[str] = (),
) -> Plan:
    """Return a plan with where its ROCm comes from; what an index has is neither built nor tested here."""
    indexed_origins = {
        (origin.platform, origin.artifact_group): origin for origin in origins if origin.index_url is not None
    }
    left_out = list(plan.left_out)
    jobs: list[PlannedJob] = []
    for job in plan.jobs:
        indexed_origin = indexed_origins.get((job.platform, job.artifact_group))
        if indexed_origin is None:
            jobs.append(job)
        elif job.stage.endswith("rocm"):
            left_out.append(
                LeftOut(
                    what=f"{job.stage}, {job.artifact_group} on {job.platform}",
                    reason=f"ROCm {indexed_origin.version} comes from {indexed_origin.index_url}",
                )
            )
        else:
            sessions = tuple(session for session in job.sessions if session not in _PACKAGING)
            jobs.append(job.model_copy(update={"sessions": sessions}))

    version = plan.rocm.version
    if indexed_origins:
        version = next(iter(indexed_origins.values())).version

    enabled = plan.enable_build_jobs
    if plan.jobs and not jobs:
        enabled = Decision(
            value=False,
            reason=(
                f"ROCm {version} comes from an index, and PyTorch is not built: {plan.build_pytorch.reason}"
            ),
        )

    groups_with_jobs = {(job.platform, job.artifact_group) for job in jobs}
    groups = tuple(
        group for group in plan.variants if (group.platform, group.artifact_group) in groups_with_jobs
    )
    rocm = plan.rocm.model_copy(update={"version": version, "origins": tuple(origins)})
    return plan.model_copy(
        update={
            "enable_build_jobs": enabled,
            "rocm": rocm,
            "variants": groups,
            "jobs": tuple(jobs),
            "left_out": tuple(left_out),
            "notes": (*plan.notes, *notes),
        }
    )


@dataclass(frozen=True, kw_only=True)
class _RequestedRun:
    """The run whose artifacts the event requests."""

    run_id: str
    build_variant: str  # of its artifacts
    run: Run | None = None  # None where GitHub need not know it


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for the ROCm of one plan."""

    requested: RocmPackages  # by the event
    repository: str  # of the plan's run
    data: RocmData
    github: GitHub
    common: Common  # says which stores have artifacts
    notes: list[str] = field(default_factory=list)  # on what was tried in vain

    @property
    def _runs(self) -> ArtifactRuns:
        return self.data.artifact_runs(self.common.release_type)

    @property
    def _repository_of_requested_run(self) -> str:
        return self.requested.artifact_repository or self._runs.repository

    def origins(
        self, groups_by_build_variant: Mapping[str, Sequence[PlannedGroup]]
    ) -> tuple[RocmOrigin, ...]:
        """Return where the ROCm of each group comes from."""
        requested_run = self._requested_run(groups_by_build_variant)
        origins: list[RocmOrigin] = []
        for build_variant, groups in groups_by_build_variant.items():
            if requested_run is not None and requested_run.build_variant == build_variant:
                origins += self._origins_in_requested_run(requested_run, groups)
            else:
                origins += self._find_origins(build_variant, groups)
        return tuple(origins)

    # --- A requested run ---------------------------------------------------------------------

    def _requested_run(
        self,
        groups_by_build_variant: Mapping[str, Sequence[PlannedGroup]],
    ) -> _RequestedRun | None:
        """Return the run that the event requests.

        A run in a store that the event names is taken as it is: GitHub need not know it.
        """
        run_id = self.requested.artifact_run_id
        if run_id is None:
            return None

        first_variant = PLAIN if PLAIN in groups_by_build_variant else next(iter(groups_by_build_variant))
        if self.requested.artifact_store is not None:
            return _RequestedRun(run_id=run_id, build_variant=first_variant)

        try:
            run = self.github.run(self._repository_of_requested_run, run_id)
        except MissingInputError as problem:
            raise self._unusable_run_error(
                problem, first_variant, groups_by_build_variant[first_variant]
            ) from problem

        build_variant = first_variant
        for name, workflow in self._runs.workflows.items():
            if workflow == run.workflow:
                build_variant = name
                break
        if build_variant not in groups_by_build_variant:
            planned_variants = " and ".join(groups_by_build_variant)
            other_variant = MissingInputError(
                f"It has builds of the variant {build_variant} ({run.workflow}), "
                f"and the plan has {planned_variants}."
            )
            raise self._unusable_run_error(
                other_variant, first_variant, groups_by_build_variant[first_variant]
            )
        return _RequestedRun(run_id=run_id, build_variant=build_variant, run=run)

    def _origins_in_requested_run(
        self,
        requested_run: _RequestedRun,
        groups: Sequence[PlannedGroup],
    ) -> tuple[RocmOrigin, ...]:
        run = requested_run.run
        try:
            if run is not None and self.data.require_successful and not run.successful:
                raise MissingInputError(f"It is not green: {run.conclusion or run.status}.")  # noqa: TRY301
            return self._origins_in_run(
                requested_run.run_id,
                groups,
                fork=run is not None and run.fork,
                reason=f"run {requested_run.run_id} is requested",
            )
        except (MissingInputError, ArtifactError) as problem:
            raise self._unusable_run_error(problem, requested_run.build_variant, groups) from problem

    def _unusable_run_error(
        self,
        problem: FatalError,
        build_variant: str,
        groups: Sequence[PlannedGroup],
    ) -> MissingInputError:
        """Return why the requested run cannot be used, and which is the newest that can."""
        try:
            origins = self._origins_in_newest_run(build_variant, groups)
            hint = f"The newest usable run: {origins[0].run_id}."
        except FatalError as problem_of_newest:
            hint = f"No other run can be used: {problem_of_newest.message}"
        return MissingInputError(
            f"Artifact run {self.requested.artifact_run_id} of {self._repository_of_requested_run} "
            f"cannot be used. {problem.message}",
            hint=hint,
        )

    # --- What the data says ------------------------------------------------------------------

    def _find_origins(
        self,
        build_variant: str,
        groups: Sequence[PlannedGroup],
    ) -> tuple[RocmOrigin, ...]:
        """Return where the ROCm of a build variant comes from, by the first method that leads to any."""
        problems: list[str] = []
        for method in self._search_order():
            try:
                if method == "newest":
                    return self._origins_in_newest_run(build_variant, groups)
                return self._origins_in_index(build_variant, groups)
            except FatalError as problem:
                problems.append(f"  {method}: {problem.message}")
                note = f"ROCm of variant {build_variant} does not come from {method}: {problem.message}"
                self.notes.append(note)

        if not problems:
            problems.append("  nothing: use_prebuilt_artifacts leaves no way")
        families = dict.fromkeys(f"{group.gpu_family} on {group.platform}" for group in groups)
        listing = "\n".join(problems)
        raise MissingInputError(
            f"There is no ROCm for {', '.join(families)} (variant {build_variant}). Looked for:\n{listing}",
            hint=_HINT,
        )

    def _search_order(self) -> Sequence[SearchMethod]:
        """Return what is tried, first to last."""
        methods: Sequence[SearchMethod] = self.data.search_order(self.repository)
        if self.requested.index_url is not None:
            methods = ("index",)
        if self.requested.use_prebuilt_artifacts:
            methods = [method for method in methods if method != "index"]
        return methods

    def _origins_in_newest_run(
        self,
        build_variant: str,
        groups: Sequence[PlannedGroup],
    ) -> tuple[RocmOrigin, ...]:
        runs = self._runs
        if build_variant not in runs.workflows:
            raise MissingInputError(f"No workflow of {runs.repository} is known to build {build_variant}.")
        workflow = runs.workflows[build_variant]

        def find_origins(run: Run) -> tuple[RocmOrigin, ...] | None:
            # A fork's branch may be called main, too.
            if run.fork:
                return None
            try:
                return self._origins_in_run(
                    run.run_id,
                    groups,
                    fork=False,
                    reason=f"the newest run of {workflow} that has every family, {run.created}",
                )
            except (MissingInputError, ArtifactError):
                return None

        query = RunQuery(
            repository=runs.repository,
            workflow=workflow,
            branch=runs.branch,
            require_successful=self.data.require_successful,
        )
        _newest_run, origins = find_run(self.github, query, find_origins)
        return origins

    def _origins_in_run(
        self,
        run_id: str,
        groups: Sequence[PlannedGroup],
        *,
        fork: bool,
        reason: str,
    ) -> tuple[RocmOrigin, ...]:
        """Return a run as the origin of groups, with the digests of what each group needs of it."""
        repository = self._runs.repository
        store = self._runs.store
        if run_id == self.requested.artifact_run_id:
            repository = self._repository_of_requested_run
            store = self.requested.artifact_store or store

        origins: list[RocmOrigin] = []
        for platform in dict.fromkeys(group.platform for group in groups):
            run_artifacts = self._find_run_artifacts(run_id, repository, store, platform, fork=fork)
            artifacts_by_group = {
                group: artifacts.choose_artifacts(
                    run_artifacts.artifacts, family(group.gpu_family), where=run_artifacts.where
                )
                for group in groups
                if group.platform == platform
            }
            required_artifacts: set[artifacts.Artifact] = set()
            for group_artifacts in artifacts_by_group.values():
                required_artifacts.update(group_artifacts)
            digests = artifacts.read_digests(run_artifacts.store, required_artifacts)

            for group, group_artifacts in artifacts_by_group.items():
                names = [artifact.name.filename for artifact in group_artifacts]
                origin = RocmOrigin(
                    platform=platform,
                    artifact_group=group.artifact_group,
                    run_id=run_id,
                    repository=repository,
                    store=run_artifacts.store_name,
                    external_repo=run_artifacts.external_repo,
                    artifacts={name: digests[name] for name in names},
                    # A run has artifacts of no version: its packages get the one that is requested.
                    version=self.requested.version,
                    reason=reason,
                )
                origins.append(origin)
        return tuple(origins)

    def _find_run_artifacts(
        self,
        run_id: str,
        repository: str,
        store: str | None,
        platform: Platform,
        *,
        fork: bool,
    ) -> artifacts.RunArtifacts:
        common = replace(self.common, run_id=run_id, platform=platform)
        return artifacts.find_run_artifacts(common, store, repository, fork=fork)

    # --- Release indexes ---------------------------------------------------------------------

    def _origins_in_index(
        self,
        build_variant: str,
        groups: Sequence[PlannedGroup],
    ) -> tuple[RocmOrigin, ...]:
        """Return the packages of an index as origins: the newest version that has every group."""
        if build_variant != PLAIN:
            raise MissingInputError(f"A release index has no builds of the variant {build_variant}.")

        sources: dict[PlannedGroup, PackageIndex] = {}
        for group in groups:
            index_url = self.requested.index_url
            if index_url is None:
                index_url = release_index_url(self._runs.index, group.gpu_family)
            sources[group] = PackageIndex(url=index_url)

        first_source = sources[groups[0]]
        versions: Sequence[str] = first_source.versions("rocm")[:_VERSIONS]
        if self.requested.version_named and self.requested.version is not None:
            versions = [self.requested.version]

        problem: FatalError = first_source.missing_error("version of rocm")
        for version in versions:
            try:
                return self._packages_as_origins(sources, version)
            except (MissingInputError, RocmError) as problem_of_version:
                problem = problem_of_version
        raise problem

    def _packages_as_origins(
        self,
        sources: Mapping[PlannedGroup, PackageIndex],
        version: str,
    ) -> tuple[RocmOrigin, ...]:
        reason = f"the release index {self._runs.index or 'by default'}"
        if self.requested.index_url is not None:
            reason = "it is requested"

        origins: list[RocmOrigin] = []
        for group, source in sources.items():
            rocm = _rocm_source(source, version, group)
            origin = RocmOrigin(
                platform=group.platform,
                artifact_group=group.artifact_group,
                artifacts=dict(rocm.digests),
                index_url=source.url,
                version=version,
                reason=reason,
            )
            origins.append(origin)
        return tuple(origins)


def _rocm_source(
    source: PackageSource,
    version: str,
    group: PlannedGroup,
) -> RocmSource:
    """Return the packages that builds for a group take from an index, which has its device code."""
    rocm = choose_for_build(source, version, group.gpu_family, (), group.platform)
    if rocm.layout != "split":
        return rocm

    targets = family(group.gpu_family).targets
    for target in targets:
        for candidate in source.candidates(device_package(target)):
            if Version(candidate.version) == Version(version):
                return rocm
    raise source.missing_error(f"device code of ROCm {version} for {', '.join(targets)}")
