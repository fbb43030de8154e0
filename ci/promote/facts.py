"""What a promotion is decided on: plain values, gathered by `ci.promote.gathering`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from core.cli.options import RELEASE_TYPES
from core.data import Model, merged, read_toml, validated
from core.errors import nearest
from core.families import families
from core.run.outputs import Platform  # noqa: TC001 - pydantic reads it
from pytorch_build.lock.versions import python_tag
from rocm_packaging.packages.layouts import BOOTSTRAP, is_rocm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ci.plan.data import Runners
    from ci.promote.documents import Document, Evidence, StagedFile

GATES_FILE = Path(__file__).with_name("gates.toml")


class Gate(Model):
    """The stages whose tests must have passed."""

    rocm: tuple[str, ...]
    pytorch: tuple[str, ...]
    where_run: tuple[str, ...] = ()


class Required(Model):
    """A stage that PyTorch's wheels of some cells must have passed besides; what is empty stands for all."""

    stage: str
    families: tuple[str, ...] = ()
    platforms: tuple[Platform, ...] = ()
    pythons: tuple[str, ...] = ()
    torch_refs: tuple[str, ...] = ()
    release_types: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name, given, known in (
            ("families", self.families, families()),
            ("release_types", self.release_types, RELEASE_TYPES),
        ):
            for one in given:
                if one not in known:
                    raise ValueError(f"{name}: {one!r} is not known. {nearest(one, known)}")
        for one in self.pythons:
            python_tag(one)
        return self

    def concerns(self, wheel: Wheel, release_type: str) -> bool:
        """Say whether a wheel of PyTorch's must have passed it."""
        tags = [python_tag(one).abi for one in self.pythons]
        return all(
            not given or one in given
            for given, one in (
                (self.families, wheel.cell.family),
                (self.platforms, wheel.cell.platform),
                (tags, wheel.cell.python),
                (self.torch_refs, wheel.file.torch_ref),
                (self.release_types, release_type),
            )
        )


class Gates(Model):
    """What `gates.toml` says: for all families, for some, and for some cells."""

    gates: Gate
    families: dict[str, Gate] = {}  # noqa: RUF012 - pydantic copies it
    required: tuple[Required, ...] = ()

    def of(self, family: str) -> Gate:
        """Give a family's gates."""
        return self.families.get(family, self.gates)

    def stages(self, wheel: Wheel, release_type: str) -> tuple[str, ...]:
        """Give the stages that a wheel must have passed."""
        gate = self.of(wheel.cell.family)
        if wheel.is_rocm and wheel.file.distribution != BOOTSTRAP:  # which PyTorch's wheels alone bring
            return gate.rocm
        more = (one.stage for one in self.required if one.concerns(wheel, release_type))
        return tuple(dict.fromkeys((*gate.pytorch, *more)))

    def heeded(self, wheel: Wheel) -> tuple[str, ...]:
        """Give the stages whose failure counts, where they have run."""
        return () if wheel.is_rocm else self.of(wheel.cell.family).where_run


def gates(own: Mapping[str, Any] | None = None) -> Gates:
    """Read the data file, with a downstream's own tables over it."""
    return validated(merged(read_toml(GATES_FILE), own or {}), Gates, where=GATES_FILE)


@dataclass(frozen=True, kw_only=True, order=True)
class Cell:
    """A part of a set that is tested together."""

    family: str
    platform: str
    python: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.family, self.platform, self.python) if part)


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel or sdist of the set, as it was staged and as it is found now."""

    cell: Cell
    file: StagedFile
    found: str
    sidecar: str
    built: frozenset[str]
    requires: tuple[str, ...] = ()

    @property
    def is_rocm(self) -> bool:
        """Whether it is one of ROCm's own packages."""
        return is_rocm(self.file.distribution)


@dataclass(frozen=True, kw_only=True)
class Test:
    """A test's record, read."""

    __test__ = False  # pytest takes the name for a test's

    cell: Cell
    torch_ref: str
    outcome: str
    why: str
    files: Mapping[str, str]
    targets: tuple[str, ...] = ()
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class FailedBuild:
    """A build of the set's that failed after its last success, or never had one."""

    cell: Cell
    stage: str
    error: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the decision on a set follows from."""

    set_name: str
    wheels: tuple[Wheel, ...]
    tests: tuple[Test, ...] = ()
    failed_builds: tuple[FailedBuild, ...] = ()
    promised: Mapping[Cell, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    commits: Mapping[Cell, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    released: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=lambda: MappingProxyType({}))
    staging: tuple[Document, ...] = ()
    troubles: tuple[tuple[Cell, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The data that decides: who can be tested, by what, and what for."""

    runners: Runners
    gates: Gates
    release_type: str = ""
