"""The plan of a run: a pure function of a `Question`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.plan import decisions, families, variants
from ci.plan.families import Wanted
from ci.plan.jobs import Jobs
from ci.plan.question import DISPATCHES
from core.errors import UsageError
from core.run.plan import Decision, LeftOut, Plan, PlanEvent, RocmPackages, matrices
from rocm_packaging.packages.versions import compute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ci.plan.question import Question


def plan(question: Question) -> Plan:
    """Decide what a run does."""
    trust = decisions.trusted(question)
    uploads, store = decisions.upload(question, trust)
    enabled = decisions.enabled(question)
    pytorch = decisions.pytorch(question)
    chosen, left_out = families.choose(_wanted(question), question.data.families)
    if question.event.name in DISPATCHES and not chosen:
        raise UsageError(
            "The dispatch names no GPU family, so nothing would be built.",
            hint="Give linux_amdgpu_families or windows_amdgpu_families: names, or all.",
        )
    test_type, test_type_reason = decisions.test_type(question)
    jobs = Jobs(
        question=question,
        pytorch=pytorch,
        upload=uploads,
        test_type=test_type,
        test_labels=decisions.test_labels(question),
    )
    jobs.left_out.extend(left_out)
    builds, without = variants.builds(question, chosen)
    jobs.left_out.extend(without)
    for build in builds:
        jobs.add(build)
    built = {(cell.platform, cell.artifact_group) for cell in jobs.cells if cell.stage == "build_pytorch"}
    if pytorch.value and not built:
        _refuse_nothing(question, jobs)
        pytorch = Decision(value=False, reason=f"{pytorch.reason}, but no family in the plan has it")
    made = Plan(
        event=_event(question),
        trusted=trust,
        enable_build_jobs=enabled,
        build_pytorch=pytorch,
        upload=uploads,
        promote=decisions.promote(question, uploads, pytorch),
        release_type=question.type,
        test_type=test_type,
        test_type_reason=test_type_reason,
        test_labels=jobs.test_labels,
        store=store,
        rocm=_rocm(question, own=bool(jobs.own_rocm())),
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


def _refuse_nothing(question: Question, jobs: Jobs) -> None:
    """Refuse a dispatch that asks for PyTorch by name and would build none of it."""
    inputs = question.inputs
    named = (inputs.pytorch_git_refs, inputs.pytorch_python_versions, inputs.pytorch_components)
    if question.event.name in DISPATCHES and (inputs.build_pytorch or any(named)):
        why = next((f" {one.what}: {one.reason}." for one in jobs.left_out if "build_py" in one.what), "")
        raise UsageError(f"The dispatch asks for PyTorch, and nothing of it can be built.{why}")


def _nothing(made: Plan) -> Plan:
    """Take everything out of a plan that builds nothing."""
    reason = made.enable_build_jobs.reason
    no = Decision(value=False, reason=reason)
    all_of_it = (LeftOut(what="everything", reason=reason),)
    return made.model_copy(
        update={
            "variants": (),
            "cells": (),
            "left_out": all_of_it,
            "build_pytorch": no,
            "upload": no,
            "promote": no,
        }
    )


def _wanted(question: Question) -> Wanted:
    tier, reason = question.tier
    return Wanted(tier=tier, reason=reason, named=question.labels.families, lists=question.inputs.families())


def _event(question: Question) -> PlanEvent:
    event = question.event
    return PlanEvent(
        name=event.name,
        repository=event.repository,
        branch=event.branch,
        commit=event.commit,
        number=event.number,
        labels=tuple(sorted(event.labels or ())),
    )


def _rocm(question: Question, *, own: bool) -> RocmPackages:
    """Say what ROCm's packages are made of, and their version."""
    inputs, base = question.inputs, question.data.triggers.rocm_base_version
    if inputs.rocm_package_index_url and (inputs.artifact_run_id or inputs.use_prebuilt_artifacts):
        raise UsageError(
            "ROCm comes from the artifacts of a run or from an index, and both are asked for.",
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
    return RocmPackages(
        artifact_run_id=inputs.artifact_run_id,
        artifact_repository=inputs.artifact_repository,
        artifact_store=inputs.artifact_store,
        use_prebuilt_artifacts=inputs.use_prebuilt_artifacts,
        index_url=inputs.rocm_package_index_url,
        version=version,
        version_named=bool(inputs.rocm_package_version),
    )


def _notes(question: Question) -> Iterator[str]:
    yield from question.notes
    if question.changes.note:
        yield f"{question.changes.note}, so everything counts as changed"
    yield from question.labels.notes
    yield from variants.ended(question)
