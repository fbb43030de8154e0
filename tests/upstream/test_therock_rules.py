"""What this project copies from TheRock is still what TheRock does.

TheRock's own functions run in a process of their own, on inputs that ours are given, too.
"""

from fnmatch import fnmatchcase

import pytest

from tests.kit.therock.checkout import TheRock
from tests.kit.therock.comparison import Difference, Intended, Rule, differences_of
from tests.kit.therock.rules import INTENDED, RULES, unintended_differences


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_still_upstreams(therock: TheRock, rule: Rule) -> None:
    assert [*map(str, unintended_differences(rule, therock))] == []


@pytest.mark.parametrize("intended", INTENDED, ids=lambda intended: f"{intended.rule}, {intended.key}")
def test_an_intended_difference_is_still_there(therock: TheRock, intended: Intended) -> None:
    differences: list[Difference] = []
    for rule in RULES:
        if fnmatchcase(rule.name, intended.rule):
            differences += differences_of(rule, therock)

    assert intended.idle_globs(differences) == [], f"remove it from INTENDED: {intended.reason}"
