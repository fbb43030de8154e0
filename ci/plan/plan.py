"""The plan of a run, a pure function of a `PlanBasis`: which sessions run where, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ci.pipeline import BUILD_STEPS
from ci.plan import decisions, families
from ci.plan.data import MAX_HOSTED_MINUTES, Matrix, MatrixFile, Test, reaches
from ci.plan.expansion import Combination, expand, parts_of_test, pythons_of_test
from ci.plan.families import NoMachine
from ci.plan.inputs import TEST_PREFIX
from ci.plan.missing_tests import notes_on_missing_tests
from core.cell import Cell
from core.data import in_force
from core.errors import DataError, UsageError, nearest
from core.families import CPU, gpu_targets
from core.run import Platform
from core.run.plan import (
    FETCH,
    Decision,
    LeftOut,
    Plan,
    PlanEvent,
    PlannedGroup,
    PlannedJob,
    RocmPackages,
    Stage,
    matrices,
)
from pytorch_build.components import COMPONENTS, with_required_components
from pytorch_build.lock.versions import python_tag
from rocm_packaging.packages.versions import compute_version

if TYPE_CHECKING:
    from ci.plan.decisions import PlanBasis
    from ci.plan.families import Build
    from pytorch_build.refs.torch_refs import TorchRef

_PACKAGE_ROCM = ("build_rocm", "check_rocm")


def plan(basis: PlanBasis) -> Plan:
    """Return what a run does."""
    trust = decisions.decide_trust(basis)
    uploads, store = decisions.decide_upload(basis, trust)
    pytorch = decisions.decide_pytorch(basis)
    test_type, test_type_reason = decisions.choose_test_type(basis)

    chosen_families, families_left_out = families.choose_families(basis)
    if basis.is_dispatch and not chosen_families:
        raise UsageError(
            "The dispatch names no GPU family, so nothing would be built.",
            hint="Give linux_amdgpu_families or windows_amdgpu_families: names, or all.",
        )
    builds, builds_left_out = families.builds_of(basis, chosen_families)

    planner = _JobPlanner(
        basis=basis,
        pytorch=pytorch,
        upload=uploads,
        test_type=test_type,
        test_labels=decisions.requested_tests(basis),
        left_out=[*families_left_out, *builds_left_out],
    )
    builds = planner.leave_out_without_rocm(builds)
    for build in builds:
        planner.add(build)

    groups_with_pytorch = {
        (job.platform, job.artifact_group) for job in planner.jobs if job.stage == "build_pytorch"
    }
    if pytorch.value and not groups_with_pytorch:
        _refuse_missing_pytorch(basis, planner.left_out)
        reason = f"{pytorch.reason}, but no family in the plan has it"
        pytorch = Decision(value=False, reason=reason)

    groups: list[PlannedGroup] = []
    for build in builds:
        builds_pytorch = (build.group.platform, build.group.artifact_group) in groups_with_pytorch
        groups.append(build.group.model_copy(update={"build_pytorch": builds_pytorch}))

    whole_plan = Plan(
        event=_plan_event(basis),
        trusted=trust,
        enable_build_jobs=decisions.decide_builds(basis),
        build_pytorch=pytorch,
        upload=uploads,
        promote=decisions.decide_promotion(basis, uploads, pytorch),
        release_type=basis.release_type,
        test_type=test_type,
        test_type_reason=test_type_reason,
        test_labels=planner.test_labels,
        store=store,
        rocm=_rocm_packages(basis, is_brought_along=planner.ref_with_rocm is not None),
        variants=tuple(groups),
        jobs=tuple(planner.jobs),
        left_out=tuple(planner.left_out),
        notes=tuple(_notes(basis)),
    )
    matrices(whole_plan)  # refuses one with too many jobs

    if not whole_plan.enable_build_jobs.value:
        whole_plan = _without_builds(whole_plan)
    notes = (*whole_plan.notes, *notes_on_missing_tests(whole_plan, basis.data.triggers.tests))
    return whole_plan.model_copy(update={"notes": notes})


def _plan_event(basis: PlanBasis) -> PlanEvent:
    event = basis.event
    return PlanEvent(
        name=event.name,
        repository=event.repository,
        branch=event.branch,
        commit=event.commit,
        number=event.number or 0,
        labels=tuple(sorted(event.labels or ())),
    )


def _refuse_missing_pytorch(
    basis: PlanBasis,
    left_out: Sequence[LeftOut],
) -> None:
    """Refuse a dispatch that requests PyTorch and would build none of it."""
    inputs = basis.inputs
    requests_pytorch = (
        inputs.build_pytorch
        or inputs.pytorch_git_refs
        or inputs.pytorch_python_versions
        or inputs.pytorch_components
    )
    if not basis.is_dispatch or not requests_pytorch:
        return

    message = "The dispatch requests PyTorch, and nothing of it can be built."
    for row in left_out:
        if row.what.startswith("build_pytorch"):
            message += f" {row.what}: {row.reason}."
            break
    raise UsageError(message)


def _without_builds(whole_plan: Plan) -> Plan:
    """Return a plan that builds nothing, with everything left out for the same reason."""
    reason = whole_plan.enable_build_jobs.reason
    decision = Decision(value=False, reason=reason)
    return whole_plan.model_copy(
        update={
            "build_pytorch": decision,
            "upload": decision,
            "promote": decision,
            "variants": (),
            "jobs": (),
            "left_out": (LeftOut(what="everything", reason=reason),),
        }
    )


def _rocm_packages(
    basis: PlanBasis,
    *,
    is_brought_along: bool,
) -> RocmPackages:
    """Return what ROCm's packages are made of, as far as the event says it."""
    inputs = basis.inputs
    requests_run = inputs.artifact_run_id is not None or inputs.use_prebuilt_artifacts
    if inputs.rocm_package_index_url is not None and requests_run:
        raise UsageError(
            "ROCm comes from the artifacts of a run or from an index, and both are requested.",
            hint="Leave rocm_package_index_url out, or artifact_run_id and use_prebuilt_artifacts.",
        )

    version = inputs.rocm_package_version
    if version is None and not is_brought_along:
        version = _next_rocm_version(basis)
    return RocmPackages(
        artifact_run_id=inputs.artifact_run_id,
        artifact_repository=inputs.artifact_repository,
        artifact_store=inputs.artifact_store,
        use_prebuilt_artifacts=inputs.use_prebuilt_artifacts,
        index_url=inputs.rocm_package_index_url,
        version=version,
        version_named=inputs.rocm_package_version is not None,
    )


def _next_rocm_version(basis: PlanBasis) -> str | None:
    """Return the version that the run's own packages of ROCm get; None where the data has no base for it."""
    base = basis.data.triggers.rocm_base_version
    if not base:
        return None
    if basis.release_type == "prerelease":
        raise UsageError(
            "A prerelease does not say which candidate it is.",
            hint=f"Give the input rocm_package_version: {base}rc1, or the next one.",
        )
    return compute_version(
        base,
        basis.release_type,
        commit=basis.event.commit or "",
        day=basis.today,
    )


def _notes(basis: PlanBasis) -> Iterator[str]:
    yield from basis.notes
    if basis.changes.note is not None:
        yield f"{basis.changes.note}, so everything counts as changed"
    yield from basis.labels.notes
    yield from families.notes_on_past_failures(basis)


@dataclass(frozen=True, kw_only=True)
class _JobPlanner:
    """Collects the jobs of a plan, and what is left out, build by build."""

    basis: PlanBasis
    pytorch: Decision
    upload: Decision
    test_type: str
    test_labels: dict[Platform, tuple[str, ...]]
    left_out: list[LeftOut]
    jobs: list[PlannedJob] = field(default_factory=list)

    def leave_out_without_rocm(self, builds: Sequence[Build]) -> Sequence[Build]:
        """Return the builds for whose GPUs there is ROCm; the one that a ref brings along may be for some."""
        ref = self.ref_with_rocm
        if ref is None or not ref.rocm_families:
            return builds

        targets = frozenset(gpu_targets(";".join(ref.rocm_families)))
        kept_builds: list[Build] = []
        for build in builds:
            if build.has_rocm and not targets.issuperset(build.group.gpu_targets):
                self._leave_out(build.words, f"torch ref {ref.name} has no ROCm for it")
            else:
                kept_builds.append(build)

        if builds and not kept_builds:
            names = ", ".join(build.words for build in builds)
            raise UsageError(
                f"Torch ref {ref.name} has no ROCm for {names}.",
                hint=f"Choose another with --gpu-family: {', '.join((*ref.rocm_families, CPU))}.",
            )
        return kept_builds

    def add(self, build: Build) -> None:
        """Add the jobs of a family in a build variant."""
        pytorch_jobs: list[PlannedJob] = []
        obstacle = families.obstacle_to_pytorch(self.basis, build, self.pytorch)
        if obstacle is None:
            pytorch_jobs.extend(self._pytorch_jobs(build))
        else:
            self._leave_out(f"build_pytorch, {build.words}", obstacle)

        self._add_rocm_build(build, has_pytorch_jobs=bool(pytorch_jobs))
        self.jobs.extend(pytorch_jobs)

        if build.has_rocm:
            self._add_rocm_test(build)
        for pytorch_job in pytorch_jobs:
            self._add_pytorch_test(build, pytorch_job)
        for name, test in self.basis.data.triggers.tests.items():
            if pytorch_jobs and test.stage == "test_torch":
                self._add_torch_tests(build, pytorch_jobs, name, test)

    # --- Builds ------------------------------------------------------------------------------

    def _add_rocm_build(self, build: Build, *, has_pytorch_jobs: bool) -> None:
        job_in_words = f"build_rocm, {build.words}"
        if not build.has_rocm:
            self._leave_out(job_in_words, "family cpu has no ROCm")
        elif has_pytorch_jobs and not self.upload.value:
            self._leave_out(job_in_words, f"the PyTorch jobs build it: {self.upload.reason}")
        else:
            job = self._job(
                build,
                "build_rocm",
                sessions=self._rocm_sessions,
                runner=build.group.build_runner,
                cell=Cell(gpu_family=build.family.name, torch_ref=self._name_of_ref_with_rocm),
            )
            self.jobs.append(job)

    @property
    def _rocm_sessions(self) -> tuple[str, ...]:
        if self.ref_with_rocm is not None:
            return _PACKAGE_ROCM
        return (FETCH, *_PACKAGE_ROCM)

    @property
    def ref_with_rocm(self) -> TorchRef | None:
        """The first ref, where all refs bring artifacts of ROCm along, as the sample does."""
        refs = self.basis.refs["linux"]
        for name in self._ref_names:
            if name not in refs or not refs[name].rocm_version:
                return None
        return refs[self._ref_names[0]]

    @property
    def _name_of_ref_with_rocm(self) -> str | None:
        return None if self.ref_with_rocm is None else self.ref_with_rocm.name

    @property
    def _ref_names(self) -> Sequence[str]:
        return self.basis.inputs.pytorch_git_refs or self._matrix.torch_refs

    @property
    def _pythons(self) -> Sequence[str]:
        return self.basis.inputs.pytorch_python_versions or self._matrix.pythons

    @property
    def _matrix(self) -> Matrix:
        return self.basis.data.matrix_of(
            self.basis.release_type,
            event_names_pythons=bool(self.basis.inputs.pytorch_python_versions),
        )

    def _pytorch_jobs(self, build: Build) -> Iterator[PlannedJob]:
        """Yield the jobs that build PyTorch, and leave out what cannot be built."""
        for python in self._pythons:
            python_tag(python)  # refuses what is not a version of Python

        platform = build.group.platform
        combinations = expand(
            pythons=self._pythons,
            refs=[self._ref(name, platform) for name in self._ref_names],
            gpu_families=(build.group.gpu_family,),
            platform=platform,
            exclusions=self._matrix.exclude,
        )
        for combination in combinations:
            job = self._pytorch_job(build, combination)
            if job is not None:
                yield job

    def _pytorch_job(
        self,
        build: Build,
        combination: Combination,
    ) -> PlannedJob | None:
        """Return the job that builds PyTorch for a combination; None, and leave it out, where it cannot."""
        cell = combination.cell
        components = self._components(combination.ref, build)
        obstacle = combination.obstacle
        if obstacle is None and not components:
            obstacle = "it has none of the requested components"
        if obstacle is not None:
            job_in_words = f"build_pytorch, {build.words}, {cell.torch_ref}, Python {cell.python}"
            self._leave_out(job_in_words, obstacle)
            return None

        sessions = [BUILD_STEPS[component].name for component in components]
        sessions.append("check_wheels")
        if build.has_rocm and not self.upload.value:
            # No other job hands its ROCm packages on.
            sessions = [*self._rocm_sessions, *sessions]
        return self._job(
            build,
            "build_pytorch",
            sessions=sessions,
            runner=build.group.build_runner,
            cell=cell,
        )

    def _components(self, ref: TorchRef, build: Build) -> Sequence[str]:
        """Return the components of a ref that are built: all, or those that are requested and required."""
        # Wheels for CPUs have no use for triton.
        components = [
            name for name in ref.components if build.has_rocm or not COMPONENTS[name].serves_gpus_only
        ]
        requested_components = set(self.basis.inputs.pytorch_components)
        if not requested_components:
            return components

        for component in self.basis.inputs.pytorch_components:
            if component not in COMPONENTS:
                raise UsageError(f"Unknown component {component!r}. {nearest(component, COMPONENTS)}")
            missing_component = LeftOut(
                what=f"{component} of {ref.name}",
                reason=f"not built on {build.group.platform}",
            )
            # Every Python and family lacks it, too.
            if component not in ref.components and missing_component not in self.left_out:
                self.left_out.append(missing_component)

        if not requested_components.intersection(components):
            return ()

        # They are built against the torch of their own run, and torch requires its run's triton, so that no
        # other one is installed beside it.
        required_components = with_required_components(requested_components)
        return [component for component in components if component in required_components]

    def _ref(self, name: str, platform: Platform) -> TorchRef:
        refs = self.basis.refs[platform]
        if name in refs:
            return refs[name]

        message = f"Unknown torch ref {name!r}. {nearest(name, refs)}"
        if self.basis.inputs.pytorch_git_refs:
            raise UsageError(message)
        key = f"matrix.{MatrixFile.name_of(self.basis.release_type)}.torch_refs"
        raise DataError(f"{in_force()[key].where}: {key}: {message}")

    # --- Tests -------------------------------------------------------------------------------

    def _add_rocm_test(self, build: Build) -> None:
        job_in_words = f"test_rocm, {build.words}"
        sessions = self._test_sessions("test_rocm", build.group.platform)
        obstacle = self._obstacle_to_test(build, sessions)
        if obstacle is not None:
            self._leave_out(job_in_words, obstacle)
            return

        machine = families.choose_rocm_machine(self.basis, build.family)
        if isinstance(machine, NoMachine):
            self._leave_out(job_in_words, machine.reason)
            return

        job = self._job(
            build,
            "test_rocm",
            sessions=sessions,
            runner=machine.label,
            cell=Cell(
                gpu_family=build.family.name,
                torch_ref=self._name_of_ref_with_rocm,
                python=self._pythons[0],
            ),
        )
        if machine.note is not None:
            job = job.model_copy(update={"reason": f"{job.reason}; {machine.note}"})
        self.jobs.append(job)

    def _add_pytorch_test(self, build: Build, pytorch_job: PlannedJob) -> None:
        job_in_words = f"test_pytorch, {pytorch_job.name} on {pytorch_job.platform}"
        sessions = self._test_sessions("test_pytorch", pytorch_job.platform)
        obstacle = self._obstacle_to_test(build, sessions)
        if pytorch_job.expect_failure:
            obstacle = "its build is expected to fail"
        if obstacle is not None:
            self._leave_out(job_in_words, obstacle)
            return

        machine = families.choose_machine(
            self.basis,
            build.family,
            f"test_pytorch {pytorch_job.torch_ref} {pytorch_job.python}",
        )
        if isinstance(machine, NoMachine):
            self._leave_out(job_in_words, machine.reason)
            return

        job = self._job(
            build,
            "test_pytorch",
            sessions=sessions,
            runner=machine.label,
            cell=pytorch_job.cell,
        )
        self.jobs.append(job)

    def _add_torch_tests(
        self,
        build: Build,
        pytorch_jobs: Sequence[PlannedJob],
        name: str,
        test: Test,
    ) -> None:
        """Add one kind of upstream's tests of torch: for each ref a job for every part of them."""
        platform = build.group.platform
        obstacle = self._obstacle_to_torch_test(build, name, test)
        if obstacle is not None:
            self._leave_out(f"test_torch {test.config}, {build.words}", obstacle)
            return

        built_cells = [job.cell for job in pytorch_jobs]
        for pytorch_job in pytorch_jobs:
            pythons = pythons_of_test(test, pytorch_job.cell, built_cells)
            job_in_words = f"test_torch {test.config}, {pytorch_job.name} on {platform}"
            if pytorch_job.python not in pythons:
                self._leave_out(job_in_words, f"tested with Python {' and '.join(pythons)}")
            elif pytorch_job.expect_failure:
                self._leave_out(job_in_words, "its build is expected to fail")
            elif "build_torch" not in pytorch_job.sessions:
                self._leave_out(job_in_words, "torch is not built")
            else:
                self._add_parts_of_torch_test(build, pytorch_job.cell, test)

    def _obstacle_to_torch_test(
        self,
        build: Build,
        name: str,
        test: Test,
    ) -> str | None:
        """Return why one kind of upstream's tests is not run for a build."""
        platform = build.group.platform
        if test.platforms and platform not in test.platforms:
            return f"tested on {' and '.join(test.platforms)} only"

        if not self._is_wanted(name, test, platform):
            return f"not of test type {self.test_type}; label test:{name} requests it"

        obstacle = self._obstacle_to_test(build, [test.session])
        if obstacle is not None:
            return obstacle

        machine = families.choose_machine(
            self.basis,
            build.family,
            f"test_torch {test.config}",
            several_gpus=test.several_gpus,
        )
        return machine.reason if isinstance(machine, NoMachine) else None

    def _add_parts_of_torch_test(
        self,
        build: Build,
        built_cell: Cell,
        test: Test,
    ) -> None:
        """Add a job for every part of upstream's tests, on machines that share the work."""
        for cell in parts_of_test(test, built_cell):
            machine = families.choose_machine(
                self.basis,
                build.family,
                f"test_torch {cell.torch_ref} {cell.python} {test.config} {cell.shard}",
                several_gpus=test.several_gpus,
            )
            if isinstance(machine, NoMachine):
                continue
            job = self._job(
                build,
                "test_torch",
                sessions=(test.session,),
                runner=machine.label,
                cell=cell,
            )
            minutes = min(test.minutes, MAX_HOSTED_MINUTES) if job.hosted else test.minutes
            self.jobs.append(job.model_copy(update={"minutes": minutes}))

    def _obstacle_to_test(
        self,
        build: Build,
        sessions: Sequence[str],
    ) -> str | None:
        """Return the first reason why a build is not tested; None where it is."""
        if not self.upload.value:
            return f"nothing is uploaded that it could install: {self.upload.reason}"
        if build.group.expect_failure:
            return "its ROCm packages are expected to fail"

        tested_on = build.build_variant.tested_on
        if tested_on and self.basis.event.name not in tested_on:
            return f"{build.group.build_variant} is tested on {' and '.join(tested_on)} only"
        if not sessions:
            return f"none of its tests is of test type {self.test_type}"

        if not self._reaches_tests(build):
            return f"tested from {build.family.tiers.tests} on, or on request"
        return None

    def _reaches_tests(self, build: Build) -> bool:
        # Where the event names a kernel, a machine with that kernel has the family.
        if build.family.is_requested or self.basis.labels.kernel is not None:
            return True
        if self.basis.is_dispatch:
            return reaches("nightly", build.family.tiers.tests)
        tier, _reason = self.basis.tier
        return reaches(tier, build.family.tiers.tests)

    def _test_sessions(self, stage: Stage, platform: Platform) -> tuple[str, ...]:
        """Return the sessions of the tests of the test type, and of those that are requested."""
        sessions: list[str] = []
        for name, test in self.basis.data.triggers.tests.items():
            if test.stage == stage and self._is_wanted(name, test, platform):
                sessions.append(test.session)
        return tuple(sessions)

    def _is_wanted(self, name: str, test: Test, platform: Platform) -> bool:
        """Return whether a test belongs to the test type, or is requested."""
        is_requested = f"{TEST_PREFIX}{name}" in self.test_labels[platform]
        return is_requested or not test.types or self.test_type in test.types

    # --- What the plan has of a job ----------------------------------------------------------

    def _job(
        self,
        build: Build,
        stage: Stage,
        *,
        sessions: Sequence[str],
        runner: str,
        cell: Cell,
    ) -> PlannedJob:
        """Return the job of a cell of a build; it is expected to fail where a row of the data says so."""
        group = build.group
        reason = group.reason
        if not stage.endswith("rocm"):
            reason += f"; {self.pytorch.reason}"

        failure = families.expected_failure(
            self.basis,
            build.family,
            stage,
            cell.torch_ref,
        )
        if failure is not None:
            reason += f"; expected to fail until {failure.until}: {failure.reason}"

        is_hosted = self.basis.data.runners.is_hosted(runner)
        if is_hosted and stage == "build_pytorch":
            reason += f"; GitHub ends a job on {runner} after six hours"

        return PlannedJob(
            name=_job_name(group.artifact_group, cell),
            platform=group.platform,
            stage=stage,
            sessions=tuple(sessions),
            runner=runner,
            gpu_family=group.gpu_family,
            artifact_group=group.artifact_group,
            build_variant=group.build_variant,
            python=cell.python,
            torch_ref=cell.torch_ref,
            config=cell.config,
            shard=cell.shard,
            hosted=is_hosted,
            without_gpu=stage.startswith("test_") and not self.basis.data.runners.has_gpu(runner),
            expect_failure=group.expect_failure or failure is not None,
            reason=reason,
        )

    def _leave_out(self, job_in_words: str, reason: str) -> None:
        self.left_out.append(LeftOut(what=job_in_words, reason=reason))


def _job_name(artifact_group: str, cell: Cell) -> str:
    """Return the name of a job, which is unique in its matrix."""
    parts = [artifact_group]
    if cell.torch_ref is not None:
        parts.append(cell.torch_ref)
    if cell.python is not None:
        parts.append(f"Python {cell.python}")
    if cell.config is not None:
        parts.append(f"{cell.config} {cell.shard}")
    return ", ".join(parts)
