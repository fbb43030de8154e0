"""Which skip rules apply to what is tested: pure, decided in the tool's process."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from core.errors import DataError
from core.families import CPU, gpu_targets
from pytorch_build.test.ids import Pattern
from pytorch_build.test.plugin import PlannedRule
from pytorch_build.test.skip_rules import ANY_GPU

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from pytorch_build.test.skip_rules import Rule

RETRIES = 2


@dataclass(frozen=True, kw_only=True)
class UnderTest:
    """What is tested, as far as rules ask."""

    gpu_targets: tuple[str, ...]
    platform: str
    python: str
    torch: str
    torch_ref: str = ""
    config: str = "default"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a rule applies."""

    rule: Rule
    unmet: tuple[str, ...]
    expired: bool

    @property
    def applies(self) -> bool:
        """Whether every condition holds."""
        return not self.unmet


def decide(rules: Sequence[Rule], tested: UnderTest, today: dt.date) -> Sequence[Decision]:
    """Decide about every rule."""
    return [Decision(rule=rule, unmet=unmet(rule, tested), expired=expired(rule, today)) for rule in rules]


def expired(rule: Rule, today: dt.date) -> bool:
    """Whether a rule's last day has passed."""
    return rule.table.expires is not None and rule.table.expires < today


def unmet(rule: Rule, tested: UnderTest) -> tuple[str, ...]:
    """Say which of a rule's conditions do not hold, a sentence each."""
    table = rule.table
    found = []
    if table.gpu and not _gpu_holds(table.gpu, tested.gpu_targets):
        gpus = ["any GPU" if name == ANY_GPU else name for name in table.gpu]
        found.append(f"it is for {_listed(gpus)}, and this is {_listed(tested.gpu_targets) or CPU}")
    if table.os and tested.platform not in table.os:
        found.append(f"it is for {_listed(table.os)}, and this is {tested.platform}")
    if table.python and not _contains(table.python, tested.python):
        found.append(f"it is for Python {table.python}, and this is {tested.python}")
    if table.torch and not _contains(table.torch, tested.torch):
        found.append(f"it is for torch {table.torch}, and this is {tested.torch}")
    if table.torch_ref and not any(fnmatchcase(tested.torch_ref, one) for one in table.torch_ref):
        found.append(f"it is for the torch ref {_listed(table.torch_ref)}, and this is {_ref(tested)}")
    if table.config and tested.config not in table.config:
        found.append(f"it is for the configuration {_listed(table.config)}, and this is {tested.config}")
    return tuple(found)


def _ref(tested: UnderTest) -> str:
    return tested.torch_ref or "none of ours"


def _gpu_holds(names: Sequence[str], targets: Sequence[str]) -> bool:
    """One target in common is enough: a rule for gfx942 holds for a family that has it."""
    for name in names:
        if name == ANY_GPU and targets:
            return True
        if name == CPU and not targets:
            return True
        if name != ANY_GPU and set(gpu_targets(name)) & set(targets):
            return True
    return False


def _contains(specifier: str, version: str) -> bool:
    """Compare releases: a nightly or a candidate of 2.10 has what 2.10 will have."""
    return SpecifierSet(specifier).contains(Version(Version(version).base_version))


def _listed(words: Sequence[str]) -> str:
    return " or ".join(words)


def planned(rules: Sequence[Rule], tested: UnderTest, today: dt.date) -> tuple[PlannedRule, ...]:
    """Give the rules that apply, as the plugin takes them."""
    applying = [one for one in decide(rules, tested, today) if one.applies]
    refuse_expired([one.rule for one in applying if one.expired])
    return tuple(planned_rule(one.rule) for one in applying)


def planned_rule(rule: Rule) -> PlannedRule:
    """Give a rule as the plugin takes it, whatever its conditions say."""
    table = rule.table
    issue = f" ({table.issue})" if table.issue else ""
    return PlannedRule(
        name=rule.name,
        action=table.action,
        reason=f"{table.reason}{issue}",
        retries=(table.retries or RETRIES) if table.action == "retry" else 0,
        tests=table.tests,
        patterns=tuple(Pattern.parse(one).regex for one in table.patterns),
    )


def refuse_expired(rules: Sequence[Rule]) -> None:
    """Refuse rules whose last day has passed."""
    if rules:
        lines = [
            f"{one.file}: {one.name} expired on {one.table.expires}: {one.table.reason}" for one in rules
        ]
        raise DataError(
            "\n".join(lines),
            hint="See whether its tests pass now (nox -s skips -- check --try), then remove it "
            "(nox -s skips -- prune) or give it a reason to stay and a later day.",
        )
