"""Families in their build variants: the entries of ``linux_variants`` and ``windows_variants``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.plan import machines
from ci.plan.families import reaches
from core.errors import UsageError, nearest
from core.families import CPU, gpu_targets
from core.run.outputs import PLAIN, group_name
from core.run.plan import LeftOut, Variant

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ci.plan.data import BuildVariant, ExpectedFailure
    from ci.plan.families import Chosen
    from ci.plan.question import Question
    from core.run.plan import Decision, Stage


@dataclass(frozen=True, kw_only=True)
class Build:
    """A family in a variant, with where it comes from."""

    chosen: Chosen
    variant: BuildVariant
    entry: Variant


def builds(question: Question, chosen: Sequence[Chosen]) -> tuple[Sequence[Build], Sequence[LeftOut]]:
    """Give each family in each variant that is wanted of it."""
    wanted = _wanted(question)
    found: list[Build] = []
    left_out: list[LeftOut] = []
    for family in chosen:
        for name, label in wanted.items():
            variant = question.data.families.variants[name]
            if family.platform not in variant.platforms or name not in family.on.variants:
                what = f"{family.name} on {family.platform}, {name}"
                left_out.append(LeftOut(what=what, reason=f"not built as {name}"))
                continue
            found.append(_build(question, family, name, label))
    return found, left_out


def _wanted(question: Question) -> Mapping[str, str]:
    """Give the variants that are wanted, each with who wants it; "" for nobody in particular."""
    known = question.data.families.variants
    for name in question.inputs.build_variants:
        if name not in known:
            raise UsageError(f"The build variant {name!r} is not known. {nearest(name, known)}")
    given = dict.fromkeys(question.inputs.build_variants or (PLAIN,), "")
    labels = {name: f", label {label}" for name, label in question.labels.variants.items()}
    return given | labels


def _build(question: Question, family: Chosen, name: str, label: str) -> Build:
    variant = question.data.families.variants[name]
    row = question.data.runners.of(family.name, family.platform)
    rocm_fails = expected(question, family, "build_rocm") is not None
    entry = Variant(
        platform=family.platform,
        gpu_family=family.name,
        gpu_targets=gpu_targets(family.name),
        build_variant=name,
        artifact_group=group_name(family.name, name),
        build_runner=machines.builder(question, family.platform, variant),
        test_runner=machines.tester(question, family, "test_rocm", several_gpus=False).label,
        expect_failure=rocm_fails or question.inputs.expect_failure,
        bypass_tests_for_releases=row.bypass_tests_for_releases,
        reason=f"{family.reason}{label}",
    )
    return Build(chosen=family, variant=variant, entry=entry)


def without_pytorch(question: Question, build: Build, pytorch: Decision) -> str:
    """Say why PyTorch is not built for a family in a variant; "" where it is."""
    family = build.chosen
    if not pytorch.value:
        return pytorch.reason
    if not build.variant.pytorch:
        return "PyTorch is not built in this variant"
    if not family.asked and not reaches(question.tier[0], family.on.pytorch):
        return f"PyTorch is built for it from {family.on.pytorch} on, or where it is asked for"
    if question.inputs.expect_failure:
        return "the input expect_failure expects its ROCm packages to fail"
    row = expected(question, family, "build_rocm")
    return f"its ROCm packages are expected to fail: {row.reason}" if row else ""


def expected(question: Question, family: Chosen, stage: Stage, torch_ref: str = "") -> ExpectedFailure | None:
    """Find the row that expects a job to fail, if its last day has not passed."""
    for row in question.data.families.expect_failure:
        if (row.gpu_family, row.platform) != (family.name, family.platform) or row.until < question.today:
            continue
        if (not row.stages or stage in row.stages) and (not row.torch_refs or torch_ref in row.torch_refs):
            return row
    return None


def ended(question: Question) -> Iterator[str]:
    """Name the expected failures whose last day has passed."""
    for row in question.data.families.expect_failure:
        if row.until < question.today:
            yield (
                f"the failure of {row.gpu_family} on {row.platform} was expected until {row.until} "
                f"and counts again ({row.reason}): take it out of [[expect_failure]], or give it another day"
            )


def has_rocm(build: Build) -> bool:
    """Say whether a family has packages of ROCm."""
    return build.chosen.name != CPU
