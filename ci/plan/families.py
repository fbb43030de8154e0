"""Which GPU families a run builds, in which build variants, on which machines, and why."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ci.plan.data import BuildVariant, ExpectedFailure, Families, FamilyOn, Machines, reaches
from ci.plan.decisions import Question
from ci.plan.inputs import ALL, named_family
from core import files
from core.errors import DataError, UsageError, nearest
from core.families import CPU, gpu_targets
from core.run import PLAIN, PLATFORMS, Platform, group_name
from core.run.plan import Decision, LeftOut, Stage, Variant


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One family on one platform; `named` where a label or an input names it."""

    name: str
    platform: Platform
    on: FamilyOn
    reason: str
    named: bool = False


@dataclass(frozen=True, kw_only=True)
class Build:
    """A family in a variant."""

    chosen: Chosen
    variant: BuildVariant
    entry: Variant

    @property
    def where(self) -> str:
        """The artifact group and platform, for people."""
        return f"{self.entry.artifact_group} on {self.entry.platform}"

    @property
    def has_rocm(self) -> bool:
        """Whether the family has packages of ROCm."""
        return self.chosen.name != CPU


def choose(question: Question) -> tuple[Sequence[Chosen], Sequence[LeftOut]]:
    """Choose the families, and say which are not."""
    chosen: list[Chosen] = []
    left_out: list[LeftOut] = []
    data, named = question.data.families_of(question.type), question.labels.families
    tier, tier_reason = question.tier
    for platform in PLATFORMS:
        listed = question.inputs.families().get(platform)
        if listed is not None:
            usual = question.data.matrix_of(question.type).gpu_families.get(platform, ())
            chosen += _listed(platform, listed, data, usual)
            continue
        for name, platforms in data.families.items():
            on = platforms.get(platform)
            label = named.get(name, "")
            what = f"{name} on {platform}"
            if on is None:
                left_out += [LeftOut(what=what, reason="not built there")] if label else []
            elif label or reaches(tier, on.tier):
                reason = f"label {label}" if label else tier_reason
                chosen.append(Chosen(name=name, platform=platform, on=on, reason=reason, named=bool(label)))
            elif on.tier != "request":
                left_out.append(LeftOut(what=what, reason=f"built from {on.tier} on, or by label"))
    return chosen, left_out


def _listed(
    platform: Platform, words: Sequence[str], data: Families, usual: Sequence[str]
) -> Sequence[Chosen]:
    """Choose the families that are named; all are those of the release type's matrix, where it names any."""
    there = {name: on for name, platforms in data.families.items() if (on := platforms.get(platform))}
    every = [word.lower() for word in words] == [ALL]
    if every and not usual:
        reasons = {name: "all families are requested" for name, on in there.items() if on.tier != "request"}
    else:
        asked = usual if every else words
        reasons = {named_family(word, data, what="GPU family"): f"requested as {word}" for word in asked}
    for name in reasons:
        if name not in there:
            raise UsageError(f"{name} is not built on {platform}. {nearest(name, there)}")
    return [
        Chosen(name=name, platform=platform, on=there[name], reason=reason, named=True)
        for name, reason in reasons.items()
    ]


def builds(question: Question, chosen: Sequence[Chosen]) -> tuple[Sequence[Build], Sequence[LeftOut]]:
    """Return each family in each requested variant, and what is not built so."""
    found: list[Build] = []
    left_out: list[LeftOut] = []
    for one in chosen:
        for name, label in _variants(question).items():
            variant = question.data.families.variants[name]
            if one.platform in variant.platforms and name in one.on.variants:
                entry = _entry(question, one, name, label)
                found.append(Build(chosen=one, variant=variant, entry=entry))
            else:
                what = f"{one.name} on {one.platform}, {name}"
                left_out.append(LeftOut(what=what, reason=f"not built as {name}"))
    return found, left_out


def _variants(question: Question) -> Mapping[str, str]:
    """Return the requested variants, each with its label as a reason; "" where no label names it."""
    known = question.data.families.variants
    for name in question.inputs.build_variants:
        if name not in known:
            raise UsageError(f"Unknown build variant {name!r}. {nearest(name, known)}")
    given = dict.fromkeys(question.inputs.build_variants or (PLAIN,), "")
    return given | {name: f", label {label}" for name, label in question.labels.variants.items()}


def _entry(question: Question, one: Chosen, name: str, label: str) -> Variant:
    rocm_fails = expected_failure(question, one, "build_rocm") is not None
    return Variant(
        platform=one.platform,
        gpu_family=one.name,
        gpu_targets=gpu_targets(one.name),
        build_variant=name,
        artifact_group=group_name(one.name, name),
        build_runner=_builder(question, one.platform, question.data.families.variants[name]),
        test_runner=machine(question, one, "test_rocm")[0],
        expect_failure=rocm_fails or question.inputs.expect_failure,
        bypass_tests_for_releases=question.data.runners.of(one.name, one.platform).bypass_tests_for_releases,
        reason=f"{one.reason}{label}",
    )


def without_pytorch(question: Question, build: Build, pytorch: Decision) -> str:
    """Return why PyTorch is not built for a family in a variant; "" where it is."""
    one = build.chosen
    if not pytorch.value:
        return pytorch.reason
    if not build.variant.pytorch:
        return "PyTorch is not built in this variant"
    if not one.named and not reaches(question.tier[0], one.on.pytorch):
        return f"PyTorch is built for it from {one.on.pytorch} on, or on request"
    if question.inputs.expect_failure:
        return "the input expect_failure expects its ROCm packages to fail"
    row = expected_failure(question, one, "build_rocm")
    return f"its ROCm packages are expected to fail: {row.reason}" if row else ""


def expected_failure(
    question: Question, one: Chosen, stage: Stage, torch_ref: str | None = None
) -> ExpectedFailure | None:
    """Find the row that expects a job to fail, if its last day has not passed."""
    rows = (
        row
        for row in question.data.families.expect_failure
        if (row.gpu_family, row.platform) == (one.name, one.platform)
        and row.until >= question.today
        and (not row.stages or stage in row.stages)
        and (not row.torch_refs or torch_ref in row.torch_refs)
    )
    return next(rows, None)


def past_failures(question: Question) -> Iterator[str]:
    """Name the expected failures whose last day has passed."""
    for row in question.data.families.expect_failure:
        if row.until < question.today:
            what = f"the failure of {row.gpu_family} on {row.platform} was expected until {row.until}"
            yield f"{what} and counts again ({row.reason}): remove it from [[expect_failure]], or extend it"


def _builder(question: Question, platform: Platform, variant: BuildVariant) -> str:
    given, fork = question.inputs.runner(platform, "build"), question.event.fork
    if given and not fork:
        return _served(question, given, f"{platform}_build_runner")
    machines = _machines(question, platform)
    own = (variant.runner == "sanitizer" and machines.sanitizer) or machines.build
    labels = (machines.forks or machines.fallback,) if fork else (own, machines.fallback)
    refused = {one: _unserved(question, one) for one in labels}
    if usable := [one for one, why in refused.items() if not why]:
        return usable[0]
    why = refused[labels[-1]]
    raise DataError(f"No machine builds on {platform}: {why}.", hint="Correct [machines] of runners.toml.")


def machine(question: Question, one: Chosen, job: str, *, several_gpus: bool = False) -> tuple[str, str]:
    """Choose the machines with a family's GPU, or several: a label, or "", and the reason."""
    given = question.inputs.runner(one.platform, "test")
    if given:
        return _served(question, given, f"{one.platform}_test_runner"), "the input"
    row = question.data.runners.of(one.name, one.platform)
    kernel = question.labels.kernel
    where = f"{one.name} on {one.platform}"
    if several_gpus:
        labels, missing = [row.several_gpus], f"no machine has several GPUs of {where}"
    elif kernel:
        labels, missing = [row.kernels.get(kernel, "")], f"no machine with {where} has the kernel {kernel}"
    else:
        labels, missing = [row.test_runner, *row.more_test_runners], f"no machine has {where}"
    refused = {label: _unserved(question, label) for label in labels if label}
    if usable := [label for label, why in refused.items() if not why]:
        # the same run chooses the same machines at every attempt
        digest = files.sha256_text(f"{question.run_id} {job} {one.platform} {one.name}")
        return usable[int(digest[:8], 16) % len(usable)], ""
    return "", next(iter(refused.values()), missing)


def rocm_machine(question: Question, one: Chosen) -> tuple[str, str]:
    """Choose the machines that test ROCm's packages: after a merge one without a GPU if need be."""
    label, reason = machine(question, one, "test_rocm")
    if label or question.labels.kernel or not question.does_after_merge:
        return label, reason
    without_gpu = _machines(question, one.platform).without_gpu
    if not without_gpu or _unserved(question, without_gpu):
        return label, reason
    return without_gpu, f"{reason}, so without a GPU"


def _unserved(question: Question, label: str) -> str:
    return question.data.runners.unserved(label, question.event.owner)


def _machines(question: Question, platform: Platform) -> Machines:
    if platform not in question.data.runners.machines:
        hint = f"Add [machines.{platform}] to runners.toml."
        raise DataError(f"No machine builds on {platform}.", hint=hint)
    return question.data.runners.machines[platform]


def _served(question: Question, label: str, name: str) -> str:
    if why := _unserved(question, label):
        runners = question.data.runners
        known = {one for one in (*runners.github, *runners.self_hosted) if not _unserved(question, one)}
        raise UsageError(f"The input {name!r}: {why}: its jobs would queue forever. {nearest(label, known)}")
    return label
