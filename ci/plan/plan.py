"""The plan of a run, a pure function of a `Question`: which sessions run where, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ci.pipeline import BUILD_STEPS
from ci.plan import decisions, families
from ci.plan.data import Matrix, MatrixFile, Test, reaches
from ci.verbs.cells import missing
from core.data import in_force
from core.errors import DataError, UsageError, nearest
from core.run import Platform
from core.run.plan import FETCH, Cell, Decision, LeftOut, Plan, PlanEvent, RocmPackages, Stage, matrices
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
    built = {(cell.platform, cell.artifact_group) for cell in jobs.cells if cell.stage == "build_pytorch"}
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
        rocm=_rocm(question, own=bool(jobs.own_rocm)),
        variants=tuple(
            one.model_copy(update={"build_pytorch": (one.platform, one.artifact_group) in built})
            for one in (build.entry for build in builds)
        ),
        cells=tuple(jobs.cells),
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
    cells: list[Cell] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def add(self, build: Build) -> None:
        """Add the jobs of a family in a variant."""
        reason = families.without_pytorch(self.question, build, self.pytorch)
        wheels = [] if reason else list(self._pytorch_builds(build))
        if reason:
            self._leave(f"build_pytorch, {build.where}", reason)
        if not build.has_rocm:
            self._leave(f"build_rocm, {build.where}", "family cpu has no ROCm")
        elif wheels and not self.upload.value:
            self._leave(f"build_rocm, {build.where}", f"the PyTorch jobs build it: {self.upload.reason}")
        else:
            sessions, runner = self._rocm_sessions, build.entry.build_runner
            self.cells.append(self._cell(build, "build_rocm", sessions, runner, "", self.own_rocm))
        self.cells.extend(wheels)
        if build.has_rocm:
            self._rocm_test(build)
        for wheel in wheels:
            self._pytorch_test(build, wheel)
        for name, test in self.question.data.triggers.tests.items():
            if wheels and test.stage == "test_torch":
                self._torch_test(build, wheels, name, test)

    @property
    def _rocm_sessions(self) -> tuple[str, ...]:
        return (*(() if self.own_rocm else (FETCH,)), "build_rocm", "check_rocm")

    @property
    def own_rocm(self) -> str:
        """The ref that brings artifacts along, where all refs are built on these: the sample."""
        refs = self.question.refs["linux"]
        return _SAMPLE if all(name in refs and refs[name].rocm_version for name in self._refs) else ""

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

    def _pytorch_builds(self, build: Build) -> Iterator[Cell]:
        entry = build.entry
        for python in self._pythons:
            python_tag(python)  # refuses what is not a version of Python
            for name in self._refs:
                ref = self._ref(name, entry.platform)
                reason = missing(python, ref, entry.gpu_family, self._matrix, entry.platform)
                components = self._components(ref, entry.platform)
                if not reason and not components:
                    reason = "it has none of the requested components"
                if reason:
                    self._leave(f"build_pytorch, {build.where}, {name}, Python {python}", reason)
                    continue
                first = self._rocm_sessions if not self.upload.value and build.has_rocm else ()
                sessions = (*first, *(BUILD_STEPS[one].name for one in components), "check_wheels")
                yield self._cell(build, "build_pytorch", sessions, entry.build_runner, python, name)

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
        if not self._untested(build, f"test_rocm, {build.where}", label, reason, sessions):
            cell = self._cell(build, "test_rocm", sessions, label, self._pythons[0], self.own_rocm)
            because = "; ".join(filter(None, (cell.reason, reason)))
            self.cells.append(cell.model_copy(update={"reason": because}))

    def _pytorch_test(self, build: Build, wheel: Cell) -> None:
        job = f"test_pytorch {wheel.torch_ref} {wheel.python}"
        label, reason = families.machine(self.question, build.chosen, job)
        sessions = self._sessions("test_pytorch", wheel.platform)
        what = f"test_pytorch, {wheel.name} on {wheel.platform}"
        if wheel.expect_failure:
            self._leave(what, "its build is expected to fail")
        elif not self._untested(build, what, label, reason, sessions):
            python, ref = wheel.python, wheel.torch_ref
            self.cells.append(self._cell(build, "test_pytorch", sessions, label, python, ref))

    def _torch_test(self, build: Build, wheels: Sequence[Cell], name: str, test: Test) -> None:
        """Add one kind of upstream's tests of torch: for each ref a job for every part of them."""
        platform = build.entry.platform
        job = f"test_torch {test.config}"
        what = f"{job}, {build.where}"
        if test.platforms and platform not in test.platforms:
            return self._leave(what, f"tested on {' and '.join(test.platforms)} only")
        label, reason = families.machine(self.question, build.chosen, job, several_gpus=test.several_gpus)
        wanted = self._wanted(name, test, platform)
        if not wanted and not self.test_labels[platform]:
            return self._leave(what, f"not of test type {self.test_type}; label test:{name} requests it")
        if self._untested(build, what, label, reason, (test.session,) if wanted else ()):
            return None
        for wheel in wheels:
            pythons = test.of([one.python for one in wheels if one.torch_ref == wheel.torch_ref])
            rules = (
                (wheel.python not in pythons, f"tested with Python {' and '.join(pythons)}"),
                (wheel.expect_failure, "its build is expected to fail"),
                ("build_torch" not in wheel.sessions, "torch is not built"),
            )
            if not self._left(f"{job}, {wheel.name} on {platform}", rules):
                self._torch_parts(build, wheel, test)
        return None

    def _torch_parts(self, build: Build, wheel: Cell, test: Test) -> None:
        """Add a job for every part of upstream's tests, on machines that share the work."""
        for number in range(1, test.shards + 1):
            shard = f"{number}/{test.shards}"
            job = f"test_torch {wheel.torch_ref} {wheel.python} {test.config} {shard}"
            label, _ = families.machine(self.question, build.chosen, job, several_gpus=test.several_gpus)
            cell = self._cell(build, "test_torch", (test.session,), label, wheel.python, wheel.torch_ref)
            part = {"config": test.config, "shard": shard, "minutes": test.minutes}
            name = f"{cell.name}, {test.config} {shard}"
            self.cells.append(cell.model_copy(update={"name": name, **part}))

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

    def _cell(
        self, build: Build, stage: Stage, sessions: tuple[str, ...], runner: str, python: str, torch_ref: str
    ) -> Cell:
        entry = build.entry
        named = (entry.artifact_group, torch_ref, python and f"Python {python}")
        failure = families.expected_failure(self.question, build.chosen, stage, torch_ref)
        reason = entry.reason if stage.endswith("rocm") else f"{entry.reason}; {self.pytorch.reason}"
        late = f"; expected to fail until {failure.until}: {failure.reason}" if failure else ""
        return Cell(
            name=", ".join(filter(None, named)),
            stage=stage,
            sessions=sessions,
            runner=runner,
            expect_failure=entry.expect_failure or failure is not None,
            reason=f"{reason}{late}",
            python=python,
            torch_ref=torch_ref,
            **entry.model_dump(include={"platform", "gpu_family", "artifact_group", "build_variant"}),
        )

    def _leave(self, what: str, reason: str) -> None:
        self.left_out.append(LeftOut(what=what, reason=reason))
