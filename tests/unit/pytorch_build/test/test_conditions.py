from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import DataError
from pytorch_build.test.skip_rules import Rule, RuleTable, UnderTest, decide, planned, unmet

TODAY = dt.date(2026, 11, 21)
HERE = UnderTest(
    gpu_targets=("gfx942",),
    platform="linux",
    python="3.12.4",
    torch="2.10.1+rocm7.1",
    torch_ref="release/2.10",
)


def rule(key: str = "one", **table: Any) -> Rule:
    table = {"tests": ["test/a.py::test_x"], "reason": "It fails.", **table}
    return Rule(file=Path("mine.toml"), key=key, table=RuleTable.model_validate(table))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, ""),
        ({"gpu": ["any"]}, ""),
        ({"gpu": ["gfx942"]}, ""),
        ({"gpu": ["gfx950", "gfx94X-dcgpu"]}, ""),
        ({"gpu": ["gfx950"]}, "it is for gfx950, and this is gfx942"),
        ({"gpu": ["cpu"]}, "it is for cpu, and this is gfx942"),
        ({"os": ["windows"]}, "it is for windows, and this is linux"),
        ({"python": ">=3.12,<3.13"}, ""),
        ({"python": ">=3.13"}, "it is for Python >=3.13, and this is 3.12.4"),
        ({"torch": ">=2.9,<2.11"}, ""),
        ({"torch": "==2.10.1"}, ""),
        ({"torch": ">=2.11"}, "it is for torch >=2.11, and this is 2.10.1+rocm7.1"),
        ({"torch_ref": ["release/*"]}, ""),
        ({"torch_ref": ["nightly"]}, "it is for the torch ref nightly, and this is release/2.10"),
        ({"config": ["default", "inductor"]}, ""),
        ({"config": ["distributed"]}, "it is for the configuration distributed, and this is default"),
    ],
)
def test_each_condition_holds_or_says_why_not(table: dict[str, Any], said: str) -> None:
    assert unmet(rule(**table), HERE) == ((said,) if said else ())


def test_all_conditions_must_hold_and_each_that_does_not_is_told() -> None:
    assert len(unmet(rule(gpu=["gfx950"], os=["windows"], python="<3"), HERE)) == 3
    assert len(unmet(rule(gpu=["any"], os=["windows"], python=">3"), HERE)) == 1


def test_on_the_processor_alone_a_rule_for_gpus_does_not_apply() -> None:
    cpu = replace(HERE, gpu_targets=())
    assert unmet(rule(gpu=["any"]), cpu) == ("it is for any GPU, and this is cpu",)
    assert unmet(rule(gpu=["cpu"]), cpu) == ()
    assert unmet(rule(), cpu) == ()


def test_a_rule_for_one_target_holds_for_wheels_of_its_family() -> None:
    family = replace(HERE, gpu_targets=("gfx940", "gfx941", "gfx942"))
    assert unmet(rule(gpu=["gfx942"]), family) == ()


@pytest.mark.parametrize("torch", ["2.11.0a0+git12", "2.11.0.dev20261101+rocm7.1", "2.11.0rc2", "2.11.0"])
def test_what_comes_before_a_release_counts_as_the_release(torch: str) -> None:
    before, at = rule(torch="<2.11"), rule(torch=">=2.11,<2.12")
    here = replace(HERE, torch=torch)
    assert unmet(before, here)
    assert unmet(at, here) == ()


def test_a_wheel_of_no_ref_meets_no_condition_on_the_ref() -> None:
    assert unmet(rule(torch_ref=["nightly"]), replace(HERE, torch_ref="")) == (
        "it is for the torch ref nightly, and this is none of ours",
    )


def test_the_last_day_is_a_day_on_which_the_rule_holds() -> None:
    rules = [rule(expires=TODAY)]
    assert not decide(rules, HERE, TODAY)[0].expired
    assert decide(rules, HERE, TODAY + dt.timedelta(days=1))[0].expired


def test_an_expired_rule_that_applies_is_an_error() -> None:
    old = rule("old", expires=dt.date(2026, 1, 31))
    with pytest.raises(DataError, match=r"mine\.toml: mine\.old expired on 2026-01-31: It fails\."):
        planned([rule(), old], HERE, TODAY)
    elsewhere = rule("old", expires=dt.date(2026, 1, 31), os=["windows"])
    assert [one.name for one in planned([rule(), elsewhere], HERE, TODAY)] == ["mine.one"]


def test_the_plan_holds_what_applies_in_order_with_patterns_as_expressions() -> None:
    rules = [
        rule("a", patterns=["TestA::*"], issue="ROCm/TheRock#2070"),
        rule("b", os=["windows"]),
        rule("c", action="retry", issue="ROCm/TheRock#1"),
        rule("d", action="retry", retries=4, expires=dt.date(2099, 1, 31)),
    ]
    first, third, fourth = planned(rules, HERE, TODAY)
    assert (first.name, first.reason) == ("mine.a", "It fails. (ROCm/TheRock#2070)")
    assert first.tests == ("test/a.py::test_x",)
    assert first.patterns == (r"[^:]+::(?:[^:\[]+::)*TestA::[^:\[]+(?:::[^:\[]+)*(?:\[.*)?",)
    assert (first.retries, third.retries, fourth.retries) == (0, 2, 4)
