"""The data that a plan follows from: triggers, families, machines, matrices; and a user's own over it."""

import sys
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from core.data import Model, data_file
from core.errors import UsageError, nearest
from core.families import FamilyName
from core.run import PLAIN, PLATFORMS, Platform
from core.run.plan import Stage

FOLDER = Path(__file__).resolve().parent.parent
FAMILIES_FILE = FOLDER / "families.toml"
MAX_MINUTES = 690  # of tests; a job may take half an hour more

Tier = Literal["presubmit", "postsubmit", "nightly", "request"]
EventName = Literal["pull_request", "merge_group", "push", "schedule", "workflow_dispatch", "workflow_call"]
TestType = Literal["quick", "standard", "comprehensive", "full"]
Way = Literal["newest", "index"]
_TOOL = f"{sys.version_info.major}.{sys.version_info.minor}"  # the Python that runs this
_TIERS: tuple[Tier, ...] = get_args(Tier)


class Runner(Model):
    """The test machines of one family on one platform."""

    test_runner: str = ""
    more_test_runners: tuple[str, ...] = ()
    kernels: dict[str, str] = Field(default_factory=dict)
    several_gpus: str = ""
    bypass_tests_for_releases: bool = False


class Machines(Model):
    """The other machines of one platform."""

    build: str
    sanitizer: str = ""
    fallback: str
    forks: str = ""
    without_gpu: str = ""


class Runners(Model):
    """`runners.toml`."""

    github: tuple[str, ...] = ()
    self_hosted: dict[str, str] = Field(default_factory=dict)
    out_of_service: dict[str, str] = Field(default_factory=dict)
    no_gpu: tuple[str, ...] = ()
    machines: dict[Platform, Machines] = Field(default_factory=dict)
    families: dict[FamilyName, dict[Platform, Runner]]

    @model_validator(mode="after")
    def _known(self) -> Self:
        served = {*self.github, *self.self_hosted}
        for where, label in self._labels() if served else ():
            if label not in served:
                close = nearest(label, served)
                raise ValueError(f"runners.{where}: {label!r} is neither in self_hosted nor github. {close}")
        return self

    def _labels(self) -> Iterator[tuple[str, str]]:
        """Every label that the data names, and where."""
        for platform, machines in self.machines.items():
            yield from ((f"machines.{platform}.{field}", label) for field, label in machines if label)
        for name, platforms in self.families.items():
            for platform, one in platforms.items():
                labels = (one.test_runner, *one.more_test_runners, *one.kernels.values(), one.several_gpus)
                yield from ((f"families.{name}.{platform}", label) for label in labels if label)
        yield from (("out_of_service", label) for label in self.out_of_service)
        yield from (("no_gpu", label) for label in self.no_gpu)

    def of(self, gpu_family: str, platform: str) -> Runner:
        """Return the machines of a family on a platform; none for a family that the data does not name."""
        found = (one for name, one in self.families.get(gpu_family, {}).items() if name == platform)
        return next(found, Runner())

    def has_gpu(self, label: str) -> bool:
        """Return whether machines with this label have a GPU, whose devices a container can get."""
        return label not in (*self.github, *self.no_gpu)

    def unserved(self, label: str, owner: str) -> str:
        """Return why a job for a label would never start in this owner's repository, or ""."""
        if label in self.out_of_service:
            return f"{label} is out of service: {self.out_of_service[label]}"
        if label in self.github:
            return ""
        if label not in self.self_hosted:
            return f"no machine has the runner label {label!r}"
        served = self.self_hosted[label]
        refused = owner.casefold() != served.casefold()
        return f"{label} serves repositories of {served} only" if refused else ""


class Exclusion(Model):
    """Cells that GPU families do not have on a platform; a key that is left out stands for all."""

    gpu_families: tuple[str, ...] = Field(min_length=1)
    platform: Platform
    torch_refs: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    reason: str = Field(min_length=1)

    def covers(self, gpu_family: str, platform: str, torch_ref: str, python: str) -> bool:
        """Return whether a cell is one of these."""
        return (
            (gpu_family in self.gpu_families and platform == self.platform)
            and (not self.torch_refs or torch_ref in self.torch_refs)
            and (not self.pythons or python in self.pythons)
        )


class Matrix(Model):
    """One table of the matrix file: a product of Pythons, refs and families."""

    pythons: tuple[str, ...] = Field(default=(_TOOL,), min_length=1)
    torch_refs: tuple[str, ...] = Field(min_length=1)
    tool_pythons: tuple[str, ...] = Field(min_length=1)
    tier: Literal["presubmit", "postsubmit", "nightly"] | None = None
    gpu_families: dict[Platform, tuple[FamilyName, ...]] = Field(default_factory=dict)
    test_type: TestType = "quick"
    exclude: tuple[Exclusion, ...] = ()


class MatrixFile(Model):
    """`matrix.toml`."""

    ci: Matrix
    release: Matrix
    rehearsal: Matrix

    @classmethod
    def name_of(cls, release_type: str) -> str:
        """Name the table of a release type."""
        return release_type if release_type in cls.model_fields else "release"


class Paths(Model):
    """What changed files mean."""

    skip: tuple[str, ...]
    workflows: tuple[str, ...]
    standard: tuple[str, ...] = ()


class Test(Model):
    """One kind of test."""

    stage: Stage
    session: str
    types: tuple[TestType, ...] = ()
    platforms: tuple[Platform, ...] = ()
    pythons: tuple[str, ...] = ()
    config: str = ""
    shards: int = Field(default=1, ge=1, le=99)
    several_gpus: bool = False
    minutes: int = Field(default=300, ge=1, le=MAX_MINUTES)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        upstream = self.stage == "test_torch"
        if upstream != bool(self.config):
            raise ValueError("'config' belongs to tests of the stage 'test_torch', and to no others.")
        if not upstream and (self.shards > 1 or self.several_gpus or self.pythons or self.platforms):
            raise ValueError("'shards', 'several_gpus', 'pythons', 'platforms' are for 'test_torch' only.")
        return self

    def of(self, pythons: Sequence[str]) -> Sequence[str]:
        """Choose among a run's Pythons, in their order."""
        return [one for one in pythons if one in self.pythons or not self.pythons] or pythons[:1]


class Triggers(Model):
    """`triggers.toml`."""

    rocm_base_version: str = Field(default="", pattern=r"([0-9]+\.[0-9]+\.[0-9]+)?")
    long_lived_branches: tuple[str, ...] = Field(min_length=1)
    paths: Paths
    tests: dict[str, Test] = Field(min_length=1)


class BuildVariant(Model):
    """One way to build."""

    platforms: tuple[Platform, ...]
    label: str = ""
    runner: Literal["build", "sanitizer"] = "build"
    pytorch: bool = True
    tested_on: tuple[EventName, ...] = ()


class FamilyOn(Model):
    """When CI builds a family on one platform; `families.toml` explains the keys."""

    tier: Tier
    pytorch: Tier = "nightly"
    tests: Tier = "presubmit"
    variants: tuple[str, ...] = (PLAIN,)


class ExpectedFailure(Model):
    """A known failure, which does not count until a day has passed."""

    gpu_family: str
    platform: Platform
    stages: tuple[Stage, ...] = ()
    torch_refs: tuple[str, ...] = ()
    until: date
    reason: str = Field(min_length=1)


def _without_targets(row: object) -> object:
    """Leave to `core.families` what a user's file says of a family for it."""
    if not isinstance(row, dict):
        return row
    return {key: on for key, on in row.items() if key not in {"targets", "default"}}


class Families(Model):
    """`families.toml`."""

    variants: dict[str, BuildVariant]
    families: dict[FamilyName, Annotated[dict[Platform, FamilyOn], BeforeValidator(_without_targets)]]
    expect_failure: tuple[ExpectedFailure, ...] = ()

    @model_validator(mode="after")
    def _known(self) -> Self:
        if PLAIN not in self.variants:
            raise ValueError(f"variants: there is no variant {PLAIN!r}.")
        for name, platforms in self.families.items():
            for variant in (one for on in platforms.values() for one in on.variants):
                if variant not in self.variants:
                    close = nearest(variant, self.variants)
                    raise ValueError(f"{name}: unknown variant {variant!r}. {close}")
        for row in self.expect_failure:
            if row.platform not in self.families.get(row.gpu_family, {}):
                close = nearest(row.gpu_family, self.families)
                raise ValueError(f"expect_failure: no family {row.gpu_family!r} on {row.platform}. {close}")
        return self


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
    store: str = ""
    index: str = ""


class RocmData(Model):
    """`rocm.toml`."""

    order: tuple[Way, ...] = Field(min_length=1)
    orders: dict[str, tuple[Way, ...]] = Field(default_factory=dict)
    require_successful: bool = True
    runs: dict[str, ArtifactRuns]

    def of(self, release_type: str) -> ArtifactRuns:
        """Return whose runs have artifacts of a release type."""
        if release_type not in self.runs:
            known = nearest(release_type, self.runs)
            raise UsageError(f"No runs have artifacts of release type {release_type!r}. {known}")
        return self.runs[release_type]

    def order_of(self, repository: str) -> tuple[Way, ...]:
        """Return what a repository's runs try, first to last; GitHub takes names in any case."""
        named = {name.casefold(): order for name, order in self.orders.items()}
        return named.get(repository.casefold(), self.order)


class Data(Model):
    """Everything that a plan follows from besides the event."""

    triggers: Triggers
    families: Families
    runners: Runners
    matrix: MatrixFile
    rocm: RocmData
    upload: OwnStore = OwnStore()

    def families_of(self, release_type: str) -> Families:
        """Return when families are built: those that the matrix names always, others on request."""
        named = self.matrix_of(release_type).gpu_families
        if not named:
            return self.families
        always = dict.fromkeys(("tier", "pytorch", "tests"), "presubmit")
        rows = {name: dict(platforms) for name, platforms in self.families.families.items()}
        for name, platforms in rows.items():
            for platform, on in platforms.items():
                update = always if name in named.get(platform, ()) else {"tier": "request"}
                platforms[platform] = on.model_copy(update=update)
        return self.families.model_copy(update={"families": rows})

    def matrix_of(self, release_type: str, *, named_pythons: bool = False) -> Matrix:
        """Return the matrix of a release type, with every exclusion that applies to it."""
        chosen: Matrix = getattr(self.matrix, MatrixFile.name_of(release_type))
        every = (*self.matrix.ci.exclude, *self.matrix.release.exclude)
        # what does not exist yet does not exist in any matrix
        applying = (row for row in every if not row.pythons or (row in chosen.exclude and not named_pythons))
        return chosen.model_copy(update={"exclude": tuple(applying)})


triggers = data_file(FOLDER / "triggers.toml", Triggers)
_families = data_file(FAMILIES_FILE, Families)
runners = data_file(FOLDER / "runners.toml", Runners)
matrices = data_file(FOLDER / "matrix.toml", MatrixFile)
rocm = data_file(FOLDER / "rocm.toml", RocmData)
upload = data_file(FOLDER / "upload.toml", OwnStore)


def load() -> Data:
    """Read all of it."""
    return Data(
        triggers=triggers(),
        families=ci_families(),
        runners=runners(),
        matrix=matrices(),
        rocm=rocm(),
        upload=upload(),
    )


def ci_families() -> Families:
    """Read when CI builds families; one that a matrix names alone is built on request."""
    data, found = _families(), dict(_families().families)
    for matrix in (matrices().ci, matrices().release):
        for platform, names in matrix.gpu_families.items():
            for name in names:
                found[name] = {platform: FamilyOn(tier="request"), **found.get(name, {})}
    return data.model_copy(update={"families": found})


def reaches(tier: Tier | None, needed: Tier) -> bool:
    """Return whether a run of a tier does what is done from another one on."""
    return tier is not None and needed != "request" and _TIERS.index(needed) <= _TIERS.index(tier)


def of_tier(tier: Tier) -> dict[Platform, tuple[str, ...]]:
    """Return the families whose PyTorch is built from a tier on, by platform."""
    found: dict[Platform, tuple[str, ...]] = dict.fromkeys(PLATFORMS, ())
    for name, platforms in ci_families().families.items():
        for platform, on in platforms.items():
            if reaches(tier, on.tier) and reaches(tier, on.pytorch):
                found[platform] += (name,)
    return found
