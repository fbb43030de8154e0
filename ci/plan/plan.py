"""The plan of a run, a pure function of a `Question`: which sessions run where, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ci.pipeline import BUILD_STEPS
from ci.plan import decisions, families
from ci.plan.data import Matrix, MatrixFile, Test, reaches
from ci.plan.expansion import expand, parts_of_test, pythons_of_test
from core.cell import Cell
from core.data import in_force
from core.errors import DataError, UsageError, nearest
from core.run import PLAIN, Platform
from core.run.plan import (
    FETCH,
    Decision,
    LeftOut,
    Plan,
    PlanEvent,
    PlannedJob,
    RocmPackages,
    Stage,
    matrices,
)
from pytorch_build.lock.versions import python_tag
from pytorch_build.refs.torch_refs import PROJECTS, TorchRef
from rocm_packaging.packages.versions import compute

if TYPE_CHECKING:
    from ci.plan.decisions import Question
    from ci.plan.families import Build

_SAMPLE = "sample"


def plan(question: Question) -> Plan:
    """Decide what a run does."""
    trust = decisions.trusted(question)
    uploads, store = decisions.upload(question, trust)
    enabled = decisions.enabled(question)
    pytorch = decisions.pytorch(question)
    chosen, left_out = families.choose(question)
    if question.dispatched and not chosen:
        raise UsageError(
            "The dispatch names no GPU family, so nothing would be built.",
            hint="Give linux_amdgpu_families or windows_amdgpu_families: names, or all.",
        )
    test_type, test_type_reason = decisions.test_type(question)
    test_labels = decisions.test_labels(question)
    jobs = _Jobs(
        question=question, pytorch=pytorch, upload=uploads, test_type=test_type, test_labels=test_labels
    )
    builds, without = families.builds(question, chosen)
    jobs.left_out.extend((*left_out, *without))
    for build in builds:
        jobs.add(build)
    built = {(job.platform, job.artifact_group) for job in jobs.planned if job.stage == "build_pytorch"}
    if pytorch.value and not built:
        _refuse_nothing(question, jobs.left_out)
        pytorch = Decision(value=False, reason=f"{pytorch.reason}, but no family in the plan has it")
    event = replace(question.event, labels=tuple(sorted(question.event.labels or ())))
    made = Plan(
        event=PlanEvent.model_validate(event, from_attributes=True),
        trusted=trust,
        enable_build_jobs=enabled,
        build_pytorch=pytorch,
        upload=uploads,
        promote=decisions.promote(question, uploads, pytorch),
        release_type=question.type,
        test_type=test_type,
        test_type_reason=test_type_reason,
        test_labels=test_labels,
        store=store,
        rocm=_rocm(question, own=jobs.own_rocm is not None),
        variants=tuple(
            one.model_copy(update={"build_pytorch": (one.platform, one.artifact_group) in built})
            for one in (build.entry for build in builds)
        ),
        cells=tuple(jobs.planned),
        left_out=tuple(jobs.left_out),
        notes=tuple(_notes(question)),
    )
    matrices(made)  # refuses one with too many jobs
    return made if enabled.value else _nothing(made)


def _refuse_nothing(question: Question, left_out: Sequence[LeftOut]) -> None:
    """Refuse a dispatch that names PyTorch and would build none of it."""
    inputs = question.inputs
    named = (inputs.pytorch_git_refs, inputs.pytorch_python_versions, inputs.pytorch_components)
    if question.dispatched and (inputs.build_pytorch or any(named)):
        why = next((f" {one.what}: {one.reason}." for one in left_out if "build_py" in one.what), "")
        raise UsageError(f"The dispatch requests PyTorch, and nothing of it can be built.{why}")


def _nothing(made: Plan) -> Plan:
    """Take everything out of a plan that builds nothing."""
    no = Decision(value=False, reason=made.enable_build_jobs.reason)
    left_out = (LeftOut(what="everything", reason=no.reason),)
    nothing = {"variants": (), "cells": (), "left_out": left_out}
    return made.model_copy(update={**nothing, "build_pytorch": no, "upload": no, "promote": no})


def _rocm(question: Question, *, own: bool) -> RocmPackages:
    inputs, base = question.inputs, question.data.triggers.rocm_base_version
    if inputs.rocm_package_index_url and (inputs.artifact_run_id or inputs.use_prebuilt_artifacts):
        raise UsageError(
            "ROCm comes from the artifacts of a run or from an index, and both are requested.",
            hint="Leave rocm_package_index_url out, or artifact_run_id and use_prebuilt_artifacts.",
        )
    version = inputs.rocm_package_version
    if not (version or own) and base:
        if question.type == "prerelease":
            raise UsageError(
                "A prerelease does not say which candidate it is.",
                hint=f"Give the input rocm_package_version: {base}rc1, or the next one.",
            )
        version = compute(base, question.type, commit=question.event.commit, day=question.today)
    named = {"version": version, "version_named": bool(inputs.rocm_package_version)}
    requested = RocmPackages.model_validate(inputs, from_attributes=True)
    return requested.model_copy(update={**named, "index_url": inputs.rocm_package_index_url})


def _notes(question: Question) -> Iterator[str]:
    yield from question.notes
    if question.changes.note:
        yield f"{question.changes.note}, so everything counts as changed"
    yield from question.labels.notes
    yield from families.past_failures(question)


@dataclass(frozen=True, kw_only=True)
class _Jobs:
    question: Question
    pytorch: Decision
    upload: Decision
    test_type: str
    test_labels: dict[Platform, tuple[str, ...]]
    planned: list[PlannedJob] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def add(self, build: Build) -> None:
        """Add the jobs of a family in a variant."""
        reason = families.without_pytorch(self.question, build, self.pytorch)
        wheel_jobs = [] if reason else list(self._pytorch_builds(build))
        if reason:
            self._leave(f"build_pytorch, {build.where}", reason)

        if not build.has_rocm:
            self._leave(f"build_rocm, {build.where}", "family cpu has no ROCm")
        elif wheel_jobs and not self.upload.value:
            self._leave(f"build_rocm, {build.where}", f"the PyTorch jobs build it: {self.upload.reason}")
        else:
            cell = _cell_of(build, torch_ref=self.own_rocm)
            runner = build.entry.build_runner
            self.planned.append(self._job(build, "build_rocm", self._rocm_sessions, runner, cell))
        self.planned.extend(wheel_jobs)

        if build.has_rocm:
            self._rocm_test(build)
        for wheel_job in wheel_jobs:
            self._pytorch_test(build, wheel_job)
        for name, test in self.question.data.triggers.tests.items():
            if wheel_jobs and test.stage == "test_torch":
                self._torch_test(build, wheel_jobs, name, test)

    @property
    def _rocm_sessions(self) -> tuple[str, ...]:
        packaging = ("build_rocm", "check_rocm")
        return packaging if self.own_rocm is not None else (FETCH, *packaging)

    @property
    def own_rocm(self) -> str | None:
        """The ref that brings artifacts along, where all refs are built on these: the sample."""
        refs = self.question.refs["linux"]
        if all(name in refs and refs[name].rocm_version for name in self._refs):
            return _SAMPLE
        return None

    @property
    def _refs(self) -> Sequence[str]:
        return self.question.inputs.pytorch_git_refs or self._matrix.torch_refs

    @property
    def _pythons(self) -> Sequence[str]:
        return self.question.inputs.pytorch_python_versions or self._matrix.pythons

    @property
    def _matrix(self) -> Matrix:
        named = bool(self.question.inputs.pytorch_python_versions)
        return self.question.data.matrix_of(self.question.type, named_pythons=named)

    def _pytorch_builds(self, build: Build) -> Iterator[PlannedJob]:
        entry = build.entry
        for python in self._pythons:
            python_tag(python)  # refuses what is not a version of Python

        combinations = expand(
            pythons=self._pythons,
            refs=[self._ref(name, entry.platform) for name in self._refs],
            gpu_families=(entry.gpu_family,),
            platform=entry.platform,
            exclusions=self._matrix.exclude,
        )
        for combination in combinations:
            components = self._components(combination.ref, entry.platform)
            obstacle = combination.obstacle
            if obstacle is None and not components:
                obstacle = "it has none of the requested components"
            cell = _cell_of(build, python=combination.cell.python, torch_ref=combination.ref.name)
            if obstacle is not None:
                what = f"build_pytorch, {build.where}, {cell.torch_ref}, Python {cell.python}"
                self._leave(what, obstacle)
                continue

            # Without uploads no other job hands its ROCm packages on.
            rocm_sessions = self._rocm_sessions if not self.upload.value and build.has_rocm else ()
            builds = [BUILD_STEPS[component].name for component in components]
            sessions = (*rocm_sessions, *builds, "check_wheels")
            yield self._job(build, "build_pytorch", sessions, entry.build_runner, cell)

    def _components(self, ref: TorchRef, platform: Platform) -> Sequence[str]:
        named = self.question.inputs.pytorch_components
        for one in named:
            if one not in PROJECTS:
                raise UsageError(f"Unknown component {one!r}. {nearest(one, PROJECTS)}")
            left = LeftOut(what=f"{one} of {ref.name}", reason=f"not built on {platform}")
            if one not in ref.components and left not in self.left_out:
                self.left_out.append(left)
        if not named:
            return ref.components
        # the others are built against the torch of their own run, and torch requires that run's triton, so
        # that no other one is installed beside it
        wanted = {*named, "torch"} if {"audio", "vision", "apex"} & {*named} else {*named}
        wanted |= {"triton"} if "torch" in wanted else set()
        built = [one for one in ref.components if one in wanted]
        return built if {*named} & {*built} else []

    def _ref(self, name: str, platform: Platform) -> TorchRef:
        refs = self.question.refs[platform]
        if name not in refs:
            unknown = f"Unknown torch ref {name!r}. {nearest(name, refs)}"
            if self.question.inputs.pytorch_git_refs:
                raise UsageError(unknown)
            key = f"matrix.{MatrixFile.name_of(self.question.type)}.torch_refs"
            raise DataError(f"{in_force()[key].where}: {key}: {unknown}")
        return refs[name]

    def _rocm_test(self, build: Build) -> None:
        label, reason = families.rocm_machine(self.question, build.chosen)
        sessions = self._sessions("test_rocm", build.entry.platform)
        if self._untested(build, f"test_rocm, {build.where}", label, reason, sessions):
            return
        cell = _cell_of(build, python=self._pythons[0], torch_ref=self.own_rocm)
        job = self._job(build, "test_rocm", sessions, label, cell)
        whole_reason = f"{job.reason}; {reason}" if reason else job.reason
        self.planned.append(job.model_copy(update={"reason": whole_reason}))

    def _pytorch_test(self, build: Build, wheel_job: PlannedJob) -> None:
        machine_job = f"test_pytorch {wheel_job.torch_ref} {wheel_job.python}"
        label, reason = families.machine(self.question, build.chosen, machine_job)
        sessions = self._sessions("test_pytorch", wheel_job.platform)
        what = f"test_pytorch, {wheel_job.name} on {wheel_job.platform}"
        if wheel_job.expect_failure:
            self._leave(what, "its build is expected to fail")
        elif not self._untested(build, what, label, reason, sessions):
            self.planned.append(self._job(build, "test_pytorch", sessions, label, wheel_job.cell))

    def _torch_test(self, build: Build, wheel_jobs: Sequence[PlannedJob], name: str, test: Test) -> None:
        """Add one kind of upstream's tests of torch: for each ref a job for every part of them."""
        platform = build.entry.platform
        test_name = f"test_torch {test.config}"
        what = f"{test_name}, {build.where}"
        if test.platforms and platform not in test.platforms:
            self._leave(what, f"tested on {' and '.join(test.platforms)} only")
            return
        label, reason = families.machine(
            self.question, build.chosen, test_name, several_gpus=test.several_gpus
        )
        is_wanted = self._wanted(name, test, platform)
        if not is_wanted and not self.test_labels[platform]:
            self._leave(what, f"not of test type {self.test_type}; label test:{name} requests it")
            return
        if self._untested(build, what, label, reason, (test.session,) if is_wanted else ()):
            return

        built = [job.cell for job in wheel_jobs]
        for wheel_job in wheel_jobs:
            pythons = pythons_of_test(test, wheel_job.cell, built)
            rules = (
                (wheel_job.python not in pythons, f"tested with Python {' and '.join(pythons)}"),
                (wheel_job.expect_failure, "its build is expected to fail"),
                ("build_torch" not in wheel_job.sessions, "torch is not built"),
            )
            if not self._left(f"{test_name}, {wheel_job.name} on {platform}", rules):
                self._torch_parts(build, wheel_job.cell, test)

    def _torch_parts(self, build: Build, built: Cell, test: Test) -> None:
        """Add a job for every part of upstream's tests, on machines that share the work."""
        for cell in parts_of_test(test, built):
            machine_job = f"test_torch {cell.torch_ref} {cell.python} {test.config} {cell.shard}"
            label, _ = families.machine(
                self.question, build.chosen, machine_job, several_gpus=test.several_gpus
            )
            job = self._job(build, "test_torch", (test.session,), label, cell)
            self.planned.append(job.model_copy(update={"minutes": test.minutes}))

    def _untested(self, build: Build, what: str, label: str, reason: str, sessions: Sequence[str]) -> bool:
        """Leave a test out, where there is a reason to; `reason` is that of a missing machine."""
        tested_on = build.variant.tested_on
        # a kernel that the event names is one of machines that have the family
        named = build.chosen.named or self.question.labels.kernel
        tier = "nightly" if self.question.dispatched else self.question.tier[0]
        rules = (
            (not self.upload.value, f"nothing is uploaded that it could install: {self.upload.reason}"),
            (build.entry.expect_failure, "its ROCm packages are expected to fail"),
            (
                tested_on and self.question.event.name not in tested_on,
                f"{build.entry.build_variant} is tested on {' and '.join(tested_on)} only",
            ),
            (not sessions, "other tests are requested"),
            (
                not named and not reaches(tier, build.chosen.on.tests),
                f"tested from {build.chosen.on.tests} on, or on request",
            ),
            (not label, reason),
        )
        return self._left(what, rules)

    def _left(self, what: str, rules: Sequence[tuple[object, str]]) -> bool:
        """Leave something out for the first reason that applies; return whether there is one."""
        why = next((said for applies, said in rules if applies), "")
        if why:
            self._leave(what, why)
        return bool(why)

    def _sessions(self, stage: Stage, platform: Platform) -> tuple[str, ...]:
        """Return the sessions of the requested tests, or of all of the test type."""
        return tuple(
            test.session
            for name, test in self.question.data.triggers.tests.items()
            if test.stage == stage and self._wanted(name, test, platform)
        )

    def _wanted(self, name: str, test: Test, platform: Platform) -> bool:
        """Return whether a test is requested, or belongs to the test type where none is."""
        labels = self.test_labels[platform]
        return f"test:{name}" in labels if labels else not test.types or self.test_type in test.types

    def _job(
        self, build: Build, stage: Stage, sessions: tuple[str, ...], runner: str, cell: Cell
    ) -> PlannedJob:
        """Return the job of a cell; it is expected to fail where a row of the data says so."""
        entry = build.entry
        failure = families.expected_failure(self.question, build.chosen, stage, cell.torch_ref)
        reason = entry.reason if stage.endswith("rocm") else f"{entry.reason}; {self.pytorch.reason}"
        if failure is not None:
            reason += f"; expected to fail until {failure.until}: {failure.reason}"
        return PlannedJob(
            name=_name(entry.artifact_group, cell),
            platform=entry.platform,
            stage=stage,
            sessions=sessions,
            runner=runner,
            gpu_family=entry.gpu_family,
            artifact_group=entry.artifact_group,
            build_variant=entry.build_variant,
            python=cell.python,
            torch_ref=cell.torch_ref,
            config=cell.config,
            shard=cell.shard,
            without_gpu=stage.startswith("test_") and not self.question.data.runners.has_gpu(runner),
            expect_failure=entry.expect_failure or failure is not None,
            reason=reason,
        )

    def _leave(self, what: str, reason: str) -> None:
        self.left_out.append(LeftOut(what=what, reason=reason))


def _cell_of(build: Build, *, python: str | None = None, torch_ref: str | None = None) -> Cell:
    """Return a cell of a family in a variant."""
    return Cell(
        platform=build.entry.platform,
        gpu_family=build.entry.gpu_family,
        build_variant=None if build.entry.build_variant == PLAIN else build.entry.build_variant,
        python=python,
        torch_ref=torch_ref,
    )


def _name(artifact_group: str, cell: Cell) -> str:
    """Return the name of a job, which is unique in its matrix."""
    parts = [artifact_group]
    if cell.torch_ref is not None:
        parts.append(cell.torch_ref)
    if cell.python is not None:
        parts.append(f"Python {cell.python}")
    if cell.config is not None:
        parts.append(f"{cell.config} {cell.shard}")
    return ", ".join(parts)
