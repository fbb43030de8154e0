"""Which machines a job runs on: labels that somebody serves, the same ones for the same run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.plan.runners import stable_choice
from core.errors import DataError, UsageError, nearest

if TYPE_CHECKING:
    from ci.plan.data import BuildVariant
    from ci.plan.families import Chosen
    from ci.plan.question import Question
    from ci.plan.runners import Machines
    from core.run.outputs import Platform


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A runner label, or why there is none."""

    label: str = ""
    reason: str = ""


def builder(question: Question, platform: Platform, variant: BuildVariant) -> str:
    """Choose the machines that build."""
    given = question.inputs.runner(platform, "build")
    if given:
        return _served(question, given, f"{platform}_build_runner")
    machines = _machines(question, platform)
    wanted = (machines.sanitizer if variant.runner == "sanitizer" else "") or machines.build
    why = ""
    for label in (wanted, machines.fallback):
        why = question.data.runners.unserved(label, question.event.owner)
        if not why:
            return label
    raise DataError(f"No machine builds on {platform}: {why}.", hint="Correct [machines] of runners.toml.")


def tester(question: Question, chosen: Chosen, stage: str, *, several_gpus: bool) -> Machine:
    """Choose the machines that have a family's GPU, or several of them."""
    given = question.inputs.runner(chosen.platform, "test")
    if given:
        return Machine(label=_served(question, given, f"{chosen.platform}_test_runner"), reason="the input")
    row = question.data.runners.of(chosen.name, chosen.platform)
    kernel = question.labels.kernel
    if several_gpus:
        labels = [row.several_gpus] if row.several_gpus else []
        missing = f"no machine has several GPUs of {chosen.name} on {chosen.platform}"
    elif kernel:
        labels = [row.kernels[kernel]] if kernel in row.kernels else []
        missing = f"no machine with {chosen.name} on {chosen.platform} has the kernel {kernel}"
    else:
        labels = [label for label in (row.test_runner, *row.more_test_runners) if label]
        missing = f"no machine has {chosen.name} on {chosen.platform}"
    refused = {label: question.data.runners.unserved(label, question.event.owner) for label in labels}
    usable = [label for label, why in refused.items() if not why]
    if usable:
        key = f"{question.run_id} {stage} {chosen.platform} {chosen.name}"
        return Machine(label=stable_choice(usable, key))
    return Machine(reason=refused[labels[0]] if labels else missing)


def rocm_tester(question: Question, chosen: Chosen) -> Machine:
    """Choose the machines that test ROCm's packages: after a merge there always are some."""
    found = tester(question, chosen, "test_rocm", several_gpus=False)
    if found.label or question.labels.kernel or not question.does_after_merge:
        return found
    label = _machines(question, chosen.platform).without_gpu
    if not label or question.data.runners.unserved(label, question.event.owner):
        return found
    return Machine(label=label, reason=f"{found.reason}, so without a GPU")


def _machines(question: Question, platform: Platform) -> Machines:
    machines = question.data.runners.machines.get(platform)
    if machines is None:
        raise DataError(
            f"No machine builds on {platform}.", hint=f"Add [machines.{platform}] to runners.toml."
        )
    return machines


def _served(question: Question, label: str, name: str) -> str:
    runners = question.data.runners
    why = runners.unserved(label, question.event.owner)
    if why:
        known = {
            one
            for one in (*runners.github, *runners.self_hosted)
            if not runners.unserved(one, question.event.owner)
        }
        raise UsageError(
            f"The input {name!r}: {why}, so its jobs would queue for ever. {nearest(label, known)}"
        )
    return label
