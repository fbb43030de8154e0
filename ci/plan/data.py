"""The data that a plan follows from: triggers, families, runners, matrices; and a user's own over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - pydantic reads them
from datetime import date  # noqa: TC003 - pydantic reads it
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from ci.plan.matrix import MATRIX_FILE, Matrix, MatrixFile
from ci.plan.runners import RUNNERS_FILE, Runners
from core.data import Model, merged, read_toml, validated
from core.errors import MissingInputError, UsageError, nearest
from core.families import families
from core.run.outputs import PLAIN, Platform
from core.run.plan import Stage  # noqa: TC001 - pydantic reads it

Tier = Literal["presubmit", "postsubmit", "nightly", "request"]
EventName = Literal["pull_request", "push", "schedule", "workflow_dispatch", "workflow_call"]
TestType = Literal["quick", "standard", "comprehensive", "full"]
Way = Literal["newest", "index"]

FOLDER = Path(__file__).resolve().parent.parent
TRIGGERS_FILE = FOLDER / "triggers.toml"
FAMILIES_FILE = FOLDER / "families.toml"
ROCM_FILE = FOLDER / "rocm.toml"
CONFIG = "CI_CONFIG"
MAX_MINUTES = 690  # of tests; a job may take half an hour more


class Paths(Model):
    """What changed files mean."""

    skip: tuple[str, ...]
    workflows: tuple[str, ...]
    standard: tuple[str, ...] = ()


class Test(Model):
    """One kind of test."""

    __test__ = False  # pytest takes the name for a test's

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
            raise ValueError("'config' is what tests of the stage 'test_torch' have, and no other ones.")
        if not upstream and (self.shards > 1 or self.several_gpus or self.pythons or self.platforms):
            raise ValueError(
                "'shards', 'several_gpus', 'pythons', 'platforms' are for tests of the stage 'test_torch'."
            )
        return self

    def of(self, pythons: Sequence[str]) -> Sequence[str]:
        """Choose among a run's Pythons, in their order."""
        return [one for one in pythons if one in self.pythons or not self.pythons] or pythons[:1]


class Triggers(Model):
    """What `triggers.toml` says."""

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
    """A failure that is known, and does not count until a day has passed."""

    gpu_family: str
    platform: Platform
    stages: tuple[Stage, ...] = ()
    torch_refs: tuple[str, ...] = ()
    until: date
    reason: str = Field(min_length=1)


class Families(Model):
    """What `families.toml` says."""

    variants: dict[str, BuildVariant]
    families: dict[str, dict[Platform, FamilyOn]]
    expect_failure: tuple[ExpectedFailure, ...] = ()

    @field_validator("variants")
    @classmethod
    def _plain(cls, variants: dict[str, BuildVariant]) -> dict[str, BuildVariant]:
        if PLAIN not in variants:
            raise ValueError(f"there is no variant {PLAIN!r}.")
        return variants

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name, platforms in self.families.items():
            if name not in families():
                raise ValueError(f"{name!r} is no GPU family. {nearest(name, families())}")
            for variant in (one for on in platforms.values() for one in on.variants):
                if variant not in self.variants:
                    raise ValueError(f"{name}: {variant!r} is no variant. {nearest(variant, self.variants)}")
        for row in self.expect_failure:
            if row.platform not in self.families.get(row.gpu_family, {}):
                known = nearest(row.gpu_family, self.families)
                raise ValueError(f"expect_failure: no family {row.gpu_family!r} on {row.platform}. {known}")
        return self


class OwnStore(Model):
    """Where a downstream's runs go; `core.run.plan.Upload` explains the keys."""

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
    """What `rocm.toml` says."""

    order: tuple[Way, ...] = Field(min_length=1)
    orders: dict[str, tuple[Way, ...]] = Field(default_factory=dict)
    require_successful: bool = True
    runs: dict[str, ArtifactRuns]

    def of(self, release_type: str) -> ArtifactRuns:
        """Say whose runs have artifacts of a release type."""
        if release_type not in self.runs:
            raise UsageError(
                f"No runs have artifacts of release type {release_type!r}. {nearest(release_type, self.runs)}"
            )
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
    promotion: dict[str, Any] = Field(default_factory=dict)  # what `ci.promote.facts` reads over its own

    def matrix_of(self, release_type: str, *, named_pythons: bool = False) -> Matrix:
        """Give the matrix of a release type, with every exclusion that holds for it."""
        chosen = self.matrix.ci if release_type == "ci" else self.matrix.release
        every = (*self.matrix.ci.exclude, *self.matrix.release.exclude)
        # what does not exist yet does not exist for anybody
        return chosen.model_copy(
            update={
                "exclude": tuple(
                    row for row in every if not row.pythons or (row in chosen.exclude and not named_pythons)
                )
            }
        )


def load(own: Path | None = None) -> Data:
    """Read the data, with a user's own file over it."""
    tables: dict[str, Any] = {
        "triggers": read_toml(TRIGGERS_FILE),
        "families": read_toml(FAMILIES_FILE),
        "runners": read_toml(RUNNERS_FILE),
        "matrix": read_toml(MATRIX_FILE),
        "rocm": read_toml(ROCM_FILE),
    }
    if own is None:
        return validated(tables, Data, where=FOLDER)
    if not own.is_file():
        raise MissingInputError(f"{own} is not there.", hint="Correct CI_CONFIG, or --config.")
    return validated(merged(tables, read_toml(own)), Data, where=own)


def own_file(given: Path | None, root: Path, env: Mapping[str, str]) -> Path | None:
    """Say which file of a user's own is meant: the option's, or the variable ``CI_CONFIG``'s."""
    named = given or env.get(CONFIG)
    return root / named if named else None
