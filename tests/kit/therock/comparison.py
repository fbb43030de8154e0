"""A rule that TheRock and this project both have, and where the two differ."""

import fnmatch
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from tests.kit.therock.checkout import TheRock

Values: TypeAlias = str | Collection[str]
Facts: TypeAlias = Mapping[str, Values]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What TheRock says and what this project says, by the same keys."""

    upstream: Facts
    downstream: Facts


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of TheRock's, in a file of its tree, that a file of ours copies."""

    name: str
    upstream: str
    downstream: str
    compare: Callable[[TheRock], Comparison]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A key for which one of the two says something that the other does not."""

    rule: Rule
    key: str
    only_upstream: Sequence[str]
    only_downstream: Sequence[str]

    def __str__(self) -> str:
        return (
            f"{self.rule.name}, {self.key}: "
            f"{self.rule.upstream} of TheRock alone has {list(self.only_upstream)}, "
            f"{self.rule.downstream} here alone has {list(self.only_downstream)}"
        )


@dataclass(frozen=True, kw_only=True)
class Intended:
    """Differences that are meant; keys and values are globs, and other values are differences still."""

    rule: str
    key: str
    upstream: Sequence[str] = ()
    downstream: Sequence[str] = ()
    reason: str

    def covers(self, difference: Difference) -> bool:
        """Return whether a difference is meant."""
        if not fnmatch.fnmatchcase(difference.rule.name, self.rule):
            return False
        if not fnmatch.fnmatchcase(difference.key, self.key):
            return False
        are_upstream = all_match(difference.only_upstream, self.upstream)
        return are_upstream and all_match(difference.only_downstream, self.downstream)

    def idle_globs(self, differences: Sequence[Difference]) -> Sequence[str]:
        """Return the globs that none of the differences needs."""
        idle: set[str] = {*self.upstream, *self.downstream}
        for difference in filter(self.covers, differences):
            for text in (*difference.only_upstream, *difference.only_downstream):
                idle -= {glob for glob in idle if fnmatch.fnmatchcase(text, glob)}
        return sorted(idle)


def all_match(texts: Sequence[str], globs: Sequence[str]) -> bool:
    """Return whether each text matches one of the globs."""
    strangers = {*texts}
    for glob in globs:
        strangers -= {*fnmatch.filter(strangers, glob)}
    return not strangers


@cache
def differences_of(rule: Rule, therock: TheRock) -> Sequence[Difference]:
    """Return where TheRock and this project differ in a rule. Either saying nothing is an error."""
    comparison = rule.compare(therock)
    require_facts(comparison.upstream, f"{rule.upstream} of TheRock says nothing of {rule.name}")
    require_facts(comparison.downstream, f"{rule.downstream} says nothing of {rule.name}")

    differences: list[Difference] = []
    for key in sorted({*comparison.upstream, *comparison.downstream}):
        upstream = values_of(comparison.upstream, key)
        downstream = values_of(comparison.downstream, key)
        if upstream != downstream:
            difference = Difference(
                rule=rule,
                key=key,
                only_upstream=sorted(upstream - downstream),
                only_downstream=sorted(downstream - upstream),
            )
            differences.append(difference)
    return differences


def require_facts(facts: Facts, problem: str) -> None:
    """Refuse facts that say nothing: a comparison with nothing would find no difference."""
    assert any(values_of(facts, key) for key in facts), problem


def values_of(facts: Facts, key: str) -> set[str]:
    """Return what facts say of a key; an empty text says nothing."""
    values = facts.get(key, ())
    return {*([values] if isinstance(values, str) else values)} - {""}
