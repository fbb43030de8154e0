"""The data that a plan follows from: triggers, families, machines, matrices; and a user's own over it."""

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from core.cli.sessions import PYTHON_OF_NOX
from core.data import Model, OptionalText, data_file
from core.errors import UsageError, nearest
from core.families import FamilyName
from core.run import PLAIN, PLATFORMS, Platform
from core.run.plan import Stage

FOLDER = Path(__file__).resolve().parent.parent
FAMILIES_FILE = FOLDER / "families.toml"
MAX_MINUTES = 690  # of tests; a job may take half an hour more
MAX_HOSTED_MINUTES = 300  # of tests on a machine of GitHub's, whose jobs may take an hour more

Tier = Literal["presubmit", "postsubmit", "nightly", "request"]
EventName = Literal["pull_request", "merge_group", "push", "schedule", "workflow_dispatch", "workflow_call"]
TestType = Literal["quick", "standard", "comprehensive", "full"]
SearchMethod = Literal["newest", "index"]

Names = tuple[str, ...]
Platforms = tuple[Platform, ...]

_TIERS: tuple[Tier, ...] = get_args(Tier)


class Runner(Model):
    """The labels of the test machines of one family on one platform."""

    test_runner: OptionalText = None
    more_test_runners: Names = ()
    kernels: dict[str, str] = Field(default_factory=dict)
    several_gpus: OptionalText = None
    bypass_tests_for_releases: bool = False

    @property
    def labels(self) -> Sequence[str]:
        """Every label."""
        labels = [
            self.test_runner,
            *self.more_test_runners,
            *self.kernels.values(),
            self.several_gpus,
        ]
        return [label for label in labels if label is not None]


class Machines(Model):
    """The labels of the other machines of one platform."""

    build: str
    sanitizer: OptionalText = None
    fallback: str
    forks: OptionalText = None
    without_gpu: OptionalText = None


class Runners(Model):
    """`runners.toml`."""

    github: Names = ()
    self_hosted: dict[str, str] = Field(default_factory=dict)
    out_of_service: dict[str, str] = Field(default_factory=dict)
    no_gpu: Names = ()
    machines: dict[Platform, Machines] = Field(default_factory=dict)
    families: dict[FamilyName, dict[Platform, Runner]]

    @model_validator(mode="after")
    def _refuse_unknown_labels(self) -> Self:
        served_labels = {*self.github, *self.self_hosted}
        if not served_labels:
            return self

        for key, label in self._labels():
            if label not in served_labels:
                raise ValueError(
                    f"runners.{key}: {label!r} is neither in self_hosted nor github. "
                    f"{nearest(label, served_labels)}"
                )
        return self

    def _labels(self) -> Iterator[tuple[str, str]]:
        """Yield every label in the data, after the key that has it."""
        for platform, machines in self.machines.items():
            for field, label in machines:
                if label is not None:
                    yield f"machines.{platform}.{field}", label
        for gpu_family, runners in self.families.items():
            for platform, runner in runners.items():
                for label in runner.labels:
                    yield f"families.{gpu_family}.{platform}", label
        for label in self.out_of_service:
            yield "out_of_service", label
        for label in self.no_gpu:
            yield "no_gpu", label

    def find_runner(self, gpu_family: str, platform: str) -> Runner:
        """Return the machines of a family on a platform; none for a family that the data does not name."""
        for runner_platform, runner in self.families.get(gpu_family, {}).items():
            if runner_platform == platform:
                return runner
        return Runner()

    def is_hosted(self, label: str) -> bool:
        """Return whether machines with this label are GitHub's, which ends a job on them after six hours."""
        return label in self.github

    def has_gpu(self, label: str) -> bool:
        """Return whether machines with this label have a GPU, whose devices a container can get."""
        return label not in (*self.github, *self.no_gpu)

    def obstacle(self, label: str, owner: str) -> str | None:
        """Return why a job with this label would never start in this owner's repository."""
        if label in self.out_of_service:
            return f"{label} is out of service: {self.out_of_service[label]}"
        if label in self.github:
            return None
        if label not in self.self_hosted:
            return f"no machine has the runner label {label!r}"

        machine_owner = self.self_hosted[label]
        if machine_owner.casefold() != owner.casefold():
            return f"{label} serves repositories of {machine_owner} only"
        return None


class Exclusion(Model):
    """Cells that GPU families do not have on a platform; a key that is left out stands for all."""

    gpu_families: Names = Field(min_length=1)
    platform: Platform
    torch_refs: Names = ()
    pythons: Names = ()
    reason: str = Field(min_length=1)

    def covers(
        self,
        gpu_family: str,
        platform: str,
        torch_ref: str,
        python: str,
    ) -> bool:
        """Return whether this excludes a cell."""
        if platform != self.platform or gpu_family not in self.gpu_families:
            return False
        if self.torch_refs and torch_ref not in self.torch_refs:
            return False
        return not self.pythons or python in self.pythons


class Matrix(Model):
    """One table of the matrix file: a product of Pythons, refs and families."""

    pythons: Names = Field(default=(PYTHON_OF_NOX,), min_length=1)
    torch_refs: Names = Field(min_length=1)
    tool_pythons: Names = Field(min_length=1)
    tier: Literal["presubmit", "postsubmit", "nightly"] | None = None
    gpu_families: dict[Platform, tuple[FamilyName, ...]] = Field(default_factory=dict)
    test_type: TestType = "quick"
    exclude: tuple[Exclusion, ...] = ()


class MatrixFile(Model):
    """`matrix.toml`."""

    ci: Matrix
    release: Matrix
    rehearsal: Matrix

    @model_validator(mode="after")
    def _release_the_families_of_ci(self) -> Self:
        """Let releases build the families that CI is limited to, where they name none of their own."""
        if not self.ci.gpu_families or self.release.gpu_families:
            return self
        release = self.release.model_copy(update={"gpu_families": self.ci.gpu_families})
        return self.model_copy(update={"release": release})

    @classmethod
    def name_of(cls, release_type: str) -> str:
        """Return the name of a release type's table."""
        return release_type if release_type in cls.model_fields else "release"


class Paths(Model):
    """What changed files mean."""

    skip: Names
    workflows: Names
    standard: Names = ()


class Test(Model):
    """One kind of test."""

    stage: Stage
    session: str
    types: tuple[TestType, ...] = ()
    platforms: Platforms = ()
    pythons: Names = ()
    config: OptionalText = None
    shards: int = Field(default=1, ge=1, le=99)
    several_gpus: bool = False
    minutes: int = Field(default=300, ge=1, le=MAX_MINUTES)

    @model_validator(mode="after")
    def _refuse_keys_of_other_stages(self) -> Self:
        is_upstreams = self.stage == "test_torch"
        if is_upstreams != (self.config is not None):
            raise ValueError("'config' belongs to tests of the stage 'test_torch', and to no others.")
        if is_upstreams:
            return self

        if self.shards > 1 or self.several_gpus or self.pythons or self.platforms:
            raise ValueError("'shards', 'several_gpus', 'pythons', 'platforms' are for 'test_torch' only.")
        return self

    def tested_pythons(self, pythons: Sequence[str]) -> Sequence[str]:
        """Return which of a run's Pythons are tested: the first one where the test names others."""
        if not self.pythons:
            return pythons
        tested = [python for python in pythons if python in self.pythons]
        return tested or pythons[:1]


class Triggers(Model):
    """`triggers.toml`."""

    rocm_base_version: str = Field(default="", pattern=r"([0-9]+\.[0-9]+\.[0-9]+)?")
    long_lived_branches: Names = Field(min_length=1)
    paths: Paths
    tests: dict[str, Test] = Field(min_length=1)


class BuildVariant(Model):
    """One way to build."""

    platforms: Platforms
    label: OptionalText = None
    runner: Literal["build", "sanitizer"] = "build"
    pytorch: bool = True
    tested_on: tuple[EventName, ...] = ()


class FamilyTiers(Model):
    """When CI builds and tests a family on one platform; `families.toml` explains the keys."""

    tier: Tier
    pytorch: Tier = "nightly"
    tests: Tier = "presubmit"
    variants: Names = (PLAIN,)


class ExpectedFailure(Model):
    """A known failure, which does not count until a day has passed."""

    gpu_family: str
    platform: Platform
    stages: tuple[Stage, ...] = ()
    torch_refs: Names = ()
    until: date
    reason: str = Field(min_length=1)

    def covers(
        self,
        gpu_family: str,
        platform: str,
        stage: Stage,
        torch_ref: str | None,
    ) -> bool:
        """Return whether a job is expected to fail; a list that is left out stands for all."""
        if gpu_family != self.gpu_family or platform != self.platform:
            return False
        if self.stages and stage not in self.stages:
            return False
        return not self.torch_refs or torch_ref in self.torch_refs


def _without_targets(row: object) -> object:
    """Leave out what a user's file says about a family to `core.families`."""
    if not isinstance(row, dict):
        return row
    return {key: value for key, value in row.items() if key not in {"targets", "default"}}


class Families(Model):
    """`families.toml`."""

    variants: dict[str, BuildVariant]
    families: dict[
        FamilyName,
        Annotated[dict[Platform, FamilyTiers], BeforeValidator(_without_targets)],
    ]
    expect_failure: tuple[ExpectedFailure, ...] = ()

    @model_validator(mode="after")
    def _refuse_unknown_names(self) -> Self:
        if PLAIN not in self.variants:
            raise ValueError(f"variants: there is no variant {PLAIN!r}.")

        for gpu_family, platforms in self.families.items():
            for tiers in platforms.values():
                for variant in tiers.variants:
                    if variant not in self.variants:
                        suggestion = nearest(variant, self.variants)
                        raise ValueError(f"{gpu_family}: unknown variant {variant!r}. {suggestion}")

        for failure in self.expect_failure:
            if failure.platform not in self.families.get(failure.gpu_family, {}):
                raise ValueError(
                    f"expect_failure: no family {failure.gpu_family!r} on {failure.platform}. "
                    f"{nearest(failure.gpu_family, self.families)}"
                )
        return self

    def on(self, platform: Platform) -> dict[str, FamilyTiers]:
        """Return the families of a platform."""
        families: dict[str, FamilyTiers] = {}
        for gpu_family, platforms in self.families.items():
            if platform in platforms:
                families[gpu_family] = platforms[platform]
        return families


class OwnStore(Model):
    """`upload.toml`."""

    store: str = ""
    role: str = ""
    region: str = ""
    mirror_role: str = ""
    retention_role: str = ""


class ArtifactRuns(Model):
    """Whose runs have ROCm's artifacts; `rocm.toml` explains the keys."""

    repository: str
    branch: str
    workflows: dict[str, str]
    store: OptionalText = None
    index: str = ""


class RocmData(Model):
    """`rocm.toml`."""

    order: tuple[SearchMethod, ...] = Field(min_length=1)
    orders: dict[str, tuple[SearchMethod, ...]] = Field(default_factory=dict)
    require_successful: bool = True
    runs: dict[str, ArtifactRuns]

    def artifact_runs(self, release_type: str) -> ArtifactRuns:
        """Return whose runs have artifacts of a release type."""
        if release_type not in self.runs:
            suggestion = nearest(release_type, self.runs)
            raise UsageError(f"No runs have artifacts of release type {release_type!r}. {suggestion}")
        return self.runs[release_type]

    def search_order(self, repository: str) -> tuple[SearchMethod, ...]:
        """Return what a repository's runs try, first to last; GitHub takes names in any case."""
        for name, order in self.orders.items():
            if name.casefold() == repository.casefold():
                return order
        return self.order


class PlanData(Model):
    """Everything that a plan follows from besides the event."""

    triggers: Triggers
    families: Families
    runners: Runners
    matrix: MatrixFile
    rocm: RocmData
    upload: OwnStore = OwnStore()

    def families_of(self, release_type: str) -> Families:
        """Return when families are built for a release type.

        A matrix that names families has these built at every event, and others on request.
        """
        matrix_families = self.matrix_of(release_type).gpu_families
        if not matrix_families:
            return self.families

        always = {"tier": "presubmit", "pytorch": "presubmit", "tests": "presubmit"}
        on_request = {"tier": "request"}
        families: dict[str, dict[Platform, FamilyTiers]] = {}
        for gpu_family, platforms in self.families.families.items():
            families[gpu_family] = {}
            for platform, tiers in platforms.items():
                is_in_matrix = gpu_family in matrix_families.get(platform, ())
                update = always if is_in_matrix else on_request
                families[gpu_family][platform] = tiers.model_copy(update=update)
        return self.families.model_copy(update={"families": families})

    def matrix_of(self, release_type: str, *, event_names_pythons: bool = False) -> Matrix:
        """Return the matrix of a release type, with every exclusion that applies to it.

        An exclusion of Pythons spares machines. It holds in its own matrix, and not where the event names
        its Pythons. Every other one is of cells that do not exist yet, in any matrix.
        """
        matrix: Matrix = getattr(self.matrix, MatrixFile.name_of(release_type))
        exclusions: list[Exclusion] = []
        for exclusion in (*self.matrix.ci.exclude, *self.matrix.release.exclude):
            spares_machines = exclusion in matrix.exclude and not event_names_pythons
            is_of_missing_cells = not exclusion.pythons
            if spares_machines or is_of_missing_cells:
                exclusions.append(exclusion)
        return matrix.model_copy(update={"exclude": tuple(exclusions)})


triggers = data_file(FOLDER / "triggers.toml", Triggers)
_families = data_file(FAMILIES_FILE, Families)
runners = data_file(FOLDER / "runners.toml", Runners)
matrices = data_file(FOLDER / "matrix.toml", MatrixFile)
rocm = data_file(FOLDER / "rocm.toml", RocmData)
upload = data_file(FOLDER / "upload.toml", OwnStore)


def load() -> PlanData:
    """Read all of it."""
    return PlanData(
        triggers=triggers(),
        families=buildable_families(),
        runners=runners(),
        matrix=matrices(),
        rocm=rocm(),
        upload=upload(),
    )


def buildable_families() -> Families:
    """Read when CI builds families; one that only a matrix names is built on request."""
    families_of_file = _families()
    families = dict(families_of_file.families)
    for matrix in (matrices().ci, matrices().release):
        for platform, gpu_families in matrix.gpu_families.items():
            for gpu_family in gpu_families:
                platforms = families.get(gpu_family, {})
                families[gpu_family] = {platform: FamilyTiers(tier="request"), **platforms}
    return families_of_file.model_copy(update={"families": families})


def reaches(tier: Tier | None, required_tier: Tier) -> bool:
    """Return whether a run of a tier does what is done from a required tier on."""
    if tier is None or required_tier == "request":
        return False
    return _TIERS.index(required_tier) <= _TIERS.index(tier)


def families_of_tier(tier: Tier) -> dict[Platform, Names]:
    """Return the families whose PyTorch is built from a tier on, by platform."""
    families_by_platform: dict[Platform, Names] = {}
    for platform in PLATFORMS:
        families_by_platform[platform] = tuple(
            gpu_family
            for gpu_family, tiers in buildable_families().on(platform).items()
            if reaches(tier, tiers.tier) and reaches(tier, tiers.pytorch)
        )
    return families_by_platform
