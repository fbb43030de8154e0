import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import DataError, MissingInputError, UsageError
from pytorch_build.test import skip_rules
from pytorch_build.test.skip_rules import (
    Rule,
    RuleTable,
    TestedTorch,
    apply_rules,
    find_silent_rules,
    unmet_conditions,
)

WriteRules = Callable[..., Path]

RULE = '[rules.moon]\ntests = ["test/a.py::test_x"]\nreason = "It fails on a full moon."\n'


@pytest.fixture
def write_rules(tmp_path: Path) -> WriteRules:
    """Return what writes a file of rules."""

    def write(text: str, name: str = "mine.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_the_projects_rules_say_what_goes_wrong() -> None:
    rules = skip_rules.load_rules()

    assert len(rules) > 70
    assert all(len(rule.table.reason) > 20 for rule in rules)
    assert {"cuda.mempool-extensions", "windows.hangs", "ufuncs.complex-pow"} <= {rule.name for rule in rules}


UNARY_UFUNCS = "test/test_unary_ufuncs.py::TestUnaryUfuncsCUDA"


@pytest.mark.parametrize(
    ("test", "names"),
    [
        ("test/test_cuda.py::TestMemPool::test_mempool_with_allocator", ["cuda.mempool-extensions"]),
        (
            f"{UNARY_UFUNCS}::test_reference_numerics_small__refs_special_spherical_bessel_j0_cuda_int8",
            ["ufuncs.spherical-bessel"],
        ),
        ("test/test_nn.py::TestNN::test_Conv2d_dilated_cuda", ["windows.convolutions"]),
        ("test/test_torch.py::TestTorch::test_print", ["nn.print"]),
        # Of the same name, and fine.
        ("test/test_jit.py::TestScript::test_print", []),
        ("test/test_torch.py::TestTorch::test_printing", []),
    ],
)
def test_the_projects_rules_take_the_tests_that_they_mean(test: str, names: list[str]) -> None:
    assert [rule.name for rule in skip_rules.load_rules() if rule.names_test(test)] == names


@pytest.mark.parametrize(
    ("pattern", "test"),
    [
        ("test/a.py::TestA::test_x", "test/a.py::TestA::test_x"),
        ("test/a.py::test_x[a/b *]", "test/a.py::test_x[a/b 1]"),
        ("test/a.py::TestA::*", "test/a.py::TestA::test_x[a-1]"),
        ("*::TestA::test_x", "test/folder/a.py::TestA::test_x"),
        ("*::test_x[[]*", "test/a.py::test_x[[]]"),
        ("test/*.py::*::test_x", "test/folder/a.py::TestA::TestB::test_x"),
        ("test/a.py::test_x?", "test/a.py::test_x1"),
    ],
)
def test_a_rule_takes_the_tests_of_a_pattern(pattern: str, test: str) -> None:
    assert rule_with(tests=[pattern]).names_test(test)


@pytest.mark.parametrize(
    ("pattern", "test"),
    [
        ("test/a.py::TestA::test_x", "test/a.py::TestA::test_x[a]"),
        ("test/a.py::test_x[ab]", "test/a.py::test_xa"),
        ("test/a.py::TestA::test_x*", "test/a.py::TestA::test_my_x"),
        ("*::TestA::test_x", "test/a.py::MyTestA::test_x"),
        ("test/a.py::test_x", "test/a.py::TEST_X"),
    ],
)
def test_a_rule_takes_no_other_test(pattern: str, test: str) -> None:
    assert not rule_with(tests=[pattern]).names_test(test)


def test_a_rule_is_silent_that_takes_nothing_of_the_files_it_names() -> None:
    silent_rule = rule_with("gone", tests=["test/a.py::test_gone"])
    elsewhere = rule_with("elsewhere", tests=["test/b.py::test_x"])
    anywhere = rule_with("anywhere", tests=["*::TestA::test_gone"])
    rules = [rule_with("here"), silent_rule, elsewhere, anywhere]

    assert find_silent_rules(rules, files={"test/a.py"}, matched={"mine.here"}) == [silent_rule]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        pytest.param('raeson = "x y"', ["rules.moon.raeson", "'reason'"], id="key"),
        pytest.param(
            'gpu = ["gfx94X-dgpu"]', ["rules.moon.gpu[0]", "'gfx94X-dgpu'", "'gfx94X-dcgpu'"], id="family"
        ),
        pytest.param('python = "3.11"', ["rules.moon.python", "'3.11'"], id="Python"),
        pytest.param('torch = ">=2.x"', ["rules.moon.torch", "'>=2.x'"], id="torch"),
        pytest.param('issue = "2070"', ["rules.moon.issue", "'2070'"], id="issue"),
        pytest.param("retries = 2", ["rules.moon", "'retries'"], id="retries of a skip"),
        pytest.param('action = "retry"', ["rules.moon", "retried"], id="retry without an end"),
        pytest.param('patterns = ["*::test_x"]', ["rules.moon.patterns"], id="patterns of their own"),
        pytest.param('config = ["inductors"]', ["rules.moon.config[0]"], id="configuration"),
    ],
)
def test_a_mistake_is_named_with_its_key(write_rules: WriteRules, line: str, names: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        skip_rules.load_rules([write_rules(f"{RULE}{line}\n")])

    for name in names:
        assert name in caught.value.message


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param('[rules.moon]\ntests = ["a.py::x"]\n', ["rules.moon.reason"], id="no reason"),
        pytest.param(
            '[rules.moon]\ntests = ["a.py::x"]\nreason = "broken"\n', ["rules.moon.reason"], id="short reason"
        ),
        pytest.param('[rules.moon]\nreason = "It fails on a full moon."\n', ["rules.moon"], id="no test"),
        pytest.param(
            '[rules.moon]\ntests = ["test_x"]\nissue = "x"\n',
            ["rules.moon.tests[0]", "rules.moon.issue", "rules.moon.reason"],
            id="every mistake at once",
        ),
        pytest.param("[rules]\n", ["rules"], id="no rule"),
        pytest.param(
            '[rules.moon]\ntests = ["TestA::test_x"]\nreason = "It fails."\n',
            ["rules.moon.tests[0]", "*::TestA::test_x"],
            id="no file",
        ),
        pytest.param(
            '[rules.moon]\ntests = ["test/*.py::*"]\nreason = "It fails."\n',
            ["rules.moon.tests[0]", "every test"],
            id="every test",
        ),
        pytest.param(
            '[rules.moon]\ntests = ["a.py::x", "a.py::x"]\nreason = "It fails."\n',
            ["rules.moon", "'a.py::x'"],
            id="test twice",
        ),
    ],
)
def test_a_file_without_what_rules_need_is_refused(
    write_rules: WriteRules, text: str, names: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        skip_rules.load_rules([write_rules(text)])

    for name in names:
        assert name in caught.value.message


def test_two_files_cannot_give_one_name(write_rules: WriteRules) -> None:
    files = [write_rules(RULE), write_rules(RULE, "more/mine.toml")]

    with pytest.raises(UsageError) as caught:
        skip_rules.load_rules(files)

    for name in ("mine.moon", *map(str, files)):
        assert name in caught.value.message


@pytest.mark.parametrize("name", [".", "absent.toml"], ids=["empty folder", "no file"])
def test_a_place_without_rules_is_a_missing_input(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingInputError) as caught:
        skip_rules.load_rules([tmp_path / name])

    assert str(tmp_path / name) in caught.value.message


TODAY = dt.date(2026, 11, 21)
LONG_AGO = dt.date(2026, 1, 31)
HERE = TestedTorch(
    gpu_targets=("gfx942",),
    platform="linux",
    python="3.12.4",
    torch="2.10.1+rocm7.1",
    torch_ref="release/2.10",
)


def rule_with(key: str = "moon", **table: Any) -> Rule:
    """Return a rule for one test, with more keys."""
    table = {"tests": ["test/a.py::test_x"], "reason": "It fails.", **table}
    return Rule(file=Path("mine.toml"), key=key, table=RuleTable.model_validate(table))


@pytest.mark.parametrize(
    ("table", "facts"),
    [
        pytest.param({}, {}, id="no condition"),
        pytest.param({}, {"gpu_targets": ()}, id="no condition and no GPU"),
        pytest.param({"gpu": ["any"]}, {}, id="any GPU"),
        pytest.param({"gpu": ["cpu"]}, {"gpu_targets": ()}, id="no GPU"),
        pytest.param({"gpu": ["gfx942"]}, {}, id="target"),
        # Wheels of a family hold device code for each of its targets.
        pytest.param(
            {"gpu": ["gfx942"]}, {"gpu_targets": ("gfx940", "gfx941", "gfx942")}, id="target of the family"
        ),
        pytest.param({"gpu": ["gfx950", "gfx94X-dcgpu"]}, {}, id="one of two families"),
        pytest.param({"python": ">=3.12,<3.13"}, {}, id="Python"),
        pytest.param({"torch": ">=2.9,<2.11"}, {}, id="torch"),
        pytest.param({"torch": "==2.10.1"}, {}, id="torch whatever its ROCm"),
        pytest.param({"torch_ref": ["release/*"]}, {}, id="torch ref"),
        pytest.param({"config": ["default", "inductor"]}, {}, id="configuration"),
    ],
)
def test_a_rule_applies_where_its_condition_holds(table: dict[str, Any], facts: dict[str, Any]) -> None:
    assert unmet_conditions(rule_with(**table), replace(HERE, **facts)) == ()


@pytest.mark.parametrize(
    ("table", "facts", "names"),
    [
        pytest.param({"gpu": ["any"]}, {"gpu_targets": ()}, ["any GPU", "cpu"], id="any GPU"),
        pytest.param(
            {"gpu": ["cpu"]}, {"gpu_targets": ("gfx1", "gfx2")}, ["cpu", "gfx1 or gfx2"], id="no GPU"
        ),
        pytest.param({"gpu": ["gfx950"]}, {}, ["gfx950", "gfx942"], id="target"),
        pytest.param({"gpu": ["cpu", "gfx950"]}, {}, ["cpu or gfx950", "gfx942"], id="two targets"),
        pytest.param({"os": ["windows"]}, {}, ["windows", "linux"], id="platform"),
        pytest.param({"python": ">=3.13"}, {}, ["Python >=3.13", "3.12.4"], id="Python"),
        pytest.param({"torch": ">=2.11"}, {}, ["torch >=2.11", "2.10.1+rocm7.1"], id="torch"),
        pytest.param(
            {"torch_ref": ["nightly", "a/*"]}, {}, ["nightly or a/*", "release/2.10"], id="torch ref"
        ),
        pytest.param({"torch_ref": ["nightly"]}, {"torch_ref": ""}, ["nightly", "none"], id="no torch ref"),
        pytest.param({"config": ["inductor"]}, {}, ["inductor", "default"], id="configuration"),
    ],
)
def test_a_rule_says_which_condition_does_not_hold(
    table: dict[str, Any], facts: dict[str, Any], names: list[str]
) -> None:
    (reason,) = unmet_conditions(rule_with(**table), replace(HERE, **facts))

    for name in names:
        assert name in reason


def test_a_rule_says_each_condition_that_does_not_hold() -> None:
    assert len(unmet_conditions(rule_with(gpu=["gfx950"], os=["windows"], python="<3"), HERE)) == 3


@pytest.mark.parametrize("torch", ["2.11.0a0+git12", "2.11.0.dev20261101+rocm7.1", "2.11.0rc2", "2.11.0"])
def test_a_version_before_a_release_counts_as_the_release(torch: str) -> None:
    tested = replace(HERE, torch=torch)

    assert unmet_conditions(rule_with(torch="<2.11"), tested)
    assert unmet_conditions(rule_with(torch=">=2.11,<2.12"), tested) == ()


@pytest.mark.parametrize(("days", "is_expired"), [(0, False), (1, True)], ids=["last day", "day after"])
def test_a_rule_holds_on_its_last_day(days: int, *, is_expired: bool) -> None:
    rule = rule_with(expires=TODAY)

    assert rule.is_expired(TODAY + dt.timedelta(days=days)) is is_expired


def test_every_expired_rule_that_applies_is_an_error() -> None:
    rules = [rule_with(), rule_with("old", expires=LONG_AGO), rule_with("older", expires=LONG_AGO)]

    with pytest.raises(DataError) as caught:
        apply_rules(rules, HERE, TODAY)

    first_line, second_line = caught.value.message.splitlines()
    assert "mine.old expired on 2026-01-31: It fails." in first_line
    assert "mine.older expired on 2026-01-31: It fails." in second_line


def test_an_expired_rule_that_does_not_apply_is_left_out() -> None:
    elsewhere = rule_with("old", expires=LONG_AGO, os=["windows"])

    assert [rule.name for rule in apply_rules([rule_with(), elsewhere], HERE, TODAY)] == ["mine.moon"]


def test_a_plan_holds_the_rules_that_apply_in_their_order() -> None:
    rules = [rule_with("a"), rule_with("b", os=["windows"]), rule_with("c")]

    assert [rule.name for rule in apply_rules(rules, HERE, TODAY)] == ["mine.a", "mine.c"]


def test_a_plan_gives_tests_and_reasons() -> None:
    (rule,) = apply_rules([rule_with(issue="ROCm/TheRock#2070")], HERE, TODAY)

    assert rule.reason == "It fails. (ROCm/TheRock#2070)"
    assert rule.tests == ("test/a.py::test_x",)


@pytest.mark.parametrize(
    ("table", "retries"),
    [
        pytest.param({}, 0, id="skip"),
        pytest.param({"action": "retry", "issue": "ROCm/TheRock#1"}, 2, id="retry"),
        pytest.param(
            {"action": "retry", "retries": 4, "expires": dt.date(2099, 1, 31)}, 4, id="many retries"
        ),
    ],
)
def test_a_plan_says_how_often_a_test_is_retried(table: dict[str, Any], retries: int) -> None:
    (rule,) = apply_rules([rule_with(**table)], HERE, TODAY)

    assert rule.retries == retries
