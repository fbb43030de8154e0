"""Whether a set is promoted: a pure function from facts to a verdict, every reason at once.

In this order, whatever the override: nothing that is missing, changed, mixed, the sample's (but in a
rehearsal), or whose build failed. Then, cell by cell: tests that passed on the staged bytes; else, where the
family has no runner and its data excuses that, none that failed; else an override.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import AfterValidator

from ci.promote.documents import Cell, Evidence, Override, Rule, Ruling
from ci.promote.facts import Facts, Reason, Wheel, first_line
from ci.promote.runs import Test, is_sample
from ci.publish.buckets import buckets, takes_samples
from core.cli.options import RELEASE_TYPES
from core.data import Model, data_file
from core.errors import nearest
from core.families import FamilyName  # noqa: TC001 - pydantic reads it
from core.run import Platform
from pytorch_build.lock.versions import python_tag
from rocm_packaging.packages.layouts import BOOTSTRAP, covers, device_target, is_rocm

if TYPE_CHECKING:
    from ci.plan.data import Runners

STAGES = ("test_rocm", "test_smoke", "test_torch", "test_torch_inductor", "test_torch_distributed")
_PART = re.compile(r"-\d+-of-\d+\Z")
_EXTRA = re.compile(r"""extra *== *["']([^"']+)["']""")
_ENVIRONMENTS = {
    "linux": {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"},
    "windows": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"},
}


def _one_of(name: str, known: Collection[str]) -> str:
    if name not in known:
        raise ValueError(f"{name!r} is not known. {nearest(name, known)}")
    return name


Stage = Annotated[str, AfterValidator(lambda name: _one_of(name, STAGES))]
ReleaseType = Annotated[str, AfterValidator(lambda name: _one_of(name, RELEASE_TYPES))]
Python = Annotated[str, AfterValidator(lambda text: python_tag(text) and text)]


class Gate(Model):
    """The stages whose tests must have passed."""

    rocm: tuple[Stage, ...]
    pytorch: tuple[Stage, ...]
    where_run: tuple[Stage, ...] = ()


class Required(Model):
    """A stage that PyTorch's wheels of some cells must have passed besides; what is empty stands for all."""

    stage: Stage
    families: tuple[FamilyName, ...] = ()
    platforms: tuple[Platform, ...] = ()
    pythons: tuple[Python, ...] = ()
    torch_refs: tuple[str, ...] = ()
    release_types: tuple[ReleaseType, ...] = ()

    def concerns(self, wheel: Wheel, release_type: str) -> bool:
        """Return whether a wheel of PyTorch's must have passed it."""
        cell, tags = wheel.cell, [python_tag(one) for one in self.pythons]
        given = (self.families, self.platforms, tags, self.torch_refs, self.release_types)
        found = (cell.family, cell.platform, cell.python, wheel.file.torch_ref, release_type)
        return all(not some or one in some for some, one in zip(given, found, strict=True))


class Gates(Model):
    """The contents of `gates.toml`: for all families, for some, and for some cells."""

    gates: Gate
    families: dict[FamilyName, Gate] = {}  # noqa: RUF012 - pydantic copies it
    required: tuple[Required, ...] = ()

    def of(self, wheel: Wheel) -> Gate:
        """Return the gates of a wheel's family."""
        return self.families.get(wheel.cell.family, self.gates)

    def stages(self, wheel: Wheel, release_type: str) -> tuple[str, ...]:
        """Return the stages that a wheel must have passed."""
        gate = self.of(wheel)
        if wheel.is_rocm and wheel.file.distribution != BOOTSTRAP:  # which PyTorch's wheels alone bring
            return gate.rocm
        more = (one.stage for one in self.required if one.concerns(wheel, release_type))
        return tuple(dict.fromkeys((*gate.pytorch, *more)))


gates = data_file(Path(__file__).with_name("gates.toml"), Gates)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The data that decides: who can be tested, by what, and what for."""

    runners: Runners
    gates: Gates
    release_type: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was decided."""

    rulings: tuple[Ruling, ...]
    reasons: tuple[Reason, ...]
    override: Override | None

    @property
    def promote(self) -> bool:
        """Whether the set is released."""
        return not self.reasons


def decide(facts: Facts, rules: Rules, override: Override | None = None) -> Verdict:
    """Decide on a set."""
    samples = takes_samples(buckets(), rules.release_type)
    firm = [*_absent(facts, samples=samples), *_incomplete(facts), *_unsatisfied(facts), *_mixed(facts)]
    firm += facts.troubles
    ruled = [_rule(cell, facts, rules, override) for cell in sorted({wheel.cell for wheel in facts.wheels})]
    rulings = tuple(ruling for ruling, _ in ruled if ruling)
    reasons = dict.fromkeys((*firm, *(reason for _, untested in ruled for reason in untested)))
    return Verdict(
        rulings=rulings,
        reasons=tuple(sorted(reasons, key=lambda one: one.cell)),
        override=override if any(ruling.rule == "override" for ruling in rulings) else None,
    )


def _absent(facts: Facts, *, samples: bool) -> Iterator[Reason]:
    """Find what does not exist as it was staged and built, and what is never published."""
    if not facts.wheels:
        yield Reason(cell=Cell(family="", platform=""), message="Nothing is staged of it.")
    for wheel in facts.wheels:
        file = wheel.file
        if is_sample(file.version) != samples:
            yield _reason(wheel, f"is {'not ' if samples else ''}a wheel of the sample")
        if not wheel.found:
            yield _reason(wheel, "was staged and is gone")
        elif wheel.found != file.sha256:
            yield _reason(wheel, "was replaced after it was staged")
        if file.sha256 not in wheel.built:
            yield _reason(wheel, "is not what the run's records name")
        if file.name.endswith(".whl") and (not wheel.sidecar or wheel.sidecar != file.metadata_sha256):
            what = "was replaced after it was staged" if wheel.sidecar else "is missing"
            yield _reason(wheel, f"has a sidecar that {what}")


def _incomplete(facts: Facts) -> Iterator[Reason]:
    """Find what the source lock promises to a cell and nobody staged."""
    for cell, promised in facts.promised.items():
        staged = {
            (wheel.file.distribution, wheel.file.version)
            for wheel in facts.wheels
            if wheel.cell.place == cell.place and wheel.file.python in {"", cell.python}
        }
        for distribution, version in sorted(promised.items()):
            if (distribution, version) not in staged:
                yield Reason(cell=cell, message=f"{distribution} {version} is not staged")


def _unsatisfied(facts: Facts) -> Iterator[Reason]:
    """Find requirements of the set on packages of ours that no user could satisfy."""
    ours = {wheel.file.distribution for wheel in facts.wheels}
    ours |= {name for promised in facts.promised.values() for name in promised}
    for wheel in facts.wheels:
        family = wheel.cell.family
        there = {
            (one.file.distribution, one.file.version) for one in facts.wheels if one.cell.family == family
        } | facts.released.get(family, frozenset())
        for text in wheel.requires:
            if not _satisfied(text, wheel.cell.platform, there, ours):
                yield _reason(wheel, f"requires {text}, which the index would not have")


def _satisfied(text: str, platform: str, there: set[tuple[str, str]], ours: set[str]) -> bool:
    """Return whether a requirement is met, is a third party's, or is for another platform."""
    try:
        needed = Requirement(text)
    except InvalidRequirement:
        return False
    name, marker = canonicalize_name(needed.name), needed.marker
    if name not in ours and not is_rocm(name) and not device_target(name):
        return True
    extras = {"", *_EXTRA.findall(str(marker))}
    if marker and not any(marker.evaluate({**_ENVIRONMENTS[platform], "extra": one}) for one in extras):
        return True
    return any(name == one and needed.specifier.contains(version, prereleases=True) for one, version in there)


def _mixed(facts: Facts) -> Iterator[Reason]:
    """Find cells that were built from other commits than the first."""
    known: dict[str, tuple[Cell, str]] = {}
    for cell, commits in sorted(facts.commits.items(), key=lambda pair: pair[0]):
        for project, commit in sorted(commits.items()):
            first, other = known.setdefault(project, (cell, commit))
            if other != commit:
                said = f"{project} was built from {commit[:12]}, for {first} from {other[:12]}"
                yield Reason(cell=cell, message=said)


def _rule(
    cell: Cell, facts: Facts, rules: Rules, override: Override | None
) -> tuple[Ruling | None, Sequence[Reason]]:
    """Rule on one cell's tests."""
    evidence: dict[str, Evidence] = {}
    failed: list[str] = []
    untested: list[str] = []
    for wheel in (wheel for wheel in facts.wheels if wheel.cell == cell):
        failed += _failed_where_run(wheel, facts, rules)
        for stage in rules.gates.stages(wheel, rules.release_type):
            tests = [one for one in facts.tests if one.evidence.stage == stage and _concerns(one, wheel)]
            failed += (broken := [_failure(one, cell) for one in tests if one.outcome == "failed"])
            whole = wheel.found == wheel.file.sha256
            passed = [one for one in tests if whole and one.outcome == "passed"]
            sound = [one for one in passed if not _other_bytes(one, wheel, facts)]
            name = wheel.file.name
            proof = [one for one in sound if one.files.get(name) == wheel.found or _beside_tested(one, wheel)]
            evidence |= {one.evidence.record.key: one.evidence for one in proof}
            untested += [] if proof or broken else [_why_untested(stage, wheel, tests, facts)]
    rule: Rule = "tests"
    runner = rules.runners.of(cell.family, cell.platform)
    against = [*dict.fromkeys(failed), *dict.fromkeys(untested)]
    if not failed and untested and not runner.test_runner:
        if runner.bypass_tests_for_releases:
            rule, against = "bypass", []
        else:
            against.append("no machine tests this family, and its data allows no release without")
    reasons = [Reason(cell=cell, message=said, overridable=True) for said in against]
    if reasons and override is None:
        return None, reasons
    ruling = Ruling(
        **asdict(cell),
        rule="override" if reasons else rule,
        evidence=tuple(evidence[key] for key in sorted(evidence)),
        overridden=tuple(one.message for one in reasons),
    )
    return ruling, ()


def _failed_where_run(wheel: Wheel, facts: Facts, rules: Rules) -> Iterator[str]:
    """Find failures of tests that need not have run, a part of them (``test_torch-2-of-6``) included."""
    heeded = () if wheel.is_rocm else rules.gates.of(wheel).where_run
    for one in facts.tests:
        if _PART.sub("", one.evidence.stage) in heeded and one.outcome == "failed" and _concerns(one, wheel):
            yield _failure(one, wheel.cell)


def _concerns(test: Test, wheel: Wheel) -> bool:
    """Return whether a test is about this wheel's part of the set; one that names no file is about all."""
    if test.cell.place != wheel.cell.place:
        return False
    of_ref = wheel.file.torch_ref == test.torch_ref and wheel.file.python in {"", test.cell.python}
    if not (wheel.is_rocm or of_ref):
        return False
    return not (test.files and wheel.is_rocm) or wheel.file.name in test.files or _beside_tested(test, wheel)


def _beside_tested(test: Test, wheel: Wheel) -> bool:
    """Return whether device code goes with that of another target of the family, which was tested.

    A machine has one of a family's targets. Where the code of all is in one wheel, that of the others is
    released with it, too.
    """
    gpu = device_target(wheel.file.distribution)
    if not gpu or wheel.file.name in test.files or not covers(gpu, test.targets):
        return False
    kind, rest = wheel.file.distribution.removesuffix(gpu), wheel.file.name.partition("-")[2]
    return any(
        one.partition("-")[2] == rest and canonicalize_name(one.partition("-")[0]).startswith(kind)
        for one in test.files
    )


def _other_bytes(test: Test, wheel: Wheel, facts: Facts) -> Sequence[str]:
    """List what a test ran on in other bytes than are there: the wheel, or others of the set."""
    beside = (one for one in facts.wheels if one.cell.place == wheel.cell.place)
    return sorted(one.file.name for one in beside if test.files.get(one.file.name, one.found) != one.found)


def _why_untested(stage: str, wheel: Wheel, tests: Sequence[Test], facts: Facts) -> str:
    name = wheel.file.name
    for test in tests:
        if test.outcome == "void":
            return f"{stage} does not count{_under(test, wheel.cell)}: {test.why}"
    if others := [one for test in tests for one in _other_bytes(test, wheel, facts)]:
        return f"{stage} ran on other bytes of {name if name in others else others[0]} than are staged"
    return f"{stage} names no {name}" if tests else f"no {stage} has passed"


def _failure(test: Test, cell: Cell) -> str:
    return f"{test.evidence.stage} failed{_under(test, cell)}: {first_line(test.why)}"


def _under(test: Test, cell: Cell) -> str:
    """Name the Python of a test where the cell does not."""
    return f" under {test.cell.python}" if test.cell.python and not cell.python else ""


def _reason(wheel: Wheel, said: str) -> Reason:
    return Reason(cell=wheel.cell, message=f"{wheel.file.name} {said}")


def by_cell(reasons: Sequence[Reason]) -> Mapping[Cell, Sequence[Reason]]:
    """Group reasons by cell."""
    cells = sorted({one.cell for one in reasons})
    return {cell: [one for one in reasons if one.cell == cell] for cell in cells}
