"""What the labels of a pull request ask for.

Labels that begin with ``build:``, ``ci:``, ``test:``, ``test_filter:``, ``test_runner:`` or ``gfx`` are
CI's, in any case of letters; one of these that is not known is an error, others are somebody else's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar, get_args

from ci.plan.data import TestType
from ci.plan.families import named_family
from core.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ci.plan.data import Data

BUILD_PYTORCH = "build:pytorch"
SKIP = "ci:skip"
ALL_FAMILIES = "ci:run-all-archs"
_OURS = ("build:", "ci:", "test:", "test_filter:", "test_runner:", "gfx")
_ALIKE = 0.8
_Value = TypeVar("_Value", bound=str)


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What the labels come to."""

    skip: bool = False
    all_families: bool = False
    build_pytorch: bool = False
    families: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    tests: tuple[str, ...] = ()
    test_filter: TestType | None = None
    kernel: str = ""
    notes: tuple[str, ...] = ()

    @property
    def asks(self) -> str:
        """The label that asks for something to be built, whatever has changed; "" for none."""
        for wanted, label in ((self.build_pytorch, BUILD_PYTORCH), (self.all_families, ALL_FAMILIES)):
            if wanted:
                return label
        named = [*self.families.values(), *self.variants.values(), *(f"test:{name}" for name in self.tests)]
        return named[0] if named else ""


def read_labels(labels: Iterable[str], data: Data) -> Labels:
    """Read the labels."""
    given = sorted({label.lower(): label for label in labels})
    known = _known(data)
    variants = {one.label: name for name, one in data.families.variants.items() if one.label}
    ours = [label for label in given if label.startswith(_OURS)]
    families: dict[str, str] = {}
    for label in ours:
        if label.startswith("gfx"):
            families.setdefault(named_family(label, data.families, what="label"), label)
        elif label not in known:
            raise UsageError(f"The label {label!r} is not known. {nearest(label, known)}")
    return Labels(
        skip=SKIP in ours,
        all_families=ALL_FAMILIES in ours,
        build_pytorch=BUILD_PYTORCH in ours,
        families=families,
        variants={variants[label]: label for label in ours if label in variants},
        tests=tuple(name for name in data.triggers.tests if f"test:{name}" in ours),
        test_filter=_one(ours, "test_filter:", get_args(TestType)),
        kernel=_one(ours, "test_runner:", sorted(kernels(data))) or "",
        notes=tuple(_doubtful(label, known) for label in given if _doubtful(label, known)),
    )


def known_labels(data: Data) -> Sequence[str]:
    """List every label that CI knows, those of families last."""
    families = sorted({name.partition("-")[0].lower() for name in data.families.families if name != "cpu"})
    return [*_known(data), *families]


def kernels(data: Data) -> set[str]:
    """Name the kernels that some machine has."""
    runners = data.runners.families.values()
    return {kernel for platforms in runners for one in platforms.values() for kernel in one.kernels}


def _known(data: Data) -> Sequence[str]:
    return [
        *(BUILD_PYTORCH, SKIP, ALL_FAMILIES),
        *(one.label for one in data.families.variants.values() if one.label),
        *(f"test:{name}" for name in data.triggers.tests),
        *(f"test_filter:{name}" for name in get_args(TestType)),
        *(f"test_runner:{name}" for name in sorted(kernels(data))),
    ]


def _one(ours: Sequence[str], prefix: str, values: Sequence[_Value]) -> _Value | None:
    found = [value for value in values if f"{prefix}{value}" in ours]
    if len(found) > 1:
        named = " and ".join(f"{prefix}{value}" for value in found)
        raise UsageError(f"The labels {named} contradict each other.", hint="Leave one of them.")
    return found[0] if found else None


def _doubtful(label: str, known: Sequence[str]) -> str:
    """Say that somebody else's label looks like one of ours."""
    if label.startswith(_OURS):
        return ""
    squeezed = "".join(letter for letter in label if not letter.isspace())
    close = get_close_matches(squeezed, known, n=1, cutoff=_ALIKE)
    return f"the label {label!r} means nothing to CI; {close[0]!r} would" if close else ""
