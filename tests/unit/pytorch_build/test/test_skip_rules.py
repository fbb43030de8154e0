from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import DataError, MissingInputError, UsageError
from pytorch_build.test import skip_rules

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
    assert [rule.name for rule in skip_rules.load() if rule.takes(test)] == ([name] if name else [])


def test_a_rule_is_named_by_file_and_table(file: Callable[..., Path], tmp_path: Path) -> None:
    file(RULE)
    (rule,) = skip_rules.load(folder=tmp_path)
    assert (rule.name, rule.table.action, rule.table.expires) == ("mine.one", "skip", None)
    assert rule.takes("test/a.py::test_x")
    assert not rule.takes("test/a.py::test_x2")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('raeson = "x y"', "rules.one.raeson: unknown key. Did you mean 'reason'?"),
        (
            'gpu = ["gfx94X-dgpu"]',
            "rules.one.gpu[0]: Unknown GPU family 'gfx94X-dgpu'. Did you mean 'gfx94X-dcgpu'?",
        ),
        ("gpu = []", "rules.one.gpu: "),
        ('os = ["linus"]', "rules.one.os[0]: "),
        ('python = "3.11"', "rules.one.python: '3.11' is not a version specifier"),
        ('torch = ">=2.x"', "rules.one.torch: '>=2.x' is not a version specifier"),
        ('issue = "2070"', "rules.one.issue: '2070' is not a link"),
        ('expires = "soon"', "rules.one.expires: "),
        ('action = "ignore"', "rules.one.action: "),
        ("retries = 2", "rules.one: 'retries' is for action"),
        ('action = "retry"', "rules.one: a test that is retried must not be forgotten"),
        ('action = "retry"\nissue = "a/b#1"\nretries = 6', "rules.one.retries: "),
        ('patterns = ["test_x"]', "rules.one.patterns[0]: 'test_x' could be anywhere: write ::test_x"),
        ('patterns = ["TestA::*", "TestA::*"]', "rules.one: 'TestA::*' is there twice."),
        ('config = ["inductors"]', "rules.one.config[0]: "),
    ],
)
def test_what_is_wrong_is_named_with_its_key_path(file: Callable[..., Path], line: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        skip_rules.load([file(RULE + line + "\n")])
    assert said in caught.value.message


def test_a_rule_without_a_reason_is_refused(file: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"rules\.one\.reason: this key is missing"):
        skip_rules.load([file('[rules.one]\ntests = ["test/a.py::test_x"]\n')])
    with pytest.raises(DataError, match=r"rules\.one\.reason: the reason must say what goes wrong"):
        skip_rules.load([file('[rules.one]\ntests = ["test/a.py::test_x"]\nreason = "broken"\n')])


def test_a_rule_without_a_test_is_refused(file: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"rules\.one: the rule names no test"):
        skip_rules.load([file('[rules.one]\nreason = "It fails on a full moon."\n')])


def test_every_problem_of_a_file_is_told_at_once(file: Callable[..., Path]) -> None:
    with pytest.raises(DataError) as caught:
        skip_rules.load([file('[rules.one]\ntests = ["test_x"]\nissue = "x"\n')])
    assert all(
        key in caught.value.message for key in ("rules.one.tests[0]", "rules.one.issue", "rules.one.reason")
    )


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


def test_a_file_without_a_rule_is_refused(file: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="rules"):
        skip_rules.load([file("[rules]\n")])
