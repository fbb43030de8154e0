import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import DataError, MissingInputError, UsageError
from pytorch_build.test import skip_rules
from pytorch_build.test.skip_rules import Rule, RuleTable, UnderTest, decide, planned, unmet
from pytorch_build.test.target.wheel_test_index import Index

UNARY = "test/test_unary_ufuncs.py::TestUnaryUfuncsCUDA"
RULE = '[rules.one]\ntests = ["test/a.py::test_x"]\nreason = "It fails on a full moon."\n'


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "mine.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_the_embedded_rules_are_valid_and_say_what_goes_wrong() -> None:
    rules = skip_rules.load()
    assert len(rules) > 70
    assert all(len(rule.table.reason) > 20 for rule in rules)
    assert {rule.name for rule in rules} >= {"cuda.mempool-extensions", "windows.hangs", "ufuncs.complex-pow"}


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("test/test_cuda.py::TestMemPool::test_mempool_with_allocator", "cuda.mempool-extensions"),
        (
            f"{UNARY}::test_reference_numerics_small__refs_special_spherical_bessel_j0_cuda_int8",
            "ufuncs.spherical-bessel",
        ),
        ("test/test_nn.py::TestNN::test_Conv2d_dilated_cuda", "windows.convolutions"),
        ("test/test_torch.py::TestTorch::test_print", "nn.print"),
        ("test/test_jit.py::TestScript::test_print", ""),  # of the same name, and fine
        ("test/test_torch.py::TestTorch::test_printing", ""),
    ],
)
def test_the_embedded_rules_take_what_they_mean_and_no_more(test: str, name: str) -> None:
    assert [rule.name for rule in skip_rules.load() if Index([test]).taken([rule.planned()])] == (
        [name] if name else []
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('raeson = "x y"', "rules.one.raeson: unknown key. Did you mean 'reason'?"),
        (
            'gpu = ["gfx94X-dgpu"]',
            "rules.one.gpu[0]: Unknown GPU family 'gfx94X-dgpu'. Did you mean 'gfx94X-dcgpu'?",
        ),
        ('python = "3.11"', "rules.one.python: '3.11' is not a version specifier"),
        ('torch = ">=2.x"', "rules.one.torch: '>=2.x' is not a version specifier"),
        ('issue = "2070"', "rules.one.issue: '2070' is not a link"),
        ("retries = 2", "rules.one: 'retries' is for action"),
        ('action = "retry"', "rules.one: a test that is retried must not be forgotten"),
        ('patterns = ["test_x"]', "rules.one.patterns[0]: 'test_x' could be anywhere: write ::test_x"),
        ('patterns = ["TestA::*", "TestA::*"]', "rules.one: 'TestA::*' is there twice."),
        ('config = ["inductors"]', "rules.one.config[0]: "),
    ],
)
def test_what_is_wrong_is_named_with_its_key_path(file: Callable[..., Path], line: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        skip_rules.load([file(RULE + line + "\n")])
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[rules.one]\ntests = ["test/a.py::test_x"]\n', ["rules.one.reason: this key is missing"]),
        (
            '[rules.one]\ntests = ["test/a.py::test_x"]\nreason = "broken"\n',
            ["rules.one.reason: the reason must say what goes wrong"],
        ),
        ('[rules.one]\nreason = "It fails on a full moon."\n', ["rules.one: the rule names no test"]),
        # every problem of a file at once
        (
            '[rules.one]\ntests = ["test_x"]\nissue = "x"\n',
            ["rules.one.tests[0]", "rules.one.issue", "rules.one.reason"],
        ),
        ("[rules]\n", ["rules"]),
    ],
)
def test_a_file_without_what_rules_need_fails(file: Callable[..., Path], text: str, said: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        skip_rules.load([file(text)])
    assert all(words in caught.value.message for words in said)


def test_two_files_cannot_give_one_name(file: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    first, second = file(RULE), file(RULE, "more/mine.toml")
    with pytest.raises(UsageError, match=r"Skip rule mine\.one is in .* and in "):
        skip_rules.load([first, second])


def test_a_folder_without_rules_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="holds no skip rules"):
        skip_rules.load([tmp_path])
    with pytest.raises(MissingInputError, match="cannot be read"):
        skip_rules.load([tmp_path / "absent.toml"])


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
    ("table", "here", "said"),
    [
        ({}, {}, ""),
        ({}, {"gpu_targets": ()}, ""),
        ({"gpu": ["any"]}, {}, ""),
        ({"gpu": ["any"]}, {"gpu_targets": ()}, "any GPU, and this is cpu"),
        ({"gpu": ["cpu"]}, {"gpu_targets": ()}, ""),
        ({"gpu": ["cpu"]}, {"gpu_targets": ("gfx1", "gfx2")}, "cpu, and this is gfx1 or gfx2"),
        # a rule for one target holds for wheels of its family
        ({"gpu": ["gfx942"]}, {"gpu_targets": ("gfx940", "gfx941", "gfx942")}, ""),
        ({"gpu": ["gfx942"]}, {}, ""),
        ({"gpu": ["gfx950", "gfx94X-dcgpu"]}, {}, ""),
        ({"gpu": ["gfx950"]}, {}, "gfx950, and this is gfx942"),
        ({"gpu": ["cpu", "gfx950"]}, {}, "cpu or gfx950, and this is gfx942"),
        ({"os": ["windows"]}, {}, "windows, and this is linux"),
        ({"python": ">=3.12,<3.13"}, {}, ""),
        ({"python": ">=3.13"}, {}, "Python >=3.13, and this is 3.12.4"),
        ({"torch": ">=2.9,<2.11"}, {}, ""),
        ({"torch": "==2.10.1"}, {}, ""),
        ({"torch": ">=2.11"}, {}, "torch >=2.11, and this is 2.10.1+rocm7.1"),
        ({"torch_ref": ["release/*"]}, {}, ""),
        ({"torch_ref": ["nightly", "a/*"]}, {}, "the torch ref nightly or a/*, and this is release/2.10"),
        ({"torch_ref": ["nightly"]}, {"torch_ref": ""}, "the torch ref nightly, and this is none of ours"),
        ({"config": ["default", "inductor"]}, {}, ""),
        ({"config": ["inductor"]}, {}, "the configuration inductor, and this is default"),
    ],
)
def test_each_condition_holds_or_says_why_not(table: dict[str, Any], here: dict[str, Any], said: str) -> None:
    assert unmet(rule(**table), replace(HERE, **here)) == ((f"it is for {said}",) if said else ())


@pytest.mark.parametrize("torch", ["2.11.0a0+git12", "2.11.0.dev20261101+rocm7.1", "2.11.0rc2", "2.11.0"])
def test_what_comes_before_a_release_counts_as_the_release(torch: str) -> None:
    here = replace(HERE, torch=torch)
    assert unmet(rule(torch="<2.11"), here)
    assert unmet(rule(torch=">=2.11,<2.12"), here) == ()
    # each condition that does not hold is told
    assert len(unmet(rule(gpu=["gfx950"], os=["windows"], python="<3"), here)) == 3


def test_an_expired_rule_that_applies_is_an_error() -> None:
    # on the last day it holds
    assert not decide([rule(expires=TODAY)], HERE, TODAY)[0].expired
    assert decide([rule(expires=TODAY)], HERE, TODAY + dt.timedelta(days=1))[0].expired
    old = rule("old", expires=dt.date(2026, 1, 31))
    lines = r"mine\.toml: mine\.old expired on 2026-01-31: It fails\.\n" * 2
    with pytest.raises(
        DataError, match=f"^{lines}See whether its tests pass now .*, then remove it \\(nox .* later day\\.$"
    ):
        planned([rule(), old, old], HERE, TODAY)
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
    assert fourth.reason == "It fails."
    assert first.tests == ("test/a.py::test_x",)
    assert first.patterns == {"TestA::*": r"[^:]+::(?:[^:\[]+::)*TestA::[^:\[]+(?:::[^:\[]+)*(?:\[.*)?"}
    assert (first.retries, third.retries, fourth.retries) == (0, 2, 4)
