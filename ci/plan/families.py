"""Which GPU families a run builds, in which build variants, on which machines, and why."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ci.plan.data import BuildVariant, ExpectedFailure, FamilyTiers, Machines, reaches
from ci.plan.decisions import PlanBasis
from ci.plan.inputs import ALL, named_family
from core import files
from core.errors import DataError, UsageError, nearest
from core.families import CPU, gpu_targets
from core.run import PLAIN, PLATFORMS, Platform, group_name
from core.run.plan import Decision, LeftOut, PlannedGroup, Stage


@dataclass(frozen=True, kw_only=True)
class FamilyOnPlatform:
    """A family that is built on a platform, and why."""

    name: str
    platform: Platform
    tiers: FamilyTiers
    reason: str
    is_requested: bool = False  # by a label or an input

    @property
    def words(self) -> str:
        """The family and its platform, for people."""
        return f"{self.name} on {self.platform}"


@dataclass(frozen=True, kw_only=True)
class Build:
    """A family in a build variant."""

    family: FamilyOnPlatform
    build_variant: BuildVariant
    group: PlannedGroup  # as the plan has it

    @property
    def words(self) -> str:
        """The artifact group and platform, for people."""
        return f"{self.group.artifact_group} on {self.group.platform}"

    @property
    def has_rocm(self) -> bool:
        """Whether the family has packages of ROCm."""
        return self.family.name != CPU


@dataclass(frozen=True, kw_only=True)
class ChosenMachine:
    """The machines that a job runs on."""

    label: str
    note: str | None = None  # for the job's reason, where they are not the usual ones


@dataclass(frozen=True, kw_only=True)
class NoMachine:
    """Why no machine can run a job."""

    reason: str


def choose_families(basis: PlanBasis) -> tuple[Sequence[FamilyOnPlatform], Sequence[LeftOut]]:
    """Return the families that are built, and those that are not."""
    families: list[FamilyOnPlatform] = []
    left_out: list[LeftOut] = []
    for platform in PLATFORMS:
        requested_names = basis.inputs.families(platform)
        if requested_names is not None:
            families += _requested_families(basis, platform, requested_names)
        else:
            families += _families_of_event(basis, platform)
            left_out += _families_left_out(basis, platform)
    return families, left_out


def _families_of_event(basis: PlanBasis, platform: Platform) -> Iterator[FamilyOnPlatform]:
    """Yield the families that a label names, and those that the event's tier reaches."""
    tier, tier_reason = basis.tier
    for name, tiers in basis.data.families_of(basis.release_type).on(platform).items():
        label = basis.labels.families.get(name)
        if label is not None:
            reason = f"label {label}"
        elif reaches(tier, tiers.tier):
            reason = tier_reason
        else:
            continue

        yield FamilyOnPlatform(
            name=name,
            platform=platform,
            tiers=tiers,
            reason=reason,
            is_requested=label is not None,
        )


def _families_left_out(basis: PlanBasis, platform: Platform) -> Iterator[LeftOut]:
    """Yield the families that a label names in vain, and those that a later tier builds."""
    tier, _tier_reason = basis.tier
    for name, platforms in basis.data.families_of(basis.release_type).families.items():
        is_requested = name in basis.labels.families
        tiers = platforms.get(platform)
        if tiers is None:
            if is_requested:
                yield LeftOut(what=f"{name} on {platform}", reason="not built there")
        elif not is_requested and not reaches(tier, tiers.tier) and tiers.tier != "request":
            yield LeftOut(
                what=f"{name} on {platform}",
                reason=f"built from {tiers.tier} on, or by label",
            )


def _requested_families(
    basis: PlanBasis,
    platform: Platform,
    requested_names: Sequence[str],
) -> Iterator[FamilyOnPlatform]:
    """Yield the families that an input names."""
    families = basis.data.families_of(basis.release_type)
    tiers_by_family = families.on(platform)
    matrix_families = basis.data.matrix_of(basis.release_type).gpu_families.get(platform, ())
    is_all = [name.lower() for name in requested_names] == [ALL]

    reasons: dict[str, str] = {}
    if is_all and not matrix_families:
        for name, tiers in tiers_by_family.items():
            if tiers.tier != "request":
                reasons[name] = "all families are requested"
    else:
        # All families of a release type are those of its matrix.
        if is_all:
            requested_names = matrix_families
        for requested_name in requested_names:
            name = named_family(requested_name, families, noun="GPU family")
            reasons[name] = f"requested as {requested_name}"

    for name, reason in reasons.items():
        if name not in tiers_by_family:
            raise UsageError(f"{name} is not built on {platform}. {nearest(name, tiers_by_family)}")
        yield FamilyOnPlatform(
            name=name,
            platform=platform,
            tiers=tiers_by_family[name],
            reason=reason,
            is_requested=True,
        )


def builds_of(
    basis: PlanBasis,
    families: Sequence[FamilyOnPlatform],
) -> tuple[Sequence[Build], Sequence[LeftOut]]:
    """Return each family in each requested build variant, and what is not built so."""
    builds: list[Build] = []
    left_out: list[LeftOut] = []
    for family in families:
        for name, label in _requested_variants(basis).items():
            build_variant = basis.data.families.variants[name]
            if family.platform in build_variant.platforms and name in family.tiers.variants:
                group = _planned_group(basis, family, name, label)
                build = Build(family=family, build_variant=build_variant, group=group)
                builds.append(build)
            else:
                left_out.append(
                    LeftOut(
                        what=f"{family.words}, {name}",
                        reason=f"not built as {name}",
                    )
                )
    return builds, left_out


def _requested_variants(basis: PlanBasis) -> Mapping[str, str | None]:
    """Return the requested build variants, each with the label that names it."""
    known_variants = basis.data.families.variants
    for name in basis.inputs.build_variants:
        if name not in known_variants:
            raise UsageError(f"Unknown build variant {name!r}. {nearest(name, known_variants)}")

    names = basis.inputs.build_variants or (PLAIN,)
    labels: dict[str, str | None] = dict.fromkeys(names)
    labels.update(basis.labels.variants)
    return labels


def _planned_group(
    basis: PlanBasis,
    family: FamilyOnPlatform,
    name: str,
    label: str | None,
) -> PlannedGroup:
    """Return a family in a build variant, as the plan has it."""
    rocm_failure = expected_failure(basis, family, "build_rocm")
    runner = basis.data.runners.find_runner(family.name, family.platform)
    machine = choose_machine(basis, family, "test_rocm")
    reason = family.reason
    if label is not None:
        reason += f", label {label}"

    return PlannedGroup(
        platform=family.platform,
        gpu_family=family.name,
        gpu_targets=gpu_targets(family.name),
        build_variant=name,
        artifact_group=group_name(family.name, name),
        build_runner=_choose_build_label(basis, family.platform, basis.data.families.variants[name]),
        test_runner=machine.label if isinstance(machine, ChosenMachine) else None,
        expect_failure=rocm_failure is not None or basis.inputs.expect_failure,
        bypass_tests_for_releases=runner.bypass_tests_for_releases,
        reason=reason,
    )


def obstacle_to_pytorch(
    basis: PlanBasis,
    build: Build,
    pytorch: Decision,
) -> str | None:
    """Return why PyTorch is not built for a family in a build variant; None where it is."""
    if not pytorch.value:
        return pytorch.reason
    if not build.build_variant.pytorch:
        return "PyTorch is not built in this variant"

    family = build.family
    tier, _reason = basis.tier
    if not family.is_requested and not reaches(tier, family.tiers.pytorch):
        return f"PyTorch is built for it from {family.tiers.pytorch} on, or on request"

    if basis.inputs.expect_failure:
        return "the input expect_failure expects its ROCm packages to fail"
    rocm_failure = expected_failure(basis, family, "build_rocm")
    if rocm_failure is not None:
        return f"its ROCm packages are expected to fail: {rocm_failure.reason}"
    return None


def expected_failure(
    basis: PlanBasis,
    family: FamilyOnPlatform,
    stage: Stage,
    torch_ref: str | None = None,
) -> ExpectedFailure | None:
    """Return the row of the data that expects a job to fail, if its last day has not passed."""
    for failure in basis.data.families.expect_failure:
        is_current = failure.until >= basis.today
        if is_current and failure.covers(family.name, family.platform, stage, torch_ref):
            return failure
    return None


def notes_on_past_failures(basis: PlanBasis) -> Iterator[str]:
    """Yield a note for each expected failure whose last day has passed."""
    for failure in basis.data.families.expect_failure:
        if failure.until < basis.today:
            yield (
                f"the failure of {failure.gpu_family} on {failure.platform} was expected until "
                f"{failure.until} and counts again ({failure.reason}): "
                "remove it from [[expect_failure]], or extend it"
            )


def _choose_build_label(
    basis: PlanBasis,
    platform: Platform,
    build_variant: BuildVariant,
) -> str:
    """Return the label of the machines that build."""
    is_fork = basis.event.fork is not None
    requested_label = basis.inputs.build_runner(platform)
    if requested_label is not None and not is_fork:
        _refuse_label_without_machine(basis, requested_label, f"{platform}_build_runner")
        return requested_label

    machines = _machines(basis, platform)
    if is_fork:
        labels = [machines.forks or machines.fallback]
    elif build_variant.runner == "sanitizer":
        labels = [machines.sanitizer or machines.build, machines.fallback]
    else:
        labels = [machines.build, machines.fallback]

    obstacle = None
    for label in labels:
        obstacle = _obstacle(basis, label)
        if obstacle is None:
            return label
    raise DataError(
        f"No machine builds on {platform}: {obstacle}.",
        hint="Correct [machines] of runners.toml.",
    )


def choose_machine(
    basis: PlanBasis,
    family: FamilyOnPlatform,
    job: str,
    *,
    several_gpus: bool = False,
) -> ChosenMachine | NoMachine:
    """Return which machines with a family's GPU, or with several of them, test a job."""
    requested_label = basis.inputs.test_runner(family.platform)
    if requested_label is not None:
        _refuse_label_without_machine(basis, requested_label, f"{family.platform}_test_runner")
        return ChosenMachine(label=requested_label, note="the input")

    runner = basis.data.runners.find_runner(family.name, family.platform)
    kernel = basis.labels.kernel
    candidates: Sequence[str | None]
    if several_gpus:
        candidates = [runner.several_gpus]
        reason = f"no machine has several GPUs of {family.words}"
    elif kernel is not None:
        candidates = [runner.kernels.get(kernel)]
        reason = f"no machine with {family.words} has the kernel {kernel}"
    else:
        candidates = [runner.test_runner, *runner.more_test_runners]
        reason = f"no machine has {family.words}"

    labels = [label for label in candidates if label is not None]
    obstacles = {label: _obstacle(basis, label) for label in labels}
    usable_labels = [label for label, obstacle in obstacles.items() if obstacle is None]
    if not usable_labels:
        reasons = [obstacle for obstacle in obstacles.values() if obstacle is not None]
        return NoMachine(reason=reasons[0] if reasons else reason)

    # The same run chooses the same machines at every attempt.
    digest = files.sha256_text(f"{basis.run_id} {job} {family.platform} {family.name}")
    number = int(digest[:8], 16) % len(usable_labels)
    return ChosenMachine(label=usable_labels[number])


def choose_rocm_machine(
    basis: PlanBasis,
    family: FamilyOnPlatform,
) -> ChosenMachine | NoMachine:
    """Return which machines test ROCm's packages: after a merge some without a GPU if need be."""
    machine = choose_machine(basis, family, "test_rocm")
    if isinstance(machine, ChosenMachine):
        return machine
    if basis.labels.kernel is not None or not basis.tests_without_gpu:
        return machine

    without_gpu = _machines(basis, family.platform).without_gpu
    if without_gpu is None or _obstacle(basis, without_gpu) is not None:
        return machine
    return ChosenMachine(label=without_gpu, note=f"{machine.reason}, so without a GPU")


def _obstacle(basis: PlanBasis, label: str) -> str | None:
    return basis.data.runners.obstacle(label, basis.event.owner)


def _machines(basis: PlanBasis, platform: Platform) -> Machines:
    machines = basis.data.runners.machines
    if platform not in machines:
        raise DataError(
            f"No machine builds on {platform}.",
            hint=f"Add [machines.{platform}] to runners.toml.",
        )
    return machines[platform]


def _refuse_label_without_machine(basis: PlanBasis, label: str, name: str) -> None:
    """Refuse a label of an input whose jobs would never start."""
    obstacle = _obstacle(basis, label)
    if obstacle is None:
        return

    runners = basis.data.runners
    known_labels = [*runners.github, *runners.self_hosted]
    usable_labels = [known_label for known_label in known_labels if _obstacle(basis, known_label) is None]
    raise UsageError(
        f"The input {name!r}: {obstacle}: its jobs would queue forever. {nearest(label, usable_labels)}"
    )
